"""The plan's memory is arithmetic that can be checked: against a model's own tensors, and against sums by hand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.checks.check_results import plan_checks
from cluster.gpu_check.check import SHAPES
from cluster.launch.placed_run import planned
from cluster.planning.memory import (
    GIB,
    WELL_FILLED,
    EngineMemory,
    Memory,
    adapter_bytes,
    block_bytes_per_token,
    checkpoint_bytes,
    engine_memory,
    learner_memory,
    with_planned_learner,
)
from cluster.planning.model_size import ModelSize, count_parameters
from cluster.planning.plan import make_plan, plan_lines
from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.parts import LearnerConfig, ModelShape
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from tests.support.shapes import LLAMA_2_7B

SIZE = ModelSize(count_parameters(LLAMA_2_7B), "test", LLAMA_2_7B)
P = SIZE.num_parameters
NAME = "weights of the stage's start"
STREAM = {"self_play": {"games_per_round": 160}}


def config_of(**changes: Any) -> RunConfig:
    on_gpus: dict[str, Any] = {"num_gpus": 1, "dtype": "bfloat16"}
    base: dict[str, Any] = {"engine": on_gpus, "learner": {**on_gpus, "num_ranks": 4}}
    merged = {k: {**base.get(k, {}), **v} if isinstance(v, dict) else v for k, v in changes.items()}
    return parse_config({**base, **merged})


def parts_of(memory: Memory) -> dict[str, int]:
    return {part.name: part.num_bytes for part in memory.parts}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gpt_neox"])
@pytest.mark.parametrize(("dtype", "width"), [("bfloat16", 2), ("float32", 4)])
def test_a_blocks_activations_are_what_autograd_saves(family: str, dtype: str, width: int) -> None:
    import torch

    keys = {} if family == "gpt_neox" else {"num_key_value_heads": 2, "head_dim": 32}
    shape: dict[str, Any] = {
        "vocab_size": 64, "hidden_size": 128, "intermediate_size": 352, "num_attention_heads": 4, **keys,
    }  # fmt: skip
    measured = (saved_bytes(family, shape, dtype, 4) - saved_bytes(family, shape, dtype, 2)) / 2 / NUM_TOKENS
    size = ModelSize(0, "test", ModelShape.model_validate({"model_type": family, "num_hidden_layers": 1, **shape}))
    assert block_bytes_per_token(size, width) == pytest.approx(measured, rel=0.1)
    assert getattr(torch, dtype).itemsize == width


NUM_TOKENS = 96


def saved_bytes(family: str, shape: dict[str, Any], dtype: str, num_layers: int) -> int:
    """Of every tensor that a forward pass keeps for the backward pass, but for the weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, num_hidden_layers=num_layers, **shape)
    model = AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype), attn_implementation="sdpa").train()
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, tuple[int, Any]] = {}  # kept alive, so that no address comes twice

    def pack(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model.base_model(torch.arange(NUM_TOKENS)[None] % 64, use_cache=False)
    assert output.last_hidden_state.requires_grad
    return sum(num_bytes for num_bytes, _ in saved.values())


def test_each_zero_stage_splits_what_it_says() -> None:
    stages = {stage: parts_of(learner_memory(config_of(learner={"zero_stage": stage}), SIZE)) for stage in (1, 2, 3)}
    assert stages[1]["weights"] == stages[2]["weights"] == 2 * P
    assert stages[3]["weights"] == 2 * P // 4
    assert stages[3]["weights gathered"] == 2 * 10**9
    assert stages[1]["gradients, bfloat16"] + stages[1]["gradients, float32"] == 6 * P
    assert "gradients, bfloat16" not in stages[2]
    assert stages[2]["gradients, float32"] == stages[3]["gradients, float32"] == 4 * P // 4
    assert {stages[stage]["optimiser"] for stage in stages} == {12 * P // 4}


def test_frozen_embeddings_have_no_gradient_and_no_optimiser() -> None:
    learner = {"zero_stage": 2, "freeze_embeddings": True}
    parts = parts_of(learner_memory(config_of(learner=learner), SIZE))
    assert SIZE.shape is not None
    trained = P - 2 * SIZE.shape.vocab_size * SIZE.shape.hidden_size  # Llama-2's output layer is a matrix of its own
    assert parts["weights"] == 2 * P
    assert parts["gradients, float32"] == 4 * trained // 4
    assert parts["optimiser"] == 12 * trained // 4


def test_the_weights_of_a_stages_start_lie_on_the_host_where_they_are_needed() -> None:
    def held(objective: dict[str, Any], **changes: Any) -> int:
        config = config_of(schedule="stream", objective=objective, **STREAM, **changes)
        return {part.name: part.num_bytes for part in learner_memory(config, SIZE).host_parts}.get(NAME, 0)

    assert held({}, learner={"zero_stage": 2}) == 2 * P
    assert held({}, learner={"zero_stage": 3}) == 2 * P // 4
    adapters = held({}, learner={"lora": {"rank": 16}})
    assert 0 < adapters < P // 50
    assert held({"kl_coeff": 0}) == held({"loss": "published"}) == 0
    in_rounds = learner_memory(config_of(), SIZE)
    assert NAME not in {part.name for part in (*in_rounds.parts, *in_rounds.host_parts)}
    on_cpus = learner_memory(config_of(schedule="stream", learner={"num_gpus": 0}, **STREAM), SIZE)
    assert parts_of(on_cpus)[NAME] == 2 * P
    assert not on_cpus.host_parts


def test_an_average_of_the_weights_is_of_float32_and_in_16_bits_while_turns_are_scored() -> None:
    def held(**learner: Any) -> int:
        objective = {"kl_reference": "start", "kl_reference_average": 0.9}
        host = learner_memory(config_of(objective=objective, learner=learner), SIZE).host_parts
        return {part.name: part.num_bytes for part in host}["average of the weights"]

    assert held(zero_stage=2) == 6 * P
    assert held(zero_stage=3) == 6 * P // 4
    assert held(zero_stage=2, dtype="float32") == 4 * P
    plain, averaged = (
        parse_config({"learner": {"dtype": "bfloat16"}, "objective": objective})
        for objective in ({}, {"kl_reference": "start", "kl_reference_average": 0.9})
    )
    assert checkpoint_bytes(averaged, SIZE)[0] - checkpoint_bytes(plain, SIZE)[0] == 4 * P


def test_float32_without_zero_has_no_master_copy() -> None:
    parts = parts_of(learner_memory(config_of(learner={"zero_stage": 0, "dtype": "float32", "num_ranks": 1}), SIZE))
    assert (parts["weights"], parts["gradients, float32"], parts["optimiser"]) == (4 * P, 4 * P, 8 * P)


def test_what_is_offloaded_lies_on_the_host() -> None:
    memory = learner_memory(config_of(learner={"zero_stage": 2, "deepspeed": "zero2_offload"}), SIZE)
    host = {part.name: part.num_bytes for part in memory.host_parts}
    assert "optimiser" not in parts_of(memory)
    assert host["optimiser"] == 12 * P // 4
    assert host["the model while it loads"] == 2 * P


@pytest.mark.parametrize(
    ("learner", "measured_gib"),
    [
        ({"zero_stage": 1}, 31.7),
        ({"zero_stage": 2}, 27.7),
        ({"zero_stage": 3}, 29.7),
        ({"deepspeed": "zero2_offload"}, 11.4),
    ],
)
def test_a_rank_of_a_gpu_needs_what_was_measured(learner: dict[str, Any], measured_gib: float) -> None:
    """`spag-ray gpu-check`, shape qwen2.5-1.5b, on one H200."""
    shape = ModelShape.model_validate(SHAPES["qwen2.5-1.5b"])
    more = {"max_tokens_per_microbatch": 4096, "gradient_checkpointing": True, "num_ranks": 1, "num_gpus": 1}
    config = config_of(learner={**more, **learner})
    planned = learner_memory(config, ModelSize(count_parameters(shape), "test", shape)).num_bytes / GIB
    assert planned == pytest.approx(measured_gib, rel=0.03)


def test_gradients_that_are_offloaded_are_summed_on_the_gpu_first() -> None:
    """DeepSpeed adds them up in float32, which is no copy if the weights are float32; ZeRO-3 does it on the host."""

    def on_gpu(**learner: Any) -> int:
        return parts_of(learner_memory(config_of(learner=learner), SIZE)).get("gradients, float32", 0)

    assert on_gpu(deepspeed="zero2_offload") == 4 * P // 4
    assert on_gpu(deepspeed="zero2_offload", dtype="float32") == 0
    assert on_gpu(deepspeed="zero3_offload", zero_stage=3) == 0


def test_ranks_that_read_their_parts_need_no_room_for_the_whole_model_on_the_host() -> None:
    host = learner_memory(config_of(learner={"zero_stage": 3}), SIZE).host_parts
    assert {part.name: part.num_bytes for part in host}["the model while it loads"] == 2 * 32000 * 4096


def test_checkpointing_keeps_one_tensor_a_layer() -> None:
    more, less = (
        parts_of(learner_memory(config_of(learner={"gradient_checkpointing": on}), SIZE))["activations"]
        for on in (False, True)
    )
    assert less < more / 8


def test_an_engine_has_its_share_of_the_card_and_the_rest_is_cache() -> None:
    whole = engine_memory(config_of(cluster={"gpu_gib": 80}, engine={"gpu_memory_utilization": 0.5}), SIZE)
    assert whole.budget == 40 * GIB
    assert whole.memory.num_bytes == 38 * GIB
    assert whole.kv_tokens == (38 * GIB - 2 * P) // (2 * 32 * 4096 * 2)
    split = engine_memory(config_of(engine={"num_gpus": 4, "tensor_parallel_size": 4}), SIZE)
    assert parts_of(split.memory)["weights"] == 2 * P // 4
    unknown = engine_memory(config_of(), ModelSize(P, "test"))
    assert unknown.kv_tokens is None


def test_an_engine_of_fewer_bits_has_more_cache() -> None:
    def planned(**vllm: str) -> EngineMemory:
        return engine_memory(
            config_of(cluster={"gpu_gib": 80}, engine={"gpu_memory_utilization": 0.5, "vllm": vllm}), SIZE
        )

    whole, halved = planned(), planned(quantization="fp8")
    embeddings = 2 * LLAMA_2_7B.vocab_size * LLAMA_2_7B.hidden_size
    assert parts_of(halved.memory)["weights"] == P + embeddings
    assert whole.kv_tokens is not None
    assert halved.kv_tokens is not None
    assert halved.kv_tokens > whole.kv_tokens
    assert planned(kv_cache_dtype="fp8_e5m2").kv_tokens == pytest.approx(2 * whole.kv_tokens, abs=1)
    assert planned(quantization="awq").kv_tokens is None, "not known, so nothing is refused because of it"


def test_heads_that_are_copied_make_no_more_room() -> None:
    size = ModelSize(count_parameters(LLAMA_2_7B), "", LLAMA_2_7B.model_copy(update={"num_key_value_heads": 2}))
    tokens = {}
    for gpus in (2, 4):
        engine = {"num_gpus": gpus, "tensor_parallel_size": gpus}
        found = engine_memory(config_of(engine=engine), size)
        tokens[gpus] = found.kv_tokens
    assert tokens[2] is not None
    assert tokens[4] is not None
    # Weights take less of each card, and that is all that four GPUs add.
    assert tokens[2] < tokens[4] < 1.5 * tokens[2]


def test_an_engine_of_transformers_has_no_cache() -> None:
    size = ModelSize(count_parameters(LLAMA_2_7B), "", LLAMA_2_7B)
    found = engine_memory(config_of(engine={"kind": "transformers", "kv_cache_gib": 0.1}), size)
    assert (found.kv_tokens, list(parts_of(found.memory))) == (None, ["weights"])


def test_opponents_that_are_adapters_take_their_places_and_no_more_models() -> None:
    lora = {"lora": {"rank": 16, "export": "adapter"}}
    config = config_of(learner=lora, league={"past_share": 0.3, "num_opponents": 8}, engine={"num_gpus": 1})
    one = 2 * (SIZE.num_adapter_parameters(16, ()) or 0)
    assert one == adapter_bytes(config, SIZE)
    assert 50e6 < one < 100e6
    newest, past = engine_memory(config, SIZE), engine_memory(config, SIZE, holds_past=True)
    assert (parts_of(newest.memory)["adapters"], parts_of(past.memory)["adapters"]) == (2 * one, 8 * one)
    assert newest.budget == past.budget
    assert parts_of(newest.memory)["KV cache"] - parts_of(past.memory)["KV cache"] == 6 * one
    on_cpus = config_of(learner={**lora, "num_gpus": 0}, league=config.league.model_dump(), engine={"num_gpus": 0})
    assert parts_of(engine_memory(on_cpus, SIZE, holds_past=True).memory)["adapters"] == (9 + 8) * one
    assert "adapters" not in parts_of(engine_memory(config_of(), SIZE).memory)


def test_a_checkpoint_is_as_large_as_the_one_of_the_quickstart_was() -> None:
    smollm2 = ModelSize(134_515_008, "SmolLM2-135M")
    num_bytes, _ = checkpoint_bytes(parse_config({"learner": {"dtype": "bfloat16"}}), smollm2)
    assert num_bytes / 1e9 == pytest.approx(1.9, abs=0.05)  # measured, configs/quickstart.yaml


def test_a_sleeping_engine_takes_powers_of_two_of_bytes_on_the_host() -> None:
    """Of each weight as vLLM has it, which is of several linear layers. A layer's `o_proj` has 2^25 bytes."""
    mib, whole = 2**20, 2 * P

    def asleep(shape: ModelShape | None, gpus: int = 1) -> int:
        engine = {"num_gpus": gpus, "tensor_parallel_size": gpus}
        return engine_memory(config_of(placement="colocated", engine=engine), ModelSize(P, "", shape)).memory.host_bytes

    assert asleep(LLAMA_2_7B) == (32 * (128 + 32 + 256 + 128) + 2 * 256) * mib
    assert asleep(LLAMA_2_7B, gpus=2) == (32 * (64 + 16 + 128 + 64) + 2 * 128) * mib
    assert whole < asleep(LLAMA_2_7B) < asleep(None) == 2 * whole


SHAPE: dict[str, Any] = {  # Qwen2.5-1.5B
    "model_type": "qwen2",
    "vocab_size": 151936,
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
KNOWN_SIZE = ModelSize(count_parameters(ModelShape(**SHAPE)), "its shape", ModelShape(**SHAPE))
BOTH: dict[str, Any] = {"max_tokens_per_microbatch": "auto", "gradient_checkpointing": "auto", "num_gpus": 1}


def config_with(gpu_gib: float = 79.0, engine: dict[str, Any] | None = None, **learner: Any) -> RunConfig:
    return parse_config({"learner": learner, "cluster": {"gpu_gib": gpu_gib}, "engine": engine or {}})


def chosen(config: RunConfig, size: ModelSize | None = KNOWN_SIZE) -> tuple[int, bool]:
    learner = with_planned_learner(config, size).learner
    return learner.microbatch_tokens, learner.checkpoints_gradients


def test_values_that_are_set_are_kept_and_cpus_have_the_defaults() -> None:
    explicit = config_with(max_tokens_per_microbatch=512, gradient_checkpointing=True, num_gpus=1)
    assert with_planned_learner(explicit, KNOWN_SIZE) is explicit
    assert make_plan(explicit).chosen is None
    assert chosen(config_with(**BOTH | {"num_gpus": 0})) == (2048, False)
    default = LearnerConfig()
    assert (default.microbatch_tokens, default.checkpoints_gradients) == (2048, False)


def test_a_larger_gpu_has_larger_micro_batches_and_no_checkpointing_where_these_fit() -> None:
    found = [chosen(config_with(gib, **BOTH)) for gib in (24.0, 44.0, 79.0, 139.0, 1000.0)]
    assert found == [(2048, True), (16384, True), (8192, False), (16384, False), (16384, False)], "2048: nothing fits"
    for gib, (tokens, on) in zip((44.0, 79.0, 139.0), found[1:-1], strict=True):
        fits = config_with(gib, max_tokens_per_microbatch=tokens, gradient_checkpointing=on, num_gpus=1)
        assert learner_memory(fits, KNOWN_SIZE).num_bytes <= WELL_FILLED * gib * GIB


def test_checkpointing_is_on_where_the_given_micro_batch_does_not_fit_without() -> None:
    given: dict[str, Any] = {"max_tokens_per_microbatch": 8192, "gradient_checkpointing": "auto", "num_gpus": 1}
    assert chosen(config_with(1000.0, **given)) == (8192, False)
    assert chosen(config_with(50.0, **given)) == (8192, True)
    on: dict[str, Any] = {"max_tokens_per_microbatch": "auto", "gradient_checkpointing": True, "num_gpus": 1}
    assert chosen(config_with(1000.0, **on)) == (16384, True)


def test_a_micro_batch_is_a_tree_that_the_model_can_read() -> None:
    windowed = replace(KNOWN_SIZE, longest_tree=4096)
    assert chosen(config_with(1000.0, **BOTH), windowed) == (4096, False)
    assert chosen(config_with(1000.0, **BOTH, packing="none"), windowed) == (16384, False)


def test_a_micro_batch_without_checkpointing_holds_the_longest_sample() -> None:
    longest = {"max_model_len": 16000}
    tokens, on = chosen(config_with(79.0, longest, **BOTH))
    assert (tokens, on) == (16384, True)
    assert not chosen(config_with(79.0, **BOTH))[1]


def test_a_learner_beside_an_engine_that_is_awake_has_its_own_part_of_the_gpu() -> None:
    whole, part = chosen(config_with(139.0, **BOTH)), chosen(config_with(139.0, **BOTH | {"num_gpus": 0.4}))
    assert part[0] < whole[0] or part[1] > whole[1]


def test_a_model_of_unknown_size_has_the_default_and_checkpointing() -> None:
    assert chosen(config_with(**BOTH), None) == (2048, True)


def test_a_run_gets_numbers_and_its_plan_tells_them(tmp_path: Path) -> None:
    options = [f"learner.{key}={value}" for key, value in BOTH.items() if key != "num_gpus"]
    config = load_config("qwen3_4b_8gpu", options)
    assert config.learner.max_tokens_per_microbatch == "auto"
    learner = planned(config, str(tmp_path)).learner
    told = f"micro-batches of {learner.microbatch_tokens} tokens, gradient checkpointing "
    plan = make_plan(config)
    assert any(told in line for line in plan_lines(plan))
    assert plan.config.learner == learner
    assert any(told in check.text for check in plan_checks(config)), "doctor says it too"
    with pytest.raises(AssertionError, match="planned before"):
        _ = config.learner.microbatch_tokens


@pytest.mark.parametrize(
    ("setting", "fault"),
    [
        ("max_tokens_per_microbatch=15", "should be greater than or equal to 16, or auto (got 15)"),
        ("max_tokens_per_microbatch=many", "should be a whole number, or auto (got 'many')"),
        ("gradient_checkpointing=some", "should be true or false, or auto (got 'some')"),
    ],
)
def test_what_is_neither_a_value_nor_auto_is_refused(setting: str, fault: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("quickstart", [f"learner.{setting}"])
    assert str(caught.value).endswith(f" learner.{setting.partition('=')[0]}: {fault}")
