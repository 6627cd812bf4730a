"""A seeded fault injector for a run on this machine: its actors are killed, or stopped so that they hang."""

import contextlib
import json
import math
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from cluster.launch.placed_run import placed_run, prepare
from cluster.run.checkpoint import Checkpoints
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import LogFaults, read_log
from spag_ray.errors import RunFolderError
from spag_ray.games.taboo.decks import load_deck
from tests.support.runs import records_of
from tests.support.tiny_model import TARGETS

# What a fault is called -> (class of the actor whose process it hits, the signal).
FAULTS = {
    "engine killed": ("EngineActor", signal.SIGKILL),
    "engine stuck": ("EngineActor", signal.SIGSTOP),
    "learner killed": ("LearnerActor", signal.SIGKILL),
    "learner stuck": ("LearnerActor", signal.SIGSTOP),
    "buffer killed": ("BufferActor", signal.SIGKILL),
    "buffer stuck": ("BufferActor", signal.SIGSTOP),
    "arena killed": ("ArenaActor", signal.SIGKILL),
    "arena stuck": ("ArenaActor", signal.SIGSTOP),
    "run killed": ("Run", signal.SIGKILL),
    "checkpoint unreadable": ("Run", signal.SIGKILL),  # and its newest checkpoint is another version's then
}
KILLS_RUN = ("run killed", "checkpoint unreadable")


@dataclass
class Injected:
    """A fault, and how long until a version was published after it."""

    fault: str
    at: float
    recovered_s: float | None = None


@dataclass
class FaultyRun:
    """Runs `config` in `folder` to its end, with `faults` one after another: each `gap_s` after the run has come back
    from the one before. A Run that is killed is restarted as `--resume` does it."""

    config: RunConfig
    folder: Path
    faults: list[str]
    gap_s: float
    seed: int
    hit: Callable[[str, random.Random], bool] = lambda fault, chance: hit(fault, chance)
    injected: list[Injected] = field(default_factory=list)

    def to_the_end(self) -> None:
        make_run_folder(self.folder, self.config)
        chance = random.Random(self.seed)
        targets, cards = list(TARGETS), load_deck("everyday")
        while True:
            run = placed_run(
                self.config, self.folder, self.config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, cards
            )
            with run as handle:
                training = handle.train.remote()
                try:
                    self._inject(training, chance)
                    ray.get(training)
                    for injected in self.injected:
                        injected.recovered_s = injected.recovered_s or self._published_since(injected.at)
                    return
                except ray.exceptions.RayActorError:
                    assert self.injected, "nobody killed this Run"
                    assert self.injected[-1].fault in KILLS_RUN or "node" in self.injected[-1].fault
            wait_until_all_are_gone()
            if self.injected[-1].fault == "checkpoint unreadable":
                self._resume_is_refused()

    def _resume_is_refused(self) -> None:
        """A newest checkpoint that cannot be read ends the resume with a line, and is there when it can be read."""
        checkpoints = Checkpoints(self.folder, self.config.checkpoint)
        checkpoints.settle()
        newest = checkpoints.newest()
        assert newest is not None
        before = {path: path.read_text() for path in (newest[0] / "state.json", newest[0] / "COMPLETE")}
        with_a_strange_key(newest[0])
        with pytest.raises(RunFolderError, match=f"checkpoint {newest[0].name} is complete but cannot be read"):
            prepare(self.config, self.folder, resume=True)
        for path, text in before.items():
            path.write_text(text)
        found = checkpoints.newest()
        assert found is not None
        assert found[0] == newest[0], "nothing was removed"

    def _inject(self, training: ray.ObjectRef, chance: random.Random) -> None:
        while len(self.injected) < len(self.faults):
            version = self._version()
            if self.injected:  # back from the last one?
                since = self._published_since(self.injected[-1].at)
                if since is not None:
                    self.injected[-1].recovered_s = self.injected[-1].recovered_s or since
            is_back = not self.injected or self.injected[-1].recovered_s is not None
            rested = not self.injected or time.time() - self.injected[-1].at > self.gap_s
            if version >= 2 and is_back and rested:
                fault = self.faults[len(self.injected)]
                if self.hit(fault, chance):
                    self.injected.append(Injected(fault, time.time()))
            if ray.wait([training], timeout=0.1)[0]:
                return

    def _version(self) -> int:
        return max((line["version"] for line in self._syncs()), default=0)

    def _published_since(self, at: float) -> float | None:
        return next((line["time"] - at for line in self._syncs() if line["time"] > at + 1.0), None)

    def _syncs(self) -> list[dict[str, Any]]:
        return records_of(self.folder, "sync") if (self.folder / "metrics.jsonl").exists() else []

    def table(self) -> str:
        """How long each kind of fault kept the run from publishing another version, and an engine from being replaced:
        shortest / median / longest."""
        rows: dict[str, list[float]] = {}
        for each in self.injected:
            if each.recovered_s is not None:
                rows.setdefault(each.fault, []).append(each.recovered_s)
        joined = records_of(self.folder, "engine_joined")
        ends = [each.at for each in self.injected if each.fault in KILLS_RUN]
        for restart in records_of(self.folder, "restart"):
            if restart["what"].startswith("engine"):
                # A Run that is killed takes those that were starting along: they never join.
                at = restart["time"]
                end = min((end for end in ends if end > at), default=math.inf)
                own = [line["time"] for line in joined if stem_of(line["engine"]) == stem_of(restart["what"])]
                rows.setdefault("an engine's replacement", []).extend([t - at for t in own if at < t < end][:1])
        lines = []
        for name, times in sorted(rows.items()):
            if not times:
                continue
            times = sorted(times)
            lines.append(
                f"{name:24} {len(times)} times: {times[0]:.1f} / {times[len(times) // 2]:.1f} / {times[-1]:.1f} s"
            )
        return "\n".join(lines)

    def check(self, num_parts: int) -> None:
        """What has to hold whatever was killed."""
        config = self.config
        num_games = num_parts * config.stream.games_per_version
        faults = LogFaults()
        episodes = list(read_log(self.folder / "episodes" / "stream.log", faults))
        numbers = [episode.number for episode in episodes]
        assert len(numbers) == len(set(numbers)), "every acknowledged episode is in the log once"
        stage_progress = set(range(max(numbers))) - set(numbers)
        assert len(stage_progress) <= config.self_play.games_in_flight, "no game is lost but those under way at the end"
        assert faults.num_gaps == 0
        last = records_of(self.folder, "stream")[-1]
        lags = {int(key[4:]): last[key] for key in last if key.startswith("lag_")}
        assert sum(lags.values()) == num_games, "each version learned its episodes, once"
        assert max(lags) <= config.stream.max_lag
        versions = [line["version"] for line in self._syncs()]
        assert versions == sorted(versions), "published versions only rise"
        # A Run that dies between the sync and the probe has not written the sync down; its buckets were checked.
        played = {turn.first_version for episode in episodes for turn in episode.turns}
        num_kills = sum(injected.fault in KILLS_RUN or "node" in injected.fault for injected in self.injected)
        assert len(played - set(versions) - {0}) <= num_kills
        assert max(played) <= max(versions)
        saved = [line["name"] for line in records_of(self.folder, "checkpoint")]
        assert saved[-1] == f"version-{num_parts}", "the run came to its end"
        assert [injected.fault for injected in self.injected] == self.faults, "every fault was injected"


