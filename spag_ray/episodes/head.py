"""What a buffer needs of an episode: everything but what was read and said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spag_ray.game.rules import Verdict


class Counted(Protocol):
    """What is counted of a game (game_count.py): an Episode has it, and its head."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def num_turns(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...


class Played(Counted, Protocol):
    """What a stream asks of a game: an Episode has it, and its head."""

    @property
    def number(self) -> int: ...
    @property
    def oldest_versions(self) -> Mapping[str, int]: ...


@dataclass(frozen=True)
class EpisodeHead:
    """`wire.read_head` finds it in a record without unpacking tokens. `num_tokens` are the sampled ones of both seats;
    `oldest_versions` {policy: the oldest version of it that began a turn}."""

    number: int
    stage: str
    target_word: str
    verdict: Verdict
    num_turns: int
    num_tokens: int
    oldest_versions: Mapping[str, int]
