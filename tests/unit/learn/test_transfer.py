"""Weights as buckets: made by a learner, carried by its sender and shared memory, read by an engine. What every channel
has to do is in test_channel_contract.py."""

import ast
import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from torch.utils._python_dispatch import TorchDispatchMode

from cluster.launch.placed_run import planned
from cluster.planning.plan import make_plan, plan_lines
from learners.export import Exporter
from spag_ray.channels import vllm_twins
from spag_ray.channels.base import CHANNELS, Entry, Link, Pass, Sender, find
from spag_ray.channels.buckets import bucket_of, in_shared_memory, tensors_in
from spag_ray.channels.engine_side import EngineSide
from spag_ray.config.loading import load_config
from spag_ray.errors import ConfigError, LearnerError, WeightSyncError
from spag_ray.host.shared_memory import folder_in_shared_memory
from spag_ray.weights.snapshot import Bucket, TensorSpec
from tests.support.exporting import exporter_of
from tests.support.full_disk import full_disk
from tests.support.settings import config_of

LINK = Link(0, "127.0.0.1:1", 2, 40_000, 60.0)


@pytest.fixture
def exporter(tiny_model: Path) -> Exporter:
    return exporter_of(tiny_model, 40_000, torch.bfloat16)


class Recorded:
    """A client that keeps what it was called with, and what lay in shared memory then."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.buckets: list[Bucket] = []

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self.calls.append("init")

    def start_weight_update(self) -> None:
        self.calls.append("start")

    def update_weights(self, update_info: Any) -> None:
        self.calls.append("update")
        told = update_info["bucket"]
        payload = torch.frombuffer(bytearray(Path(told["path"]).read_bytes()), dtype=torch.uint8)
        specs = tuple(TensorSpec(*tensor) for tensor in told["tensors"])
        self.buckets.append(Bucket(told["index"], specs, payload.numpy(), told["checksum"]))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append("finish")


def opened(exporter: Exporter, client: Recorded, rank: int = 0) -> Sender:
    sender = find("shared_memory").sender(exporter, client, Link(rank, "127.0.0.1:1", 2, 40_000, 60.0))
    sender.open()
    return sender


def test_what_is_declared_is_what_comes(exporter: Exporter) -> None:
    source = Pass(exporter)
    declared = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    assert declared == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source]
    assert declared == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source], "each pass is a new one"
    assert sum(torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape in declared) == exporter.num_bytes
    assert source.sizes == {name: tensor.nbytes for name, tensor in source}


def test_shared_memory_carries_the_buckets_that_the_object_store_would(exporter: Exporter) -> None:
    client = Recorded()
    assert opened(exporter, client).send()
    assert client.calls == ["init", "start", *["update"] * exporter.num_buckets, "finish"]
    assert exporter.num_buckets > 2
    for index, sent in enumerate(client.buckets):
        sent.verify()
        expected = exporter.bucket(index)
        assert expected is not None
        assert sent.tensors == expected.tensors
        assert sent.checksum == expected.checksum


def test_the_last_weights_are_given_back_after_a_version(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ZeRO-3, a weight that stays gathered on the sending rank is not gathered in its next step, and the other
    ranks do it alone."""
    gathered: list[str] = []

    @contextlib.contextmanager
    def watched(parameters: list[Any]) -> Iterator[None]:
        gathered.append("gathered")
        yield
        gathered.append("given back")

    monkeypatch.setattr(exporter._engine, "gathered", watched)
    opened(exporter, Recorded()).send()
    assert gathered == ["gathered", "given back"] * exporter.num_buckets


class BytesWritten(TorchDispatchMode):
    """Counts what torch writes to memory: copies, and results that are no view of what was there."""

    num_bytes = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        writes = not function.is_view and function.overloadpacket.__name__ not in ("empty", "from_file")
        if writes and isinstance(out, torch.Tensor):
            self.num_bytes += out.nbytes
        return out


