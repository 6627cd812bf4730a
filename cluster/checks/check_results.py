"""The results of checks, one line each: a check passes, warns or fails, and says what to do.

The checks are pure functions of Ray's view of its nodes and of the nodes' own reports (node_report.py).
cluster_checks.py collects both.
"""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cluster.checks.node_report import NodeReport
from cluster.planning.memory import GIB, bucket_bytes, engine_memory, learner_memory
from cluster.planning.model_size import ModelSize
from cluster.planning.placement import Rooms, Unplaced, actors_of, placement_doubt, placement_fault
from cluster.planning.plan import make_disk, make_plan, plan_faults, snapshot_bytes, version_bytes
from cluster.runtime.ray_session import address_of
from cluster.types import Node, NodeResources
from spag_ray.config.run import RunConfig

Status = Literal["pass", "warn", "fail"]
# Buckets of weights that are in shared memory at the same time.
LEAST_SHARED_MEMORY = 2
# CUDA's major version -> the oldest major version of NVIDIA's driver that it runs on (CUDA's release notes).
LEAST_DRIVER = {"12": 525, "13": 580}
# Memory of an engine's process on a CPU besides weights and cache, measured with the quickstart.
LIBRARIES_BYTES = int(1.6 * GIB)


@dataclass(frozen=True)
class CheckResult:
    """One line: what was checked, the result, and what to do if it is not a pass."""

    check: str
    status: Status
    text: str


def placement_check(config: RunConfig, nodes: Sequence[NodeResources]) -> CheckResult:
    if fault := placement_fault(config, nodes):
        return CheckResult("placement", "fail", fault)
    if doubt := placement_doubt(config, nodes):
        return CheckResult("placement", "warn", doubt)
    count = Counter(spec.kind for spec in actors_of(config) for _ in range(spec.count))
    return CheckResult("placement", "pass", f"{count['engine']} engines and {count['learner']} learner ranks fit")


def plan_checks(config: RunConfig) -> Iterator[CheckResult]:
    """What would stop a run on these or any other nodes. Raises ModelError for a model folder that cannot be read."""
    plan = make_plan(config)
    if plan.chosen is not None:
        yield CheckResult("plan", "pass", plan.chosen)
    yield from (CheckResult("plan", "fail", fault) for fault in plan_faults(plan))


def object_store_checks(config: RunConfig, size: ModelSize, nodes: Sequence[Node]) -> Iterator[CheckResult]:
    """Whether a version of the weights fits into each node's object store. If not, Ray writes it to disk."""
    needed = snapshot_bytes(config, size)
    if not needed or not nodes:
        return
    smallest = min(nodes, key=lambda node: node.object_store_bytes)
    there, name = smallest.object_store_bytes, smallest.resources.name
    if there >= needed:
        yield CheckResult(
            "object store", "pass", f"a version of the weights takes {needed / GIB:.2f} GiB of {there / GIB:.2f} GiB"
        )
        return
    how = "ray start --object-store-memory" if address_of(config.cluster) else "cluster.object_store_gib"
    yield CheckResult(
        "object store",
        "warn",
        f"a version of the weights takes {needed / GIB:.2f} GiB, {name} has {there / GIB:.2f} GiB, so Ray will write "
        f"it to disk and read it again; set {how} to at least as much",
    )


def disk_checks(config: RunConfig, size: ModelSize, run_dir: Path) -> Iterator[CheckResult]:
    """Whether the disk has room for a new run folder. One that is there has a part of its files already."""
    if run_dir.exists():
        return
    needed = sum(part.num_bytes for part in make_disk(config, size))
    parent = next(each for each in run_dir.absolute().parents if each.exists())
    if (free := shutil.disk_usage(parent).free) < needed:
        told = f"{run_dir} takes up to {needed / GIB:.1f} GiB and its logs of games, and {parent} has {free / GIB:.1f}"
        keeps = config.checkpoint.enabled and config.checkpoint.keep_last > 1
        remedy = "make room, or lower checkpoint.keep_last" if keeps else "make room"
        yield CheckResult("disk", "warn", f"{told} free; {remedy}")


