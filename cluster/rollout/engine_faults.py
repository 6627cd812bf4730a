"""Why an engine did not start, in one line, with the keys of the configuration that change it.

vLLM raises "Engine core initialization failed. See root cause above" in the engine's actor. The cause is only in what
the core and its workers, processes of their own, have printed: in the engine's log.

>>> start_fault("vLLM cannot load tiny: Engine core initialization failed. See root cause above.",
...     "(EngineCore pid=7) Traceback (most recent call last):\\n(EngineCore pid=7)   File x\\n"
...     "(EngineCore pid=7) ValueError: No available memory for the cache blocks.", on_gpu=False)
'vLLM cannot load tiny: No available memory for the cache blocks; raise engine.kv_cache_gib'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_MAX_BYTES = 2**20  # of the log that is read
_POINTER = re.compile(r"Engine core initialization failed.*", re.DOTALL)
_KILLED = re.compile(r"Failed core proc\(s\): \{[^}]*: -9\b")
_PREFIX = re.compile(r"^\((?P<who>EngineCore|VllmWorker|Worker)[^)]*\) (?:[A-Z]+ [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_COLOURS = re.compile(r"\x1b\[[\d;]*m")
_RAISED = re.compile(r"^(?P<kind>[A-Za-z_][\w.]*)(?:: (?P<text>.*))?$")
_POINTS_TO_WORKER = re.compile(r"^Worker failed with error|See stack trace for root cause")
# vLLM's own advice names arguments that this configuration has under other names, or not at all.
_ADVICE = re.compile(r"\.? *(?:Try increasing|Decrease |Increase |See https|To allow overriding|To resolve).*$")
_MEMORY = (
    "engine.max_num_seqs or engine.max_model_len, or divide the model over more GPUs (engine.tensor_parallel_size)"
)
# vLLM's words -> what to change (on a GPU, on a CPU). "was it out of memory?" is this package's own question about a
# process that has ended for a reason that nobody knows.
_REMEDIES: tuple[tuple[str, str, str], ...] = (
    (
        r"Free memory on device",
        "lower engine.gpu_memory_utilization, or end the other processes that hold memory there",
        "free memory on this machine",
    ),
    (
        r"No available memory for the cache blocks",
        "raise engine.gpu_memory_utilization, or lower engine.max_num_seqs",
        "raise engine.kv_cache_gib",
    ),
    (
        r"larger than the available KV cache memory",
        "raise engine.gpu_memory_utilization, or lower engine.max_model_len",
        "raise engine.kv_cache_gib, or lower engine.max_model_len",
    ),
    (r"less than requested memory for kv", "lower engine.kv_cache_gib", "lower engine.kv_cache_gib, or free memory"),
    (r"greater than the derived max_model_len", "lower engine.max_model_len", "lower engine.max_model_len"),
    (
        r"(?i)(?<!was it )out of memory|OutOfMemoryError|can't allocate memory|MemoryError",
        f"lower engine.gpu_memory_utilization, {_MEMORY}",
        "lower engine.kv_cache_gib or engine.max_num_seqs, or free memory on this machine",
    ),
    (
        r"divisible by tensor parallel size|number of available GPUs|NUMA nodes to bind",
        "lower engine.tensor_parallel_size",
        "lower engine.tensor_parallel_size",
    ),
    (r"Bfloat16 is only supported", "set engine.dtype: float32", "set engine.dtype: float32"),
)


class EngineLog:
    """What an engine prints from now on; `path`: the file that its output goes to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begin = path.stat().st_size

    def text(self) -> str:
        """Its last part."""
        with self.path.open("rb") as file:
            file.seek(max(self._begin, self.path.stat().st_size - _MAX_BYTES))
            return file.read().decode("utf-8", errors="replace")


def start_fault(told: str, output: str, on_gpu: bool) -> str:
    """The message of an engine that did not start, with the cause that vLLM printed in `output` in place of a reference
    to it, and what to change."""
    cause = root_cause(output)
    if _KILLED.search(told):
        cause = "its process was killed, probably because the machine was out of memory"
    if cause is not None:
        told = _POINTER.sub(lambda _: cause, told)
    for words, gpu_remedy, cpu_remedy in _REMEDIES:
        if re.search(words, told):
            return f"{_ADVICE.sub('', told).rstrip('. ')}; {gpu_remedy if on_gpu else cpu_remedy}"
    return told


def root_cause(output: str) -> str | None:
    """The message of the exception that ended the engine's core: a worker's, if the core's only points to it. None if
    the core printed none."""
    of_core = of_worker = None
    for who, text in _exceptions(output):
        if who == "EngineCore":
            of_core = text
        elif of_worker is None:
            of_worker = text  # the first: others fail because of it
    if of_core is None or (of_worker is not None and _POINTS_TO_WORKER.search(of_core)):
        return of_worker
    return of_core


def _exceptions(output: str) -> Iterator[tuple[str, str]]:
    """(process, message) of each traceback that the engine's processes have logged."""
    inside = ""
    for coloured in output.splitlines():
        line = _COLOURS.sub("", coloured)
        found = _PREFIX.match(line)
        if found is None:
            continue
        text = line[found.end() :]
        if text.startswith("Traceback (most recent call last)"):
            inside = found["who"]
        elif inside == found["who"] and text and not text[0].isspace() and (raised := _RAISED.match(text)) is not None:
            inside = ""
            message = raised["text"] or raised["kind"]
            yield found["who"], message if raised["kind"] in ("ValueError", "RuntimeError") else text
