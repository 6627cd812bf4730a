"""Runs a check in a process of its own, which is ended with everything that it has started, and says why it failed.

The process is forked from one that has imported torch, transformers and DeepSpeed once (warm.py): importing them takes
a check 5 to 25 s. vLLM, which one check imports, is not among them: it starts threads. Where a fork cannot use the GPU,
checks are spawned.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from cluster.gpu_check.check import Check, Finding, Told
from cluster.rollout.engine_faults import root_cause
from spag_ray.host.processes import end_with
from spag_ray.host.whole_files import write_atomically

Method = Literal["forkserver", "spawn"]
WARM = "cluster.gpu_check.warm"
LOG = "check.log"
_RESULT = "result.json"
_ENDS_WITHIN_S = 10.0
_FREE_WITHIN_S = 30.0
_SLACK_MIB = 512  # that a GPU may hold more than before: what the driver keeps, and what a desktop changes

_ERROR = re.compile(r"^(?:\(\w+[^)]*\) )?(?:spag-ray: |[\w.]*(?:Error|Exception)\b).*")
_POINTERS = ("Engine core initialization failed", "RayTaskError", "ray.exceptions.")  # to another process's error


def in_a_process(check: Check, told: Told, limit_s: float, method: Method = "forkserver") -> Finding | None:
    """None if it did not end within `limit_s`. What it printed is in `told.folder`, in the file LOG."""
    told.folder.mkdir(parents=True, exist_ok=True)
    log, result = told.folder / LOG, told.folder / _RESULT
    work = (check, told, log, result)
    process: BaseProcess
    if method == "forkserver":
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([WARM])
        process = context.Process(target=_work, args=work)
    else:
        process = multiprocessing.get_context("spawn").Process(target=_work, args=work)
    try:
        process.start()  # the first one waits for the imports of WARM
        process.join(limit_s)
        is_cut_off = process.is_alive()
    finally:
        if process.pid is not None:
            process.kill()  # it may not have a session of its own yet
            end_session(process.pid)
            process.join(_ENDS_WITHIN_S)
    if result.exists():
        return Finding(**json.loads(result.read_text(encoding="utf-8")))
    if is_cut_off:
        return None
    printed = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return Finding(False, cause_of(printed) or f"its process ended with {process.exitcode}")


def _work(check: Check, told: Told, log: Path, result: Path) -> None:
    """In the process of the check. An exception goes to the log, as a traceback."""
    end_with(os.getppid())  # the command, or the fork server, which ends with it
    command = multiprocessing.parent_process()
    if command is not None and not command.is_alive():  # both ended before
        os._exit(1)
    os.setsid()  # Ray and vLLM start processes in process groups of their own, but in this session
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    result.unlink(missing_ok=True)
    write_atomically(result, json.dumps(asdict(check.run(told))))


def end_session(leader: int) -> None:
    """Kills the processes of a session, and waits until they are gone."""
    until = time.monotonic() + _ENDS_WITHIN_S
    while (left := list(_of_session(leader))) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)


def _of_session(leader: int) -> Iterator[int]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it has ended
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state != "Z":
                    yield int(folder.name)


def first_error(output: str) -> str | None:
    """Why a check failed: the first error of an engine's core or worker, if it has printed one, else the first of all.
    Later ones only say that other processes failed because of it. None if there is no error at all."""
    if (cause := root_cause(output)) is not None:
        return cause
    named = [line.strip() for line in output.splitlines() if _ERROR.match(line)]
    return next((line for line in named if not any(each in line for each in _POINTERS)), next(iter(named), None))


def cause_of(output: str) -> str:
    """In one line; the last line if no error is named, "" if nothing was printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return first_error(output) or (lines[-1] if lines else "")


def cause_of_run(output: str, logs: Path) -> str:
    """What the command says at its end, and the first error in the logs of the run's processes."""
    told = ([line.strip() for line in output.splitlines() if line.strip()] or [""])[-1]
    # An engine's or a rank's error comes before that of the run, which only hears of it.
    for log in sorted(logs.glob("*.log"), key=lambda path: (path.stem in ("run", "train"), path.name)):
        cause = first_error(log.read_text(encoding="utf-8", errors="replace"))
        if cause is not None and cause not in told:
            return f"{told}; first error in {log.name}: {cause}"
    return told


def gpus() -> list[str]:
    """The GPUs' names, with driver and memory; empty without nvidia-smi."""
    return [" ".join(line.split()) for line in _asked("name,driver_version,memory.total")]


def used_mib() -> list[int]:
    """Memory in use on each GPU, by whatever process; 0 where the driver does not say."""
    return [int(line) if line.isdigit() else 0 for line in _asked("memory.used", "nounits")]


def wait_until_free(before: Sequence[int]) -> str:
    """Waits until each GPU holds about as much as before a check: vLLM fails if memory changes while it measures it.
    Returns what is still in use after a while; "" if nothing is."""
    until = time.monotonic() + _FREE_WITHIN_S
    while any(more := [now - then for now, then in zip(used_mib(), before, strict=False) if now - then > _SLACK_MIB]):
        if time.monotonic() >= until:
            return f"{max(more) / 1024:.1f} GiB more than before are in use on a GPU after {_FREE_WITHIN_S:.0f} s"
        time.sleep(0.5)
    return ""


def _asked(query: str, *options: str) -> list[str]:
    """Of the GPUs that this process may use: CUDA_VISIBLE_DEVICES has their indices or UUIDs."""
    command = ["nvidia-smi", f"--query-gpu={query}", f"--format={','.join(('csv', 'noheader', *options))}"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and "MIG" not in visible:  # nvidia-smi does not choose a part of a GPU by its name
        if not visible.strip():
            return []
        command.append(f"--id={visible}")
    try:
        lines = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in lines if line.strip()]
