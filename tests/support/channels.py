"""Engines and a learner rank in one process, for the contract of channels.

Our own code is the real one from DirectChannel to EngineSide, and so is vLLM's: its worker's methods, its layerwise
reload, its trainer and engine classes for NCCL and CUDA's IPC. In place of Ray is a thread with an event loop, in
place of NCCL and CUDA what `NcclNet` and `cuda_ipc` record, in place of a Llama of vLLM's a model with its fused layers
and its tied head.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import itertools
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from torch import nn
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.worker.gpu_worker import Worker

from actors.vllm_policy import VllmPolicy
from actors.vllm_weights import WorkerExtension
from cluster.learning import direct_channel, weight_sync
from cluster.learning.direct_channel import DirectChannel, EngineClient, SendReport
from cluster.learning.learner_actor import LearnerActor
from cluster.rollout.engine_actor import EngineActor
from cluster.rollout.request_queue import WeightsInTurn
from cluster.types import Engine
from learners.export import Exporter
from learners.learner import Learner
from spag_ray.channels.base import CHANNELS
from spag_ray.channels.engine_side import EngineSide
from spag_ray.config.run import RunConfig
from spag_ray.errors import WeightSyncError
from spag_ray.results.lines import SyncReport
from tests.support.settings import config_of

FUSED = {
    "q_proj": "qkv_proj",
    "k_proj": "qkv_proj",
    "v_proj": "qkv_proj",
    "gate_proj": "gate_up_proj",
    "up_proj": "gate_up_proj",
}


class Packs(QuantizeMethodBase):
    """Of a layer on a CPU: it computes with a copy of its weight."""

    def create_weights(self, *_: Any, **__: Any) -> None: ...

    def apply(self, *_: Any, **__: Any) -> None: ...

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.packed = layer.weight.data.clone()


class Fused(nn.Module):
    """Several of a checkpoint's tensors in one weight; `shapes` of each by the last part of its name."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        begins = [0, *itertools.accumulate(rows for rows, _ in shapes.values())]
        rows = {shard: slice(*begins[index : index + 2]) for index, shard in enumerate(shapes)}
        width = next(iter(shapes.values()))[1]
        self.weight = nn.Parameter(torch.zeros(begins[-1], width), requires_grad=False)

        def weight_loader(param: Any, loaded_weight: Any, shard: str) -> None:
            param.data[rows[shard]].copy_(loaded_weight)

        self.weight.weight_loader = weight_loader
        self.rows = rows
        self.quant_method = Packs()


class Plain(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape), requires_grad=False)


class RotaryTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cos_sin_cache", torch.arange(8.0), persistent=False)


class TiedHead(ParallelLMHead):
    def __init__(self, embedding: Plain) -> None:
        nn.Module.__init__(self)
        self.weight = embedding.weight
        self.quant_method = Packs()


class EngineModel(nn.Module):
    """What vLLM would make of a Llama checkpoint with these shapes."""

    def __init__(self, shapes: dict[str, tuple[int, ...]]) -> None:
        super().__init__()
        self.layers = nn.ModuleDict()
        fused: dict[str, dict[str, tuple[int, ...]]] = defaultdict(dict)
        for name, shape in shapes.items():
            place, shard = place_of(name)
            if shard is None:
                self.layers[place] = Plain(*shape)
            else:
                fused[place][shard] = shape
        for place, parts in fused.items():
            self.layers[place] = Fused(parts)
        self.layers["rotary"] = RotaryTable()
        embedding: Any = self.layers["model-embed_tokens"]
        self.head = TiedHead(embedding)
        record_metadata_for_reloading(self)

    def load_weights(self, weights: Any) -> None:
        from vllm.model_executor.model_loader.weight_utils import default_weight_loader

        for name, tensor in weights:
            place, shard = place_of(name)
            parameter: Any = self.layers[place].weight
            loader = getattr(parameter, "weight_loader", default_weight_loader)
            loader(parameter, tensor, *(() if shard is None else (shard,)))

    def has(self, weights: Iterator[tuple[str, torch.Tensor]]) -> bool:
        """Whether these are this model's weights, also in its tied head."""
        for name, tensor in weights:
            place, shard = place_of(name)
            layer: Any = self.layers[place]
            own = layer.weight.data if shard is None else layer.packed[layer.rows[shard]]
            if not torch.equal(own, tensor.to(own.dtype)):
                return False
        embedding: Any = self.layers["model-embed_tokens"]
        rotary: Any = self.layers["rotary"]
        return (
            self.head.weight is embedding.weight
            and torch.equal(self.head.packed, embedding.weight.data)
            and torch.equal(rotary.cos_sin_cache, torch.arange(8.0))
        )


