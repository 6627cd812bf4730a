"""A judged game, and how many games there were and how they ended.

Made by an arena (actors/arena.py), serialised by wire.py, stored in the replay buffer; samples.py turns it into
training samples.

    >>> from spag_ray.game.rules import Role
    >>> turn = Turn(Role.ATTACKER, "It purrs.", (1, 5), token_ids=(7, 2), logprobs=(-0.5, -0.1), policy="base")
    >>> turn.num_tokens
    2
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from spag_ray.errors import InputError
from spag_ray.game.protocol import TABOO
from spag_ray.game.rules import GameEnd, Outcome, Role, Verdict, end_of, next_role
from spag_ray.game.turn import Turn

ALTERNATING = {TABOO, "kuhn"}  # shipped games whose turns alternate, the attacker's first


@dataclass(frozen=True)
class Episode:
    """A finished game with its verdict. `stage` names the part of the run that played it. `number` is its place in the
    order in which words were given out, so sorting episodes does not depend on which finished first. `game`: its name
    in the configuration. Turns are in the order in which they were said; a role may have several in a row. Raises
    InputError for more than `max_turns` of a role, and for turns of a shipped game that do not alternate in it."""

    episode_id: str
    number: int
    stage: str
    scenario: str
    max_turns: int
    rules: str
    temperature: float
    turns: tuple[Turn, ...]
    verdict: Verdict
    game: str = TABOO

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise InputError(f"episode {self.episode_id}: the temperature is {self.temperature}; it must be at least 0")
        for index, turn in enumerate(self.turns if self.game in ALTERNATING else ()):
            if turn.role is not next_role(index):
                raise InputError(
                    f"episode {self.episode_id}: turn {index} is by the {turn.role}, but turns alternate and it is "
                    f"the {next_role(index)}'s; check the source of this game"
                )
        for role in Role:
            if (count := sum(turn.role is role for turn in self.turns)) > self.max_turns:
                raise InputError(
                    f"episode {self.episode_id}: {count} turns of the {role}, at most {self.max_turns} allowed"
                )

    @property
    def history(self) -> list[dict[str, str]]:
        """The dialogue as the referee reads it: [{"role", "content"}, ...]."""
        return [{"role": str(turn.role), "content": turn.text} for turn in self.turns]

    @property
    def num_turns(self) -> int:
        return len(self.turns)

    def turns_of(self, role: Role) -> list[int]:
        """Indices of this role's turns, of those that the verdict is about."""
        return [index for index, turn in enumerate(self.turns[: self.verdict.length]) if turn.role is role]

    @property
    def oldest_versions(self) -> dict[str, int]:
        """{policy: the oldest version of it that began a turn}."""
        oldest: dict[str, int] = {}
        for turn in self.turns:
            oldest[turn.policy] = min(oldest.get(turn.policy, turn.first_version), turn.first_version)
        return oldest

    @property
    def num_tokens(self) -> int:
        """Sampled tokens of both seats."""
        return sum(turn.num_sampled for turn in self.turns)

    def as_published(self) -> dict[str, Any]:
        """The game in the published format, with the verdict added."""
        return {
            "history": self.history,
            "target_word": self.scenario,
            "max_turns": self.max_turns,
            "outcome": str(self.verdict.outcome),
            "reason": self.verdict.reason,
        }


@dataclass(frozen=True)
class EpisodeHead:
    """The part of an episode that a buffer needs: everything except prompts and replies. `wire.read_head` finds it in a
    record without unpacking tokens. `num_tokens` are the sampled ones of both seats; `oldest_versions` {policy: the
    oldest version of it that began a turn}."""

    number: int
    stage: str
    scenario: str
    verdict: Verdict
    num_turns: int
    num_tokens: int
    oldest_versions: Mapping[str, int]
    game: str


Played: TypeAlias = Episode | EpisodeHead  # what is counted, and what a stream keeps


@dataclass
class GameCount:
    """Games and how they ended, their turns and sampled tokens."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    ends: Counter[GameEnd] = field(default_factory=Counter)
    num_turns: int = 0
    num_tokens: int = 0

    @property
    def num_games(self) -> int:
        return self.outcomes.total()

    def add(self, game: Played) -> None:
        self.outcomes[game.verdict.outcome] += 1
        self.ends[end_of(game.verdict)] += 1
        self.num_turns += game.num_turns
        self.num_tokens += game.num_tokens

    def __add__(self, other: GameCount) -> GameCount:
        return GameCount(
            self.outcomes + other.outcomes,
            self.ends + other.ends,
            self.num_turns + other.num_turns,
            self.num_tokens + other.num_tokens,
        )


def count_by_game(games: Iterable[Played]) -> dict[str, GameCount]:
    """{name of the game: its games}, in order of first appearance."""
    found: dict[str, GameCount] = {}
    for each in games:
        found.setdefault(each.game, GameCount()).add(each)
    return found
