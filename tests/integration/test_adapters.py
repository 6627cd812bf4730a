"""Adapters that change while vLLM plays: a turn keeps the one that it began with."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from actors.policy import Completion, Request, Sampling
from actors.transformers_policy import TransformersPolicy
from cluster.commands.train import run_training
from learners.export import Exporter
from learners.lora import adapter_config, adapter_weights, merged_weights, with_adapters
from learners.model_folder import load_model
from spag_ray.config.engine import EngineConfig
from spag_ray.config.parts import LoraConfig
from spag_ray.episodes.log import read_log
from spag_ray.weights.snapshot import LocalSnapshot
from tests.support.policies import PROMPT
from tests.support.runs import quiet, records_of, stream_run


def adapted(model: Path, version: int) -> tuple[LocalSnapshot, LocalSnapshot]:
    """A random adapter of `version`, alone, and merged into the model's weights."""
    torch.manual_seed(version)
    lora = with_adapters(load_model(str(model), torch.float32, "sdpa"), LoraConfig(rank=8, alpha=32))
    for name, parameter in lora.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.2)
    world: Any = SimpleNamespace(is_partitioned=False, world=SimpleNamespace(rank=0), gathered=lambda _: nullcontext())

    def snapshot(weights: Any, adapter: Any = None) -> LocalSnapshot:
        exporter = Exporter(world, weights, torch.float32, 10**9)
        bucket = exporter.bucket(0)
        assert bucket is not None
        return LocalSnapshot(version, (bucket,), adapter)

    return snapshot(adapter_weights(lora), adapter_config(lora)), snapshot(merged_weights(lora))


@pytest.mark.parametrize(  # a vLLM engine with room for adapters each
    "in_flight", [True, pytest.param(False, marks=pytest.mark.long)]
)
def test_turns_under_way_are_played_to_their_end_with_the_adapter_they_began_with(
    in_flight: bool, tiny_model: Path, loop: Any
) -> None:
    from actors.vllm_policy import VllmPolicy

    config = EngineConfig(dtype="float32", max_model_len=512, kv_cache_gib=0.1, max_num_seqs=2, max_lora_rank=8)
    adapters = {version: adapted(tiny_model, version) for version in (1, 2, 3)}
    greedy = Sampling(0.0, 150)

    async def scenario() -> list[tuple[int, Completion]]:
        """More turns than run at once, so that some wait while adapters change."""
        policy = await VllmPolicy.start(str(tiny_model), config)
        try:
            turns: list[tuple[int, asyncio.Task[list[Completion]]]] = []
            for version in (0, 1, 2, 3):
                if version:
                    await policy.load(adapters[version][0], in_flight)
                requests = [Request(f"turn-{version}-{number}", PROMPT[: 4 + number], greedy) for number in range(4)]
                turns += [(version, asyncio.create_task(policy.generate([request]))) for request in requests]
                await asyncio.sleep(0.05)
            async with asyncio.timeout(120):
                return [(version, (await turn)[0]) for version, turn in turns]
        finally:
            await policy.close()

    found = loop.run(scenario())
    for version, turn in found:
        assert (turn.first_version, turn.last_version) == (version, version)
        reference = TransformersPolicy(str(tiny_model), max_model_len=512)
        if version:
            loop.run(reference.load(adapters[version][1]))
        prompt = PROMPT[: 4 + int(turn.request_id.rsplit("-", 1)[1])]
        (scored,) = loop.run(reference.score([(prompt, turn.token_ids)]))
        assert scored.is_greedy, f"{turn.request_id} was not played by version {version} alone"


@pytest.mark.long  # a whole stream with vLLM
@pytest.mark.timeout(400)
def test_a_stream_whose_engine_takes_adapters_in_flight_comes_to_its_end(
    tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    config = stream_run(
        tiny_model,
        words,
        12,
        engine={"num_engines": 1, "max_num_seqs": 4},
        learner={"lora": {"rank": 8, "alpha": 32, "export": "adapter"}},
        sync={"update": "in_flight"},
        sampling={"max_new_tokens": 60},
    )
    run_training(config, tmp_path / "run", quiet())
    syncs = records_of(tmp_path / "run", "sync")
    assert [line["version"] for line in syncs] == list(range(1, 13))
    assert not records_of(tmp_path / "run", "restart")
    turns = [turn for each in read_log(tmp_path / "run" / "episodes" / "stream.log") for turn in each.turns]
    assert all(turn.first_version == turn.last_version for turn in turns)
    assert len(Counter(turn.first_version for turn in turns)) > 6, "turns were played while versions came"
