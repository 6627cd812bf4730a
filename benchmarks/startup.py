"""From the command to the first turn: where the start of a run spends its time.

    python -m benchmarks.startup [--config quickstart] [--repeats 2] [--trees DIR ...] [-o key=value]

Starts `spag-ray train`, stops it after its first game, and prints for each mark the seconds since the command and the
CPU seconds that all its processes had taken by then. `play`: the first game that engines play asks for its first turn;
`game`: that game is in the log. A mark is seen within half a second. `--trees`: folders of the code, measured in turn,
to compare versions on a machine that others use, too. JSON as the last line.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

from benchmarks.machine import machine

LOOK_EVERY_S = 0.1
WITHIN_S = 600.0
MARKS = {  # of the output, and of the logs that processes open when their first imports are done
    "checked": "run folder:",
    "run": "logs/run.log",
    "engine_process": "logs/engine-*.log",
    "learner_process": "logs/learner-*.log",
    "play": ": play",
    "game": "episodes/*.log",
}


class Watched:
    """The processes of one start, and the CPU seconds of each, also of those that have ended."""

    def __init__(self, pid: int) -> None:
        self._first = psutil.Process(pid)
        self._seconds: dict[tuple[int, float], float] = {}

    def look(self) -> None:
        for each in (self._first, *self.children()):
            try:
                key, times = (each.pid, each.create_time()), each.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._seconds[key] = times.user + times.system

    def children(self) -> list[psutil.Process]:
        return self._first.children(recursive=True) if self._first.is_running() else []

    @property
    def seconds(self) -> float:
        return sum(self._seconds.values())


def start(tree: Path, config: str, overrides: Sequence[str]) -> dict[str, list[float]]:
    """{mark: [wall seconds, CPU seconds]} of one start."""
    with tempfile.TemporaryDirectory(prefix="start-", ignore_cleanup_errors=True) as place:
        folder, output = Path(place) / "run", Path(place) / "output"
        environment = os.environ | {"PYTHONPATH": str(tree), "RAY_TMPDIR": place}
        command = [sys.executable, "-m", "spag_ray", "train", config, "--run-dir", str(folder)]
        command += [part for each in overrides for part in ("-o", each)]
        with output.open("w") as out:
            began = time.perf_counter()
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=tree)
            watched = Watched(process.pid)
            found: dict[str, list[float]] = {}
            try:
                while "game" not in found:
                    watched.look()
                    for mark in _seen(folder, output.read_text(errors="replace")):
                        if mark not in found:
                            found[mark] = [round(time.perf_counter() - began, 1), round(watched.seconds, 1)]
                    if process.poll() is not None or time.perf_counter() - began > WITHIN_S:
                        raise SystemExit(f"no game was played:\n{output.read_text(errors='replace')}")
                    time.sleep(LOOK_EVERY_S)
            finally:
                _end(process, watched)
        print(output.read_text(errors="replace"), flush=True)
    return found


def _seen(folder: Path, output: str) -> Iterator[str]:
    for mark, sign in MARKS.items():
        if "/" not in sign:
            is_seen = sign in output
        else:
            is_seen = any(each.stat().st_size or sign.startswith("logs") for each in folder.glob(sign))
        if is_seen:
            yield mark


def _end(process: subprocess.Popen[bytes], watched: Watched) -> None:
    """The second interrupt ends a run at once."""
    left = watched.children()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
    for each in psutil.wait_procs(left, timeout=20)[1]:
        each.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", default="quickstart")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--trees", nargs="+", type=Path, default=[Path(__file__).resolve().parents[1]])
    parser.add_argument("-o", dest="overrides", action="append", default=[], help="override a key")
    options = parser.parse_args()
    starts: dict[str, list[dict[str, list[float]]]] = {str(tree): [] for tree in options.trees}
    for _ in range(options.repeats):
        for tree in options.trees:
            starts[str(tree)].append(start(tree, options.config, options.overrides))
            print(f"{tree}: {json.dumps(starts[str(tree)][-1])}", flush=True)
    medians = {tree: {mark: _median(mark, those) for mark in MARKS} for tree, those in starts.items()}
    print(json.dumps({"config": options.config, "machine": machine(), "median": medians, "starts": starts}))


def _median(mark: str, starts: Sequence[dict[str, list[float]]]) -> list[float]:
    """[wall, CPU] seconds."""
    pairs = [each[mark] for each in starts if mark in each]
    return [round(statistics.median(values), 1) for values in zip(*pairs, strict=True)]


if __name__ == "__main__":
    main()
