"""Checks of a cluster: Ray's view of its nodes, and each node's own report, made by a task that is pinned to it.

`spag-ray doctor` shows all results. `spag-ray train` makes the same checks first and stops at the first one that fails.
Ray's state API (ray.util.state) could not replace the tasks: of a node it knows the resources, not versions, paths or
memory. It also needs a dashboard, which a Ray that is started here does not have.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.models import resolve_model
from cluster.checks.check_results import (
    CheckResult,
    disk_checks,
    object_store_checks,
    placement_check,
    plan_checks,
    report_checks,
)
from cluster.checks.imports import IMPORT_WITHIN_S, environment_of, needs_of
from cluster.checks.node_report import NodeReport, Wanted, look
from cluster.planning.memory import with_planned_learner
from cluster.planning.model_size import model_size
from cluster.runtime.ray_session import is_job, ray_nodes
from cluster.types import Node
from spag_ray.config.loading import named_paths
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, ModelError, reason_of

ANSWER_WITHIN_S = 60.0 + IMPORT_WITHIN_S


def check_cluster(config: RunConfig, model: str, run_dir: Path) -> list[str]:
    """The checks that `train` makes before it places anything. Returns the warnings. Raises ConfigError for the first
    check that fails. If Ray was started here and has one node, this process makes the report without a Ray task."""
    warnings = []
    for result in cluster_checks(config, model, run_dir):
        if result.status == "fail":
            raise ConfigError(result.text)
        if result.status == "warn":
            warnings.append(result.text)
    return warnings


def cluster_checks(config: RunConfig, model: str | None, run_dir: Path) -> Iterator[CheckResult]:
    """All checks of the connected cluster. `model` is the model folder, or None if it was not found."""
    nodes = ray_nodes()
    num_cpus, num_gpus = (sum(getattr(node.resources, key) for node in nodes) for key in ("num_cpus", "num_gpus"))
    yield CheckResult("nodes", "pass", f"{len(nodes)} with {num_cpus:g} CPUs and {num_gpus:g} GPUs in total")
    yield placement_check(config, [node.resources for node in nodes])
    size = None
    with contextlib.suppress(ModelError):  # the check of the model says so
        size = model_size(model or config.model, config.model_shape)
        yield from plan_checks(config)
        config = with_planned_learner(config, size)
    if size is not None:
        yield from object_store_checks(config, size, nodes)
        yield from disk_checks(config, size, run_dir)
    with _token(run_dir) as token:
        wanted = Wanted(tuple(read_by_actors(config, model)), token)
        here = look(nodes[0].resources.name, wanted)
        reports, silent = [here], []
        if config.cluster.address is not None or is_job() or len(nodes) > 1:
            importing = replace(wanted, needs=tuple(needs_of(config)), environment=environment_of(config))
            answers = list(node_reports(nodes, importing))
            reports = [answer for answer in answers if isinstance(answer, NodeReport)]
            silent = [answer for answer in answers if isinstance(answer, CheckResult)]
    if token is None:
        yield CheckResult("run folder", "fail", f"nothing can be written beside {run_dir}; choose another --run-dir")
    yield from silent
    if reports:  # else no node has answered: nothing holds for all of them
        resources = [node.resources for node in nodes]
        yield from report_checks(config, size, resources, here=here, reports=reports, run_dir=run_dir)
    yield from port_checks(config, reports)


def node_reports(nodes: Sequence[Node], wanted: Wanted) -> Iterator[NodeReport | CheckResult]:
    """Each node's report, or a failed check that says why there is none."""
    task = ray.remote(look)
    asked = [
        task.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node.node_id, soft=False), max_retries=0
        ).remote(node.resources.name, wanted, node.address)
        for node in nodes
    ]
    ray.wait(asked, num_returns=len(asked), timeout=ANSWER_WITHIN_S)
    for node, answer in zip(nodes, asked, strict=True):
        name = node.resources.name
        try:
            yield ray.get(answer, timeout=1)
        except ray.exceptions.GetTimeoutError:
            told = f"{name} has not answered for {ANSWER_WITHIN_S:g} s; look at its raylet's logs, or remove it"
            yield CheckResult("nodes", "fail", told)
        except ray.exceptions.RayError as error:
            told = (
                f"{name} cannot run a task ({reason_of(error)}); install spag_ray and its requirements there, as on "
                "this machine"
            )
            yield CheckResult("nodes", "fail", told)


def port_checks(config: RunConfig, reports: Sequence[NodeReport]) -> Iterator[CheckResult]:
    """Whether learner ranks can bind a port on each node, and whether the dashboard accepts jobs. The GCS needs no
    check: without it, there would be no nodes."""
    blocked = [report for report in reports if report.port_fault]
    for report in blocked:
        told = f"no port can be bound on {report.node} ({report.port_fault}), but learner ranks need one"
        yield CheckResult("ports", "fail", f"{told}; check its address and its firewall")
    if config.cluster.address is None:
        if not blocked:
            yield CheckResult("ports", "pass", "Ray was started here and listens on loopback only")
        return
    dashboard = urlsplit("//" + (ray._private.worker.get_dashboard_url() or ""))
    if not dashboard.hostname or not _answers(dashboard.hostname, dashboard.port or 8265):
        told = "no dashboard answers, so no job can be submitted; start the head with --include-dashboard=true"
        yield CheckResult("ports", "warn", told)
    else:
        where = f"GCS at {ray.get_runtime_context().gcs_address}, jobs at http://{dashboard.netloc}"
        bound = "; learner ranks can bind a port on every node" if reports and not blocked else ""
        yield CheckResult("ports", "pass", where + bound)


def read_by_actors(config: RunConfig, model: str | None) -> list[str]:
    """Paths that actors read, on any node. Words are not among them: they are read where the command is called."""
    named = named_paths(config)
    for key in ("words.source", "words.deck"):
        named.pop(key, None)
    named["model"] = model or config.model
    for key, path in named.items():
        if key.startswith(("league.fixed", "objective.listener", "seat_models")):
            with contextlib.suppress(ModelError):  # the check of the files says so
                named[key] = resolve_model(path)
    return list(dict.fromkeys(named.values()))


@contextlib.contextmanager
def _token(run_dir: Path) -> Iterator[tuple[str, str] | None]:
    """A temporary file beside the run folder: (path, content); None if it cannot be written."""
    folder = run_dir.absolute()
    while not folder.is_dir():
        folder = folder.parent
    text = secrets.token_hex(8)
    path = folder / f".spag-ray-doctor-{text}"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError:
        yield None
        return
    try:
        yield str(path), text
    finally:
        path.unlink(missing_ok=True)


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=5):
            return True
    except OSError:
        return False
