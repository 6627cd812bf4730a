"""Runs all checks of a machine, each in its own process. Prints a line for each check, and one line of JSON last.

    python -m benchmarks.gpu_check [--shape qwen2.5-1.5b] [--only attention,head]
    spag-ray doctor --gpu

A check whose requirements are missing is skipped, with the reason. `--device cpu --shape tiny` runs the code of the
checks without a GPU; that shows nothing about a GPU.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from cluster.gpu_check.check import SHAPES, Check, Finding, Told
from cluster.gpu_check.engine_checks import (
    ENGINE,
    RUN,
    engine,
    run_ipc,
    run_nccl,
    run_object_store,
    run_shared_memory,
    run_two_ranks,
    two_gpus,
)
from cluster.gpu_check.layout_checks import layouts
from cluster.gpu_check.learner_checks import (
    LEARNER,
    MODULES,
    attention,
    export,
    fresh_moments,
    head,
    learner,
    sleep,
)

CPU_ADAM = ("g++",)  # DeepSpeed compiles its optimiser for offloaded states on first use
CHECKS = (
    Check("attention", attention, MODULES),
    Check("attention layouts", layouts, MODULES),
    Check("head", head, MODULES),
    Check("learner ZeRO-1", partial(learner, zero_stage=1), LEARNER),
    Check("learner ZeRO-2", partial(learner, zero_stage=2), LEARNER),
    Check("learner ZeRO-3", partial(learner, zero_stage=3), LEARNER),
    Check("learner ZeRO-2 offloaded", partial(learner, deepspeed="zero2_offload"), LEARNER, programs=CPU_ADAM),
    Check("learner asleep", sleep, LEARNER),
    Check("learner with adapters asleep", partial(sleep, lora={"rank": 8}), (*LEARNER, "peft")),
    Check("fresh moments", fresh_moments, LEARNER, programs=CPU_ADAM),
    Check("export", export, LEARNER),
    Check("engine", engine, ENGINE),
    Check("run object_store", run_object_store, RUN),
    Check("run shared_memory", run_shared_memory, RUN),
    Check("run ipc", run_ipc, RUN),
    Check("engine on two GPUs", two_gpus, ENGINE, num_gpus=2),
    Check("run nccl", run_nccl, RUN, num_gpus=2),
    Check("run two learner ranks", run_two_ranks, RUN, num_gpus=2),
)
LIMIT_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 0 if no check failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen2.5-1.5b", help="shape of the random model")
    parser.add_argument("--only", default="", help="checks to run: the beginnings of their names, separated by commas")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="time limit for all checks together")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.check:
        told = Told(options.shape, options.folder, options.device)
        [chosen] = [check for check in CHECKS if check.name == options.check]
        print(json.dumps(asdict(chosen.run(told))), flush=True)
        return 0
    return run_all(options.shape, options.device, options.only, options.limit_s)


def run_all(shape: str, device: str = "cuda", only: str = "", limit_s: float = LIMIT_S) -> int:
    """Prints the result of every check; returns 1 if one failed."""
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    names = tuple(name.strip().lower() for name in only.split(",") if name.strip())
    cards = gpus() if device == "cuda" else []
    print(f"GPUs: {', '.join(cards) or 'none'}; a model of random weights in the shape of {shape}", flush=True)
    with tempfile.TemporaryDirectory(prefix="spag_ray-gpu-check-") as folder:
        told = Told(shape, Path(folder), device)
        for check in CHECKS:
            if names and not check.name.lower().startswith(names):
                continue
            left = limit_s - (time.monotonic() - began)
            reason = why_not(check, device, len(cards), left)
            found = None if reason else _in_a_process(check, told, left)
            status = "skip" if found is None else "pass" if found.passed else "FAIL"
            text = reason if found is None else found.text
            print(f"{status}  {check.name:28} {text}", flush=True)
            figures = {} if found is None else found.figures
            rows.append({"check": check.name, "status": status.lower(), "text": text, "figures": figures})
    about: dict[str, Any] = {"gpus": cards, "shape": shape, "device": device}
    print(json.dumps(about | {"seconds": round(time.monotonic() - began), "checks": rows}))
    return int(any(row["status"] == "fail" for row in rows))


def why_not(check: Check, device: str, num_gpus: int, seconds_left: float) -> str:
    """What is missing for a check; "" if nothing is."""
    missing = [name for name in check.needs if importlib.util.find_spec(name) is None]
    if missing:
        return f"needs {', '.join(missing)}, which is not installed here"
    lacking = [name for name in check.programs if device == "cuda" and shutil.which(name) is None]
    if lacking:
        return f"needs {', '.join(lacking)}, which is not on the PATH"
    if device == "cuda" and num_gpus < check.num_gpus:
        return f"GPUs: needs {check.num_gpus}, found {num_gpus}"
    if device == "cpu" and check.num_gpus > 1:
        return f"GPUs: needs {check.num_gpus}"
    if seconds_left <= 0:
        return "no time is left (--limit-s)"
    return ""


def gpus() -> list[str]:
    """The GPUs' names, with driver and memory; empty without nvidia-smi."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [" ".join(line.split()) for line in lines if line.strip()]


def _in_a_process(check: Check, told: Told, seconds_left: float) -> Finding:
    """Runs a check in its own process, so that GPU memory is freed afterwards."""
    command = [sys.executable, "-m", "cluster.gpu_check.run_checks", "--check", check.name, "--shape", told.shape]
    command += ["--device", told.device, "--folder", str(told.folder)]
    process = subprocess.Popen(  # its own process group, so that its children end with it
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        out, err = process.communicate(timeout=max(1.0, seconds_left))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.communicate()
        return Finding(False, f"not finished after {seconds_left:.0f} s, the time left for all checks (--limit-s)")
    lines = out.strip().splitlines()
    if process.returncode != 0 or not lines:
        return Finding(False, reason_of(err) or f"ended with {process.returncode}")
    return Finding(**json.loads(lines[-1]))


def reason_of(errors: str) -> str:
    """The first error of a process that failed. Later errors only say that other processes failed because of it."""
    lines = [line for line in errors.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (named or lines[-1:] or [""])[0]


if __name__ == "__main__":
    sys.exit(main())
