"""A real engine has its learner's weights after a sync, tensor by tensor, and loads whatever its channel is."""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors import vllm_policy
from actors.transformers_policy import TransformersPolicy
from actors.vllm_policy import VllmPolicy
from learners.export import Exporter
from spag_ray.channels.base import Link, find
from spag_ray.channels.buckets import in_shared_memory
from spag_ray.config.engine import EngineConfig
from spag_ray.weights.snapshot import Bucket, Snapshot
from tests.support.exporting import exporter_of
from tests.support.loop import Loop
from tests.support.policies import ask, snapshot_of
from tests.support.tiny_model import make_tiny_model, make_tiny_relative

pytestmark = pytest.mark.parallel
CONFIG = EngineConfig(dtype="float32", max_model_len=512, kv_cache_gib=0.1, max_num_seqs=16)
FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}


class Client:
    """Drives one engine, as EngineClient drives several."""

    def __init__(self, policy: VllmPolicy, loop: Loop) -> None:
        self._policy, self._loop = policy, loop
        self.version = 0

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._loop.run(self._policy.open_channel(init_info))

    def start_weight_update(self) -> None:
        self._loop.run(self._policy.begin_update(in_flight=True))

    def update_weights(self, update: dict[str, Any]) -> None:
        self._loop.run(self._policy.take_update(update))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._loop.run(self._policy.end_update(self.version))


@contextlib.contextmanager
def engine(folder: Path, channel: str, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> Iterator[VllmPolicy]:
    made = vllm_policy._engine_arguments

    def seeing(*arguments: Any) -> Any:
        found = made(*arguments)
        found.worker_extension_cls = "tests.support.seen_weights.SeesWeights"
        return found

    monkeypatch.setattr(vllm_policy, "_engine_arguments", seeing)
    policy = loop.run(VllmPolicy.start(str(folder), CONFIG, channel=channel))
    try:
        yield policy
    finally:
        loop.run(policy.close())


def seen(policy: VllmPolicy, loop: Loop) -> dict[str, np.ndarray[Any, Any]]:
    (found,) = loop.run(policy._engine.collective_rpc("seen_weights"))
    return {name: np.frombuffer(raw, np.float32).reshape(shape) for name, (shape, raw) in found.items()}


def expected(name: str, weights: dict[str, torch.Tensor]) -> np.ndarray[Any, Any]:
    """What an engine's layer computes with, from the learner's tensors."""
    layer, _, last = name.rpartition(".")
    parts = [f"{layer}.{part}" for part in FUSED[last]] if last in FUSED else [name]
    if name == "lm_head" and "lm_head.weight" not in weights:
        parts = ["model.embed_tokens"]
    found: np.ndarray[Any, Any] = torch.cat([weights[f"{part}.weight"] for part in parts]).numpy()
    return found


@pytest.mark.parametrize("is_tied", [True, False])
def test_every_tensor_of_an_engine_is_its_learners_after_a_sync(
    is_tied: bool, tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    started, learned = (make_tiny_model(tmp_path / str(seed), seed, tie_word_embeddings=is_tied) for seed in range(2))
    exporter = exporter_of(learned, 10_000)
    weights = dict(exporter.each())
    assert ("lm_head.weight" in weights) != is_tied
    with engine(started, "shared_memory", loop, monkeypatch) as policy:
        before, client = seen(policy, loop), Client(policy, loop)
        sender = find("shared_memory").sender(exporter, client, Link(0, "127.0.0.1:1", 2, 10_000, 60.0))
        sender.open()
        for client.version in (1, 2):
            assert sender.send()
            after = seen(policy, loop)
            assert after.keys() == before.keys()
            layers = [name for name in after if "rotary" not in name and "_scale" not in name]
            assert len(layers) >= 2 * 6 + 3
            for name in layers:
                wanted = expected(name, weights)
                assert np.allclose(after[name][: len(wanted)], wanted, atol=1e-6), name
                assert not np.allclose(before[name][: len(wanted)], wanted, atol=1e-3) or "norm" in name, name
            for name in after.keys() - set(layers):
                assert np.array_equal(after[name], before[name]), f"{name} is computed, and not loaded"
            (ours,) = loop.run(policy.generate([ask(f"after {client.version}")]))
            (theirs,) = loop.run(TransformersPolicy(str(learned), max_model_len=512).generate([ask("after")]))
            assert ours.token_ids == theirs.token_ids
    told = capfd.readouterr()
    assert "Failed to load weights" not in told.out + told.err


@pytest.mark.parametrize("channel", ["nccl", "ipc"])
def test_an_engine_of_a_channel_between_gpus_loads_what_the_object_store_has(
    channel: str, tiny_model: Path, other_tiny_model: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the middle of a version whose channel broke: that one is left, and play continues."""
    monkeypatch.delenv("VLLM_ALLOW_INSECURE_SERIALIZATION", raising=False)
    with engine(tiny_model, channel, loop, monkeypatch) as policy:
        for version, folder in ((3, other_tiny_model), (4, tiny_model), (5, other_tiny_model)):
            if version == 4:
                loop.run(broken_off(policy, other_tiny_model))
            loop.run(policy.load(snapshot_of(folder, version)))
            (ours,) = loop.run(policy.generate([ask(f"turn {version}")]))
            (theirs,) = loop.run(TransformersPolicy(str(folder), max_model_len=512).generate([ask("turn")]))
            assert ours.token_ids == theirs.token_ids
            assert ours.first_version == version


async def broken_off(policy: VllmPolicy, folder: Path) -> None:
    """Half of a version has come."""
    await policy.begin_update(in_flight=True)
    parts: Any = snapshot_of(folder, 0, max_bytes=10_000).parts
    for bucket in parts[: len(parts) // 2]:
        with in_shared_memory(bucket) as update:
            await policy.take_update(update)


@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_neox"])
def test_a_family_whose_weights_have_other_names_in_memory_is_synced(
    family: str, tmp_path: Path, loop: Loop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers renames and joins weights as it loads them; vLLM packs those of experts on CPUs."""
    started, learned = (make_tiny_relative(tmp_path / str(seed), family, seed) for seed in range(2))
    exporter = exporter_of(learned, 10_000)
    parts = tuple(bucket for index in range(exporter.num_buckets) if (bucket := copied(exporter, index)))
    with engine(started, "object_store", loop, monkeypatch) as policy:
        for version, saved in ((1, Snapshot.of(1, parts)), (2, snapshot_of(started, 2)), (3, Snapshot.of(3, parts))):
            loop.run(policy.load(saved))
            (ours,) = loop.run(policy.generate([ask(f"turn {version}")]))
            folder = started if version == 2 else learned
            (theirs,) = loop.run(TransformersPolicy(str(folder), max_model_len=512).generate([ask("turn")]))
            assert ours.token_ids == theirs.token_ids


def copied(exporter: Exporter, index: int) -> Bucket | None:
    """A bucket whose bytes outlive the next one's."""
    bucket = exporter.bucket(index)
    return bucket and replace(bucket, payload=bucket.payload.copy())