def report_checks(
    config: RunConfig,
    size: ModelSize | None,
    nodes: Sequence[NodeResources],
    here: NodeReport,
    reports: Sequence[NodeReport],
    run_dir: Path,
) -> Iterator[CheckResult]:
    """The checks of the nodes' reports; `here` is the report of this machine. A run on CPUs alone does not care what
    GPUs a machine has."""
    uses_gpus = bool(config.engine.num_gpus or config.learner.num_gpus)
    yield version_check(here, reports, uses_gpus)
    yield from path_checks(reports)
    yield folder_check(reports, run_dir)
    yield from import_checks(reports)
    if uses_gpus:
        yield from gpu_checks(reports)
    yield from memory_checks(config, size, reports, nodes)
    if size is not None:
        yield from host_memory_checks(config, size, nodes, reports)


def version_check(here: NodeReport, reports: Sequence[NodeReport], uses_gpus: bool = True) -> CheckResult:
    """Every node has the same Python and packages as this machine, and for a run on GPUs a node with GPUs has a torch
    with CUDA."""
    for report in reports:
        for name, ours in here.versions.items():
            theirs = report.versions.get(name, "")
            if theirs != ours:
                return CheckResult(
                    "versions",
                    "fail",
                    f"{name} is {theirs or 'missing'} on {report.node}, {ours or 'missing'} here; install the same "
                    "lock (requirements/) on every node",
                )
        if uses_gpus and report.gpus and not report.versions["cuda"]:
            told = f"{report.node} has GPUs, but torch there is built without CUDA; install requirements/gpu.txt"
            return CheckResult("versions", "fail", told)
    drivers = {report.gpu_driver for report in reports if report.gpu_driver}
    if len(drivers) > 1:
        told = (
            f"GPU drivers differ: {', '.join(sorted(drivers))}; that often works, but install the same one on all nodes"
        )
        return CheckResult("versions", "warn", told)
    shown = ", ".join(f"{name} {found}" for name, found in here.versions.items() if found)
    return CheckResult("versions", "pass", shown)


def path_checks(reports: Sequence[NodeReport]) -> Iterator[CheckResult]:
    """Every path is readable on every node and has the same size there."""
    for path in reports[0].path_bytes if reports else ():
        sizes = {report.node: report.path_bytes[path] for report in reports}
        lacking = [node for node, num_bytes in sizes.items() if num_bytes is None]
        if lacking:
            yield CheckResult(
                "paths",
                "fail",
                f"{path} cannot be read on {', '.join(lacking)}; put it on a file system that all nodes share, or copy "
                "it to the same absolute path on each",
            )
        elif len(set(sizes.values())) > 1:
            found = ", ".join(f"{num_bytes} bytes on {node}" for node, num_bytes in sizes.items())
            yield CheckResult("paths", "fail", f"{path} is not the same on all nodes ({found}); copy it again")
        else:
            yield CheckResult("paths", "pass", f"{path} is readable on {_nodes(len(reports))}")


def folder_check(reports: Sequence[NodeReport], run_dir: Path) -> CheckResult:
    blind = [report.node for report in reports if not report.sees_token]
    if blind:
        return CheckResult(
            "run folder",
            "fail",
            f"a file written beside {run_dir} is not seen from {', '.join(blind)}, but every node writes logs, "
            "checkpoints and models; choose a --run-dir on a file system that all nodes share",
        )
    return CheckResult("run folder", "pass", f"{run_dir} can be created, and is seen from {_nodes(len(reports))}")


def import_checks(reports: Sequence[NodeReport]) -> Iterator[CheckResult]:
    """What a run needs can be imported on each node that had to try."""
    yield from (CheckResult("imports", "fail", fault) for report in reports for fault in report.import_faults)


def gpu_checks(reports: Sequence[NodeReport]) -> Iterator[CheckResult]:
    """Each node with GPUs has a driver that is new enough for its CUDA, and what compiles kernels."""
    for report in reports:
        if not report.gpus:
            continue
        cuda, driver = report.versions.get("cuda", ""), report.gpu_driver
        least, major = LEAST_DRIVER.get(cuda.split(".")[0], 0), driver.split(".")[0]
        if major.isdecimal() and int(major) < least:
            told = (
                f"{report.node} has the GPU driver {driver}, but CUDA {cuda} needs {least} or later; update the driver"
            )
            yield CheckResult("driver", "fail", told)
        if report.build_faults:
            yield CheckResult(
                "compiler",
                "fail",
                f"{report.node} lacks {' and '.join(report.build_faults)}: kernels are compiled when a run "
                "starts; install it (Debian, Ubuntu: apt install gcc python3-dev)",
            )


