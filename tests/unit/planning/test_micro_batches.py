"""`auto` in a learner's section: what a run gets in its place."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.checks.check_results import plan_checks
from cluster.launch.placed_run import planned
from cluster.planning.memory import GIB, WELL_FILLED, learner_memory
from cluster.planning.micro_batches import with_planned_learner
from cluster.planning.model_size import ModelSize, count_parameters
from cluster.planning.plan import make_plan
from cluster.planning.plan_text import plan_lines
from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.parts import LearnerConfig, ModelShape
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError

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
SIZE = ModelSize(count_parameters(ModelShape(**SHAPE)), "its shape", ModelShape(**SHAPE))
BOTH: dict[str, Any] = {"max_tokens_per_microbatch": "auto", "gradient_checkpointing": "auto", "num_gpus": 1}


def config_of(gpu_gib: float = 79.0, engine: dict[str, Any] | None = None, **learner: Any) -> RunConfig:
    return parse_config({"learner": learner, "cluster": {"gpu_gib": gpu_gib}, "engine": engine or {}})


def chosen(config: RunConfig, size: ModelSize | None = SIZE) -> tuple[int, bool]:
    learner = with_planned_learner(config, size).learner
    return learner.microbatch_tokens, learner.checkpoints_gradients


def test_values_that_are_set_are_kept_and_cpus_have_the_defaults() -> None:
    explicit = config_of(max_tokens_per_microbatch=512, gradient_checkpointing=True, num_gpus=1)
    assert with_planned_learner(explicit, SIZE) is explicit
    assert make_plan(explicit).chosen is None
    assert chosen(config_of(**BOTH | {"num_gpus": 0})) == (2048, False)
    default = LearnerConfig()
    assert (default.microbatch_tokens, default.checkpoints_gradients) == (2048, False)


def test_a_larger_gpu_has_larger_micro_batches_and_no_checkpointing_where_these_fit() -> None:
    found = [chosen(config_of(gib, **BOTH)) for gib in (24.0, 44.0, 79.0, 139.0, 1000.0)]
    assert found == [(2048, True), (16384, True), (8192, False), (16384, False), (16384, False)], "2048: nothing fits"
    for gib, (tokens, on) in zip((44.0, 79.0, 139.0), found[1:-1], strict=True):
        fits = config_of(gib, max_tokens_per_microbatch=tokens, gradient_checkpointing=on, num_gpus=1)
        assert learner_memory(fits, SIZE).num_bytes <= WELL_FILLED * gib * GIB


def test_checkpointing_is_on_where_the_given_micro_batch_does_not_fit_without() -> None:
    given: dict[str, Any] = {"max_tokens_per_microbatch": 8192, "gradient_checkpointing": "auto", "num_gpus": 1}
    assert chosen(config_of(1000.0, **given)) == (8192, False)
    assert chosen(config_of(50.0, **given)) == (8192, True)
    on: dict[str, Any] = {"max_tokens_per_microbatch": "auto", "gradient_checkpointing": True, "num_gpus": 1}
    assert chosen(config_of(1000.0, **on)) == (16384, True)


def test_a_micro_batch_is_a_tree_that_the_model_can_read() -> None:
    windowed = replace(SIZE, longest_tree=4096)
    assert chosen(config_of(1000.0, **BOTH), windowed) == (4096, False)
    assert chosen(config_of(1000.0, **BOTH, packing="none"), windowed) == (16384, False)


def test_a_micro_batch_without_checkpointing_holds_the_longest_sample() -> None:
    longest = {"max_model_len": 16000}
    tokens, on = chosen(config_of(79.0, longest, **BOTH))
    assert (tokens, on) == (16384, True)
    assert not chosen(config_of(79.0, **BOTH))[1]


def test_a_learner_beside_an_engine_that_is_awake_has_its_own_part_of_the_gpu() -> None:
    whole, part = chosen(config_of(139.0, **BOTH)), chosen(config_of(139.0, **BOTH | {"num_gpus": 0.4}))
    assert part[0] < whole[0] or part[1] > whole[1]


def test_a_model_of_unknown_size_has_the_default_and_checkpointing() -> None:
    assert chosen(config_of(**BOTH), None) == (2048, True)


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
