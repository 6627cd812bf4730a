"""What a benchmark ran on, for its line of JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """{"cores": how many, "machine": the processor's name}"""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"cores": psutil.cpu_count(), "machine": names[0] if names else "unknown"}
