"""Runs all checks of a machine, one after the other. Prints a line for each check, and one line of JSON last.

    spag-ray doctor --gpu
    python -m benchmarks.gpu_check --only attention,head

The checks that say most come first; those that do not fit into the time are not reached, which is no failure. A check
that does not end within its own limit fails. One whose requirements are missing is skipped, with the reason. What is
compiled stays where runs look for it, too: for the next check, and for the next call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from cluster.gpu_check.check import RANDOM_MODEL, Check, Told, model
from cluster.gpu_check.engine_checks import ENGINE, RUN, engine, run
from cluster.gpu_check.learner_checks import (
    LEARNER,
    MODULES,
    attention,
    export,
    fresh_moments,
    head,
    layouts,
    learner,
    sleep,
)
from cluster.gpu_check.processes import Method, gpus, in_a_process, used_mib, wait_until_free

CPU_ADAM = ("g++",)  # DeepSpeed compiles its optimiser for offloaded states on first use
IN_GPU_MEMORY = "its weights go from GPU memory to GPU memory"
MODEL = Check("model", model, 15, MODULES)
# Those that say most first. The seconds are estimated from the parts that have been measured on one H200.
CHECKS = (
    Check("engine", engine, 55, ENGINE),
    Check("run ipc", partial(run, name="ipc"), 120, RUN, gpu_only=IN_GPU_MEMORY),
    Check("run shared_memory", partial(run, name="shared_memory"), 70, RUN),
    Check("run object_store", partial(run, name="object_store"), 60, RUN),
    Check("run nccl", partial(run, name="nccl"), 80, RUN, num_gpus=2, gpu_only=IN_GPU_MEMORY),
    Check("learner ZeRO-2", partial(learner, zero_stage=2), 15, LEARNER),
    Check("learner asleep", sleep, 25, LEARNER),
    Check("attention", attention, 35, MODULES),
    Check("head", head, 5, MODULES),
    Check("learner ZeRO-1", partial(learner, zero_stage=1), 15, LEARNER),
    Check("learner ZeRO-3", partial(learner, zero_stage=3), 20, LEARNER),
    Check("export", export, 10, LEARNER),
    Check("learner ZeRO-2 offloaded", partial(learner, deepspeed="zero2_offload"), 65, LEARNER, programs=CPU_ADAM),
    Check("fresh moments", fresh_moments, 15, LEARNER, programs=CPU_ADAM),
    Check("learner with adapters asleep", partial(sleep, lora={"rank": 8}), 20, (*LEARNER, "peft")),
    Check("attention layouts", layouts, 45, MODULES),
    Check("engine on two GPUs", partial(engine, num_gpus=2), 80, ENGINE, num_gpus=2),
    Check("run two learner ranks", partial(run, name="two learner ranks"), 100, RUN, num_gpus=2),
)
MINUTES = 10.0
LIMIT = 3.0  # times its estimate, and at least MIN_LIMIT_S: a check that takes longer hangs
MIN_LIMIT_S = 90.0
METHODS: tuple[Method, ...] = ("forkserver", "spawn")  # the second where a fork cannot use the GPU
MAX_KEPT_BYTES = 10 * 2**20  # of a file beside the log of a check that failed: a larger one has weights
# Another program's use of the GPU, in vLLM's words.
DISTURBED = re.compile(r"Error in memory profiling|Free memory on device")


@dataclass(frozen=True)
class Row:
    """What is said of a check. `status`: pass, fail, skip or not reached."""

    check: str
    status: str
    text: str
    seconds: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        status = "FAIL" if self.status == "fail" else self.status
        return f"{status:11}  {self.check:28} {self.seconds:4.0f} s  {self.text}"


def run_all(shape: str, device: str = "cuda", only: str = "", minutes: float = MINUTES) -> int:
    """Prints the result of every check; returns 1 if one failed. SIGTERM ends the check that is running, too: by an
    exception, so that every `finally` runs."""
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run_all(shape, device, only, minutes)
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)


def _run_all(shape: str, device: str, only: str, minutes: float) -> int:
    began = time.monotonic()
    names = tuple(name.strip().lower() for name in only.split(",") if name.strip())
    chosen = [check for check in CHECKS if not names or check.name.lower().startswith(names)]
    cards = gpus() if device == "cuda" else []
    print(f"GPUs: {', '.join(cards) or 'none'}; a model of random weights in the shape of {shape}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="spag_ray-gpu-check-"))
    rows: list[Row] = []
    try:
        for row in rows_of(chosen, Told(shape, folder, device), len(cards), began + 60 * minutes):
            print(row, flush=True)
            rows.append(row)
    finally:
        shutil.rmtree(folder / RANDOM_MODEL, ignore_errors=True)
        with contextlib.suppress(OSError):
            folder.rmdir()  # it is empty if every check has passed
    counts = Counter(row.status for row in rows)
    print(", ".join(f"{number} {status}" for status, number in counts.items()))
    if folder.exists():
        print(f"logs of the checks that failed or were cut off: {folder}")
    about: dict[str, Any] = {"gpus": cards, "shape": shape, "device": device, "minutes": minutes}
    print(json.dumps(about | {"seconds": round(time.monotonic() - began), "checks": [asdict(row) for row in rows]}))
    return int(counts["fail"] > 0)


def rows_of(chosen: Sequence[Check], told: Told, num_gpus: int, until: float) -> Iterator[Row]:
    """`until`: the time.monotonic() at which all checks end. `told.folder`: for the folders of the checks."""
    reasons = {check.name: why_not(check, told.device, num_gpus) for check in chosen}
    method: Method | None = None
    if not all(reasons.values()):
        method, first = METHODS[0], checked(MODEL, told, until, METHODS[0])
        if first.status == "fail":
            method, first = METHODS[1], again(first, MODEL, told, until, METHODS[1])
        if first.status != "pass":
            method = None
        yield first
    for check in chosen:
        left_s = until - time.monotonic()
        if reasons[check.name]:
            yield Row(check.name, "skip", reasons[check.name])
        elif method is None:
            yield Row(check.name, "not reached", "there is no model")
        elif left_s < (check.takes_s if told.on_gpu else 1.0):
            about = f"takes about {check.takes_s:.0f} s, " if told.on_gpu else ""
            yield Row(check.name, "not reached", f"{about}{max(0.0, left_s):.0f} s were left (--minutes)")
        else:
            row = checked(check, told, until, method)
            if row.status == "fail" and DISTURBED.search(row.text) and until - time.monotonic() >= check.takes_s:
                row = again(row, check, told, until, method)
            yield row


def again(failed: Row, check: Check, told: Told, until: float, method: Method) -> Row:
    """The row of a second try, or the first failure where no time was left for another."""
    row = checked(check, told, until, method)
    return failed if row.status == "not reached" else row


def checked(check: Check, told: Told, until: float, method: Method) -> Row:
    """A check that exceeds its own limit fails; one that `until` cuts off is not reached. Its folder stays if it did
    not pass, without files of weights."""
    own = replace(told, folder=told.folder / check.name.replace(" ", "-"))
    before = used_mib() if told.on_gpu else []
    began = time.monotonic()
    limit_s = max(MIN_LIMIT_S, LIMIT * check.takes_s)
    found = in_a_process(check, own, max(1.0, min(limit_s, until - began)), method)
    seconds = round(time.monotonic() - began, 1)
    if found is None:
        row = Row(check.name, "not reached", f"cut off after {seconds:.0f} s, no time was left (--minutes)", seconds)
        if began + limit_s <= until:
            row = replace(row, status="fail", text=f"hangs: no end within {limit_s:.0f} s")
    else:
        row = Row(check.name, "pass" if found.passed else "fail", found.text, seconds, found.figures)
    if row.status == "pass":
        shutil.rmtree(own.folder, ignore_errors=True)
    for file in own.folder.rglob("*"):
        if file.is_file() and file.stat().st_size > MAX_KEPT_BYTES:
            file.unlink()
    if told.on_gpu and (in_use := wait_until_free(before)):
        row = replace(row, text=f"{row.text}; {in_use}")
    return row


def why_not(check: Check, device: str, num_gpus: int) -> str:
    """What is missing for a check; "" if nothing is."""
    missing = [name for name in check.needs if importlib.util.find_spec(name) is None]
    if missing:
        return f"needs {', '.join(missing)}, which is not installed here"
    lacking = [name for name in check.programs if device == "cuda" and shutil.which(name) is None]
    if lacking:
        return f"needs {', '.join(lacking)}, which is not on the PATH"
    if device == "cpu" and check.gpu_only:
        return f"needs {check.num_gpus} GPU{'s' * (check.num_gpus > 1)}: {check.gpu_only}"
    if device == "cuda" and num_gpus < check.num_gpus:
        return f"GPUs: needs {check.num_gpus}, found {num_gpus}"
    if device == "cpu" and check.num_gpus > 1:
        return f"GPUs: needs {check.num_gpus}"
    return ""
