"""Does the memory of a long run grow? A soak of its processes without models.

    python -m benchmarks.soak [--small 1000000] [--played 100000] [--out DIR]

Two parts, each a stream with the real buffer, its log on disk, and this process in the place of the run: it takes
each version's games, decodes them, and records the lines that a run records (metrics.jsonl, TensorBoard, Prometheus).

    small     games of two short turns go to the buffer by themselves, as fast as it takes them
    played    arenas play them with simulated engines (benchmarks/scale_playing.py) whose turns take 50 ms

Games are played in versions of 1,000.

After each part `spag-ray report` makes the page of its folder. Every second the resident memory of each process is
measured. Growth is the mean over the last twentieth of the time minus the mean over the twentieth that follows its
first tenth: MiB over the last nine tenths. With --out the curves are kept as soak.json, and drawn as soak.html.

The last line is JSON: growth in MiB of each process of each part, seconds, games per second, and the report's seconds,
MiB at its largest, and page in MB.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import psutil
import ray

from benchmarks.machine import machine
from benchmarks.scale_playing import Plane, learn
from benchmarks.stream_restart import PER_VERSION, a_game, stream_spec, whole_versions
from cluster.buffer.buffer_actor import Buffer, BufferActor
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.buffer.stream import STAGE
from cluster.runtime.ray_session import get, ray_session
from cluster.runtime.run_folder import make_run_folder
from cluster.tracking.recorder import Recorder
from spag_ray.config.loading import load_config
from spag_ray.config.parts import ClusterConfig, StreamConfig, TrackingConfig
from spag_ray.episodes.wire import decode, encode
from spag_ray.results.lines import StepLine, StepReport, StreamLine, SyncLine, SyncReport

SETTINGS = ("schedule=stream", "placement=separate")
TURN_S = 0.05
ENGINES, ARENAS, IN_FLIGHT = 8, 2, 512
Curve = list[tuple[float, float]]  # seconds, MiB


class Memory:
    """Resident memory of processes, each second, from a thread."""

    def __init__(self, processes: Mapping[str, int]) -> None:
        self.curves: dict[str, Curve] = {name: [] for name in processes}
        self._processes = {name: psutil.Process(pid) for name, pid in processes.items()}
        self._began = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while True:  # at least once
            for name, process in self._processes.items():
                resident = process.memory_info().rss / 2**20
                self.curves[name].append((round(time.monotonic() - self._began, 1), round(resident, 1)))
            if self._over.wait(1.0):
                return

    def stop(self) -> None:
        self._over.set()
        self._thread.join()


def growth(curve: Curve) -> float:
    """MiB over the last nine tenths of the time."""
    part = max(1, len(curve) // 20)
    first = curve[len(curve) // 10 :][:part]
    return round(statistics.fmean(mib for _, mib in curve[-part:]) - statistics.fmean(mib for _, mib in first), 1)


class RunSide:
    """What a run does for a version of its stream, without a learner."""

    def __init__(self, folder: Path, buffer: Any) -> None:
        self._buffer = buffer
        self._recorder = Recorder(folder, TrackingConfig(tensorboard=True), print)
        self._metrics = BufferMetrics(Buffer(buffer, folder, 60.0), self._recorder, max_lag=40)
        self._began = time.perf_counter()
        self.version = 0

    def took(self, records: Sequence[bytes]) -> None:
        """Record the lines of a version."""
        self.version += 1
        counts, total = get(self._buffer.stream_counts.remote()), get(self._buffer.count.remote(STAGE))
        seconds = time.perf_counter() - self._began
        rates = (total.num_tokens / seconds, total.num_games / seconds)
        waits = (counts.begun, counts.waiting, counts.evicted, counts.lost, counts.repeated, counts.permits_free)
        self._recorder.record(StreamLine(self.version, 0.0, total.num_games, *rates, *waits, dict(counts.lag)))
        for step in range(len(records) // 250):
            self._recorder.record(StepLine(f"spag-{1 + self.version // 100}", "policy", a_step(self.version, step)))
        self._recorder.record(SyncLine("policy", SyncReport(self.version, 0.1, ENGINES, 2**28)))
        self._metrics.sample()

    def close(self) -> None:
        self._recorder.close()


def a_step(version: int, step: int) -> StepReport:
    """A learner's step with made-up values."""
    floats = [each.name for each in fields(StepReport) if str(each.type).startswith("float")]
    values: dict[str, Any] = dict.fromkeys(floats, 1.0 / (1 + version + step))
    return replace(StepReport(step), **values)


def pid_of(actor: Any) -> int:
    """Of the process that hosts an actor."""
    return int(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())))


