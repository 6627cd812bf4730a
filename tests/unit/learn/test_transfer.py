"""Learner ranks that send weights themselves. vLLM's NCCL twins run here on CPU tensors, with a queue for NCCL."""

from __future__ import annotations

import contextlib
import pickle
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from torch.utils._python_dispatch import TorchDispatchMode

from actors.vllm_weights import SharedMemoryUpdate, SharedMemoryWeightTransfer
from learners import channel_senders
from learners.channel_senders import (
    LearnerWeights,
    SharedMemoryTrainer,
    SharedMemoryTrainerInit,
    init_info,
    largest_tensor,
    open_sender,
)
from learners.export import Exporter, whole_weights
from learners.model_folder import load_model
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError, LearnerError
from spag_ray.weights.shared_memory import in_shared_memory
from spag_ray.weights.snapshot import Bucket, TensorSpec


@pytest.fixture
def exporter(tiny_model: Path) -> Exporter:
    engine: Any = SimpleNamespace(
        is_partitioned=False, world=SimpleNamespace(rank=0), gathered=lambda _: contextlib.nullcontext()
    )
    model = load_model(str(tiny_model), torch.float32, "sdpa")
    return Exporter(engine, whole_weights(model, None), torch.bfloat16, 40_000)


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
        payload = torch.frombuffer(bytearray(Path(update_info["path"]).read_bytes()), dtype=torch.uint8)
        specs = tuple(TensorSpec(*tensor) for tensor in update_info["tensors"])
        self.buckets.append(Bucket(update_info["index"], specs, payload.numpy(), update_info["checksum"]))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self.calls.append("finish")


def test_what_is_declared_is_what_comes(exporter: Exporter) -> None:
    source = LearnerWeights(exporter)
    declared = [(meta.name, meta.dtype, meta.shape) for meta in source.metadata()]
    assert declared == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source]
    assert declared == [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in source], "each pass is a new one"
    assert sum(torch.Size(shape).numel() * dtype.itemsize for _, dtype, shape in declared) == exporter.num_bytes


def test_shared_memory_carries_the_buckets_that_the_object_store_would(exporter: Exporter) -> None:
    client = Recorded()
    sender = open_sender("shared_memory", 0, exporter, client, "127.0.0.1:1", 2, 40_000)
    sender.send_weights()
    assert client.calls == ["init", "start", *["update"] * exporter.num_buckets, "finish"]
    assert exporter.num_buckets > 2
    for index, sent in enumerate(client.buckets):
        sent.verify()
        expected = exporter.bucket(index)
        assert expected is not None
        assert sent.tensors == expected.tensors
        assert sent.checksum == expected.checksum


def test_the_last_weights_are_given_back_when_a_version_was_sent(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ZeRO-3, a weight that stays gathered on the sending rank is not gathered in its next step, and the other
    ranks do it alone."""
    gathered: list[str] = []

    @contextlib.contextmanager
    def watched(parameters: list[Any]) -> Iterator[None]:
        gathered.append("gathered")
        yield
        gathered.append("given back")

    monkeypatch.setattr(exporter._engine, "gathered", watched)
    open_sender("shared_memory", 0, exporter, Recorded(), "127.0.0.1:1", 2, 40_000).send_weights()
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
    engine: Any = object.__new__(SharedMemoryWeightTransfer)
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
            moved["shared memory"] += Path(update["path"]).stat().st_size
            with BytesWritten() as written:
                engine.receive_weights(SharedMemoryUpdate(**update))
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
    engine: Any = object.__new__(SharedMemoryWeightTransfer)
    engine.device, kept = torch.device("cpu"), {}
    engine.model = SimpleNamespace(load_weights=lambda weights: kept.update(weights))
    for index in range(exporter.num_buckets):
        bucket = exporter.bucket(index)
        assert bucket is not None
        with in_shared_memory(bucket) as update:
            engine.receive_weights(SharedMemoryUpdate(**update))
    for name, tensor in exporter.each():
        assert torch.equal(kept.pop(name), tensor)
    assert not kept


def test_a_tensor_larger_than_a_bucket_goes_through_vllms_packed_buffers(
    exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packing is vLLM's own; only its buffer lies in host memory, and no handle is made of it."""
    from vllm.distributed.weight_transfer import packed_tensor

    weights, empty = LearnerWeights(exporter), torch.empty
    largest = max(tensor.nbytes for _, tensor in weights)
    monkeypatch.setattr(packed_tensor.torch, "empty", lambda *a, device, **kw: empty(*a, **kw))
    monkeypatch.setattr(packed_tensor, "reduce_tensor", lambda tensor: (None, tensor))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(synchronize=lambda: None))

    def through_vllm(bucket_bytes: int) -> dict[str, torch.Tensor]:
        found: dict[str, torch.Tensor] = {}
        pack = packed_tensor.packed_ipc_producer
        for chunk in pack(iter(weights), "gpu", lambda item: item[1], buffer_size_bytes=bucket_bytes):
            used = chunk.ipc_handle["gpu"][: sum(chunk.tensor_sizes)].clone()
            dtypes = [getattr(torch, name) for name in chunk.dtype_names]
            found |= dict(packed_tensor.unpack_tensor(used, chunk.names, chunk.shapes, dtypes, chunk.tensor_sizes))
        return found

    with pytest.raises(ValueError, match="exceeds buffer_size_bytes"):
        through_vllm(largest - 1)
    arrived = through_vllm(largest_tensor(weights))
    assert largest_tensor(weights) == largest
    assert all(torch.equal(arrived.pop(name), tensor) for name, tensor in weights)
    assert not arrived


