"""What a learner that is out of memory says: what it asked for, what was planned, which keys help."""

import mmap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

from cluster.learning import learner_group, learning_policy
from cluster.learning.learner_group import LearnerGroup, memory_advice, out_of_memory
from cluster.learning.learning_policy import LearningPolicy
from cluster.learning.weight_sync import Export, Probe
from cluster.tracking.recorder import Recorder
from spag_ray.config.loading import parse_config
from spag_ray.config.parts import LearnerConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import LearnerError, LearnersLostError, WeightSyncError
from spag_ray.game.rules import Role
from spag_ray.results.lines import SyncReport


def raised_by_torch() -> BaseException:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**45)
    return caught.value


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> LearnerGroup:
    """A group whose calls end with this error, as Ray raises it."""

    def get(refs: Any, timeout_s: float) -> Any:
        raise error

    monkeypatch.setattr(learner_group, "get", get)
    group: Any = LearnerGroup.__new__(LearnerGroup)
    group.timeout_s, group._config, group._model, group._ranks = 1.0, RunConfig(), "/nowhere", []
    return group


CUDA = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 1 GiB is free. "
)
CUDA += (
    "Including non-PyTorch memory, this process has 77.90 GiB memory in use. Of the allocated memory 75.00 GiB is ..."
)


@pytest.mark.parametrize(
    "error", [raised_by_torch(), torch.OutOfMemoryError(CUDA), MemoryError("Unable to allocate 4 GiB")]
)
def test_a_rank_out_of_memory_ends_the_run_with_one_line(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    of_ray = ray.exceptions.RayTaskError("step", "Traceback ...", error).as_instanceof_cause()
    with pytest.raises(LearnerError, match=r"out of memory: .*GiB.*; lower learner\.max_tokens") as caught:
        failing(monkeypatch, of_ray).sleep()
    assert not isinstance(caught.value, LearnersLostError), "the same would happen again"
    assert "\n" not in str(caught.value)
    assert "Including" not in str(caught.value)


@pytest.mark.parametrize("has_broken_channel", [False, True])
@pytest.mark.parametrize(
    ("cause", "told"),
    [
        (torch.OutOfMemoryError(CUDA), r"a learner rank is out of memory: CUDA .*; lower learner\.max_tokens"),
        (
            RuntimeError("an illegal memory access"),
            "a learner rank could not compute a bucket: an illegal memory access",
        ),
    ],
)
def test_a_rank_that_fails_during_a_sync_is_told_and_no_engine_is_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception, told: str, has_broken_channel: bool
) -> None:
    """Engines that wait for its buckets are handed its error, and refuse the version; also the second time, after a
    channel broke, over which the first export had no buckets."""
    of_ray = ray.exceptions.RayTaskError("buckets", "Traceback ...", cause).as_instanceof_cause()
    ref: Any = object()
    gate: Any = None
    probe = Probe((1,), (2,))
    policy = LearningPolicy("policy", tuple(Role), parse_config({}), tmp_path, "model", Recorder(tmp_path), probe)
    policy.learners = failing(monkeypatch, of_ray)
    monkeypatch.setattr(policy.learners, "check_alive", lambda wait_s: None)
    whole = Export(policy.learners, 1, [ref], ref, report=SyncReport(1, 0.5, 1, 100))
    policy._published = replace(whole, bucket_refs=[]) if has_broken_channel else whole

    def publish(*_: Any) -> Any:
        policy._published = whole
        raise WeightSyncError("version 1 was not taken by engine-0: ray::LearnerActor.buckets()")

    monkeypatch.setattr(learning_policy, "publish", publish)
    with pytest.raises(LearnerError, match=told):
        policy.publish([], gate)
    if isinstance(cause, torch.OutOfMemoryError):
        with pytest.raises(LearnerError, match=told):
            policy.verify_weights([])


def test_what_torch_asks_for_is_told_in_gib() -> None:
    assert out_of_memory(str(raised_by_torch())) == f"it tried to allocate {2**47 / 2**30:.2f} GiB"


@pytest.mark.parametrize(
    "told",
    [
        "[Errno 12] Cannot allocate memory",
        "unable to mmap 4194304 bytes from file </m>: Cannot allocate memory (12)",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    ],
)
def test_memory_that_the_system_or_a_library_refuses_is_told_too(told: str) -> None:
    assert out_of_memory(told) == told
    with pytest.raises(OSError, match="Cannot allocate memory") as caught:
        mmap.mmap(-1, 2**47)
    assert out_of_memory(str(caught.value)) == str(caught.value)


def test_another_error_of_a_rank_is_raised_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ray.exceptions.RayTaskError("step", "Traceback ...", ValueError("a bug")).as_instanceof_cause()
    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        failing(monkeypatch, error).sleep()
    assert caught.value is error


def test_a_rank_that_rays_memory_monitor_killed_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LearnersLostError, match="out of memory"):
        failing(monkeypatch, ray.exceptions.OutOfMemoryError("the node ran out of memory")).sleep()


def test_errors_about_something_else_are_not_about_memory() -> None:
    assert out_of_memory("size mismatch") is None
    assert out_of_memory("CUDA error: out of memory\nCUDA kernel errors might be ...") == "CUDA error: out of memory"


def test_the_advice_has_the_plans_numbers_and_keys_that_are_not_used_yet(tiny_model: Path) -> None:
    config = parse_config({"model": str(tiny_model), "learner": {"max_tokens_per_microbatch": 4096}})
    told = memory_advice(config, str(tiny_model))
    assert "GiB were planned for each rank (" in told
    assert "optimiser 0.00" in told
    assert "learner.max_tokens_per_microbatch (4096)" in told
    assert "learner.gradient_checkpointing: true" in told
    assert "learner.zero_stage (1)" in told
    assert "offload" not in told, "on a CPU there is nowhere to"
    used = {"gradient_checkpointing": True, "deepspeed": "zero3_offload", "num_gpus": 1, "zero_stage": 3, "lora": {}}
    told = memory_advice(parse_config({"model": str(tiny_model), "learner": used}), "/nowhere")
    assert told == "lower learner.max_tokens_per_microbatch (2048)"
    told = memory_advice(parse_config({"learner": {"num_gpus": 1}, "engine": {"num_gpus": 1}}), str(tiny_model))
    assert "of its GPU's 79 were planned" in told
    assert "learner.deepspeed: zero2_offload" in told
    assert {"max_tokens_per_microbatch", "gradient_checkpointing", "zero_stage", "num_ranks", "deepspeed"} <= set(
        LearnerConfig.model_fields
    )