def place_of(name: str) -> tuple[str, str | None]:
    """(layer of the engine's model, part of its weight) for a checkpoint's tensor."""
    parts = name.removesuffix(".weight").split(".")
    shard = parts[-1] if parts[-1] in FUSED else None
    return "-".join([*parts[:-1], FUSED.get(parts[-1], parts[-1])]), shard


class LocalWorker(WorkerExtension, Worker):
    """vLLM's worker with nothing but a model and its weight-transfer engine."""

    def __init__(self, model: EngineModel) -> None:
        from vllm.config import VllmConfig

        self.vllm_config = VllmConfig()
        self.model_runner = SimpleNamespace(reset_lora_state=lambda: None)
        self.weight_transfer_engine = EngineSide(None, self.vllm_config, torch.device("cpu"), model)
        self._weight_update_active = False
        self._weight_update_is_draft = False


class LocalLLM(AsyncLLM):
    """vLLM's engine over a worker in this process; one call at a time, as in its core. `turns_s`: how long its turns in
    progress still take."""

    def __init__(self, worker: LocalWorker) -> None:
        self.worker = worker
        self.is_paused_now = False
        self.weight_version = ""
        self.turns_s = 0.0
        self._core = concurrent.futures.ThreadPoolExecutor(1)

    def __del__(self) -> None: ...

    @property
    def errored(self) -> bool:
        return False

    async def collective_rpc(self, method: str, *_: Any, kwargs: dict[str, Any] | None = None) -> None:
        call = getattr(self.worker, method)
        await asyncio.get_running_loop().run_in_executor(self._core, lambda: call(**(kwargs or {})))

    async def pause_generation(self, mode: str, **_: Any) -> None:
        await asyncio.sleep(self.turns_s if mode == "wait" else 0.0)
        self.is_paused_now = True

    async def resume_generation(self) -> None:
        self.is_paused_now = False

    async def reset_prefix_cache(self, **_: Any) -> None: ...

    async def update_weight_version(self, new_version: str) -> None:
        self.weight_version = new_version


class LocalHandle:
    """A handle of an EngineActor in this process. `dies_at`: the method whose call it does not survive; `hangs_at`,
    `refuses_at` alike."""

    def __init__(self, name: str, shapes: dict[str, tuple[int, ...]], channel: str, fleet: Fleet) -> None:
        self.model = EngineModel(shapes)
        self.llm = LocalLLM(LocalWorker(self.model))
        self.policy = VllmPolicy(self.llm, name, 0, 512, True, channel)
        self.actor: Any = bare(EngineActor)
        self.actor._policy = self.policy
        self.actor._queue = SimpleNamespace(touch=lambda: None, num_pending=3, idle_s=9.0)
        self.actor._turns = WeightsInTurn(self.actor._play_saved)
        self.actor._num_loads, self.actor._is_updating = 0, False
        self.actor._load_lock, self.actor._loaded = asyncio.Lock(), None
        self.dies_at: str | None = None
        self.hangs_at: str | None = None
        self.refuses_at: str | None = None
        self.is_killed = False
        self._fleet = fleet

    def __getattr__(self, method: str) -> Any:
        if method.startswith("_"):
            raise AttributeError(method)
        return SimpleNamespace(remote=lambda *args: self._call(method, args))

    def _call(self, method: str, args: tuple[Any, ...]) -> concurrent.futures.Future[Any]:
        """A call in the actor's event loop. A process that is gone answers with Ray's error."""
        if self.dies_at == method:
            self.kill()
        if self.is_killed:
            return failed(ray.exceptions.RayActorError())
        if self.hangs_at == method:
            return concurrent.futures.Future()
        if self.refuses_at == method:
            return failed(WeightSyncError("these weights do not fit"))
        return asyncio.run_coroutine_threadsafe(getattr(self.actor, method)(*args), self._fleet.loop)

    def kill(self) -> None:
        self.is_killed = True
        receiver: Any = self.llm.worker.weight_transfer_engine._receiver
        if (group := getattr(getattr(receiver, "_engine", None), "model_update_group", None)) is not None:
            group.destroy()

    def heartbeat_now(self) -> tuple[int, float]:
        found: tuple[int, float] = self._fleet.run(self.actor.heartbeat())
        return found


