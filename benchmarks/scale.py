"""How many engines the control plane can drive: everything but the models is real.

    python -m benchmarks.scale [--engines 1 4 16 32 64 256] [--seconds 15] [--arenas 2]       about 5 minutes

Engines only sleep: a turn is 64 tokens at 50 tokens a second, with a seeded spread of 30 %; 16 of them share a process.
Arenas, prompts, SmolLM2's tokenizer, the strict referee, the buffer with its log on disk, rewards, and every Ray call
are those of a run; each engine has 64 games. The ideal rate is that of the sleeping engines: 50 turns a second each.
Ray's processes run on the same cores.

    overlap    the schedule `stream` with simulated play and training: games trained on per second, divided by the
               slower of the engines' and the learner's rates

    python -m benchmarks.scale --part batches|weights|idle

Parts of scale_learning.py, or what 448 engines cost that have nothing to say, each under a minute.

    python -m benchmarks.scale --model-of-70b

Arithmetic for 64 nodes of 8 GPUs from measured unit costs (scale_model.py), about three minutes.

The last line is JSON: efficiency_N (share of the ideal rate at N engines), cpu_ms_per_turn, encode_per_s and
decode_per_s (episodes), overlap and the values they are computed from.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from benchmarks.machine import machine
from benchmarks.scale_learning import batches, weights
from benchmarks.scale_model import model_of_70b
from benchmarks.scale_playing import idle, run_overlap, run_parts, run_scale
from cluster.runtime.ray_session import ray_session
from spag_ray.config.parts import ClusterConfig


def main() -> None:
    parts: dict[str, Callable[[], dict[str, Any]]] = {"batches": batches, "weights": weights, "idle": idle}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 4, 16, 32, 64, 256])
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--arenas", type=int, default=2)
    parser.add_argument("--part", choices=parts, help="measure only this (all but idle: scale_learning.py)")
    parser.add_argument("--model-of-70b", action="store_true", help="64 nodes of 8 GPUs by arithmetic (scale_model.py)")
    arguments = parser.parse_args()
    if arguments.model_of_70b:
        print(json.dumps({**model_of_70b(), **machine()}))
        return
    if arguments.part is not None:
        print(json.dumps({**parts[arguments.part](), **machine()}))
        return
    steps = run_parts()
    print(json.dumps(steps), flush=True)
    with ray_session(ClusterConfig(object_store_gib=0.5)):
        overlap = run_overlap()
        print(json.dumps({"overlap": round(overlap, 3)}), flush=True)
        rows = [run_scale(count, arguments.seconds, arguments.arenas) for count in arguments.engines]
    last = {f"efficiency_{row['engines']}": row["efficiency"] for row in rows}
    middle = next((row for row in rows if row["engines"] == 32), rows[-1])
    cpu_ms = round(sum(middle["cpu_ms_per_turn"].values()), 3)
    memory = {str(row["engines"]): row["memory_gib"] for row in rows}
    found = {**last, "cpu_ms_per_turn": cpu_ms, **steps, "overlap": round(overlap, 3), "memory_gib": memory}
    print(json.dumps(found | machine()))


if __name__ == "__main__":
    main()
