"""What there is to see of a run, from the lines of its metrics.jsonl: for `spag-ray watch`.

    view = RunView("quickstart", config)
    for line in MetricLines(folder / "metrics.jsonl").new():
        view.take(line)                                        # watch_frame.py draws it

It grows with the number of stages alone, however long the run.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

from cluster.metric_registry import phase_of
from cluster.progress import Progress
from cluster.view_parts import (
    MAX_POINTS,
    Learned,
    Learning,
    Published,
    Shares,
    Waiting,
    lags_of,
    outcomes_of,
)
from spag_ray.config import RunConfig
from spag_ray.evaluations import Evaluation
from spag_ray.game import Outcome

MAX_HAPPENINGS = 50
LATELY = 13  # lines `games`, at most one every 5 s
_HAPPENINGS = {
    "restart": "{what} is begun again ({cause}): {reason}",
    "engine_joined": "{engine} joined, at version {version}",
    "engine_lost": "{engine} was found dead",
    "engine_left": "{engine} was taken out",
    "resumed": "went on from checkpoint {checkpoint}",
    "log_damage": "the log of {stage} was damaged: {damage}",
    "set_aside": "{log} was set aside: played beyond the checkpoint",
}

KINDS = ("evaluation", "games", "buffer", "play", "step", "stream", "sync", *_HAPPENINGS)  # of lines that it shows


class RunView:
    """`config` is None where it cannot be read. `progress` is what the run itself says, `end` how it ended, where that
    is known; `evaluations` are by stage, task and metric, the newest last. `num_unread` lines were not understood:
    another version of spag_ray wrote them."""

    def __init__(self, name: str, config: RunConfig | None = None) -> None:
        self.name = name
        self.config = config
        self.progress: Progress | None = None
        self.end: str | None = None
        self.evaluations: dict[tuple[str, str, str], Evaluation] = {}
        self.num_unread = 0
        self.began: float | None = None
        self.newest: float | None = None
        self.doing = "starting"
        self.learning: dict[str, Learning] = {}
        self.published: dict[str, Published] = {}
        self.waiting: Waiting | None = None
        self.sync_seconds: deque[float] = deque(maxlen=MAX_POINTS)
        self.tokens_per_s: deque[float] = deque(maxlen=MAX_POINTS)
        self.games_per_s = 0.0
        self.held_out: dict[str, Shares] = {}
        self.restarts: Counter[str] = Counter()
        self.happenings: deque[tuple[float, str]] = deque(maxlen=MAX_HAPPENINGS)
        self._self_play: deque[Counter[str]] = deque(maxlen=LATELY)
        self._games: Mapping[str, Any] | None = None  # the newest such line
        self._is_stream = False
        self._learned = Learned()

    def take(self, line: Mapping[str, Any]) -> None:
        """`line` has `time` and `kind`; whatever else it has."""
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            self.num_unread += 1

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """A row of evaluations.json, or a line of metrics.jsonl, which leaves out what is None. Raises KeyError,
        TypeError or ValueError for what is none."""
        found = Evaluation.from_json({"stderr": None, **row})
        self.evaluations[found.stage, found.task, found.metric] = found

    @property
    def self_play(self) -> Shares | None:
        """The last minute of it in which games ended."""
        if not self._self_play:
            return None
        first, last = self._self_play[0], self._self_play[-1]
        return Shares("self-play", (last - first) or last)

    def learned(self) -> tuple[int, int] | None:
        """(rounds that were learned and published, all of them); of a stream it is versions."""
        config = self.config
        if config is None or not config.self_play.rounds:
            return None
        total = config.self_play.rounds
        if config.schedule == "stream":
            total *= config.self_play.games_per_round // config.stream.games_per_version
        return min(self._learned.num_done, total), total

    def seconds_left(self, now: float) -> float | None:
        """By what a round, or a version of a stream, has taken so far; None while nobody can know."""
        learned = self.learned()
        if learned is None or self._learned.num_timed == 0:
            return None
        num_left = learned[1] - learned[0]
        return max(0.0, num_left * self._learned.seconds_each - (now - self._learned.newest))

    def _take(self, line: Mapping[str, Any]) -> None:
        kind = line["kind"]
        self.began = line["time"] if self.began is None else self.began
        self.newest = line["time"]
        if (words := _HAPPENINGS.get(kind)) is not None:
            self.happenings.append((line["time"], words.format_map(line)))
        if (take := getattr(self, f"_take_{kind}", None)) is not None:
            take(line)

    def _take_step(self, line: Mapping[str, Any]) -> None:
        learning = self.learning.setdefault(str(line["policy"]), Learning())
        learning.take(line)
        self.doing = f"{learning.stage}: learn, step {learning.step}"
        if not self._is_stream and phase_of(learning.stage) == "self_play":
            self._learned.learns(int(learning.stage.split("-")[1]))

    def _take_stream(self, line: Mapping[str, Any]) -> None:
        self._is_stream = True
        self.games_per_s = float(line["games_per_s"])
        if self.config is not None:
            self._learned.learns(sum(lags_of(line).values()) // self.config.stream.games_per_version)

    def _take_sync(self, line: Mapping[str, Any]) -> None:
        published = Published(
            int(line["version"]),
            float(line["seconds"]),
            int(line.get("num_engines", 0)),
            int(line.get("num_bytes", 0)),
            float(line.get("probe_gap_max", 0)),
        )
        self.published[str(line["policy"])] = published
        self.sync_seconds.append(published.seconds)
        self._learned.published(line["time"])

    def _take_buffer(self, line: Mapping[str, Any]) -> None:
        permits = line.get("permits_free")
        self.waiting = Waiting(
            int(line["waiting"]),
            float(line["oldest_s"]),
            None if permits is None else int(permits),
            int(line.get("evicted", 0)),
            lags_of(line),
        )

    def _take_play(self, line: Mapping[str, Any]) -> None:
        stage = str(line["stage"])
        self.doing = f"{stage}: played"
        self.games_per_s = float(line["games_per_s"])
        if phase_of(stage) == "evaluation":
            name = stage.removeprefix("eval-").removeprefix("match-")
            self.held_out[name] = Shares(name, {str(each): int(line[each]) for each in Outcome if each in line})

    def _take_games(self, line: Mapping[str, Any]) -> None:
        """Sums of a phase, since the buffer's process began."""
        outcomes, num_tokens = outcomes_of(line), int(line["tokens"])
        if line["phase"] == "self_play":
            if self._self_play and self._self_play[-1] - outcomes:
                self._self_play.clear()  # they have fallen
            self._self_play.append(outcomes)
        before, self._games = self._games, line
        if before is None or before["phase"] != line["phase"] or num_tokens < before["tokens"]:
            return
        seconds = line["time"] - before["time"]
        if 0 < seconds < 60:  # else something else went on between
            self.tokens_per_s.append((num_tokens - before["tokens"]) / seconds)
            self.games_per_s = (outcomes.total() - outcomes_of(before).total()) / seconds

    def _take_evaluation(self, line: Mapping[str, Any]) -> None:
        self.evaluated(line)

    def _take_restart(self, line: Mapping[str, Any]) -> None:
        self.restarts[line["what"].replace(".", "-").split("-")[0]] += 1
