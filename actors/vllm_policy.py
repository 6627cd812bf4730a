"""vLLM's AsyncLLM behind Policy: continuous batching, prefix caching and weight reload are its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, get_args

from actors.models import inner_linear_layers
from actors.policy import LOADING, Completion, Pairs, Request, Sampling, Score, WakePart, refuse_greedy
from actors.vllm_adapters import Adapter, EngineAdapters
from spag_ray.channels.base import CHANNELS
from spag_ray.channels.buckets import in_shared_memory
from spag_ray.config.engine import EngineConfig, unknown_argument
from spag_ray.errors import EngineError, SpagError, WeightSyncError, reason_of
from spag_ray.host.libraries import plain_path
from spag_ray.results.lines import EngineFigures
from spag_ray.weights.snapshot import Snapshot

_SLEEPERS = frozenset({"weights", "kv_cache"})  # the parts that vLLM puts to sleep and wakes separately
_ENDS = ("stop", "length")  # how a request ends that vLLM has finished
FEW_CORES = 4  # of a CPU engine: a core that spins is a quarter of them or more


class VllmPolicy:
    """One engine. Make it with `await VllmPolicy.start(...)` inside a running event loop.

    `score` asks for prompt log-probabilities with a reply of one token, which vLLM computes without its prefix cache.
    """

    def __init__(
        self, engine: Any, name: str, version: int, max_model_len: int, on_cpu: bool, channel: str = "object_store"
    ) -> None:
        self.name = name
        self._channel = channel
        self._is_updating = False  # between `begin_update` and `end_update`; still so after an update that broke
        self._engine = engine
        self._version = version  # of the whole weights
        self._max_model_len = max_model_len
        self._on_cpu = on_cpu
        self._is_closed = False
        self._num_scores = 0
        self._asleep: frozenset[str] = frozenset()
        self._adapters = EngineAdapters(engine, name)

    @classmethod
    async def start(
        cls,
        model: str,
        config: EngineConfig,
        name: str = "policy",
        version: int = 0,
        seed: int = 0,
        channel: str = "object_store",
        enters: Callable[[str], None] = lambda phase: None,
    ) -> VllmPolicy:
        """Load `model` (a folder) into a new engine; 10 to 40 s. `channel`: how a learner's weights will come. `enters`
        is told when the imports are done.

        Raises EngineError when vLLM cannot load it, and ModelError.
        """
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        # The core is a child process; spawned, it does not inherit the threads and locks of this one.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        os.environ.update(CHANNELS[channel].environment)
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        from actors.vllm_models.plugin import register
        from actors.vllm_stats import EngineStats

        register()
        on_cpu = current_platform.is_cpu()
        enters(LOADING if on_cpu else f"{LOADING} and compiling")
        try:
            with plain_path(model) as plain:  # the folder is not read again after the start
                engine = AsyncLLM.from_engine_args(
                    _engine_arguments(plain, config, seed, on_cpu), stat_loggers=[EngineStats]
                )
        except SpagError:
            raise
        except Exception as error:  # the libraries that read a model's files raise kinds of their own
            raise EngineError(f"vLLM cannot load {model}: {reason_of(error)}") from error
        return cls(engine, name, version, max_model_len=config.max_model_len, on_cpu=on_cpu, channel=channel)

    @property
    def version(self) -> int:
        newest = self._adapters.newest
        return self._version if newest is None else newest.version

    @property
    def is_dead(self) -> bool:
        return bool(self._engine.errored) and not self._is_closed  # vLLM also says so of an engine that was shut down

    def take_figures(self) -> EngineFigures:
        """What vLLM measured since the last call; nothing in an engine that was made without statistics."""
        loggers = getattr(self._engine.logger_manager, "stat_loggers", ())
        found = [each.take() for each in loggers if hasattr(each, "take")]
        return found[0] if found else EngineFigures()

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return list(await asyncio.gather(*(self._generate_one(request) for request in requests)))

    async def _generate_one(self, request: Request) -> Completion:
        with self._adapters.use(request.adapter) as adapter:
            room = self._max_model_len - len(request.prompt_ids)
            if room < 1:
                return Completion.unsampled(request.request_id, (), "context", self._version_of(adapter))
            params = _sampling_params(request.sampling, room)
            output, first_version = await self._run(request.request_id, request.prompt_ids, params, adapter)
        completion = output.outputs[0]
        logprobs = tuple(
            step[token].logprob for token, step in zip(completion.token_ids, completion.logprobs, strict=True)
        )
        reason = str(completion.finish_reason)
        if reason == "length" and room < request.sampling.max_new_tokens:
            reason = "context"
        # A turn keeps its adapter to the end; whole weights may change during the turn.
        tokens = tuple(completion.token_ids)
        return Completion(
            request.request_id,
            tokens,
            logprobs,
            first_version=first_version,
            last_version=self._version_of(adapter),
            finish_reason=reason,
        )

    def _version_of(self, adapter: Adapter | None) -> int:
        return self._version if adapter is None else adapter.version

    async def _run(
        self, request_id: str, prompt_ids: Sequence[int], params: Any, adapter: Adapter | None
    ) -> tuple[Any, int]:
        """The last output, and the version that sampled its first token: a request that waits in vLLM, for its place or
        for new weights, is begun by those that are played then."""
        last, first_version = None, self._version_of(adapter)
        lora = None if adapter is None else adapter.lora
        async for output in self._engine.generate(
            {"prompt_token_ids": list(prompt_ids)}, params, request_id, lora_request=lora
        ):
            if last is None:
                first_version = self._version_of(adapter)
            last = output
        reason = last.outputs[0].finish_reason if last is not None and last.finished else "no answer"
        if reason not in _ENDS:  # a core that is told to end gives what there is of each reply
            raise EngineError(f"engine {self.name} did not finish {request_id}: {reason}")
        return last, first_version

    async def score(self, sequences: Pairs, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        refuse_greedy(temperature)
        with self._adapters.use(adapter) as used:
            scores = list(
                await asyncio.gather(*(self._score_one(prompt, target, used) for prompt, target in sequences))
            )
            if temperature == 1.0:
                return scores
            found = await asyncio.gather(
                *(self._logprobs_at(temperature, prompt, target, used) for prompt, target in sequences)
            )
        return [Score(tuple(logprobs), score.is_greedy) for logprobs, score in zip(found, scores, strict=True)]

    async def _logprobs_at(
        self, temperature: float, prompt: Sequence[int], target: Sequence[int], adapter: Adapter | None
    ) -> list[float]:
        """vLLM's prompt log-probabilities know no temperature, but those of sampled tokens do: a request for each token
        of the target."""
        from vllm import SamplingParams

        async def logprob_at(place: int, token: int) -> float:
            params = SamplingParams(
                max_tokens=1, temperature=temperature, logprobs=1, logprob_token_ids=[token], detokenize=False
            )
            self._num_scores += 1
            before = [*prompt, *target[:place]]
            output, _ = await self._run(f"score-{self._num_scores}", before, params, adapter)
            return float(output.outputs[0].logprobs[0][token].logprob)

        return await asyncio.gather(*(logprob_at(place, token) for place, token in enumerate(target)))

    async def _score_one(self, prompt: Sequence[int], target: Sequence[int], adapter: Adapter | None) -> Score:
        from vllm import SamplingParams

        whole = [*prompt, *target]
        if len(whole) >= self._max_model_len:
            raise EngineError(
                f"a sequence of {len(whole)} tokens cannot be scored with engine.max_model_len {self._max_model_len}"
            )
        for skips_cache in (False, True):
            self._num_scores += 1
            params = SamplingParams(
                max_tokens=1,
                temperature=1.0,
                prompt_logprobs=1,
                detokenize=False,
                skip_reading_prefix_cache=skips_cache,
            )
            output, _ = await self._run(f"score-{self._num_scores}", whole, params, adapter)
            # vLLM computes no log-probabilities for cached tokens, so no target token may be in the prefix cache.
            if output.num_cached_tokens < len(prompt):
                break
        # Counted from the end: on a GPU vLLM lists no cached tokens, on a CPU it does.
        steps = output.prompt_logprobs[len(output.prompt_logprobs) - len(target) :]
        found = [step[token].logprob for token, step in zip(target, steps, strict=True)]
        best = [max(each.logprob for each in step.values()) for step in steps]  # of this token and the most probable
        return Score(tuple(found), found == best)

    async def load(self, snapshot: Snapshot, in_flight: bool = False) -> None:
        if snapshot.adapter is not None:
            # Nothing is paused: running requests finish with the adapter that they started with.
            await self._adapters.load(snapshot, snapshot.adapter)
            return
        await self.begin_update(in_flight)
        num_tensors = 0
        async for bucket in snapshot.buckets():
            with in_shared_memory(bucket) as update:
                await self.take_update(update)
            num_tensors += len(bucket.tensors)
        if num_tensors != snapshot.num_tensors:
            raise WeightSyncError(f"{num_tensors} of {snapshot.num_tensors} tensors of the snapshot arrived")
        await self.end_update(snapshot.version)

    async def open_channel(self, init_info: Mapping[str, Any]) -> None:
        """Connect to a learner's sender, which says `init_info`; again when it changed. `load` needs none."""
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest

        opening = {"channel": self._channel, "told": dict(init_info)}
        with self._taking("open a channel for new weights"):
            await self._end_broken_update()
            await self._engine.shutdown_weight_transfer_engine()
            await self._engine.init_weight_transfer_engine(WeightTransferInitRequest(init_info=opening))

    async def begin_update(self, in_flight: bool) -> None:
        """Pause at once (`in_flight`) or after the current turns, then accept the parts of a version: all of them, also
        if some of a version whose channel broke have come."""
        await self._engine.pause_generation(mode="keep" if in_flight else "wait", clear_cache=False)
        with self._taking("begin to take new weights"):
            await self._end_broken_update()
            self._is_updating = True
            await self._engine.start_weight_update()

    async def _end_broken_update(self) -> None:
        """vLLM refuses to start an update, or to leave a channel, during another."""
        if self._is_updating:
            await self._engine.collective_rpc("end_broken_update")
            self._is_updating = False

    async def take_update(self, update: Mapping[str, Any]) -> None:
        """Load one part of a version, a bucket or an update of the engine's channel. Raises WeightSyncError."""
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        with self._taking("take new weights"):
            await self._engine.update_weights(WeightTransferUpdateRequest(update_info=dict(update)))

    async def end_update(self, version: int) -> None:
        """All parts have arrived: following turns are of `version`."""
        with self._taking(f"finish version {version}"):
            await self._engine.finish_weight_update(weight_version=str(version))
            self._is_updating = False
        # The caches of paused requests are discarded with the rest and computed again when the requests resume.
        await self._engine.reset_prefix_cache(reset_running_requests=True)
        self._version = version
        if not self._asleep:  # else `wake` resumes, when there is a KV cache again
            await self._engine.resume_generation()

    @contextlib.contextmanager
    def _taking(self, what: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise WeightSyncError(f"engine {self.name} could not {what}: {reason_of(error)}") from error

    async def hold(self, saved: Mapping[str, tuple[str, int]]) -> None:
        """Hold these saved adapters, {name in requests: (folder, version)}, and no other saved ones: at most
        `max_adapters` of the engine's configuration. Raises WeightSyncError if one cannot be loaded."""
        await self._adapters.hold(saved)

    async def sleep(self) -> None:
        if self._asleep == _SLEEPERS:
            return
        self._asleep = _SLEEPERS
        await self._engine.sleep(level=1, mode="wait")  # drops the prefix cache, and on a GPU weights and KV cache
        if self._on_cpu:
            await self._engine.collective_rpc("release_host_memory")

    async def wake(self, part: WakePart = "all") -> None:
        woken = self._asleep if part == "all" else self._asleep & {part}
        if not woken:
            return
        await self._engine.wake_up(sorted(woken))  # resumes play when no part sleeps
        self._asleep -= woken

    async def close(self) -> None:
        self._is_closed = True
        self._engine.shutdown()


def _executor(num_workers: int, on_cpu: bool) -> Any:
    """Where vLLM's workers are. It would make several of them Ray actors in a placement group, in bundles that do not
    exist. On CPUs it would give a single one a process of its own, to bind its threads to cores; but then the core
    spins while it waits for the worker, and takes half of two cores (docs/appendix/benchmarks.md). The executor's
    class, unlike its name, is taken as it is. With many cores the spinning one costs little and the binding may gain,
    and VLLM_CPU_OMP_THREADS_BIND, which says to which cores, needs the process."""
    if num_workers > 1:
        return "mp"
    if not on_cpu or len(os.sched_getaffinity(0)) > FEW_CORES or "VLLM_CPU_OMP_THREADS_BIND" in os.environ:
        return None
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    return UniProcExecutor


def _engine_arguments(model: str, config: EngineConfig, seed: int, on_cpu: bool) -> Any:
    """vLLM's AsyncEngineArgs."""
    import vllm
    from vllm.config import WeightTransferConfig

    from spag_ray.channels.engine_side import BACKEND
    from spag_ray.families.torch_free import has_alibi, read_config

    arguments: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True, "enforce_eager": on_cpu}
    if on_cpu:
        arguments |= {
            "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
            # A seeded request whose prompt is cut into chunks kills vLLM's CPU worker: it resets its random
            # generator for the part that sampled nothing, which CPU generators cannot do.
            "enable_chunked_prefill": False,
            # A turn's prompt is the game so far and a few more tokens. Only whole blocks are cached. With vLLM's 128
            # tokens per block, half a block would be computed again each turn (self-play: 20% slower).
            "block_size": 32,
            "max_num_batched_tokens": max(2048, config.max_model_len),
        }
    else:
        arguments |= {"gpu_memory_utilization": config.gpu_memory_utilization, "enable_sleep_mode": True}
        if has_alibi(read_config(model)):
            # On Hopper vLLM would plan for version 3, which has no ALiBi, and compute with 2, which refuses that plan.
            arguments["attention_config"] = {"flash_attn_version": 2}
    if config.max_lora_rank is not None:
        from vllm.config.lora import MaxLoRARanks

        # On a CPU vLLM gives turns without an adapter the last slot (index -1), so that slot has to stay empty.
        num_slots = config.max_adapters + 1 if on_cpu else config.max_adapters
        arguments |= {
            "enable_lora": True,
            "max_lora_rank": min(
                (rank for rank in get_args(MaxLoRARanks) if rank >= config.max_lora_rank), default=config.max_lora_rank
            ),
            "max_loras": num_slots,
            # If the head may have an adapter, `score` together with other requests kills vLLM's CPU worker: it takes
            # the prompt's positions for requests. Learners put no adapter there.
            "lora_target_modules": inner_linear_layers(model),
        }
    if fault := unknown_argument(config.vllm, (field.name for field in fields(vllm.AsyncEngineArgs))):
        raise EngineError(fault)
    arguments |= config.vllm
    return vllm.AsyncEngineArgs(
        model=model,
        dtype=config.dtype,
        seed=seed,
        max_model_len=config.max_model_len,
        max_num_seqs=config.max_num_seqs,
        tensor_parallel_size=config.tensor_parallel_size,
        distributed_executor_backend=_executor(config.tensor_parallel_size, on_cpu),
        logprobs_mode="processed_logprobs",
        generation_config="vllm",
        trust_remote_code=False,
        skip_tokenizer_init=True,
        worker_extension_cls="actors.vllm_weights.WorkerExtension",
        weight_transfer_config=WeightTransferConfig(backend=BACKEND),
        **arguments,
    )


def _sampling_params(sampling: Sampling, room: int) -> Any:
    from vllm import SamplingParams

    return SamplingParams(
        temperature=sampling.temperature,
        top_k=sampling.top_k or 0,
        top_p=1.0 if sampling.top_p is None else sampling.top_p,
        max_tokens=min(sampling.max_new_tokens, room),
        seed=sampling.seed,
        stop_token_ids=list(sampling.stop_token_ids),
        ignore_eos=True,  # the ends are in stop_token_ids; vLLM would add those of generation_config.json
        logprobs=0,
        detokenize=False,
    )
