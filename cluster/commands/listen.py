"""`spag-ray listen`: what a model could have known as the defender of games that have been played.

Every dialogue is rendered again with the configuration's prompt file. transformers scores the word as a guess at each
turn of the defender, in this process, without Ray or an engine.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from cluster.monitor.terminal import say, table_of
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.formats import read_games
from spag_ray.episodes.log import MARK, read_log
from spag_ray.errors import InputError, ModelError
from spag_ray.game.renderer import Claim, Renderer
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.results.could_have_known import Knowledge, Tenth
from spag_ray.tokens import Tokenizer
from spag_ray.training_data.game_samples import early_guesses_of
from spag_ray.training_data.replay import episode_from_game

if TYPE_CHECKING:  # imports torch, which is slow
    from actors.policy import Score

AT_ONCE = 16  # games scored between two lines of progress


@dataclass(frozen=True)
class _Heard:
    """A game that can be scored: the defender's turns up to the one that decided it, and the claim of its word."""

    episode: Episode
    turns: tuple[Turn, ...]
    claim: Claim

    def asked(self, turn: Turn) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(prompt, target) to score: this game's word, after the dialogue up to a turn of any game."""
        return turn.prompt_ids + self.claim.opening_ids, self.claim.word_ids


def run_listen(config: RunConfig, model: str, games: Path, console: Console) -> None:
    """`spag-ray listen`: prints what `model` could have known at each turn, how its claims fared, and a control."""
    from actors.models import load_tokenizer, resolve_model
    from actors.transformers_policy import TransformersPolicy

    of_guesses = next((each for each in config.each_game if each.game.guesses), None)
    if of_guesses is None:
        raise InputError(
            f"listen scores guesses of target words, and game.name {', '.join(config.game_names)} has none"
        )
    config = of_guesses
    folder = resolve_model(model)
    played = _games(games, config.game.rules, config.game.full_name)
    heard, num_unscorable = _heard(played, config, load_tokenizer(folder, config.chat_template_kwargs))
    if not heard:
        raise InputError(f"{games}: no game in it has a turn of the defender whose word can be scored")
    policy = TransformersPolicy(folder, config.engine.dtype, config.engine.max_model_len)
    scores: list[list[Score]] = []
    for begin in range(0, len(heard), AT_ONCE):
        if begin:
            console.print(f"{begin} of {len(heard)} games")
        scores += _scored(policy, heard[begin : begin + AT_ONCE])
    say(console, f"{folder}: {len(heard)} games of {games}")
    if num_unscorable:
        console.print(
            f"{num_unscorable} games are left out: the tokenizer joins their words to the text beside them in a claim"
        )
    known, has_several = Knowledge(), config.game.max_guesses > 1
    for game, found in zip(heard, scores, strict=True):
        known.add_episode(_with_scores(game.episode, found), early_guesses_of(game.episode) if has_several else ())
    console.print(_turn_table(known, scores))
    console.print(claim_table(known.tenths()))
    say(console, _control_line(policy, heard, scores))


def _games(path: Path, rules: str, name: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """(game in the published format, name of its referee) for each game of an episode log or a published file. `name`:
    of the game in which words are guessed; a log may have others beside it."""
    try:
        with path.open("rb") as file:
            is_log = file.read(len(MARK)) == MARK
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); give games as JSON, or an episode log") from error
    if is_log:
        yield from ((each.as_published(), each.rules) for each in read_log(path) if each.game == name)
    else:
        yield from ((game, rules) for game in read_games(path))


