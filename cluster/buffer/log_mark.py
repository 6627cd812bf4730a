"""Where a restart of a stream begins to read the log: everything before the mark is finished with.

    log     0 ........ mark ........ end          before: only counted (LogMark)
                        |  unfinished, finished    after: read again (GameStream.restore)

The mark is a part of the stream's cursor. It moves when the oldest unfinished episode is finished, so what a restart
reads is bounded by the episodes that wait and not by the length of the run.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from spag_ray.episodes.episode import GameCount, Played
from spag_ray.episodes.log import LOG_START, LogPlace
from spag_ray.game.rules import GameEnd, Outcome, Role, end_reason

_RATE = 0.02


class Numbers:
    """A set of game numbers, nearly contiguous from 0: stored as a limit below which all are in it, and the others."""

    def __init__(self, below: int = 0, others: Iterable[int] = ()) -> None:
        self._below = below
        self._others = set(others)

    def add(self, number: int) -> None:
        if number >= self._below:
            self._others.add(number)
        while self._below in self._others:
            self._others.remove(self._below)
            self._below += 1

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._others

    def __len__(self) -> int:
        return self._below + len(self._others)

    @property
    def end(self) -> int:
        """One more than the largest."""
        return max(self._others, default=self._below - 1) + 1

    def missing(self) -> list[int]:
        """The numbers below `end` that are not in the set."""
        return [number for number in range(self._below, self.end) if number not in self._others]

    def as_json(self) -> list[Any]:
        return [self._below, sorted(self._others)]


@dataclass
class WinRates:
    """How often each seat wins decided games: a moving mean over about 50 games."""

    rates: dict[Role, float] = field(default_factory=lambda: dict.fromkeys(Role, 0.5))

    def surprise(self, game: Played) -> float:
        """How far the result is from what its winner's seat usually gets: the size of its advantage; 0 if undecided.
        The game then counts."""
        winner = game.verdict.outcome.winner
        if winner is None:
            return 0.0
        surprise = 1.0 - self.rates[winner]
        for role in Role:
            self.rates[role] += _RATE * ((role is winner) - self.rates[role])
        return surprise


@dataclass
class LogMark:
    """The episodes of the log before `place`, all finished with: their numbers, their count, and the win rates after
    them. `identity` is the log's (log.py): a mark says nothing of another log."""

    place: LogPlace = LOG_START
    identity: int | None = None
    seen: Numbers = field(default_factory=Numbers)
    rates: WinRates = field(default_factory=WinRates)
    count: GameCount = field(default_factory=GameCount)

    def add(self, game: Played) -> None:
        self.seen.add(game.number)
        self.rates.surprise(game)
        self.count.add(game)

    def as_json(self) -> dict[str, Any]:
        return {
            "place": list(self.place),
            "identity": self.identity,
            "seen": self.seen.as_json(),
            "rates": {str(role): rate for role, rate in self.rates.rates.items()},
            "ends": [[str(end.outcome), str(end.reason), number] for end, number in self.count.ends.items()],
            "num_turns": self.count.num_turns,
            "num_tokens": self.count.num_tokens,
        }

    @classmethod
    def from_cursor(cls, cursor: Mapping[str, Any] | None) -> LogMark | None:
        """The mark in a cursor; None if there is none: the cursor is from version 0.1, or nothing was written yet."""
        data = (cursor or {}).get("log")
        if data is None or data["identity"] is None:
            return None
        count = GameCount(num_turns=data["num_turns"], num_tokens=data["num_tokens"])
        for outcome, reason, number in data["ends"]:
            count.outcomes[Outcome(outcome)] += number
            count.ends[GameEnd(Outcome(outcome), end_reason(reason))] += number
        rates = WinRates({Role(role): rate for role, rate in data["rates"].items()})
        return cls(LogPlace(*data["place"]), data["identity"], Numbers(*data["seen"]), rates, count)


class LogTail:
    """The written episodes after the mark, in the order of the log, and the mark itself."""

    def __init__(self, mark: LogMark | None = None) -> None:
        self.mark = copy.deepcopy(mark) or LogMark()
        self._kept: dict[int, Played] = {}  # not written yet
        self._written: deque[tuple[LogPlace, Played]] = deque()
        self._end = self.mark.place

    def keep(self, game: Played) -> None:
        self._kept[game.number] = game

    def write(self, places: Mapping[int, LogPlace], end: LogPlace, identity: int | None) -> None:
        """{number: where its record begins} of kept episodes, in the order of the log, which ends at `end` now."""
        self._written += ((place, self._kept.pop(number)) for number, place in places.items() if number in self._kept)
        self._end, self.mark.identity = end, identity

    def advance(self, is_finished: Callable[[int], bool]) -> LogMark:
        """Move the mark to the oldest episode that is not finished; the mark."""
        while self._written and is_finished(self._written[0][1].number):
            self.mark.add(self._written.popleft()[1])
        self.mark.place = self._written[0][0] if self._written else self._end
        return self.mark
