"""DeepSpeed's JSON: "auto" comes from the run, contradictions are refused with both values named."""

import json
from pathlib import Path
from typing import Any

import pytest
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.utils.config import get_timers_config

from learners.deepspeed_config import deepspeed_config, loads_in_parts
from spag_ray.config.loading import config_root, parse_config, to_yaml
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import ConfigError
from spag_ray.plain_yaml import parse_settings

SHIPPED = sorted(path.stem for path in (config_root() / "deepspeed").glob("*.json"))


def written(tmp_path: Path, content: object) -> str:
    path = tmp_path / "mine.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_shipped_file_is_filled_from_the_run(name: str) -> None:
    found = deepspeed_config(LearnerConfig(deepspeed=name, max_grad_norm=0.7, weight_decay=0.1, dtype="bfloat16"))
    assert "auto" not in json.dumps(found)
    assert found["gradient_clipping"] == 0.7
    assert found["optimizer"]["params"]["weight_decay"] == 0.1
    assert found["bf16"]["enabled"]
    assert str(found["zero_optimization"]["stage"]) in name
    assert ("offload_optimizer" in found["zero_optimization"]) == ("offload" in name)


def test_a_value_of_the_file_is_used_where_the_run_says_nothing(tmp_path: Path) -> None:
    path = written(tmp_path, {"zero_optimization": {"stage": 3, "overlap_comm": True}, "gradient_clipping": 0.3})
    found = deepspeed_config(LearnerConfig(deepspeed=path))
    assert found["zero_optimization"]["stage"] == 3
    assert found["zero_optimization"]["overlap_comm"]
    assert found["gradient_clipping"] == 0.3


def test_gradients_that_are_summed_before_they_are_sent_are_sent_in_float32(tmp_path: Path) -> None:
    """Else DeepSpeed rounds the sums to bfloat16, also on one rank, with a copy of them all."""
    found = [deepspeed_config(LearnerConfig(zero_stage=stage, dtype="bfloat16")) for stage in (1, 2, 3)]
    assert [each.get("communication_data_type") for each in found] == ["fp32", None, None]
    path = written(tmp_path, {"communication_data_type": "bf16"})
    assert deepspeed_config(LearnerConfig(deepspeed=path))["communication_data_type"] == "bf16"


def test_deepspeed_measures_no_time_for_which_it_waits_for_the_device() -> None:
    assert not get_timers_config(deepspeed_config(LearnerConfig())).enabled


SIZES = (
    "reduce_bucket_size",
    "allgather_bucket_size",
    "stage3_prefetch_bucket_size",
    "stage3_param_persistence_threshold",
)


@pytest.mark.parametrize("name", [path.stem for path in (config_root() / "deepspeed").glob("*.json")])
def test_a_written_configuration_means_the_same_with_its_file(name: str) -> None:
    config = parse_config({"learner": {"deepspeed": name}})
    for for_elsewhere in (False, True):
        again = parse_config(parse_settings(to_yaml(config, for_elsewhere), "written"))
        assert deepspeed_config(again.learner) == deepspeed_config(config.learner)
    said = parse_config({"learner": {"deepspeed": name, "max_grad_norm": 0.5}})
    assert parse_config(parse_settings(to_yaml(said), "written")).learner.max_grad_norm == 0.5


def test_the_dtype_that_a_file_decides_is_not_written_and_any_other_is(tmp_path: Path) -> None:
    path = tmp_path / "own.json"
    for enabled in (True, False, "auto"):
        path.write_text(json.dumps({"bf16": {"enabled": enabled}, "zero_optimization": {"stage": 1}}))
        config = parse_config({"learner": {"deepspeed": str(path)}})
        written = parse_settings(to_yaml(config), "written")
        assert ("dtype" in written["learner"]) is (enabled == "auto")
        assert deepspeed_config(parse_config(written).learner) == deepspeed_config(config.learner)


@pytest.mark.parametrize("name", [None, "zero3", "zero3_offload"])
def test_messages_between_nodes_are_larger_than_within_one(name: str | None) -> None:
    def sizes(num_ranks: int) -> list[int]:
        zero = deepspeed_config(LearnerConfig(deepspeed=name, num_ranks=num_ranks))["zero_optimization"]
        return [zero[key] for key in SIZES]

    assert sizes(1) == sizes(8)
    assert sizes(9) == sizes(32)
    assert all(one < other for one, other in zip(sizes(8), sizes(9), strict=True))


