"""The part of an episode that a buffer needs: everything except prompts and replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from spag_ray.game.rules import Verdict


class Counted(Protocol):
    """The attributes that game_count.py counts: an Episode and its head have them."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def num_turns(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def game(self) -> str: ...


class Played(Counted, Protocol):
    """The attributes that a stream needs: an Episode and its head have them."""

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
    scenario: str
    verdict: Verdict
    num_turns: int
    num_tokens: int
    oldest_versions: Mapping[str, int]
    game: str