def test_a_version_is_copied_four_times_between_the_learners_gpu_and_the_engines(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the staging buffer, to Ray's object store, to shared memory, to the engine's GPU (here one that keeps
    nothing: the meta device). It is hashed once on each side."""
    hashed, digest = [0], xxhash.xxh3_64_hexdigest

    def counted(data: memoryview) -> str:
        hashed[0] += data.nbytes
        return digest(data)

    monkeypatch.setattr(xxhash, "xxh3_64_hexdigest", counted)
    engine: Any = object.__new__(EngineSide)
    engine.device = torch.device("meta")
    arrived: list[str] = []
    engine.model = SimpleNamespace(load_weights=lambda weights: arrived.extend(name for name, _ in weights))
    moved = {"staging": 0, "object store": 0, "shared memory": 0, "device": 0}
    for index in range(exporter.num_buckets):
        with BytesWritten() as written:
            bucket = exporter.bucket(index)
        assert bucket is not None
        moved["staging"] += written.num_bytes
        out_of_band: list[pickle.PickleBuffer] = []
        pickle.dumps(bucket, protocol=5, buffer_callback=out_of_band.append)  # Ray copies these once, into the store
        moved["object store"] += sum(buffer.raw().nbytes for buffer in out_of_band)
        with in_shared_memory(bucket) as update:
            moved["shared memory"] += Path(update["bucket"]["path"]).stat().st_size
            with BytesWritten() as written:
                engine.update_weights(update)
        moved["device"] += written.num_bytes

    assert arrived == list(exporter.shapes())
    assert moved == dict.fromkeys(moved, exporter.num_bytes)
    assert hashed[0] == 2 * exporter.num_bytes


def test_the_next_bucket_lies_where_the_one_before_did(exporter: Exporter) -> None:
    for index in range(exporter.num_buckets):  # until it is as large as any needs
        exporter.bucket(index)
    one, other = exporter.bucket(0), exporter.bucket(1)
    assert one is not None
    assert other is not None
    assert np.shares_memory(one.payload, other.payload)


def test_what_is_read_of_shared_memory_outlives_its_file(exporter: Exporter) -> None:
    """vLLM keeps tensors until their layer is whole, when the file of their bucket is long gone."""
    kept: dict[str, torch.Tensor] = {}
    for index in range(exporter.num_buckets):
        bucket = exporter.bucket(index)
        assert bucket is not None
        with in_shared_memory(bucket) as update:
            kept |= tensors_in(update)
    for name, tensor in exporter.each():
        assert torch.equal(kept.pop(name), tensor)
    assert not kept


WRITER = """
import sys, time
import torch
from spag_ray.channels.buckets import bucket_of, in_shared_memory

bucket = bucket_of(0, {"w": torch.arange(2**20, dtype=torch.int32).to(torch.uint8)})
with in_shared_memory(bucket) as update:
    print(update, flush=True)
    time.sleep(600)
"""


@contextlib.contextmanager
def killed_after(program: str) -> Iterator[str]:
    """What a program says first; it is killed at the end of this block."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        yield run.stdout.readline()
        run.kill()
        run.wait(30)


def test_weights_for_which_there_is_no_room_are_told_with_a_remedy() -> None:
    bucket = bucket_of(3, {"w": torch.zeros(4, dtype=torch.uint8)})
    with full_disk(), pytest.raises(WeightSyncError, match="has no room for 4 bytes of weights"), ExitStack() as block:
        block.enter_context(in_shared_memory(bucket))


def test_nothing_is_left_in_shared_memory_of_a_writer_that_is_killed() -> None:
    """What another process has mapped before stays readable."""
    with killed_after(WRITER) as told:
        update: dict[str, Any] = ast.literal_eval(told)
        ((name, tensor),) = tensors_in(update)
        assert Path(update["bucket"]["path"]).stat().st_nlink == 0, "it has no name"
    assert name == "w"
    assert torch.equal(tensor[:512], torch.arange(512).to(torch.uint8))
    assert not Path(update["bucket"]["path"]).exists()


LEAVES_A_FOLDER = """
import time
from spag_ray.host.shared_memory import folder_in_shared_memory

with folder_in_shared_memory() as folder:
    (folder / "adapter").write_bytes(b"adapter")
    print(folder, flush=True)
    time.sleep(600)
"""


def test_a_folder_of_a_process_that_was_killed_is_removed_when_the_next_one_is_made() -> None:
    with killed_after(LEAVES_A_FOLDER) as told:
        left = Path(told.strip())
        with folder_in_shared_memory() as own:
            assert (left / "adapter").exists(), "its process lives"
    assert left.exists()
    with folder_in_shared_memory() as own:
        assert not left.exists()
        assert own.exists()
    assert not own.exists()


def test_a_damaged_bucket_is_refused_by_name() -> None:
    bucket = bucket_of(3, {"w": torch.zeros(4, dtype=torch.uint8)})
    with in_shared_memory(bucket) as update, open(update["bucket"]["path"], "r+b") as file:
        file.write(b"x")
        file.flush()
        with pytest.raises(WeightSyncError, match=r"bucket 3 .* arrived damaged"):
            list(tensors_in(update))


def test_vllms_buffer_for_ipc_holds_at_least_the_largest_tensor_and_those_for_nccl_grow(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has one size for a whole version. Of the others two are in an engine's GPU at once, beside all that it
    takes for itself."""
    sees_a_gpu = SimpleNamespace(Size=torch.Size, cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setattr(vllm_twins, "torch", sees_a_gpu)
    largest = max(tensor.nbytes for _, tensor in exporter.each())
    for asked, made in ((largest - 1, largest), (10**9, 10**9)):
        link = Link(0, "127.0.0.1:1", 2, asked, 60.0)
        ipc, nccl = (find(channel).sender(exporter, Recorded(), link)._told for channel in ("ipc", "nccl"))
        assert (ipc.backend, ipc.packed_buffer_size_bytes) == ("ipc", made)
        assert (nccl.backend, nccl.packed_buffer_size_bytes) == ("nccl", asked)


def test_a_rank_that_does_not_send_walks_through_weights(exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    client, walked, each = Recorded(), [], exporter.each

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in each():
            walked.append(name)
            yield name, tensor

    monkeypatch.setattr(exporter, "each", watched)
    assert opened(exporter, client, rank=1).send()
    assert walked == list(exporter.shapes())
    assert client.calls == []


def test_channels_say_what_they_lack(exporter: Exporter) -> None:
    if not torch.cuda.is_available():
        for channel in ("nccl", "ipc"):
            with pytest.raises(LearnerError, match=f"sync.channel: {channel} needs a GPU"):
                find(channel).sender(exporter, Recorded(), LINK)


GPU = "engine.num_gpus=1; learner.num_gpus=1"
HALF = "engine.num_gpus=0.5; learner.num_gpus=0.5"
COLOCATED = "placement=colocated"
ADAPTERS = "learner.lora.export=adapter"
PARTITIONED = f"{COLOCATED}; learner.zero_stage=2"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("sync.channel=nccl", "from GPU to GPU: set placement: separate, engine.num_gpus"),
        (f"sync.channel=nccl; {COLOCATED}; {GPU}", "set placement: separate"),
        (f"sync.channel=ipc; {HALF}", "set placement: colocated"),
        ("sync.channel=shared_memory; engine.kind=transformers", "engine.kind: transformers"),
        (f"sync.channel=shared_memory; {ADAPTERS}", "sends adapters"),
    ],
)
def test_a_channel_that_cannot_work_is_refused_with_the_way_out(settings: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        config_of(settings)
    assert "or set sync.channel: object_store" in str(refused.value)


def test_channels_that_can_work_are_taken() -> None:
    config_of(f"sync.channel=nccl; {GPU}")
    config_of(f"sync.channel=ipc; {COLOCATED}; {HALF}")
    config_of("sync.channel=shared_memory")


@pytest.mark.parametrize(
    ("settings", "channel"),
    [
        ("seed=0", "object_store"),
        (COLOCATED, "object_store"),
        (GPU, "nccl"),
        (f"{HALF}; {COLOCATED}", "ipc"),
        ("engine.num_gpus=1", "object_store"),
        (f"{GPU}; engine.num_engines={{min: 1, max: 4}}", "object_store"),
        (f"{GPU}; engine.kind=transformers", "object_store"),
        (f"{GPU}; learner.lora={{}}", "nccl"),
        (HALF, "object_store"),  # NCCL refuses two processes on one GPU
        (f"{GPU}; engine.num_gpus=0.5; engine.num_engines=2", "object_store"),
        # An engine whose GPU no rank is on; four on the one GPU of the rank.
        (f"{PARTITIONED}; engine.num_gpus=0.6; engine.num_engines=2; learner.num_gpus=0.4", "object_store"),
        (f"{PARTITIONED}; engine.num_gpus=0.2; engine.num_engines=4; learner.num_gpus=0.2", "ipc"),
        (f"{GPU}; {ADAPTERS}", "object_store"),
    ],
)
def test_without_a_channel_weights_take_the_way_between_the_gpus_that_engines_and_learner_have(
    settings: str, channel: str
) -> None:
    config = config_of(settings)
    assert (config.sync.channel, config.channel) == ("auto", channel)
    assert planned(config, "/nowhere").sync.channel == channel, "what a Run gets"
    assert config_of(f"{settings}; sync.channel={channel}").channel == channel


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (f"{HALF}; sync.channel=nccl", "set engine.num_gpus and learner.num_gpus to 1 or more"),
        (
            f"{PARTITIONED}; {GPU}; engine.tensor_parallel_size=2; sync.channel=ipc",
            "2 GPUs of engines, but 1 learner ranks; set learner.num_ranks: 2",
        ),
    ],
)
def test_a_channel_that_cannot_reach_its_gpus_is_refused(settings: str, fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        config_of(settings)


def test_the_plan_says_the_channel_that_was_chosen_and_what_happens_if_it_breaks() -> None:
    def said(name: str, *changes: str) -> str:
        lines = plan_lines(make_plan(load_config(name, changes)))
        return next(line for line in lines if "published, over" in line)

    assert said("qwen3_4b_8gpu").endswith("over sync.channel nccl (auto); by the object store if that breaks")
    assert said("llama2_7b_8gpu", "sync.channel=object_store").endswith("over sync.channel object_store")
    assert said("quickstart").endswith("over sync.channel object_store (auto)")


def test_an_unknown_channel_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(ConfigError, match="'rdma'; there are object_store, shared_memory, nccl, ipc"):
        config_of("sync.channel=rdma")


def test_a_channel_is_known_to_the_configuration_by_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CHANNELS, "toy", Entry("tests.support.toy_channel", "by post", gpus="separate"))
    with pytest.raises(ConfigError, match=r"sync\.channel: toy: weights travel by post: set placement: separate"):
        config_of("sync.channel=toy")
    config_of(f"sync.channel=toy; {GPU}")