def test_deepspeed_takes_the_sizes_of_messages_and_a_file_overrides_them(tmp_path: Path) -> None:
    found = deepspeed_config(LearnerConfig(deepspeed="zero3", num_ranks=16))["zero_optimization"]
    read = DeepSpeedZeroConfig(**found)
    assert (read.prefetch_bucket_size, read.param_persistence_threshold) == (200_000_000, 1_000_000)
    mine = written(tmp_path, {"zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 7}})
    assert deepspeed_config(LearnerConfig(deepspeed=mine))["zero_optimization"]["stage3_prefetch_bucket_size"] == 7


def test_an_optimiser_offloaded_from_a_gpu_is_deepspeeds_own() -> None:
    config = LearnerConfig(deepspeed="zero2_offload")
    assert deepspeed_config(config)["zero_force_ds_cpu_optimizer"] is False
    on_gpu = deepspeed_config(config, on_gpu=True)
    assert "torch_adam" not in on_gpu["optimizer"]["params"]
    assert "zero_force_ds_cpu_optimizer" not in on_gpu


def test_an_optimiser_that_stays_on_the_gpu_is_torchs_whatever_the_file_says_of_offloading(tmp_path: Path) -> None:
    """Without `torch_adam`, DeepSpeed would compile its own fused Adam with nvcc."""
    stays = written(tmp_path, {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}})
    parameters = deepspeed_config(LearnerConfig(deepspeed=stays), on_gpu=True)["optimizer"]["params"]
    assert (parameters["torch_adam"], parameters["fused"]) == (True, True)


def test_a_file_may_ask_for_deepspeeds_own_adam(tmp_path: Path) -> None:
    own = written(tmp_path, {"optimizer": {"params": {"torch_adam": False}}})
    assert "fused" not in deepspeed_config(LearnerConfig(deepspeed=own))["optimizer"]["params"]
    on_host = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    offloaded = written(tmp_path, {"optimizer": {"params": {"torch_adam": False}}, "zero_optimization": on_host})
    parameters = deepspeed_config(LearnerConfig(deepspeed=offloaded), on_gpu=True)["optimizer"]["params"]
    assert not {"torch_adam", "fused"} & set(parameters)


@pytest.mark.parametrize(
    ("content", "run", "fault"),
    [
        ({"gradient_clipping": 0.5}, {"max_grad_norm": 1.0}, r"clipping = 0.5, but learner.max_grad_norm says 1.0"),
        ({"zero_optimization": {"stage": 2}}, {"zero_stage": 3}, r"stage = 2, but learner.zero_stage says 3"),
        ({"bf16": {"enabled": False}}, {"dtype": "bfloat16"}, r"bf16.enabled = False, but learner.dtype says True"),
        ({"optimizer": {"params": {"lr": 1e-4}}}, {}, r"lr = 0.0001, but the stage's learning rate"),
        ({"train_micro_batch_size_per_gpu": 4}, {}, r"max_tokens_per_microbatch"),
        ({"scheduler": {"type": "WarmupLR"}}, {}, r"'scheduler' is set by the run"),
        ({"compute_grad_norm": False}, {}, r'"compute_grad_norm" has to be true'),
        ({"zero_optimization": {"stage": 0}}, {"dtype": "bfloat16"}, r"ZeRO stage 0 with bfloat16"),
        ({"communication_data_type": "auto"}, {}, r'is "auto", but the run says nothing'),
        ("{not json", {}, r"not valid JSON"),
        ([1], {}, r"is a JSON object, this is a list"),
        ({"zero_optimization": 3}, {}, r"zero_optimization is 3; it has to be a JSON object"),
        ({"zero_optimization": None}, {}, r"zero_optimization is null; it has to be a JSON object"),
        ({"zero_optimization": {"stage": "3"}}, {}, r'zero_optimization.stage is "3"; it has to be 0, 1, 2 or 3'),
        ({"zero_optimization": {"stage": 7}}, {}, r"zero_optimization.stage is 7; it has to be 0, 1, 2 or 3"),
        ({"zero_optimization": {"stage": True}}, {}, r"zero_optimization.stage is true; it has to be 0, 1, 2 or 3"),
        (
            {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": "/disk"}}},
            {},
            r"offload_optimizer.device is nvme, .* set cpu",
        ),
        ({"bf16": True}, {}, r"bf16 is true; it has to be a JSON object"),
        ({"optimizer": "AdamW"}, {}, r'optimizer is "AdamW"; it has to be a JSON object'),
        ({"optimizer": {"params": None}}, {}, r"optimizer.params is null; it has to be a JSON object"),
        ({"data_types": "bf16"}, {}, r'data_types is "bf16"; it has to be a JSON object'),
    ],
)
def test_contradictions_and_files_that_are_no_json_are_refused(
    tmp_path: Path, content: object, run: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError, match=fault):
        deepspeed_config(LearnerConfig(deepspeed=written(tmp_path, content), **run))


def test_a_file_that_is_not_there_is_refused_with_the_names_of_those_that_are() -> None:
    with pytest.raises(ConfigError, match="zero2_offload"):
        deepspeed_config(LearnerConfig(deepspeed="zero9"))


@pytest.mark.parametrize(
    ("zero", "is_in_parts"),
    [
        ({"stage": 2}, False),
        ({"stage": 3}, True),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, True),
        ({"stage": 3, "offload_param": {"device": "nvme", "nvme_path": "/disk"}}, False),
        ({"stage": 3, "zero_hpz_partition_size": 8}, False),
        ({"stage": 3, "zero_quantized_weights": True}, False),
    ],
)
def test_ranks_read_parts_that_are_runs_of_numbers(zero: dict[str, Any], is_in_parts: bool, tmp_path: Path) -> None:
    config = LearnerConfig(deepspeed=written(tmp_path, {"zero_optimization": zero}))
    assert loads_in_parts(deepspeed_config(config)["zero_optimization"]) == is_in_parts
