"""Where an attacker's turns could say the target word, and are not to.

    games = with_unsaid_words(games, unsaid_words(episodes, renderer.spoken, max_tokens=2048))

A place is a token of an attacker's turn: that turn's prompt and what it had said until there are read, and the word's
own tokens are pushed down. A game has places in every turn of its attacker, also in the turn that broke the rules, but
none where the turn goes on with the beginning of the word and then says another ("rain" for raincoat).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from spag_ray.episodes.episode import Episode
from spag_ray.game.prompts import Spoken
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.training_data.samples import GameSample, TurnSample

Places = Mapping[str, tuple[tuple[TurnSample, ...], ...]]


def unsaid_words(
    episodes: Sequence[Episode],
    spoken: Callable[[str], Spoken],
    max_tokens: int,
    learning: Container[str] | None = None,
) -> Places:
    """{episode_id: for each of the attacker's turns, its places}. Left out are places of more than `max_tokens` tokens,
    what was said after the verdict, and turns of policies that are not in `learning` (none, if it is None)."""
    found = {}
    for episode in episodes:
        word = spoken(episode.target_word)
        turns = [
            tuple(place for place in _places(turn, word) if place.num_tokens <= max_tokens)
            for turn in episode.turns[: episode.verdict.length]
            if turn.role is Role.ATTACKER and turn.prompt_ids and (learning is None or turn.policy in learning)
        ]
        if kept := tuple(filter(None, turns)):
            found[episode.episode_id] = kept
    return found


def _places(turn: Turn, word: Spoken) -> Iterator[TurnSample]:
    for place in range(len(turn.token_ids)):
        for ids in word.later if place else word.start:
            rest = turn.token_ids[place:]
            if len(ids) == 1 or rest[:1] != ids[:1] or rest[: len(ids)] == ids:
                yield TurnSample(turn.prompt_ids + turn.token_ids[:place], ids, 1.0, role=Role.ATTACKER)


def with_unsaid_words(games: Sequence[GameSample], places: Places) -> list[GameSample]:
    """The games with their places; a game that teaches nothing else stays out."""
    return [replace(game, unsaid=places.get(game.episode_id, ())) for game in games]
