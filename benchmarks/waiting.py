"""How long the threads of a CPU learner should spin while they wait for each other.

    python -m benchmarks.waiting [--counts default 1000 10000 100000 passive] [--repeats 2]      on an idle machine

Threads that wait by spinning lose no time if the machine is theirs, and take the time of others if it is not; then the
one thread that all wait for is not running. Each count of spins (GOMP_SPINCOUNT; `passive`: none) is a process of its
own, in turn: optimiser steps of SmolLM2-135M alone, and beside as many busy processes as half the cores. `alone` and
`beside` are steps per second; the last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

NUM_STEPS = 3
CHILD = "--child"


def train() -> float:
    """Steps per second."""
    from actors.models import BUILT_IN, resolve_model
    from benchmarks.learner_games import games_of, without_listening
    from benchmarks.learner_ways import Ours
    from spag_ray.training_data.shares import Batch

    model = resolve_model(BUILT_IN)
    batch = Batch(tuple(without_listening(games_of("chat", 2, model))))
    learner = Ours(model, 2048).learner
    learner.step(batch, at_start=True)
    began = time.perf_counter()
    for _ in range(NUM_STEPS):
        learner.step(batch, at_start=True)
    return NUM_STEPS / (time.perf_counter() - began)


def _spin() -> None:
    while True:
        pass


@contextmanager
def busy(count: int) -> Iterator[None]:
    """In this block, `count` other processes use a core each."""
    others = [multiprocessing.Process(target=_spin, daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def measured(count: str, num_busy: int) -> float:
    settings = {"OMP_WAIT_POLICY": "passive"} if count == "passive" else {"GOMP_SPINCOUNT": count}
    environment = os.environ | ({} if count == "default" else settings)
    with busy(num_busy):
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.waiting", CHILD], env=environment, capture_output=True, text=True
        )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return float(ended.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--counts", nargs="+", default=["default", "1000", "10000", "100000", "passive"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(train())
        return
    others = max(1, (os.cpu_count() or 2) // 2)
    speeds: dict[str, dict[str, list[float]]] = {count: {"alone": [], "beside": []} for count in options.counts}
    for _ in range(options.repeats):
        for count in options.counts:
            for where, num_busy in (("alone", 0), ("beside", others)):
                speeds[count][where].append(measured(count, num_busy))
                print(f"{count}: {where} {speeds[count][where][-1]:.3f} steps/s", flush=True)
    found: dict[str, Any] = {
        count: {where: round(statistics.median(values), 3) for where, values in both.items()}
        for count, both in speeds.items()
    }
    best = max(both["alone"] for both in found.values())
    for both in found.values():
        both["alone_share"] = round(both["alone"] / best, 2)
        both["beside_share"] = round(both["beside"] / both["alone"], 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
