"""Opponents of a league: adapters on one engine against an engine with a whole model for each.

    python -m benchmarks.adapters [--opponents 1 4] [--turns 16]      SmolLM2-135M in bfloat16

The engines are the actors that `train` starts. A turn reads a prompt of 100 tokens, which none shares, and answers with
32. All turns are asked for at once, equally many of each opponent. The KV cache is as large in both cases: the engines
of whole models divide it. The memory is the proportional set size (PSS) of the engines' processes after play. Whole
models are left out where they would not fit into the free memory. JSON as the last line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from actors.models import resolve_model
from actors.policy import Request, Sampling
from benchmarks.machine import machine
from cluster.handles import EngineHandle
from cluster.rollout.engine_actor import EngineActor
from cluster.rollout.remote_policy import RemotePolicy
from cluster.runtime.ray_session import ray_session
from spag_ray.config.engine import EngineConfig
from spag_ray.config.parts import ClusterConfig, LoraConfig

PROMPT_TOKENS, NEW_TOKENS = 100, 32
CACHE_GIB = 0.8
END_WITHIN_S = 60.0
LORA = LoraConfig(rank=16)
GIB = 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opponents", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--turns", type=int, default=16)
    parser.add_argument("--passes", type=int, default=1, help="timed ones; the fastest counts")
    options = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    model = resolve_model("smollm2-135m-instruct")
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        adapters = write_adapters(model, Path(folder), max(options.opponents))
        with ray_session(ClusterConfig(object_store_gib=0.3)):
            for number in options.opponents:
                found.append(measure(model, adapters[:number], 1, options.turns, options.passes, folder))
                print(line_of(found[-1]), flush=True)
                # Without its cache an engine of a whole model is about as large as the one just measured.
                needed = number * (found[-1]["pss_gib"] - CACHE_GIB) + CACHE_GIB
                free = psutil.virtual_memory().available / GIB
                if 1.1 * needed > free:
                    print(f"{number} whole models are left out: they need {needed:.1f} GiB, {free:.1f} are free")
                    continue
                found.append(measure(model, [], number, options.turns, options.passes, folder))
                print(line_of(found[-1]), flush=True)
    about = {"prompt_tokens": PROMPT_TOKENS, "new_tokens": NEW_TOKENS, "turns": options.turns, "rank": LORA.rank}
    print(json.dumps(about | {"load_average": load, **machine(), "cases": found}))


def write_adapters(model: str, folder: Path, count: int) -> list[str]:
    """Random adapters of all linear layers, as a run saves them."""
    import torch

    from learners.lora import adapter_config, adapter_weights, save_adapter, with_adapters
    from learners.model_folder import load_model

    lora = with_adapters(load_model(model, torch.bfloat16, "sdpa"), LORA)
    folders = []
    for number in range(count):
        for name, parameter in lora.named_parameters():
            if ".lora_" in name:
                torch.nn.init.normal_(parameter, std=0.01)
        weights = {name: parts[0].detach() for name, (parts, _) in adapter_weights(lora).items()}
        save_adapter(str(folder / f"v{number}"), weights, adapter_config(lora))
        folders.append(str(folder / f"v{number}"))
    return folders


def measure(
    model: str, adapters: Sequence[str], num_engines: int, num_turns: int, passes: int, folder: str
) -> dict[str, Any]:
    """One engine with these adapters, or without adapters an engine with a whole model for each opponent."""
    opponents = len(adapters) or num_engines
    config = EngineConfig(
        max_model_len=512,
        kv_cache_gib=CACHE_GIB / num_engines,
        max_num_seqs=-(-num_turns // num_engines),
        max_lora_rank=LORA.rank if adapters else None,
        max_adapters=max(1, len(adapters)),
    )
    actor = ray.remote(EngineActor).options(num_cpus=0, max_concurrency=4096)
    engines: list[EngineHandle] = [actor.remote(f"{folder}/engine-{place}.log") for place in range(num_engines)]
    names = [f"engine-{place}" for place in range(num_engines)]
    ray.get([engine.start.remote(model, config, name, 0, 0) for engine, name in zip(engines, names, strict=True)])
    began = time.perf_counter()
    if adapters:
        ray.get(engines[0].load_saved.remote({f"past-{n}": (path, n) for n, path in enumerate(adapters)}))
    loading_s = time.perf_counter() - began
    vocabulary = json.loads((Path(model) / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    asyncio.run(play(engines, len(adapters), opponents, vocabulary, passes))  # warms up
    seconds = [asyncio.run(play(engines, len(adapters), num_turns, vocabulary, seed)) for seed in range(passes)]
    pss = sum(process.memory_full_info().pss for process in processes_of_engines())
    ray.get([engine.close.remote() for engine in engines])
    for engine in engines:
        ray.kill(engine)
    began = time.monotonic()
    while processes_of_engines():  # not psutil.wait_procs, to which a process is alive until its parent looks
        if time.monotonic() - began > END_WITHIN_S:
            raise SystemExit(f"engines have not ended within {END_WITHIN_S:.0f} s, and would count with the next ones")
        time.sleep(0.2)
    return {
        "opponents": opponents,
        "engines": num_engines,
        "adapters": len(adapters),
        "pss_gib": round(pss / GIB, 2),
        "tokens_per_s": round(num_turns * NEW_TOKENS / min(seconds), 1),
        "pass_s": [round(each, 2) for each in seconds],
        "loading_s": round(loading_s, 2),
    }


async def play(engines: Sequence[EngineHandle], num_adapters: int, num_turns: int, vocabulary: int, seed: int) -> float:
    """Seconds for all turns."""
    chance = random.Random(seed)
    requests: list[list[Request]] = [[] for _ in engines]
    for number in range(num_turns):
        prompt = tuple(chance.randrange(vocabulary) for _ in range(PROMPT_TOKENS))
        adapter = f"past-{number % num_adapters}" if num_adapters else None
        sampling = Sampling(1.0, NEW_TOKENS, seed=number)
        requests[number % len(engines)].append(Request(f"{seed}/{number}", prompt, sampling, adapter=adapter))
    policies = [RemotePolicy(engine, f"engine-{place}") for place, engine in enumerate(engines)]
    began = time.perf_counter()
    answers = await asyncio.gather(*(policy.generate(asked) for policy, asked in zip(policies, requests, strict=True)))
    seconds = time.perf_counter() - began
    assert all(len(each.token_ids) == NEW_TOKENS for answered in answers for each in answered)
    return seconds


def processes_of_engines() -> list[psutil.Process]:
    """The engines' actors and the processes that vLLM starts below them."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.Process().children(recursive=True):
        try:
            if (process.cmdline() or [""])[0].startswith("ray::EngineActor"):
                found |= {each.pid: each for each in (process, *process.children(recursive=True))}
        except psutil.Error:
            continue
    return list(found.values())


def line_of(case: dict[str, Any]) -> str:
    how = f"{case['adapters']} adapters on one engine" if case["adapters"] else f"{case['engines']} whole models"
    return f"{how:26} {case['pss_gib']:6.2f} GiB {case['tokens_per_s']:8.1f} tokens/s"


if __name__ == "__main__":
    main()
