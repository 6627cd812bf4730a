"""`render: varied`: trains turns under prompts drawn at random, as the published method does.

Play always uses one wording. Training uses the same dialogue, tokenised again, with a wording of the rules, a
separator, a pair of speaker names and a layout drawn for each turn. These tokens were not sampled under these prompts,
so their old log-probabilities are the learner's own at the stage's start.

    episodes = rerendered(episodes, load_varied("varied"), tokenizer, seed=0)
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from spag_ray.episodes.episode import Episode
from spag_ray.errors import ConfigError
from spag_ray.game.rules import Role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.prompt_file import GUESSES, MARKS, check_line, check_marks, filled, read_prompts
from spag_ray.tokens import PUBLISHED_MAX_TOKENS, Tokenizer, published_ids

Piece = Literal["{rules}", "{dialogue}", "{task}"]


class Layout(BaseModel):
    """The order of the pieces, and the format of the dialogue."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    pieces: tuple[Piece, Piece, Piece]
    title: str
    empty: str
    line: str


class VariedPrompts(BaseModel):
    """A file of prompts to draw from (configs/prompts/varied.yaml)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    wordings: tuple[str, ...] = Field(min_length=1)
    separators: tuple[str, ...] = Field(min_length=1)
    names: tuple[Mapping[Role, str], ...] = Field(min_length=1)
    layouts: tuple[Layout, ...] = Field(min_length=1)
    tasks: Mapping[Role, str]

    def draw(
        self, rng: random.Random, said: Sequence[tuple[Role, str]], role: Role, target_word: str, max_turns: int
    ) -> str:
        """The prompt of one turn; the defender's never holds the target word."""
        wording, separator = rng.choice(self.wordings), rng.choice(self.separators)
        names, layout = rng.choice(self.names), rng.choice(self.layouts)
        lines = [layout.line.format(speaker=names[speaker], text=text) for speaker, text in said]
        known = target_word if role is Role.ATTACKER else None
        pieces = {
            "{rules}": _fill(wording, names, None, max_turns),
            "{dialogue}": "\n".join([layout.title, *lines]) if said else layout.empty,
            "{task}": _fill(self.tasks[role], names, known, max_turns),
        }
        return separator.join(pieces[piece] for piece in layout.pieces) + separator


def load_varied(name: str) -> VariedPrompts:
    """The shipped file (`varied`) or one of the user's own. Raises ConfigError naming the file and the fault."""
    path, prompts = read_prompts(name, VariedPrompts, "a file of varied prompts")
    if set(prompts.tasks) != set(Role) or any(set(names) != set(Role) for names in prompts.names):
        raise ConfigError(f"{path}: tasks and every pair of names need an attacker and a defender")
    for text in (*prompts.wordings, *prompts.tasks.values()):
        check_marks(path, text, [*MARKS, *Role])
        if GUESSES in text:
            raise ConfigError(f"{path}: {GUESSES} is not filled in varied prompts; write the number")
    if "{target_word}" not in prompts.tasks[Role.ATTACKER]:
        raise ConfigError(f"{path}: the attacker's task never tells the {{target_word}}; add it")
    if "{target_word}" in prompts.tasks[Role.DEFENDER] or any("{target_word}" in text for text in prompts.wordings):
        raise ConfigError(f"{path}: the defender's task or a wording holds the {{target_word}}; take it out")
    for number, layout in enumerate(prompts.layouts):
        check_line(path, f"layouts.{number}.line", layout.line)
        if len({*layout.pieces}) < len(layout.pieces):
            raise ConfigError(f"{path}: layouts.{number}.pieces: {', '.join(layout.pieces)}; give each of them once")
    return prompts


def rerendered(
    episodes: Sequence[Episode],
    prompts: VariedPrompts,
    tokenizer: Tokenizer,
    seed: int,
    most: int = PUBLISHED_MAX_TOKENS,
) -> list[Episode]:
    """The same games with a new prompt drawn for every turn, as a function of the seed, the episode and the turn.

    Tokenised as published (`published_ids`), and cut at `most` tokens. Log-probabilities are 0, because the turns were
    not sampled this way.
    """

    def again(episode: Episode, index: int, turn: Turn) -> Turn:
        if not turn.token_ids:
            return turn
        rng = random.Random(f"{seed}/{episode.episode_id}/{index}")
        said = [(earlier.role, earlier.text) for earlier in episode.turns[:index]]
        text = prompts.draw(rng, said, turn.role, episode.scenario, episode.max_turns)
        prompt, reply = published_ids(tokenizer, text, turn.text, most)
        return replace(turn, prompt_ids=prompt, token_ids=reply, logprobs=(0.0,) * len(reply), forced=None)

    return [
        replace(episode, turns=tuple(again(episode, index, turn) for index, turn in enumerate(episode.turns)))
        for episode in episodes
    ]


def _fill(text: str, names: Mapping[Role, str], target_word: str | None, max_turns: int) -> str:
    named = text.replace("{attacker}", names[Role.ATTACKER]).replace("{defender}", names[Role.DEFENDER])
    return filled(named, target_word, max_turns)
