"""A run of 70 billion parameters on 64 nodes of 8 GPUs, by arithmetic: `python -m benchmarks.scale --model-of-70b`.

Unit costs are measured here, on two cores; everything that depends on the size is multiplied. The rate of the engines
is an assumption, and a high one (a model of that size on four GPUs is slower), so that the load is rather too high.

    32 nodes    64 engines of 4 GPUs: 5,000 tokens/s each, turns of 64 tokens, games of 8 turns, 8 arenas
    32 nodes    256 learner ranks; a round of 50,000 games; 40 % of 990 TFLOP/s

For each process of which there is one, or which serves many: what it has to do a second, what it can do, and the share.
The first wall is the largest share.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import replace
from typing import Any

import psutil
import ray

from benchmarks.scale_learning import batches, weights
from benchmarks.scale_playing import example_episode, idle, learn, rate_of, run_scale
from benchmarks.stream_restart import PER_VERSION, stream_spec
from cluster.buffer.buffer_actor import BufferActor
from cluster.buffer.stream import STAGE
from cluster.runtime.ray_session import ray_session
from spag_ray.config.parts import ClusterConfig, StreamConfig
from spag_ray.episodes.wire import encode

NUM_ENGINES, NUM_ARENAS, NUM_RANKS = 64, 8, 256
TOKENS_PER_S, TOKENS_PER_TURN, TURNS_PER_GAME = 5_000, 64, 8
GAMES_PER_ROUND, TOKENS_PER_GAME = 50_000, 1_500  # a game in the learner: prompts, dialogue and the words of listening
PARAMETERS, BYTES_PER_PARAMETER = 70e9, 2
FLOPS_PER_RANK = 0.4 * 990e12
BUFFER_GAMES = 20_000


def model_of_70b() -> dict[str, Any]:
    """Prints a table of the processes; returns its rows and the first wall."""
    games_per_s = NUM_ENGINES * TOKENS_PER_S / TOKENS_PER_TURN / TURNS_PER_GAME
    learn_s = 6 * PARAMETERS * TOKENS_PER_GAME * GAMES_PER_ROUND / (NUM_RANKS * FLOPS_PER_RANK)
    round_s = max(learn_s, GAMES_PER_ROUND / games_per_s)

    per_learn = 1 / rate_of(learn, [encode(example_episode(0))])
    ranks = batches()
    bucket = weights()
    watch = idle()
    with ray_session(ClusterConfig(object_store_gib=0.5)):
        arena_ms = run_scale(32, 15.0, 2)["cpu_ms_per_turn"]["arenas"]
        buffer_per_s, buffer_cpu_us = games_through_buffer()
    share_per_s = ranks["step_games_per_s"]
    export_bytes_per_s = bucket["buckets"] * bucket["bucket_bytes"] / bucket["seconds"]
    game_bytes = len(encode(example_episode(0)))
    run_per_s = 1 / (per_learn + 1 / share_per_s)
    version_bytes = PARAMETERS * BYTES_PER_PARAMETER
    rows = {
        "each arena, turns/s": (games_per_s * TURNS_PER_GAME / NUM_ARENAS, 1000 / arena_ms),
        "buffer, games/s": (games_per_s, buffer_per_s),
        "buffer, MB/s": (2 * games_per_s * game_bytes / 1e6, 2 * buffer_per_s * game_bytes / 1e6),
        "run, games/s decoded and sent to ranks": (games_per_s, run_per_s),
        "run, heartbeats of engines, cores": (watch["heartbeats_cores"] * NUM_ENGINES / watch["engines"], 1.0),
        "run, calls for a version of weights": (4 * NUM_RANKS / round_s, 4 * bucket["ranks"] / bucket["submit_s"]),
        "rank 0, GB/s of weights (object_store)": (version_bytes / round_s / 1e9, export_bytes_per_s / 1e9),
    }
    for name, (needed, limit) in rows.items():
        print(f"{name:45} {needed:12,.3f} of {limit:12,.3f}   {needed / limit:6.1%}", flush=True)
    name, (needed, limit) = max(rows.items(), key=lambda row: row[1][0] / row[1][1])
    print(f"first wall: {name}: {limit / needed:.1f} times this load", flush=True)
    return {
        "games_per_s": round(games_per_s),
        "round_s": round(round_s),
        "shares": {name: round(needed / limit, 4) for name, (needed, limit) in rows.items()},
        "buffer_games_per_s": round(buffer_per_s),
        "buffer_cpu_us_per_game": round(buffer_cpu_us, 1),
        "first_wall": name,
        "first_wall_at": round(limit / needed, 2),
    }


def games_through_buffer() -> tuple[float, float]:
    """Games of 8 turns a second through a buffer's actor (leased, logged, and taken in batches), and the CPU time of
    its process for one of them in microseconds. Its callers run on the same cores, so the first is rather too low."""
    with tempfile.TemporaryDirectory(prefix="spag_ray-scale-") as folder:
        buffer = ray.remote(BufferActor).options(num_cpus=0, max_concurrency=1024).remote(folder)
        ray.get(buffer.open_stream.remote(stream_spec(StreamConfig(games_per_version=PER_VERSION, max_lag=40))))
        process = psutil.Process(ray.get(buffer.health.remote()).pid)
        model, spent, cpu_before = example_episode(0), 0.0, sum(process.cpu_times()[:2])
        for version in range(BUFFER_GAMES // PER_VERSION):
            tasks = ray.get(buffer.lease.remote("arena", PER_VERSION))
            turns = tuple(replace(turn, first_version=version, last_version=version) for turn in model.turns)
            games = [
                encode(replace(model, stage=STAGE, number=task.number, scenario=task.scenario, turns=turns))
                for task in tasks
            ]
            began = time.perf_counter()
            ray.get([buffer.add.remote(games[first : first + 50]) for first in range(0, len(games), 50)])
            while ray.get(buffer.batch.remote(5.0)) is None:
                pass
            ray.get(buffer.advance.remote({"policy": version + 1}))
            spent += time.perf_counter() - began
        cpu_s = sum(process.cpu_times()[:2]) - cpu_before
        ray.kill(buffer)
    return BUFFER_GAMES / spent, 1e6 * cpu_s / BUFFER_GAMES