def memory_checks(
    config: RunConfig, size: ModelSize | None, reports: Sequence[NodeReport], nodes: Sequence[NodeResources] = ()
) -> Iterator[CheckResult]:
    """Shared memory for buckets of weights that are sent to an engine (whatever the channel: saved weights come so, and
    a version whose channel broke), and GPU memory for a learner rank. A report has all GPUs of a machine; where Ray has
    fewer on the node, these are taken for the largest."""
    needed = 0
    if config.engine.kind == "vllm":
        bucket = bucket_bytes(config, size)
        whole = bucket if size is None else version_bytes(config, size)
        needed = min(LEAST_SHARED_MEMORY * bucket, whole)
    for report in reports:
        if report.shared_memory_bytes < needed:
            yield CheckResult(
                "shared memory",
                "fail",
                f"{report.node} has {report.shared_memory_bytes / 2**20:.0f} MiB free in /dev/shm, but buckets of "
                f"weights need {needed / 2**20:.0f}; give a container more (--shm-size), or lower learner.bucket_bytes",
            )
    of_ray = {node.name: int(node.num_gpus) for node in nodes}
    gpus = [gib for report in reports for gib in sorted(report.gpus)[::-1][: of_ray.get(report.node)]]
    if size is None or not gpus or not config.learner.num_gpus:
        return
    memory, smallest = learner_memory(config, size), min(gpus)
    states = ("weights", "optimiser", "gradients, float32", "gradients, bfloat16")  # what is gathered may be less
    surely = sum(part.num_bytes for part in memory.parts if part.name in states)
    told = f"a learner rank is estimated at {memory.num_bytes / GIB:.1f} GiB, the smallest GPU has {smallest:.1f}"
    remedy = "see `spag-ray train --dry-run` for the sum; use more ranks and a higher learner.zero_stage, or offload"
    if math.ceil(smallest) < config.cluster.gpu_gib:
        planned = f"plans, and what `auto` chooses, are for cluster.gpu_gib {config.cluster.gpu_gib:g}"
        remedy = f"{planned}: set it to {math.floor(smallest)}; {remedy}"
    if surely > smallest * GIB:
        yield CheckResult("GPU memory", "fail", f"{told}; {remedy}")
    elif memory.num_bytes > 0.9 * smallest * GIB:
        yield CheckResult("GPU memory", "warn", f"{told}; {remedy}")
    else:
        yield CheckResult("GPU memory", "pass", told)


def host_memory_checks(
    config: RunConfig, size: ModelSize, nodes: Sequence[NodeResources], reports: Sequence[NodeReport]
) -> Iterator[CheckResult]:
    """Each node's memory against the estimated need of the processes placed there; reports the tightest node."""
    placed = Rooms(nodes).place(actors_of(config))
    if isinstance(placed, Unplaced):
        return
    learner = learner_memory(config, size)
    # Past engines hold the most adapters: if there are any, every engine is counted as one.
    engine = engine_memory(config, size, holds_past=config.league.num_past > 2).memory
    each = {
        "learner": learner.host_bytes if config.learner.num_gpus else learner.num_bytes,
        "engine": engine.host_bytes if config.engine.num_gpus else engine.num_bytes,
    }
    tightest = 0.0, ""
    for report in reports:
        here = [actor.spec.kind for actor in placed if actor.node == report.node and actor.spec.kind in each]
        needed = sum(each[kind] + LIBRARIES_BYTES for kind in here) + snapshot_bytes(config, size)
        estimate = f"{needed / GIB:.1f} GiB estimated for {len(here)} processes on {report.node}"
        told = f"{estimate}, which has {report.memory_bytes / GIB:.1f}"
        tightest = max(tightest, (needed / report.memory_bytes, told))
    share, told = tightest
    if share > 1:
        remedy = "fewer engines or ranks per node, a smaller micro-batch, or more nodes"
        yield CheckResult("host memory", "warn", f"{told}; use {remedy} (`spag-ray train --dry-run` shows the sum)")
    elif told:
        yield CheckResult("host memory", "pass", told)


def _nodes(count: int) -> str:
    return "this machine" if count == 1 else f"all {count} nodes"
