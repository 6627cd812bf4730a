"""How long new weights take from the learner to every engine.

    python -m benchmarks.weight_sync [--engines 1 2] [--repeats 5] [--channel object_store]   about 6 minutes on 2 cores
    python -m benchmarks.weight_sync --quick [--device cuda|cpu] [--shape qwen2.5-1.5b]     about 2 minutes on one GPU

In bfloat16, as in `train`. The clock starts when the learner's step has returned, and stops when every engine has
answered a request with the new version. Several channels are measured one after the other, with as few starts of
engines as possible: by default object_store on CPUs, and on GPUs all but shared_memory. On one GPU learner and engine
share it; `nccl` takes a GPU for each. A channel that cannot work here is skipped with the reason. For comparison: the
machine's rate of copying memory, and on CPUs a real round of `configs/quickstart.yaml` (with shorter imitation), which
gives the share of a round that the sync takes.

The minutes on a GPU are estimated for a warm machine: it has not run on one.
The last line is JSON: channels ({name: seconds and bytes_per_s by the number of engines}), memcpy_bytes_per_s,
epoch_share, card and versions; seconds and bytes_per_s are those of `channel`, the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from rich.console import Console

from actors.models import load_tokenizer
from actors.policy import Request, Sampling
from benchmarks.machine import Place, add_arguments, place_of
from benchmarks.workers import forked
from cluster.commands.train import run_training
from cluster.learning.direct_channel import DirectChannel
from cluster.learning.learner_group import LearnerGroup
from cluster.learning.weight_sync import Probe, export, publish, verify_weights
from cluster.rollout.engine_actor import EngineActor
from cluster.rollout.remote_policy import RemotePolicy
from cluster.runtime.ray_session import ray_session
from cluster.types import Engine
from spag_ray.channels.base import CHANNELS
from spag_ray.config.engine import EngineConfig, SyncConfig
from spag_ray.config.loading import load_config
from spag_ray.config.parts import ClusterConfig, LearnerConfig
from spag_ray.config.run import RunConfig
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


def why_not(channel: str, place: Place, num_engines: int) -> str:
    """Why a channel cannot be measured here; "" if it can."""
    layout = CHANNELS[channel].gpus
    if layout is None:
        return ""
    if not place.on_gpu or place.card is None:
        return "needs a GPU"
    if layout == "separate" and place.card.count < num_engines + 1:
        return f"needs a GPU for the learner and one for each engine: {num_engines + 1}, found {place.card.count}"
    if layout == "colocated" and num_engines > 1:
        return "learner and engine share one GPU here, which is for one engine"
    return ""


def together(channels: Sequence[str]) -> list[list[str]]:
    """Channels that one start of the engines serves: every engine also loads from the object store."""
    direct = [[channel] for channel in channels if CHANNELS[channel].is_direct]
    if "object_store" not in channels:
        return direct
    first = next((group for group in direct if group != ["nccl"]), None)
    rest = [group for group in direct if group is not first]
    return [["object_store", *(first or [])], *rest]


def time_syncs(
    model: str, place: Place, num_engines: int, repeats: int, channels: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """{channel: seconds of each sync, the bytes sent to one engine, the largest gap}. At most one channel is direct."""
    tokenizer = load_tokenizer(model)
    prompt = tuple(tokenizer.encode("What flows from a lake to the sea?"))
    # Likely tokens: the logarithm of a probability of nearly 0 is noise in bfloat16.
    said = tuple(tokenizer.encode(" The river flows", add_special_tokens=False)[:3])
    turn = Sample(prompt, said, 1.0, (-1.0, -1.0, -1.0), (-1.0, -1.0, -1.0), role=Role.ATTACKER)
    games = [GameSample("e/0", Role.ATTACKER, 1.0, (turn,))]
    own_gpus = "nccl" in channels
    learner_gpus = (1.0 if own_gpus else 0.5) if place.on_gpu else 0.0
    engine_gpus = (1.0 if own_gpus else 0.5 / num_engines) if place.on_gpu else 0.0
    cluster = ClusterConfig(num_cpus=4, object_store_gib=8.0 if place.on_gpu else 1.0)
    with ray_session(cluster), tempfile.TemporaryDirectory() as folder:
        actor = ray.remote(EngineActor)
        engines = [
            Engine(
                actor.options(num_cpus=0, num_gpus=engine_gpus, max_concurrency=64).remote(
                    f"{folder}/engine-{number}.log"
                ),
                f"engine-{number}",
                "policy",
            )
            for number in range(num_engines)
        ]
        config = EngineConfig(
            max_model_len=1024,
            kv_cache_gib=0.3,
            gpu_memory_utilization=0.3 / num_engines,
            num_gpus=engine_gpus,
            vllm={"enforce_eager": True} if place.on_gpu else {},  # a sync does not depend on captured graphs
        )
        for engine in engines:  # one after the other: each measures the memory that is free on its GPU
            ray.get(engine.handle.start.remote(model, config, engine.name, 0, 0, channels[-1]))
        config_of_learner = LearnerConfig(max_tokens_per_microbatch=1024, num_gpus=learner_gpus)
        learners = LearnerGroup(model, RunConfig(learner=config_of_learner), folder)
        learners.start()
        learners.begin_stage(StageSpec("self_play", len(channels) * (repeats + 1), 1e-6, 0.0))
        probe = Probe(prompt, said)
        found: dict[str, dict[str, Any]] = {}
        version = 0
        for channel in channels:
            settings = RunConfig(
                placement=CHANNELS[channel].gpus or "separate",
                engine=config,
                learner=config_of_learner,
                sync=SyncConfig(channel=channel),
            )
            direct = DirectChannel(learners, settings) if CHANNELS[channel].is_direct else None
            exported = None
            seconds, gaps, num_bytes = [], [], 0
            for repeat in range(repeats + 1):
                version += 1
                learners.step(games, [], at_start=True)
                began = time.perf_counter()
                exported = None  # frees the previous version in the object store, as in a run
                exported = export(learners, version, probe, direct)
                report, _ = publish(exported, engines, settings)
                asyncio.run(answer(engines, prompt, version))
                if repeat:  # the first sync also allocates pages, or connects
                    seconds.append(time.perf_counter() - began)
                gaps.append(verify_weights(exported, engines, settings, probe, report)[0].probe_gap_mean)
                num_bytes = report.num_bytes
            found[channel] = {"seconds": seconds, "num_bytes": num_bytes, "largest_gap": max(gaps)}
            print(json.dumps({"engines": num_engines, "channel": channel, "all_seconds": seconds}), flush=True)
        learners.close()
        ray.get([engine.handle.close.remote() for engine in engines])
        for engine in engines:
            ray.kill(engine.handle)
    return found


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
    parser.add_argument("--engines", type=int, nargs="+", help="1 2, and on GPUs or with --quick 1")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--channel", choices=list(CHANNELS), nargs="+")
    add_arguments(parser)
    options = parser.parse_args()
    place = place_of(options)
    counts = options.engines or ([1] if place.on_gpu or options.quick else [1, 2])
    channels = options.channel or (["object_store", "ipc", "nccl"] if place.on_gpu else ["object_store"])
    copying = memcpy_rate()
    of_channels: dict[str, dict[str, Any]] = {channel: {"seconds": {}, "bytes_per_s": {}} for channel in channels}
    gap = 0.0
    with tempfile.TemporaryDirectory() as folder:
        model = place.model(folder)
        for count in counts:
            reasons = {channel: why_not(channel, place, count) for channel in channels}
            for channel, reason in reasons.items():
                if reason:
                    of_channels[channel].setdefault("skipped", {})[str(count)] = reason
                    print(f"{channel} with {count} engines is skipped: {reason}", flush=True)
            for group in together([channel for channel, reason in reasons.items() if not reason]):
                for channel, found in forked(time_syncs, model, place, count, options.repeats, group).items():
                    seconds = statistics.median(found["seconds"])
                    of_channels[channel]["seconds"][str(count)] = round(seconds, 3)
                    of_channels[channel]["bytes_per_s"][str(count)] = round(count * found["num_bytes"] / seconds)
                    gap = max(gap, found["largest_gap"])
    result: dict[str, Any] = {"channel": channels[0], **of_channels[channels[0]], "channels": of_channels}
    result |= {"memcpy_bytes_per_s": round(copying), "probe_gap_mean": round(gap, 4)}
    if not options.quick and not place.on_gpu:
        result["epoch_share"] = round(forked(epoch_share), 4)
    print(json.dumps(result | {"repeats": options.repeats} | place.about()))


if __name__ == "__main__":
    main()
