"""Checks that break, hang or leave something behind; the process of a check imports them from here."""

import os
import signal
import subprocess
import sys
import time

from cluster.gpu_check.check import Finding, Told, model_folder

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


def passes(told: Told) -> Finding:
    return Finding(True, "fine", {"imported": float("learners.learner" in sys.modules)})


def raises(told: Told) -> Finding:
    print("noise")
    try:
        raise ValueError("the first error")
    except ValueError as error:
        raise RuntimeError("what followed") from error


def is_killed(told: Told) -> Finding:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hangs(told: Told) -> Finding:
    """As Ray's workers and vLLM's engines, its own process is in a process group of its own."""
    child = subprocess.Popen(SLEEPER, process_group=0)
    (told.folder / "child").write_text(str(child.pid))
    (told.folder / "weights").write_bytes(bytes(11 * 2**20))
    print("hangs now", flush=True)
    time.sleep(600)
    raise AssertionError


def waits(told: Told) -> Finding:
    (told.folder / "own").write_text(str(os.getpid()))
    time.sleep(600)
    raise AssertionError


def leaves_a_process(told: Told) -> Finding:
    child = subprocess.Popen(SLEEPER, process_group=0)
    return Finding(True, str(child.pid))


def starts_without_memory(told: Told) -> Finding:
    """An engine without room for one sequence."""
    import asyncio

    from actors.vllm_policy import VllmPolicy
    from spag_ray.config.engine import EngineConfig

    config = EngineConfig(dtype="float32", max_model_len=512, max_num_seqs=1, kv_cache_gib=0.0001)
    asyncio.run(VllmPolicy.start(model_folder(told), config))
    raise AssertionError