def run_small(folder: Path, num_games: int) -> tuple[dict[str, Curve], dict[str, Any]]:
    buffer = ray.remote(BufferActor).options(num_cpus=0, max_concurrency=1024).remote(str(folder / "episodes"))
    config = StreamConfig(games_per_version=PER_VERSION, max_lag=40)
    ray.get(buffer.open_stream.remote(stream_spec(config)))
    side = RunSide(folder, buffer)
    memory = Memory({"run": os.getpid(), "buffer": pid_of(buffer)})
    began = time.perf_counter()
    for _ in range(num_games // PER_VERSION):
        tasks = ray.get(buffer.lease.remote("arena", PER_VERSION))
        games = [encode(a_game(task.number, task.scenario, side.version)) for task in tasks]
        ray.get([buffer.add.remote(games[first : first + 50]) for first in range(0, len(games), 50)])
        while (records := ray.get(buffer.batch.remote(5.0))) is None:
            pass
        for record in records:
            decode(record)
        side.took(records)
        ray.get(buffer.advance.remote({"policy": side.version}))
    seconds = time.perf_counter() - began
    memory.stop()
    side.close()
    ray.kill(buffer)
    return memory.curves, {"games": num_games, "seconds": round(seconds), "games_per_s": round(num_games / seconds)}


def run_played(folder: Path, num_games: int) -> tuple[dict[str, Curve], dict[str, Any]]:
    config = StreamConfig(games_per_version=PER_VERSION, max_lag=40)
    plane = Plane(ENGINES, ARENAS, config, IN_FLIGHT, TURN_S, episodes=folder / "episodes")
    side = RunSide(folder, plane.buffer)
    arenas = {f"arena-{number}": pid_of(arena) for number, arena in enumerate(plane.arenas)}
    memory = Memory({"run": os.getpid(), "buffer": pid_of(plane.buffer), **arenas})
    began = time.perf_counter()
    for _ in range(num_games // PER_VERSION):
        while (records := ray.get(plane.buffer.batch.remote(5.0))) is None:
            pass
        learn(records)
        side.took(records)
        plane.learned(side.version)
    seconds = time.perf_counter() - began
    memory.stop()
    side.close()
    plane.close()
    return memory.curves, {"games": num_games, "seconds": round(seconds), "games_per_s": round(num_games / seconds, 1)}


def report(folder: Path) -> dict[str, Any]:
    """Seconds, MiB at its largest, and page in MB of `spag-ray report`."""
    page = folder / "report.html"
    began, most = time.perf_counter(), 0.0
    command = [sys.executable, "-m", "spag_ray", "report", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            with suppress(psutil.NoSuchProcess):
                most = max(most, psutil.Process(process.pid).memory_info().rss / 2**20)
            time.sleep(0.05)
    if process.returncode != 0:
        sys.exit(f"{folder}: the report failed")
    seconds = time.perf_counter() - began
    return {"seconds": round(seconds, 1), "mib": round(most), "page_mb": round(page.stat().st_size / 1e6, 1)}


def drawn(curves: Mapping[str, Mapping[str, Curve]]) -> str:
    """The curves as a page."""
    import plotly.graph_objects as go

    figure = go.Figure()
    for part, processes in curves.items():
        for name, curve in processes.items():
            end = max(1.0, curve[-1][0]) if curve else 1.0
            x, y = [100 * seconds / end for seconds, _ in curve], [mib for _, mib in curve]
            figure.add_scatter(x=x, y=y, name=f"{part}: {name}", mode="lines")
    figure.update_layout(
        template="plotly_white", width=820, height=420, margin={"l": 60, "r": 20, "t": 20, "b": 50},
        xaxis={"title": {"text": "share of the part's time, %"}},
        yaxis={"title": {"text": "resident memory, MiB"}, "rangemode": "tozero"},
    )  # fmt: skip
    return str(figure.to_html(include_plotlyjs=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", type=int, default=1_000_000, help="games of the part `small`; 0 leaves it out")
    parser.add_argument("--played", type=int, default=100_000, help="games of the part `played`; 0 leaves it out")
    parser.add_argument("--out", type=Path, help="folder for soak.json and soak.html")
    options = parser.parse_args()
    curves: dict[str, dict[str, Curve]] = {}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="spag_ray-soak-") as root, ray_session(ClusterConfig(object_store_gib=0.5)):
        for name, run, games in (("small", run_small, options.small), ("played", run_played, options.played)):
            if games < PER_VERSION:
                continue
            folder = make_run_folder(Path(root) / name, load_config("quickstart", SETTINGS))
            curves[name], found[name] = run(folder, whole_versions(games))
            found[name]["growth_mib"] = {process: growth(curve) for process, curve in curves[name].items()}
            found[name]["log_mb"] = round(sum(path.stat().st_size for path in folder.rglob("*.log")) / 1e6)
            found[name]["report"] = report(folder)
            print(json.dumps({name: found[name]}), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "soak.json").write_text(json.dumps({"found": found, "curves": curves, **machine()}) + "\n")
        (options.out / "soak.html").write_text(drawn(curves))
    print(json.dumps({**found, **machine()}))


if __name__ == "__main__":
    main()