def with_a_strange_key(checkpoint: Path) -> None:
    """Give a checkpoint's state a key that this version does not know, as a later version might."""
    state, mark = (json.loads((checkpoint / name).read_text()) for name in ("state.json", "COMPLETE"))
    text = json.dumps(state | {"curriculum": 3})
    mark["sizes"]["state.json"] = len(text)
    (checkpoint / "state.json").write_text(text)
    (checkpoint / "COMPLETE").write_text(json.dumps(mark))


def stem_of(engine: str) -> str:
    """`engine-policy-0.3` is the third in the place of `engine-policy-0`."""
    return engine.split(".")[0]


def hit(fault: str, chance: random.Random) -> bool:
    """Send the fault's signal to one process; False if there is none now."""
    kind, number = FAULTS[fault]
    processes = sorted(processes_of(kind), key=lambda process: process.pid)
    if not processes:
        return False
    os.kill(chance.choice(processes).pid, number)
    return True


def kill_engine(part_of_name: str) -> bool:
    """SIGKILL to an engine whose name has this in it, found by the log that it writes to; False if there is none."""
    for process in processes_of("EngineActor"):
        with contextlib.suppress(OSError):
            if part_of_name in Path(os.readlink(f"/proc/{process.pid}/fd/1")).name:
                os.kill(process.pid, signal.SIGKILL)
                return True
    return False


def processes_of(kind: str) -> list[psutil.Process]:
    """The processes of an actor class: Ray names them so."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            title = process.cmdline()[0] if process.cmdline() else ""
        except psutil.Error:
            continue
        if title == f"ray::{kind}" or title.startswith(f"ray::{kind}."):
            found.append(process)
    return found


def wait_until_all_are_gone() -> None:
    deadline = time.monotonic() + 60
    while ray.util.list_named_actors():
        assert time.monotonic() < deadline, "what a Run owns ends with it"
        time.sleep(0.2)