def bare(cls: type) -> Any:
    """An object that lacks what its constructor would start."""
    return object.__new__(cls)


def failed(error: BaseException) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_exception(error)
    return future


class Stored:
    """A reference to a bucket in an object store."""

    def __init__(self, bucket: Any) -> None:
        self._bucket = bucket

    def __await__(self) -> Generator[Any, None, Any]:
        yield from asyncio.sleep(0).__await__()
        return self._bucket


def local_ray() -> Any:
    """The part of Ray's API with which engines are called."""

    def wait(refs: Sequence[Any], num_returns: int, timeout: float, **_: Any) -> tuple[list[Any], list[Any]]:
        futures = [ref for ref in refs if isinstance(ref, concurrent.futures.Future)]
        first = num_returns < len(futures)
        ends = concurrent.futures.FIRST_COMPLETED if first else concurrent.futures.ALL_COMPLETED
        late = concurrent.futures.wait(futures, timeout, ends).not_done
        return [ref for ref in refs if ref not in late], list(late)

    def get(ref: Any, **_: Any) -> Any:
        try:
            return ref.result(0)
        except ray.exceptions.RayError:
            raise
        except Exception as error:
            raise ray.exceptions.RayTaskError("call", str(error), error) from None

    return SimpleNamespace(wait=wait, kill=LocalHandle.kill, get=get, exceptions=ray.exceptions)


class OneRank:
    """A learner group of one rank in this process; its methods are the rank's own."""

    timeout_s = 60.0
    adapter = None

    def __init__(self, exporter: Exporter, bucket_bytes: int) -> None:
        self.exporter = exporter
        learner: Any = bare(Learner)
        learner._sender = None
        learner._world = SimpleNamespace(rank=0)
        learner._published = exporter
        learner._config = SimpleNamespace(bucket_bytes=bucket_bytes)
        learner.num_bytes = exporter.num_bytes
        self._rank: Any = bare(LearnerActor)
        self._rank._learner, self._rank._meeting, self._rank._client = learner, None, None
        self.num_tensors = exporter.num_tensors

    def open_channel(self, channel: str, client: EngineClient) -> None:
        self._rank.open_channel(channel, client, "127.0.0.1:29501")

    def send(self, version: int) -> SendReport:
        report: SendReport = self._rank.send(version)
        return report

    def bucket_refs(self) -> list[Any]:
        found = []
        for index in range(self.exporter.num_buckets):
            bucket: Any = self.exporter.bucket(index)
            found.append(Stored(type(bucket)(index, bucket.tensors, bucket.payload.copy(), bucket.checksum)))
        return found


def config_with(channel: str, timeout_s: float) -> RunConfig:
    """Engines and a learner where this channel reaches them. `timeout_s`: of each call, and of each turn."""
    gpus = {None: 0.0, "colocated": 0.5, "separate": 1.0}[CHANNELS[channel].gpus]
    return config_of(
        f"sync.channel={channel}; sync.timeout_s={timeout_s}; placement={CHANNELS[channel].gpus or 'separate'}; "
        f"engine.num_gpus={gpus}; learner.num_gpus={gpus}; engine.turn_timeout_s={timeout_s}"
    )


class Fleet:
    """A learner, its engines, and the channel between them; `publish` does what LearningPolicy does."""

    def __init__(self, exporter: Exporter, channel: str, bucket_bytes: int, timeout_s: float) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.channel = channel
        self.learners: Any = OneRank(exporter, bucket_bytes)
        self.shapes = exporter.shapes()
        self.config = config_with(channel, timeout_s)
        self.engines: list[Engine] = []
        is_direct = CHANNELS[channel].is_direct
        self._direct = DirectChannel(self.learners, self.config) if is_direct else None

    def add(self) -> LocalHandle:
        name = f"engine-{len(self.engines)}"
        handle: Any = LocalHandle(name, self.shapes, self.channel, self)
        self.engines.append(Engine(handle, name, "policy"))
        added: LocalHandle = handle
        return added

    def publish(self, version: int) -> tuple[SyncReport, dict[str, str]]:
        """(the report, {engine: why} of those that were stopped)"""
        report, lost = self._hand_out(version, self._direct)
        self.engines = [engine for engine in self.engines if engine not in lost]
        if report.broken_channels and self.engines:
            again, lost_again = self._hand_out(version, None)
            assert not again.broken_channels
            self.engines = [engine for engine in self.engines if engine not in lost_again]
            lost |= lost_again
        return report, {engine.name: why for engine, why in lost.items()}

    def _hand_out(self, version: int, direct: DirectChannel | None) -> tuple[SyncReport, dict[Engine, str]]:
        exported = weight_sync.export(self.learners, version, None, direct)
        return weight_sync.publish(exported, self.engines, self.config)

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        """In the event loop of the engines' actors."""
        return asyncio.run_coroutine_threadsafe(call, self.loop).result(60)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)


