"""Arguments of vLLM's engine that a run passes on, and those that it may not set."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from actors.vllm_policy import _engine_arguments
from spag_ray.config import vllm_arguments
from spag_ray.config.loading import parse_config
from spag_ray.config.parts import EngineConfig
from spag_ray.errors import ConfigError, EngineError


def told(model: Path, **arguments: Any) -> Any:
    return _engine_arguments(str(model), EngineConfig(vllm=arguments), 0, "object_store", on_cpu=True)


def test_what_vllm_alone_knows_is_passed_on(tiny_model: Path) -> None:
    found = told(tiny_model, quantization="fp8", enable_prefix_caching=False)
    assert (found.quantization, found.enable_prefix_caching) == ("fp8", False)
    assert found.logprobs_mode == "processed_logprobs"
    assert told(tiny_model).enable_prefix_caching


def test_an_argument_that_vllm_does_not_have_is_named_with_the_nearest(tiny_model: Path) -> None:
    with pytest.raises(EngineError, match=r"engine\.vllm\.quantisation: .* did you mean quantization\?"):
        told(tiny_model, quantisation="fp8")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"max_model_len": 1}, r"vllm\.max_model_len is set by engine\.max_model_len"),
        ({"logprobs_mode": "raw_logprobs"}, r"vllm\.logprobs_mode cannot be set: the learner needs"),
        ({"trust_remote_code": True}, "code from a model's folder is never run"),
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
    assert {*vllm_arguments._OURS, *vllm_arguments._RELIED_ON} <= names
