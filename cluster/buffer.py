"""The replay buffer: judged episodes in, whole rounds out. A plain class; the Run places it as a named actor.

An episode is written to its stage's log before `add` returns, so what was acknowledged is on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from spag_ray.errors import RunFolderError
from spag_ray.game import Outcome
from spag_ray.wire import EpisodeLog, decode


@dataclass(frozen=True)
class StageCount:
    """What a stage has played so far: outcomes, turns and sampled tokens."""

    outcomes: dict[Outcome, int] = field(default_factory=dict)
    num_turns: int = 0
    num_tokens: int = 0

    @property
    def num_games(self) -> int:
        return sum(self.outcomes.values())


class ReplayBuffer:
    """Episodes by stage, as msgpack, in memory until they are taken and on disk for good."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._logs: dict[str, EpisodeLog] = {}
        self._waiting: dict[str, dict[int, bytes]] = {}
        self._seen: set[str] = set()
        self._outcomes: dict[str, Counter[Outcome]] = {}
        self._turns: Counter[str] = Counter()
        self._tokens: Counter[str] = Counter()

    def add(self, records: Iterable[bytes]) -> int:
        """Keep encoded episodes; one that was kept before (asked again after a lost reply) is not kept twice.

        Returns how many were new. Raises RunFolderError when the disk takes no more.
        """
        new = 0
        for data in records:
            episode = decode(data)
            if episode.episode_id in self._seen:
                continue
            try:
                self._log(episode.stage).append(data)
            except OSError as error:
                raise RunFolderError(f"{self._folder}: an episode could not be written: {error.strerror}") from error
            self._seen.add(episode.episode_id)
            self._waiting.setdefault(episode.stage, {})[episode.number] = data
            self._outcomes.setdefault(episode.stage, Counter())[episode.verdict.outcome] += 1
            self._turns[episode.stage] += len(episode.turns)
            self._tokens[episode.stage] += episode.num_tokens
            new += 1
        return new

    def take(self, stage: str) -> list[bytes]:
        """All episodes of a stage, in the order of their numbers; they are then no longer in memory."""
        waiting = self._waiting.pop(stage, {})
        return [waiting[number] for number in sorted(waiting)]

    def count(self, stage: str) -> StageCount:
        return StageCount(dict(self._outcomes.get(stage, {})), self._turns[stage], self._tokens[stage])

    def _log(self, stage: str) -> EpisodeLog:
        if stage not in self._logs:
            self._logs[stage] = EpisodeLog(self._folder / f"{stage}.log")
        return self._logs[stage]