@pytest.mark.parametrize(("channel", "is_raised"), [("ipc", True), ("nccl", True), ("shared_memory", False)])
def test_a_channel_of_vllms_has_buckets_of_at_least_the_largest_tensor(
    channel: Any, is_raised: bool, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        channel_senders.WeightTransferTrainerFactory, "trainer_init", lambda info, **_: told.append(info)
    )
    for bucket in (1000, 10**9):
        open_sender(channel, 0, exporter, Recorded(), "127.0.0.1:1", 2, bucket)
    key = "bucket_bytes" if channel == "shared_memory" else "packed_buffer_size_bytes"
    least = largest_tensor(LearnerWeights(exporter)) if is_raised else 1000
    assert [getattr(info, key) for info in told] == [least, 10**9]
    assert least >= 1000


def test_a_rank_that_does_not_send_walks_through_the_weights_all_the_same(exporter: Exporter) -> None:
    client = Recorded()
    info = SharedMemoryTrainerInit(40_000, rank=1)
    walked = []

    class Watched(LearnerWeights):
        def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
            for name, tensor in super().__iter__():
                walked.append(name)
                yield name, tensor

    sender = SharedMemoryTrainer.trainer_init(info, client=client, source=Watched(exporter))
    sender.send_weights()
    assert walked == list(exporter.shapes())
    assert client.calls == []


class Wire:
    """Stands for both ends of an NCCL group: what one end broadcasts the other receives."""

    def __init__(self) -> None:
        self._sent: queue.Queue[torch.Tensor] = queue.Queue()
        self.receiver = SimpleNamespace(broadcast=self._receive)

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        self._sent.put(tensor.clone())

    def _receive(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        sent = self._sent.get(timeout=10)
        assert sent.shape == tensor.shape
        assert sent.dtype == tensor.dtype
        tensor.copy_(sent)


def test_vllms_nccl_twin_sends_the_learners_weights_to_vllms_receiver(
    exporter: Exporter, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The handshake, packing and unpacking are vLLM's own; only the transport is a queue."""
    from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

    streams = [SimpleNamespace(synchronize=lambda: None)] * 2
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda *_: streams)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    wire, received = Wire(), {}
    worker: Any = object.__new__(nccl_engine.NCCLWeightTransferEngine)
    worker.model = SimpleNamespace(load_weights=lambda pairs: received.update({n: t.clone() for n, t in pairs}))
    worker.device = torch.device("cpu")
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: wire)
    monkeypatch.setattr(nccl_engine, "worker_init_process_group", lambda info, parallel: wire.receiver)
    worker.parallel_config = None
    finished = []

    class Client(Recorded):
        def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
            assert (init_info["master_address"], init_info["master_port"]) == ("10.0.0.1", 29501)
            assert (init_info["rank_offset"], init_info["world_size"]) == (1, 5)
            worker.init_transfer_engine(worker.init_info_cls(**init_info))

        def update_weights(self, update_info: Any) -> None:
            worker.receive_weights(worker.update_info_cls(**update_info))

        def finish_weight_update(self, weight_version: str | None = None) -> None:
            finished.append(True)

    client = Client()
    info: Any = init_info("nccl", 0, "10.0.0.1:29501", 5, 40_000)
    sender = nccl_engine.NCCLTrainerWeightTransferEngine.trainer_init(
        info, client=client, source=LearnerWeights(exporter)
    )
    sender.send_weights()
    assert finished
    assert received.keys() == exporter.shapes().keys()
    for name, tensor in exporter.each():
        assert torch.equal(received[name], tensor), name


