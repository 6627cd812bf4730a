"""What the CPU of this machine can do."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

CPU_INFO = Path("/proc/cpuinfo")
# The parts of AVX-512 that oneDNN needs for bfloat16. Without them PyTorch multiplies bfloat16 matrices by a plain loop
# on one core: measured on an AMD EPYC 7001, 1.6 to 8 GFLOP/s, against 12 to 25 in float32.
_NEEDED = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}

Dtype = Literal["bfloat16", "float32"]


def fast_dtype(on_gpu: bool) -> Dtype:
    """bfloat16; on a CPU that multiplies it much slower than float32, float32. `on_gpu`: whether it is for a GPU."""
    return "bfloat16" if on_gpu or multiplies_bfloat16() else "float32"


@cache
def multiplies_bfloat16() -> bool:
    """Whether PyTorch has fast matrix products of bfloat16 on this CPU; true where the CPU's features are unknown."""
    try:
        lines = CPU_INFO.read_text().splitlines()
    except OSError:
        return True
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), None)
    return flags is None or set(flags) >= _NEEDED
