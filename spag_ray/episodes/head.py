"""The part of an episode that a buffer needs: everything except prompts and replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import Verdict


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


Played: TypeAlias = Episode | EpisodeHead  # what is counted, and what a stream keeps
