"""The share of a GPU's arithmetic that a step needs: weights are counted by hand, rates are those of this machine."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MixtralConfig, MixtralForCausalLM

from learners.step_sums import Figures, StepSums, step_report
from learners.utilization import StepCost, Utilization, matrix_rate
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.results.lines import StepLine
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec

SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
NORMS = 2 * 2 * 16 + 16
LAYERS = 2 * (2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 32) + NORMS
HEAD = 96 * 16


@pytest.mark.parametrize("tied", [False, True])
def test_embeddings_are_looked_up_and_cost_nothing_unless_they_are_the_head(tied: bool) -> None:
    cost = StepCost.of(LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)))
    assert (cost.per_token, cost.per_target_token) == (6 * LAYERS, 6 * HEAD)
    assert cost.flops(10, 3) == 60 * LAYERS + 18 * HEAD


def test_a_frozen_weight_needs_no_gradient_of_its_own() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True))
    model.get_input_embeddings().requires_grad_(False)
    assert StepCost.of(model) == StepCost(6 * LAYERS, 4 * HEAD)
    model.requires_grad_(False)
    assert StepCost.of(model) == StepCost(4 * LAYERS, 4 * HEAD)


def test_a_weight_that_is_divided_over_ranks_counts_whole() -> None:
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False))
    whole = StepCost.of(model)
    for parameter in model.parameters():
        parameter.ds_numel, parameter.data = parameter.numel(), torch.empty(0)
    assert StepCost.of(model) == whole


def test_of_a_mixture_the_experts_count_that_a_token_is_given_to() -> None:
    def cost(used: int) -> float:
        config = MixtralConfig(**SIZES, num_local_experts=4, num_experts_per_tok=used, tie_word_embeddings=False)
        return StepCost.of(MixtralForCausalLM(config)).per_token

    one_expert = 2 * 3 * 16 * 32  # of two layers
    assert cost(2) - cost(1) == 6 * one_expert
    assert cost(1) == 6 * (LAYERS + 2 * 4 * 16), "a router in each layer"


def test_utilization_is_the_share_of_all_gpus() -> None:
    one = Utilization(StepCost(600.0, 100.0), matrix_rate=1e6, num_gpus=1)
    assert one.mfu(1000, 500, seconds=1.0) == pytest.approx(0.65)
    assert replace(one, num_gpus=2).mfu(1000, 500, seconds=1.0) == pytest.approx(0.325)


def report_on(gpus: Utilization | None) -> dict[str, Any]:
    """The line of a step of 1,000 tokens, 500 of them trained on, in 2 s."""
    objective, spec = ObjectiveConfig(), StageSpec("self_play", 1, 0.0, 0.0)
    figures, _ = StepSums(objective, spec).read(None)
    sums = figures.sums | {"unique_tokens": 1000.0, "target_tokens": 500.0}
    figures = Figures(sums, figures.maxima | ({} if gpus is None else {"gpu_memory_bytes": 3e9}))
    report = step_report(
        figures, Batch(()).counts, objective, spec, step=1, gradient_norm=1.0, learning_rate=0.0, seconds=2.0, gpus=gpus
    )
    return StepLine("spag-1", "policy", report).values()


def test_a_step_says_how_much_of_its_gpus_it_used_and_on_cpus_nothing() -> None:
    on_gpus = report_on(Utilization(StepCost(600.0, 100.0), matrix_rate=1e6, num_gpus=2))
    assert (on_gpus["tokens_per_s"], on_gpus["tokens_per_s_per_gpu"]) == (500.0, 250.0)
    assert on_gpus["mfu"] == pytest.approx(0.1625)
    assert on_gpus["gpu_memory_bytes"] == 3_000_000_000
    on_cpus = report_on(None)
    assert on_cpus["tokens_per_s"] == 500.0
    assert not {"mfu", "tokens_per_s_per_gpu", "gpu_memory_bytes"} & set(on_cpus)


def test_the_rate_of_matrix_products_is_measured() -> None:
    cpu = torch.device("cpu")
    found = matrix_rate(cpu, (256, 64, 64), budget_s=0.02)
    assert 1e6 < found < 1e15