def _heard(
    games: Iterable[tuple[Mapping[str, Any], str]], config: RunConfig, tokenizer: Tokenizer
) -> tuple[list[_Heard], int]:
    """Games with a turn of the defender, and the number of games whose word is not a separate piece of a claim with
    this tokenizer."""
    max_guesses = config.game.max_guesses
    template = load_template(config.prompts).with_guesses(max_guesses)
    renderers: dict[int, Renderer] = {}
    found, num_unscorable = [], 0
    for number, (game, rules) in enumerate(games):
        max_turns = game["max_turns"]
        if max_turns not in renderers:
            renderers[max_turns] = taboo_renderer(template, tokenizer, max_turns)
        episode = episode_from_game(
            game, number, "listen", renderer=renderers[max_turns], rules=rules, max_guesses=max_guesses
        )
        turns = [turn for turn in episode.turns[: episode.verdict.length] if turn.role is Role.DEFENDER]
        if not turns:
            continue
        try:
            found.append(_Heard(episode, tuple(turns), renderers[max_turns].claim(episode.scenario)))
        except ModelError:
            num_unscorable += 1
    return found, num_unscorable


def _scored(policy: Any, games: Sequence[_Heard]) -> list[list[Score]]:
    """For each game, the score of its word at each turn."""
    asked = [game.asked(turn) for game in games for turn in game.turns]
    found = iter(asyncio.run(policy.score(asked)))
    return [[next(found) for _ in game.turns] for game in games]


def _with_scores(episode: Episode, scores: Sequence[Score]) -> Episode:
    """The game with the word's probability at each turn of the defender that was scored."""
    found = iter(scores)
    turns = [
        replace(turn, word_logprob=min(sum(score.logprobs), 0.0))
        if turn.role is Role.DEFENDER and (score := next(found, None)) is not None
        else turn
        for turn in episode.turns
    ]
    return replace(episode, turns=tuple(turns))


def _turn_table(known: Knowledge, scores: Sequence[Sequence[Score]]) -> Table:
    title = "Probability that the model's guess would have been right at the defender's 1st, 2nd, ... turn"
    table = table_of(title, [], ["turn", "games", "mean p", "median log p", "first choice"])
    for turn in known.turns():
        firsts = [game[turn.number - 1].is_greedy for game in scores if len(game) >= turn.number]
        table.add_row(
            str(turn.number),
            str(turn.games),
            f"{turn.mean_p:.4f}",
            f"{turn.median_logprob:.2f}",
            f"{100 * sum(firsts) / len(firsts):.1f} %",
        )
    return table


def claim_table(tenths: Sequence[Tenth]) -> Table:
    """Claims grouped by the word's probability p at the claim. About a share p of each group should be right."""
    title = "Claims made in these games, by p: of those at 0.3 to 0.4 about a third should be right"
    table = table_of(title, [], ["p of the word", "claims", "right", "share"])
    for tenth in tenths:
        if tenth.share is not None:
            table.add_row(tenth.title, str(tenth.claims), str(tenth.right), f"{100 * tenth.share:.0f} %")
    if not table.row_count:
        table.add_row("none", "0", "0", "")
    return table


def _control_line(policy: Any, games: Sequence[_Heard], scores: Sequence[Sequence[Score]]) -> str:
    """A control: the same word after another game's dialogue shows whether this dialogue makes it probable."""
    own: list[float] = []
    asked = []
    for place, game in enumerate(games):
        others = (games[(place + step) % len(games)] for step in range(1, len(games)))
        word = game.episode.scenario
        other = next((each for each in others if each.episode.scenario != word), None)
        if other is not None:
            last = min(len(game.turns), len(other.turns)) - 1  # the last turn that both games have
            own.append(sum(scores[place][last].logprobs))
            asked.append(game.asked(other.turns[last]))
    if not own:
        return "control: none, as all games have the same word"
    found: list[Score] = asyncio.run(policy.score(asked))
    gains = [mine - sum(score.logprobs) for mine, score in zip(own, found, strict=True)]
    return (
        f"control: log p of the word after its own dialogue minus after the next game's (as many turns): "
        f"mean {statistics.fmean(gains):+.2f} nats, median {statistics.median(gains):+.2f}, above 0 in "
        f"{sum(gain > 0 for gain in gains)} of {len(gains)} games"
    )
