"""Estimates of the memory that a learner rank and an engine will need, as sums with every term.

    for part in learner_memory(config, size).parts:
        part.name, part.num_bytes, part.arithmetic        # "gradients", 6738415616, "4 B x 6.74e9 / 4 ranks"

Sources: weights, gradients and optimiser state follow DeepSpeed's layout for each ZeRO stage with float32 gradient
accumulation (runtime/bf16_optimizer.py, zero/stage_1_and_2.py, zero/stage3.py). Activations are the tensors that
autograd saves of a transformer block; a test compares them with models. The libraries' own memory (CUDA context,
workspaces, fragmentation) is not included: leave a tenth free.

From them follows what `auto` in a run's learner section becomes: the tokens of a micro-batch, and whether gradients are
checkpointed.

    config = with_planned_learner(config, model_size(model, config.model_shape))
    config.learner.max_tokens_per_microbatch, config.learner.gradient_checkpointing      # 8192, False
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from cluster.planning.model_size import ModelSize, head_dim, kv_heads, linear_layers, num_embeddings
from learners.deepspeed_config import deepspeed_config, is_offloaded, loads_in_parts
from spag_ray.config.parts import LearnerConfig
from spag_ray.config.run import RunConfig

GIB = 2**30
# For vLLM itself: activations of a step, CUDA graphs. A guess; vLLM measures it when it starts.
VLLM_BYTES = 2 * GIB
# vLLM's weights of several linear layers.
FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}
# DeepSpeed's default.
MAX_LIVE_PARAMETERS = 1_000_000_000
# Share of a GPU's memory; the rest is for what the estimate leaves out.
WELL_FILLED = 0.9
# A GPU's matrix products are no faster in larger micro-batches, and are less so below ENOUGH_TOKENS.
MOST_TOKENS, ENOUGH_TOKENS = 16384, 4096


@dataclass(frozen=True)
class Part:
    """One term of a sum; `arithmetic` says how it is computed."""

    name: str
    num_bytes: int
    arithmetic: str


@dataclass(frozen=True)
class Memory:
    """Memory of one process. `parts` are on its GPU, or on the host if it has no GPU; `host_parts` are what a process
    with a GPU also needs on the host."""

    parts: tuple[Part, ...]
    host_parts: tuple[Part, ...] = ()

    @property
    def num_bytes(self) -> int:
        return sum(part.num_bytes for part in self.parts)

    @property
    def host_bytes(self) -> int:
        return sum(part.num_bytes for part in self.host_parts)


@dataclass(frozen=True)
class EngineMemory:
    """Memory per GPU of one engine. `kv_tokens`: the tokens that its KV cache holds over all its GPUs; None if the
    model's shape is unknown."""

    memory: Memory
    budget: int
    kv_tokens: int | None


