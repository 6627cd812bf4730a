"""How long the threads of a CPU learner, or of an engine, should spin while they wait for each other.

    python -m benchmarks.waiting [--work engine] [--counts default 1000 10000 100000 passive] [--repeats 2]

Threads that wait by spinning lose no time if the machine is theirs, and take the time of others if it is not; then the
one thread that all wait for is not running. Each count of spins (GOMP_SPINCOUNT; `passive`: none) is a process of its
own, in turn, on an idle machine: SmolLM2-135M alone, and beside as many busy processes as half the cores. `alone` and
`beside` are optimiser steps per second, with `--work engine` vLLM's answers per second to 64 prompts at once; the last
line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

NUM_STEPS = 3
NUM_AT_ONCE = 64  # prompts of an engine
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


def answer() -> float:
    """Answers per second."""
    return asyncio.run(_answer())


async def _answer() -> float:
    from actors.engine_process import start_engine
    from actors.models import BUILT_IN, load_tokenizer, resolve_model
    from actors.policy import Request, Sampling
    from spag_ray.config.engine import EngineConfig
    from spag_ray.games.taboo.decks import load_deck

    model = resolve_model(BUILT_IN)
    encode = load_tokenizer(model).encode
    prompts = [encode(f"Hints that make one think of {word}.\nHint: Think of") for word in list(load_deck("everyday"))]
    engine = await start_engine(model, EngineConfig(max_model_len=1024, kv_cache_gib=0.3), "waiting")

    async def ask(prompts: Sequence[Sequence[int]]) -> None:
        asked = [Request(str(number), tuple(ids), Sampling(1.0, 24)) for number, ids in enumerate(prompts)]
        await asyncio.gather(*(engine.generate([each]) for each in asked))

    await ask(prompts[:NUM_AT_ONCE])
    began = time.perf_counter()
    for turn in range(1, NUM_STEPS + 1):
        await ask(prompts[turn * NUM_AT_ONCE : (turn + 1) * NUM_AT_ONCE])
    seconds = time.perf_counter() - began
    await engine.close()
    return NUM_STEPS * NUM_AT_ONCE / seconds


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


WORKS = {"learner": train, "engine": answer}


def measured(work: str, count: str, num_busy: int) -> float:
    settings = {"OMP_WAIT_POLICY": "passive"} if count == "passive" else {"GOMP_SPINCOUNT": count}
    environment = os.environ | ({} if count == "default" else settings)
    with busy(num_busy):
        ended = subprocess.run(
            [sys.executable, "-m", "benchmarks.waiting", "--work", work, CHILD],
            env=environment,
            capture_output=True,
            text=True,
        )
    if ended.returncode:
        raise SystemExit(ended.stderr)
    return float(ended.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--work", choices=WORKS, default="learner")
    parser.add_argument("--counts", nargs="+", default=["default", "1000", "10000", "100000", "passive"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(CHILD, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(WORKS[options.work]())
        return
    others = max(1, (os.cpu_count() or 2) // 2)
    speeds: dict[str, dict[str, list[float]]] = {count: {"alone": [], "beside": []} for count in options.counts}
    for _ in range(options.repeats):
        for count in options.counts:
            for where, num_busy in (("alone", 0), ("beside", others)):
                speeds[count][where].append(measured(options.work, count, num_busy))
                print(f"{count}: {where} {speeds[count][where][-1]:.3f}/s", flush=True)
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