class NcclNet:
    """In place of NCCL: the ranks of a group meet, and what rank 0 broadcasts reaches each of the others. As in NCCL,
    everyone waits for everyone until its own end of the group is destroyed, or its process is killed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: list[dict[int, Member]] = []
        self._sizes: list[int] = []
        self._is_closed = False

    def join(self, rank: int, world_size: int) -> Member:
        """Returns when all have come."""
        with self._changed:
            if rank == 0:
                self._groups.append({})
                self._sizes.append(world_size)
            self._wait_for(lambda: self._sizes[-1:] == [world_size] and rank not in self._groups[-1])
            group = self._groups[-1]
            group[rank] = Member(rank, group)
            self._changed.notify_all()
            self._wait_for(lambda: len(group) == world_size)
            return group[rank]

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        self._changed.wait_for(lambda: self._is_closed or condition())
        if self._is_closed:
            raise RuntimeError("NCCL's process has ended")

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class Member:
    """One rank's end of a group."""

    def __init__(self, rank: int, group: dict[int, Member]) -> None:
        self._rank = rank
        self._group = group
        self._inbox: queue.Queue[torch.Tensor] = queue.Queue(maxsize=1)
        self._is_destroyed = threading.Event()

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        if self._rank != src:
            if (sent := self._until_destroyed(partial(self._inbox.get, timeout=0.02))) is not None:
                assert (sent.shape, sent.dtype) == (tensor.shape, tensor.dtype)
                tensor.copy_(sent)
            return
        for rank, other in list(self._group.items()):
            if rank != src:
                self._until_destroyed(partial(other._inbox.put, tensor.clone(), timeout=0.02))

    def _until_destroyed(self, attempt: Callable[[], Any]) -> Any:
        while not self._is_destroyed.is_set():
            with contextlib.suppress(queue.Full, queue.Empty):
                return attempt()
        return None

    def destroy(self) -> None:
        self._is_destroyed.set()


class CpuTorch:
    """torch, whose buffers for a GPU lie in host memory."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, *shape: int, device: Any = None, **how: Any) -> torch.Tensor:
        return torch.empty(*shape, **how)


def without_cuda(monkeypatch: pytest.MonkeyPatch) -> NcclNet:
    """Let vLLM's NCCL and IPC classes run on this CPU."""
    from vllm.distributed.weight_transfer import nccl_engine, packed_tensor

    from spag_ray.channels import vllm_twins

    sees_a_gpu = SimpleNamespace(Size=torch.Size, cuda=SimpleNamespace(is_available=lambda: True))
    monkeypatch.setattr(vllm_twins, "torch", sees_a_gpu)
    stream = SimpleNamespace(synchronize=lambda: None)
    monkeypatch.setattr(packed_tensor, "_get_streams", lambda *_: [stream] * 2)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    net = NcclNet()
    monkeypatch.setattr(nccl_engine, "open_trainer_endpoint", lambda info: net.join(0, info.world_size))
    monkeypatch.setattr(
        nccl_engine, "worker_init_process_group", lambda info, _: net.join(info.rank_offset, info.world_size)
    )
    exported: dict[int, torch.Tensor] = {}  # what CUDA's handles stand for

    def handle_of(tensor: torch.Tensor) -> tuple[None, tuple[int, ...]]:
        exported[id(tensor)] = tensor
        return None, (id(tensor), 0, 0, 0, 0, 0, 0)

    monkeypatch.setattr(packed_tensor, "torch", CpuTorch())
    monkeypatch.setattr(packed_tensor, "reduce_tensor", handle_of)
    monkeypatch.setattr("torch.multiprocessing.reductions.rebuild_cuda_tensor", lambda number, *_: exported[number])
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="GPU-0"))
    monkeypatch.setattr(torch.cuda, "ipc_collect", lambda: None)
    return net


def use_local_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in = local_ray()
    monkeypatch.setattr(direct_channel, "ray", stand_in)
    monkeypatch.setattr(weight_sync, "ray", stand_in)