class Silent:
    """An NCCL group with an engine that is gone: a broadcast ends when the group is destroyed, as a fault or not."""

    def __init__(self, raises: bool) -> None:
        self._raises = raises
        self._destroyed = threading.Event()

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        assert self._destroyed.wait(timeout=20), "nobody gave the group up"
        if self._raises:
            raise RuntimeError("NCCL error: unhandled system error")

    def destroy(self) -> None:
        self._destroyed.set()


@pytest.mark.parametrize("raises", [True, False])
def test_a_broadcast_that_an_engine_has_left_ends_and_the_other_ranks_are_not_left_waiting(
    raises: bool, exporter: Exporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """EngineClient aborts once the engines' answers are in; every weight is walked through, since with ZeRO-3 the other
    ranks gather each of them together with this one."""
    from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

    streams = [SimpleNamespace(synchronize=lambda: None)] * 2
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda *_: streams)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: Silent(raises))
    walked, each = [], exporter.each

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in each():
            walked.append(name)
            yield name, tensor

    monkeypatch.setattr(exporter, "each", watched)

    class Deserted(Recorded):
        def update_weights(self, update_info: Any) -> None:
            sender.abort()

    with monkeypatch.context() as there:
        there.setattr(torch.cuda, "is_available", lambda: True)
        sender = open_sender("nccl", 0, exporter, Deserted(), "10.0.0.1:29501", 2, 40_000)

    for _ in range(2):  # the second time there is no group any more from the beginning
        walked.clear()
        assert sender.send_weights() is False
        assert walked == list(exporter.shapes())


def test_where_each_engine_is_served_by_itself_nothing_is_given_up(exporter: Exporter) -> None:
    client = Recorded()
    sender = open_sender("shared_memory", 0, exporter, client, "127.0.0.1:1", 2, 40_000)
    sender.abort()
    assert sender.send_weights() is True
    assert client.calls[-1] == "finish"


def test_channels_between_gpus_say_that_they_need_one(exporter: Exporter) -> None:
    info: Any = init_info("ipc", 1, "10.0.0.1:29501", 3, 123)
    assert (info.backend, info.packed, info.packed_buffer_size_bytes, info.is_sender) == ("ipc", True, 123, False)
    for channel in ("nccl", "ipc"):
        if not torch.cuda.is_available():
            with pytest.raises(LearnerError, match=f"sync.channel: {channel} needs a GPU"):
                open_sender(channel, 0, exporter, Recorded(), "127.0.0.1:1", 2, 40_000)


GPU = {"engine": {"num_gpus": 1}, "learner": {"num_gpus": 1}}
HALF = {"engine": {"num_gpus": 0.5}, "learner": {"num_gpus": 0.5}}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"sync": {"channel": "nccl"}}, "from GPU to GPU: set placement: separate, engine.num_gpus"),
        ({"sync": {"channel": "nccl"}, "placement": "colocated", **GPU}, "set placement: separate"),
        ({"sync": {"channel": "ipc"}, **HALF}, "set placement: colocated"),
        ({"sync": {"channel": "shared_memory"}, "engine": {"kind": "transformers"}}, "engine.kind: transformers"),
        ({"sync": {"channel": "shared_memory"}, "learner": {"lora": {"export": "adapter"}}}, "sends adapters"),
    ],
)
def test_a_channel_that_cannot_work_is_refused_with_the_way_out(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parse_config(data)
    assert "or set sync.channel: object_store" in str(refused.value)


def test_channels_that_can_work_are_taken() -> None:
    parse_config({"sync": {"channel": "nccl"}, **GPU})
    parse_config({"sync": {"channel": "ipc"}, "placement": "colocated", **HALF})
    parse_config({"sync": {"channel": "shared_memory"}})
