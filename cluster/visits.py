"""What a session asks of a run while it goes on (console.py): plain values out, nothing that a client has to import."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.arena import GameTask
from cluster.runtime import get
from spag_ray.episode_log import read_segment
from spag_ray.errors import InputError
from spag_ray.game import Outcome, Role
from spag_ray.wire import decode

if TYPE_CHECKING:
    from cluster.run import Run

MAX_ASKED = 1000  # episodes or records in one answer


class Visits:
    """Of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def episodes(self, count: int, outcome: str | None, stage: str | None) -> list[dict[str, Any]]:
        """The last `count` judged episodes in the published format with `stage` and `number`, the newest last; of one
        outcome, of one stage. Raises InputError for an outcome that there is not."""
        known = [str(each) for each in Outcome]
        if outcome is not None and outcome not in known:
            raise InputError(f"outcome {outcome!r}: there are {', '.join(known)}")
        count = min(count, MAX_ASKED)
        found: list[dict[str, Any]] = []
        # Segment by segment, the newest first: those that are older than what was asked for are not read.
        segments = (self._run.folder / "episodes").glob("*.log")
        for path in sorted(segments, key=lambda path: path.stat().st_mtime, reverse=True):
            if len(found) < count and stage in (None, path.name.split(".")[0]):
                found = self._last_of(path, count - len(found), outcome) + found
        return found

    def metrics(self, kind: str | None, count: int) -> list[dict[str, Any]]:
        """The last `count` lines of metrics.jsonl; of one kind."""
        return self._run.metrics.last(kind, min(count, MAX_ASKED))

    def play(self, word: str, texts: list[str], human: str) -> dict[str, Any]:
        """A game on `word` against the newest weights, `texts` its turns so far: the same with their next turn, and how
        the game ended if it has."""
        run = self._run
        if run.engines.are_asleep:
            raise InputError("the engines sleep while the learner learns on their devices; ask again when it plays")
        role = Role(human).other
        task = GameTask(0, word, "visit", run.config.seed)
        seat = run.policy_seat(role, run.config.sampling.temperature)
        answered, verdict = get(run.arenas.handles[0].answer.remote(task, texts, seat))
        over = None if verdict is None else {"outcome": str(verdict.outcome), "reason": verdict.reason}
        return {"turns": answered, "verdict": over, "version": run.version}

    @staticmethod
    def _last_of(path: Path, count: int, outcome: str | None) -> list[dict[str, Any]]:
        kept: deque[dict[str, Any]] = deque(maxlen=count)
        for episode in map(decode, read_segment(path)):
            if outcome is None or str(episode.verdict.outcome) == outcome:
                kept.append({"stage": episode.stage, "number": episode.number, **episode.as_published()})
        return list(kept)
