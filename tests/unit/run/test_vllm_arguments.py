"""Arguments of vLLM's engine that a run passes on, and those that it may not set."""

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from actors.vllm_policy import _engine_arguments, _executor
from cluster.checks.preflight import check_files
from spag_ray.config import engine as engine_config
from spag_ray.config.engine import EngineConfig
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError, EngineError


def told(model: Path, **arguments: Any) -> Any:
    return _engine_arguments(str(model), EngineConfig(vllm=arguments), 0, on_cpu=True)


def test_what_vllm_alone_knows_is_passed_on(tiny_model: Path) -> None:
    found = told(tiny_model, quantization="fp8", enable_prefix_caching=False)
    assert (found.quantization, found.enable_prefix_caching) == ("fp8", False)
    assert found.logprobs_mode == "processed_logprobs"
    assert told(tiny_model).enable_prefix_caching
    several = {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "rejection_sample_method": "standard"},
        "attention_backend": "FLASH_ATTN",
        "enable_expert_parallel": True,
    }
    parse_config({"engine": {"vllm": several}})
    found = told(tiny_model, **several)
    assert {name: getattr(found, name) for name in several} == several


def test_an_engine_on_a_cpu_has_a_place_more_than_it_has_adapters(tiny_model: Path) -> None:
    config = EngineConfig(max_lora_rank=8, max_adapters=5)
    on_cpu, on_gpu = (_engine_arguments(str(tiny_model), config, 0, is_cpu) for is_cpu in (True, False))
    assert (on_cpu.max_loras, on_gpu.max_loras) == (6, 5)
    assert not told(tiny_model).enable_lora


def test_a_rank_that_vllm_has_no_places_for_gets_the_next_larger_ones(tiny_model: Path) -> None:
    ranks = [
        _engine_arguments(str(tiny_model), EngineConfig(max_lora_rank=rank), 0, True).max_lora_rank
        for rank in (1, 4, 12, 16, 500)
    ]
    assert ranks == [1, 8, 16, 16, 512]


def test_an_argument_that_vllm_does_not_have_is_named_with_the_nearest(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.vllm\.quantisation: .* did you mean quantization\?"):
        told(tiny_model, quantisation="fp8")


def test_the_arguments_are_known_without_vllm_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    known = {field.name for field in fields(vllm.AsyncEngineArgs)}
    assert engine_config._installed_arguments() == known
    check_files(parse_config({"engine": {"vllm": {"quantization": "fp8"}}}))
    with pytest.raises(ConfigError, match=r"engine\.vllm\.quantisation: .* did you mean quantization\?"):
        check_files(parse_config({"engine": {"vllm": {"quantisation": "fp8"}}}))
    monkeypatch.setattr(engine_config, "find_spec", lambda _: None)  # a machine that only submits
    check_files(parse_config({"engine": {"vllm": {"quantisation": "fp8"}}}))


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"max_model_len": 1}, r"vllm\.max_model_len is set by engine\.max_model_len"),
        ({"logprobs_mode": "raw_logprobs"}, r"vllm\.logprobs_mode cannot be set: the learner needs"),
        ({"trust_remote_code": True}, "code from a model's folder is never run"),
        ({"skip_tokenizer_init": False}, "engines read and answer token ids"),
        ({"logits_processors": ["mine:Processor"]}, "other probabilities than the learner computes"),
        ({"watermark_config": {"key": 1}}, "other probabilities than the learner computes"),
        ({"override_generation_config": {"eos_token_id": 5}}, "the run sets the sampling"),
        ({"prefill_context_parallel_size": 2}, r"those of engine\.tensor_parallel_size"),
        ({"device_ids": [1]}, "has the GPUs that Ray reserves for it"),
        ({"speculative_config": {"rejection_sample_method": "synthetic"}}, "use standard or block"),
    ],
)
def test_what_a_run_sets_or_relies_on_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_config({"engine": {"vllm": arguments}})


def test_another_kind_of_engine_has_no_such_arguments() -> None:
    with pytest.raises(ConfigError, match="kind is transformers"):
        parse_config({"engine": {"kind": "transformers", "vllm": {"quantization": "fp8"}}})


def test_every_name_that_is_refused_is_one_of_vllms() -> None:
    from vllm import AsyncEngineArgs

    names = {field.name for field in fields(AsyncEngineArgs)}
    assert {*engine_config._OURS, *engine_config._RELIED_ON, "speculative_config"} <= names


def test_every_name_that_a_run_relies_on_is_in_the_documents() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in engine_config._RELIED_ON if f"`{name}`" not in page] == []


def test_on_few_cores_a_cpu_engines_worker_is_in_its_core(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.executor.uniproc_executor import UniProcExecutor

    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert _executor(1, on_cpu=True) is UniProcExecutor
    assert (_executor(1, on_cpu=False), _executor(2, on_cpu=True), _executor(2, on_cpu=False)) == (None, "mp", "mp")
    monkeypatch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0-1")
    assert _executor(1, on_cpu=True) is None
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert _executor(1, on_cpu=True) is None