def learner_memory(config: RunConfig, size: ModelSize) -> Memory:
    """The memory of one learner rank."""
    learner = config.learner
    on_gpu = learner.num_gpus > 0
    zero = deepspeed_config(learner, on_gpu)["zero_optimization"]
    stage, ranks = zero["stage"], learner.num_ranks
    whole, width = size.num_parameters, bytes_of(learner.dtype)
    trained = num_trained(config, size)
    over = f" / {ranks} ranks" if ranks > 1 else ""
    parts: list[Part] = []
    host: list[Part] = []
    offloaded = host if on_gpu and is_offloaded(zero, "offload_optimizer") else parts

    if stage == 3:
        split = Part("weights", whole * width // ranks, f"{width} B x {short(whole)}{over}")
        (host if on_gpu and is_offloaded(zero, "offload_param") else parts).append(split)
        live = min(whole, int(zero.get("stage3_max_live_parameters", MAX_LIVE_PARAMETERS)))
        gathered = f"{width} B x at most {short(live)} (stage3_max_live_parameters)"
        parts.append(Part("weights gathered", live * width, gathered))
    else:
        parts.append(Part("weights", whole * width, f"{width} B x {short(whole)}"))

    if stage <= 1:
        if width == 2:
            parts.append(Part("gradients, bfloat16", 2 * trained, f"2 B x {short(trained)}"))
        parts.append(Part("gradients, float32", 4 * trained, f"4 B x {short(trained)}"))
    else:
        gradients = Part("gradients, float32", 4 * trained // ranks, f"4 B x {short(trained)}{over}")
        offloaded.append(gradients)
        if stage == 2 and offloaded is host:
            if width == 2:  # summed in float32 on the GPU, and copied to the host when the batch is complete
                parts.append(gradients)
            largest = embedding_bytes(config, size) if trained == whole else 0
            parts.append(Part("a gradient under way to the host", largest, "the largest weight's, in its own dtype"))
    if stage == 0:
        parts.append(Part("optimiser", 8 * trained, f"(4 + 4) B moments x {short(trained)}"))
    else:
        optimiser = 12 * trained // ranks
        offloaded.append(Part("optimiser", optimiser, f"(4 master + 4 + 4 moments) B x {short(trained)}{over}"))
        parts.append(_reduce_buckets(zero, width))
    if config.keeps_stage_start:
        (host if on_gpu else parts).append(_reference(config, trained, ranks if stage == 3 else 1))
    parts.append(_sent(config, size))
    parts += _activations(config, size)
    if on_gpu:
        if loads_in_parts(zero):
            loading = Part("the model while it loads", embedding_bytes(config, size), "one weight at a time")
        else:
            told = f"{width} B x {short(whole)}, on every rank"
            loading = Part("the model while it loads", whole * width, told)
        host.append(loading)
        if config.placement == "colocated":
            asleep = sum(part.num_bytes for part in parts if part.name in ("weights", "optimiser"))
            told = "weights and optimiser; gradients are zero then, and are not copied"
            host.append(Part("asleep, while engines generate", asleep, told))
    return Memory(tuple(parts), tuple(host))


def engine_memory(config: RunConfig, size: ModelSize, holds_past: bool = False) -> EngineMemory:
    """The memory of one GPU of an engine, or of an engine's process on CPUs. `holds_past`: of one whose opponents are
    adapters, not of one that plays the newest weights."""
    engine = config.engine
    width, gpus = bytes_of(engine.dtype), engine.tensor_parallel_size
    on_gpu = engine.num_gpus > 0
    weights = _engine_weights(config, size)
    held = _adapters(config, size, config.league.num_past if holds_past else 2)
    num_held = sum(part.num_bytes for part in held)
    if engine.kind != "vllm":  # it computes each prompt anew
        return EngineMemory(Memory((weights, *held), ()), weights.num_bytes + num_held, None)
    if on_gpu:
        budget = int(engine.gpu_memory_utilization * config.cluster.gpu_gib * GIB)
        told = (
            f"the rest of {engine.gpu_memory_utilization:g} x {config.cluster.gpu_gib:g} GiB (gpu_memory_utilization)"
        )
        left = max(0, budget - weights.num_bytes - num_held - VLLM_BYTES)
        cache = Part("KV cache", left, f"{told}, less 2 GiB for vLLM itself")
    else:
        cache = Part("KV cache", int(engine.kv_cache_gib * GIB), "engine.kv_cache_gib")
        budget = weights.num_bytes + num_held + cache.num_bytes
    per_token = size.kv_bytes_per_token(1 if str(engine.vllm.get("kv_cache_dtype")).startswith("fp8") else width)
    if engine.vllm.get("quantization", "fp8") != "fp8":
        per_token = None  # nothing is known of these weights, so nothing of what is left beside them
    divided = gpus if size.shape is None else min(gpus, kv_heads(size.shape))  # fewer heads than GPUs are copied
    tokens = None if per_token is None else cache.num_bytes * divided // per_token
    host = []
    if on_gpu and config.placement == "colocated":
        host.append(_engine_asleep(config, size))
    return EngineMemory(Memory((weights, *held, cache), tuple(host)), budget, tokens)


def _engine_weights(config: RunConfig, size: ModelSize) -> Part:
    """Quantised to fp8, linear layers take a byte a weight; the embeddings and the output layer stay as they are."""
    engine = config.engine
    width, gpus = bytes_of(engine.dtype), engine.tensor_parallel_size
    over = f" / {gpus} GPUs" if gpus > 1 else ""
    if engine.vllm.get("quantization") != "fp8" or size.shape is None:
        return Part("weights", size.num_parameters * width // gpus, f"{width} B x {short(size.num_parameters)}{over}")
    whole = num_embeddings(size.shape)
    linear = size.num_parameters - whole
    told = f"(1 B x {short(linear)} + {width} B x {short(whole)}){over}"
    return Part("weights", (linear + width * whole) // gpus, told)


def _engine_asleep(config: RunConfig, size: ModelSize) -> Part:
    """vLLM copies each block of GPU memory that has weights to page-locked memory, of which torch takes powers of two
    of bytes: at most twice as much. A weight of at least 10 MiB has a block of its own, and smaller ones share blocks
    of 20 MiB, which take 32."""
    engine, shape = config.engine, size.shape
    whole = _engine_weights(config, size)
    told = "in blocks of powers of two of bytes; the KV cache is dropped"
    if shape is None:
        return Part("asleep, while the learner trains", 2 * whole.num_bytes, f"at most 2 x the weights, {told}")
    width, quantised = bytes_of(engine.dtype), engine.vllm.get("quantization") == "fp8"
    layers: Counter[str] = Counter()
    for name, (inputs, outputs) in linear_layers(shape).items():
        layers[FUSED.get(name, name)] += inputs * outputs * (1 if quantised else width)
    words = shape.vocab_size * shape.hidden_size * width
    blocks = shape.num_hidden_layers * sum(
        _page_locked(num_bytes // engine.tensor_parallel_size) for num_bytes in layers.values()
    )
    blocks += num_embeddings(shape) * width // words * _page_locked(words // engine.tensor_parallel_size)
    return Part("asleep, while the learner trains", blocks, f"weights, {told}")


def _page_locked(num_bytes: int) -> int:
    return 1 << (num_bytes - 1).bit_length() if num_bytes >= 10 * 2**20 else int(1.6 * num_bytes)


def _adapters(config: RunConfig, size: ModelSize, num_held: int) -> list[Part]:
    """What vLLM allocates for adapters: a place for each in every linear layer (on CPUs one more, which stays empty)
    and, on the host, the adapters as they were loaded."""
    one = adapter_bytes(config, size)
    if not one:
        return []
    on_gpu = config.engine.num_gpus > 0
    num_places, num_loaded = (num_held, 0) if on_gpu else (num_held + 1, num_held)
    loaded = f" and {num_loaded} loaded" if num_loaded else ""
    told = f"{num_places} places{loaded} x {one / 2**20:.1f} MiB"
    return [Part("adapters", (num_places + num_loaded) * one, told)]


def adapter_bytes(config: RunConfig, size: ModelSize) -> int:
    """Bytes of one adapter of all linear layers in an engine; 0 if whole weights are sent, or the model's shape is
    unknown."""
    lora = config.learner.lora
    if lora is None or not config.sends_adapters:
        return 0
    return (size.num_adapter_parameters(lora.rank, ()) or 0) * bytes_of(config.engine.dtype)


def checkpoint_bytes(config: RunConfig, size: ModelSize) -> tuple[int, str]:
    """(bytes of one policy's checkpoint, how they are computed): weights, the optimiser's state of all ranks, and with
    objective.kl_reference_average the average."""
    stage = deepspeed_config(config.learner, config.learner.num_gpus > 0)["zero_optimization"]["stage"]
    width, trained = bytes_of(config.learner.dtype), num_trained(config, size)
    state = 12 if stage else 8
    told = f"({width} + {state}) B x {short(trained)}"
    if trained < size.num_parameters:
        told = f"{width} B x {short(size.num_parameters)} + {state} B x {short(trained)}"
    average = 0 if config.objective.kl_reference_average is None else 4
    if average:
        told += f" + {average} B x {short(trained)} of the average"
    return width * size.num_parameters + (state + average) * trained, told


def bucket_bytes(config: RunConfig, size: ModelSize | None) -> int:
    """Bytes of the largest bucket of weights. A tensor is never split; the largest tensor is the embedding."""
    return max(config.learner.bucket_bytes, embedding_bytes(config, size))


def embedding_bytes(config: RunConfig, size: ModelSize | None) -> int:
    """Bytes of the largest weight; 0 if the model's shape is unknown."""
    shape = None if size is None else size.shape
    return 0 if shape is None else shape.vocab_size * shape.hidden_size * bytes_of(config.learner.dtype)


def num_trained(config: RunConfig, size: ModelSize) -> int:
    """Parameters with a gradient: with a known shape, those of the adapters with LoRA, and all but the embeddings if
    these are frozen; else all."""
    if size.shape is None:
        return size.num_parameters
    lora = config.learner.lora
    adapters = size.num_adapter_parameters(lora.rank, lora.targets) if lora else None
    if adapters is not None:
        return adapters
    frozen = num_embeddings(size.shape) if config.learner.freeze_embeddings else 0
    return size.num_parameters - frozen


def short(number: int) -> str:
    """6738415616 -> "6.74e9"."""
    return f"{number:.3g}".replace("e+0", "e").replace("e+", "e")


def bytes_of(dtype: str) -> int:
    return 2 if dtype == "bfloat16" else 4


def _reference(config: RunConfig, trained: int, ranks: int) -> Part:
    """The weights that turns are compared with. An average is of float32; a copy of it is rounded to 16 bits while
    turns are scored."""
    width, name = bytes_of(config.learner.dtype), "weights of the stage's start"
    told = f"{width} B"
    if config.objective.kl_reference_average is not None:
        width, name = 4 if width == 4 else 4 + width, "average of the weights"
        told = f"{width} B" if width == 4 else f"(4 average + {width - 4} in place) B"
    over = f" / {ranks} ranks" if ranks > 1 else ""
    return Part(name, trained * width // ranks, f"{told} x {short(trained)}{over}")


def _sent(config: RunConfig, size: ModelSize) -> Part:
    """Weights on their way to engines. Over `nccl` two of vLLM's buffers are: it adds weights to one until that has
    more than a bucket's bytes."""
    bucket, largest = config.learner.bucket_bytes, embedding_bytes(config, size)
    if config.channel == "nccl":
        return Part("buckets of weights sent", 2 * bucket + largest, "2 x learner.bucket_bytes + the embedding")
    told = "learner.bucket_bytes" if bucket >= largest else "the embedding, which has to fit one bucket"
    return Part("bucket of weights sent", max(bucket, largest), told)


def _reduce_buckets(zero: dict[str, object], width: int) -> Part:
    """ZeRO's buffers: gradients to be reduced (two buckets if communication overlaps), and weights that are
    gathered."""
    reduce, gather = (int(zero[key]) for key in ("reduce_bucket_size", "allgather_bucket_size"))  # type: ignore[call-overload]
    copies = 2 if zero.get("overlap_comm") else 1
    arithmetic = f"{width} B x ({copies} x {short(reduce)} + {short(gather)})"
    return Part("ZeRO's buckets", width * (copies * reduce + gather), arithmetic)


def _activations(config: RunConfig, size: ModelSize) -> list[Part]:
    shape, learner = size.shape, config.learner
    if shape is None:
        return []
    tokens, width = learner.microbatch_tokens, bytes_of(learner.dtype)
    block = tokens * block_bytes_per_token(size, width)
    layers = shape.num_hidden_layers
    if learner.checkpoints_gradients:
        kept = layers * tokens * shape.hidden_size * width
        one = f"{layers} layers x {tokens} tokens x {shape.hidden_size} x {width} B"
        told = f"{one}, and {block / GIB:.2f} GiB of one layer"
        parts = [Part("activations", kept + block, told)]
    else:
        told = f"{layers} layers x {tokens} tokens x {block // tokens} B"
        parts = [Part("activations", layers * block, told)]
    per_logit = width if learner.packing == "trees" else width + 8  # with token trees, the head keeps only the gradient
    logits = tokens * shape.vocab_size * per_logit
    parts.append(Part("the head", logits, f"at most {tokens} targets x {shape.vocab_size} words x {per_logit} B"))
    return parts


def block_bytes_per_token(size: ModelSize, width: int) -> int:
    """The bytes that autograd saves of one transformer block for each token: the inputs of its matrix products, its
    norms (RMS norms also in float32), queries, keys and values before and after rotation, and the MLP's inner
    tensors."""
    shape = size.shape
    assert shape is not None
    heads, keys = shape.num_attention_heads * head_dim(shape), kv_heads(shape) * head_dim(shape)
    attention = width * (3 * heads + 3 * keys)
    if shape.model_type == "gpt_neox":
        return 4 * width * shape.hidden_size + attention + 2 * width * shape.intermediate_size
    if shape.model_type == "qwen3":  # queries and keys have their own norms
        attention += (4 + width) * (heads + keys)
    return 2 * (4 + 2 * width) * shape.hidden_size + attention + 4 * width * shape.intermediate_size


def with_planned_learner(config: RunConfig, size: ModelSize | None) -> RunConfig:
    """The configuration with a number in place of every `auto` of the learner; the same if there is
    none. With an unknown size of the model, a micro-batch has the default's tokens and is checkpointed.

    On CPUs these are the defaults. On a GPU they are what the memory allows, without checkpointing if a micro-batch is
    large enough then: checkpointing costs a third more time, a small micro-batch leaves a GPU idle.
    """
    learner = config.learner
    tokens, checkpointing = learner.max_tokens_per_microbatch, learner.gradient_checkpointing
    if tokens != "auto" and checkpointing != "auto":
        return config
    default: int = LearnerConfig.model_fields["max_tokens_per_microbatch"].default
    on_gpu = learner.num_gpus > 0

    def chosen(num_tokens: int, on: bool) -> RunConfig:
        values = {"max_tokens_per_microbatch": num_tokens, "gradient_checkpointing": on}
        return config.model_copy(update={"learner": learner.model_copy(update=values)})

    sizes = [default] if tokens == "auto" else [tokens]
    if tokens == "auto" and on_gpu and size is not None:
        sizes = [each for each in (MOST_TOKENS, MOST_TOKENS // 2, MOST_TOKENS // 4) if each > default] + sizes
    longest = size.longest_tree if size is not None and learner.packing == "trees" else None
    if tokens == "auto" and longest is not None:
        sizes = [each for each in sizes if each <= longest] or sizes[-1:]
    if checkpointing != "auto":
        options = [(each, checkpointing) for each in sizes]
    elif not on_gpu:
        options = [(each, False) for each in sizes]
    elif size is None:
        options = [(each, True) for each in sizes]
    else:
        # A micro-batch also has to hold the longest sample, or the run would have to leave it out.
        enough = max(ENOUGH_TOKENS, config.engine.max_model_len) if tokens == "auto" else tokens
        options = [(each, False) for each in sizes if each >= enough] + [(each, True) for each in sizes]
    fitting = (option for option in options if size is None or _fits(chosen(*option), size))
    return chosen(*next(fitting, options[-1]))


def _fits(config: RunConfig, size: ModelSize) -> bool:
    room = WELL_FILLED * share_of_gpu(config) * config.cluster.gpu_gib * GIB
    return not config.learner.num_gpus or learner_memory(config, size).num_bytes <= room


def share_of_gpu(config: RunConfig) -> float:
    """What a learner rank has of its GPU: with an engine beside it that stays awake, the part that Ray reserves for it;
    colocated, its part among the policies' learners, which are all awake together."""
    return 1 / len(config.policy_names) if config.placement == "colocated" else min(1.0, config.learner.num_gpus)
