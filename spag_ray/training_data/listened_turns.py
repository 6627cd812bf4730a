"""Which turns of finished games train the seat that guesses to name the hidden fact from what was said so far. In Taboo
the defender guesses, and the fact is the word.

    heard = listened_turns(episodes, renderer.claim_of, "all", max_tokens=2048)   {episode_id: positions}
    games = with_listening(games, heard)

A position is one of the guesser's turns. The model reads the turn's own prompt and the claim's opening ("I know the
word! It is `"). The word and its closing mark are trained on. The opening is not: this term trains what to claim, not
when. For some words only the opening is trained on, which trains when to claim (`objective.claiming_coeff`). These
words are read only to see how probable they are. They are never trained on, so this is how often a guess of a new word
is right.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

from spag_ray.config.parts import ListeningTurns
from spag_ray.episodes.episode import Episode
from spag_ray.game.renderer import Claim
from spag_ray.game.rules import Role
from spag_ray.training_data.samples import Claiming, GameSample, Sample

Heard = Mapping[str, tuple[Sample, ...]]


@dataclass(frozen=True)
class WhenToClaim:
    """About `words` of all words train when to claim, at the `temperature` of play, with `share` of the term's weight
    (0: these words are not used)."""

    words: float
    temperature: float = 1.0
    share: float = 1.0


def listened_turns(
    episodes: Sequence[Episode],
    claim: Callable[[str], Claim],
    turns: ListeningTurns,
    max_tokens: int,
    learning: Container[str] | None = None,
    when: WhenToClaim | None = None,
    guesser: Role = Role.DEFENDER,
) -> Heard:
    """{episode_id: its positions}, for games that have any. With `last`, only each game's last position. `claim`: of a
    scenario (Renderer.claim_of).

    A turn of `guesser` counts if the other seat had not broken the rules before it, however the game ended. Positions
    of more than `max_tokens` are left out, and turns of policies that are not in `learning` (None: all are in). With
    `when`, some words train when to claim.
    """
    heard = {}
    for episode in episodes:
        spoken = [episode.turns[index] for index in guessers_turns(episode, guesser)]
        own = [turn for turn in spoken if turn.prompt_ids and (learning is None or turn.policy in learning)]
        if not own:
            continue
        word = claim(episode.scenario)
        read, learned, claiming = word.opening_ids, word.word_ids, None
        if when is not None and is_for_claiming(episode.scenario, when.words):
            if not when.share:
                continue
            read, learned = (), word.opening_ids + word.word_ids
            claiming = Claiming(word.num_deciding, len(word.opening_ids), when.temperature, when.share)
        positions = [Sample(turn.prompt_ids + read, learned, 1.0, role=guesser, claiming=claiming) for turn in own]
        fitting = [position for position in positions if position.num_tokens <= max_tokens]
        if fitting:
            heard[episode.episode_id] = tuple(fitting if turns == "all" else fitting[-1:])
    return heard


def is_for_claiming(word: str, share: float) -> bool:
    """Whether this word trains when to claim: true for about this share of all words, always the same ones."""
    return zlib.crc32(word.encode()) < share * 2**32


def guessers_turns(episode: Episode, guesser: Role = Role.DEFENDER) -> list[int]:
    """Indices of the turns of the seat that guesses before any breach by the other one."""
    verdict, own = episode.verdict, episode.turns_of(guesser)
    if verdict.outcome.breaker not in (None, guesser) and verdict.turn is not None:
        return [index for index in own if index < verdict.turn]
    return own


def with_listening(games: Sequence[GameSample], heard: Heard) -> list[GameSample]:
    """The games with their positions, then the games that have only positions."""
    known = {game.episode_id for game in games}
    rest = [GameSample(name, None, 1.0, (), positions) for name, positions in heard.items() if name not in known]
    return [*(replace(game, listening=heard.get(game.episode_id, ())) for game in games), *rest]


def count_leading(games: Sequence[GameSample]) -> int:
    """The number of games that fill batches: those with trained turns, or all, if none has any."""
    return sum(bool(game.turns) for game in games) or len(games)


def spread(games: Sequence[GameSample], batch_games: int | None, num_steps: int) -> list[list[GameSample]]:
    """The batches of `num_steps` optimiser steps: games in the order given, `batch_games` per step. Games that have
    only positions, and all games without `batch_games`, are spread evenly over the steps."""
    leading = [game for game in games if game.turns]
    riding = [game for game in games if not game.turns]

    def even(some: Sequence[GameSample], step: int) -> Sequence[GameSample]:
        return some[step * len(some) // num_steps : (step + 1) * len(some) // num_steps]

    return [
        [
            *(even(leading, step) if batch_games is None else leading[step * batch_games : (step + 1) * batch_games]),
            *even(riding, step),
        ]
        for step in range(num_steps)
    ]
