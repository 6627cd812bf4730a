"""How long new weights take from the learner to every engine.

    python -m benchmarks.weight_sync [--engines 1 2] [--repeats 5] [--channel object_store]   about 6 minutes on 2 cores

SmolLM2-135M in bfloat16, as in `train`. The clock starts when the learner's step has returned, and stops when every
engine has answered a request with the new version. For comparison: the machine's rate of copying memory, and a real
round of `configs/quickstart.yaml` (with shorter imitation), which gives the share of a round that the sync takes. The
last line is JSON: seconds, bytes_per_s, memcpy_bytes_per_s, epoch_share.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import ray
from rich.console import Console

from actors.models import BUILT_IN, load_tokenizer, resolve_model
from actors.policy import Request, Sampling
from benchmarks.machine import machine
from cluster.commands.train import run_training
from cluster.learning.direct_channel import DirectChannel
from cluster.learning.learner_group import LearnerGroup
from cluster.learning.weight_sync import Probe, export, publish, verify_weights
from cluster.rollout.engine_actor import EngineActor
from cluster.rollout.remote_policy import RemotePolicy
from cluster.runtime.ray_session import ray_session
from cluster.types import Engine
from spag_ray.config.engine import EngineConfig
from spag_ray.config.loading import load_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import ClusterConfig, LearnerConfig, SyncConfig
from spag_ray.game.rules import Role
from spag_ray.results.lines import SyncLine
from spag_ray.results.metric_lines import MetricLines
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import StageSpec


def memcpy_rate(num_bytes: int = 2**28) -> float:
    """Bytes per second of one large copy, the best of ten."""
    source, target = np.ones(num_bytes, np.uint8), np.empty(num_bytes, np.uint8)
    target[:] = source
    best = 0.0
    for _ in range(10):
        began = time.perf_counter()
        target[:] = source
        best = max(best, num_bytes / (time.perf_counter() - began))
    return best


def time_sync(model: str, num_engines: int, repeats: int, sync: SyncConfig) -> dict[str, Any]:
    """Seconds of each sync, and the bytes sent to one engine."""
    prompt = tuple(load_tokenizer(model).encode("What flows from a lake to the sea?"))
    turn = Sample(prompt, (11, 12, 13), 1.0, (-1.0, -1.0, -1.0), (-1.0, -1.0, -1.0), role=Role.ATTACKER)
    games = [GameSample("e/0", Role.ATTACKER, 1.0, (turn,))]
    with ray_session(ClusterConfig(num_cpus=4, object_store_gib=1.0)), tempfile.TemporaryDirectory() as folder:
        actor = ray.remote(EngineActor)
        engines = [
            Engine(
                actor.options(num_cpus=0, max_concurrency=64).remote(f"{folder}/engine-{number}.log"),
                f"engine-{number}",
                "policy",
            )
            for number in range(num_engines)
        ]
        config = EngineConfig(max_model_len=1024, kv_cache_gib=0.3)
        ray.get([engine.handle.start.remote(model, config, engine.name, 0, 0, sync.channel) for engine in engines])
        learners = LearnerGroup(model, LearnerConfig(max_tokens_per_microbatch=1024), ObjectiveConfig(), folder)
        learners.start()
        learners.begin_stage(StageSpec("self_play", repeats, 1e-6, 0.0))
        direct = DirectChannel(learners, sync, 1) if sync.channel != "object_store" else None
        probe = Probe(prompt, (11, 12, 13))
        exported = None
        seconds, gaps, num_bytes = [], [], 0
        for version in range(1, repeats + 2):
            learners.step(games, [], at_start=True)
            began = time.perf_counter()
            exported = None  # frees the previous version in the object store, as in a run
            exported = export(learners, version, probe, direct)
            report, _ = publish(exported, engines, sync)
            asyncio.run(answer(engines, prompt, version))
            if version > 1:  # the first sync also allocates the object store's pages
                seconds.append(time.perf_counter() - began)
            gaps.append(verify_weights(exported, engines, sync, probe, report)[0].probe_gap_mean)
            num_bytes = report.num_bytes
        learners.close()
        ray.get([engine.handle.close.remote() for engine in engines])
        for engine in engines:
            ray.kill(engine.handle)
    return {"seconds": seconds, "num_bytes": num_bytes, "largest_gap": max(gaps)}


async def answer(engines: list[Engine], prompt: tuple[int, ...], version: int) -> None:
    request = Request(f"answer/{version}", prompt, Sampling(max_new_tokens=1))
    answers = await asyncio.gather(*(RemotePolicy(e.handle, e.name).generate([request]) for e in engines))
    assert {completion.first_version for (completion,) in answers} == {version}


def epoch_share() -> float:
    """The share of a quickstart round that the sync takes."""
    changes = ["imitation.games=90", "self_play.rounds=1", "evaluation.games=0", "placement=separate"]
    with tempfile.TemporaryDirectory() as folder:
        run_training(load_config("quickstart", changes), Path(folder, "run"), Console(quiet=True))
        lines = list(MetricLines(Path(folder, "run", "metrics.jsonl")).typed())
    (first, _), (second, report) = ((time, line.report) for time, line in lines if isinstance(line, SyncLine))
    return (report.seconds + report.probe_seconds) / (second - first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engines", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--channel", choices=["object_store", "shared_memory"], default="object_store")
    arguments = parser.parse_args()
    model = resolve_model(BUILT_IN)
    copying = memcpy_rate()
    seconds, rates = {}, {}
    gap = 0.0
    for count in arguments.engines:
        found = time_sync(model, count, arguments.repeats, SyncConfig(channel=arguments.channel))
        seconds[str(count)] = round(statistics.median(found["seconds"]), 3)
        rates[str(count)] = round(count * found["num_bytes"] / seconds[str(count)])
        gap = max(gap, found["largest_gap"])
        print(json.dumps({"engines": count, "all_seconds": [round(s, 3) for s in found["seconds"]]}), flush=True)
    share = epoch_share()
    print(
        json.dumps(
            {
                "channel": arguments.channel,
                "seconds": seconds,
                "bytes_per_s": rates,
                "memcpy_bytes_per_s": round(copying),
                "epoch_share": round(share, 4),
                "probe_gap_mean": round(gap, 4),
                **machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
