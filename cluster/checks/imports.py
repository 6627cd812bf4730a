"""Whether a machine can import what a run needs, with everything that these packages import in turn. A package that is
missing is otherwise found when it is first used: minutes into the run, or at its end.

faults = import_faults(needs_of(config), "node-2", environment_of(config))
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cluster.runtime.ray_session import is_job
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError

IMPORT_WITHIN_S = 240.0  # 15 s of one core; a cold file system that nodes share takes a minute
_say = logging.getLogger("spag_ray")
_REFEREE = ("textblob", "lemminflect", "wordfreq", "confusable_homoglyphs.confusables")
_REPORT = ("spag_ray.results.report.page", "plotly.offline", "choix", "scipy.stats")
# (module, sys.path, environment) that was imported once: a second run of this process need not wait for it again.
_importable: set[tuple[object, ...]] = set()
# Prints the module before it is imported, so that a crash of the interpreter names it, too.
_IMPORT_EACH = """
import importlib, sys
out = sys.stdout
sys.stdout = sys.stderr
for module in sys.argv[1:]:
    print("import", module, file=out, flush=True)
    try:
        importlib.import_module(module)
    except BaseException as error:
        missing = (getattr(error, "name", None) or "") if isinstance(error, ModuleNotFoundError) else ""
        told = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        print("fault", module, missing or "-", told, file=out, flush=True)
print("done", file=out, flush=True)
"""


@dataclass(frozen=True)
class Need:
    """A module that is imported, the part of a run that does, and what installs it."""

    module: str
    part: str
    remedy: str


def needs_of(config: RunConfig, trains: bool = True) -> tuple[Need, ...]:
    """What actors import on any node. `trains`: whether there is a learner."""
    return tuple(_needs(config, trains))


def needs_of_report() -> tuple[Need, ...]:
    """What the report imports at the end of a run, on the machine of the command."""
    remedy = "install spag-ray[client], or the lock (requirements/), on it"
    return tuple(Need(module, "the report at the end", remedy) for module in _REPORT)


def environment_of(config: RunConfig) -> dict[str, str]:
    """The environment of engines and ranks, which may say where libraries are (LD_LIBRARY_PATH)."""
    return {**config.learner.env, **config.engine.env}


def _needs(config: RunConfig, trains: bool) -> Iterator[Need]:
    lock = "gpu" if config.engine.num_gpus or config.learner.num_gpus else "cpu"
    whole = f"install requirements/{lock}.txt, or spag-ray[{lock}], on it"
    if config.engine.kind == "vllm":
        yield Need("vllm.v1.engine.async_llm", "engines", whole)
        yield Need("actors.vllm_weights", "engines", whole)
    else:
        yield Need("actors.transformers_policy", "engines", whole)
    if trains:
        yield Need("learners.learner", "the learner", whole)
        yield Need("xxhash", "sending weights", whole)
    if config.learner.lora is not None:
        yield Need("peft", "learner.lora", "install spag-ray[lora] on it")
    if any(each.game.is_taboo for each in config.each_game):
        yield from (Need(module, "the referee", whole) for module in _REFEREE)
    if any(each.game.name == "textarena" for each in config.each_game):
        yield Need("textarena", "game.name: textarena", "install requirements/textarena.txt on it")
    if config.evaluation.tasks:
        yield Need("lm_eval.evaluator", "evaluation.tasks", "install spag-ray[eval] on it")
        yield Need("lm_eval.tasks", "evaluation.tasks", "install spag-ray[eval] on it")
    if config.tracking.tensorboard:
        yield Need("cluster.tracking.tensorboard", "tracking.tensorboard", f"{whole}, or set it to false")
    if config.tracking.wandb is not None:
        yield Need("wandb", "tracking.wandb", "pip install wandb on it, or leave the key out")


def import_faults(
    needs: Sequence[Need], node: str, environment: Mapping[str, str] | None = None, within_s: float = IMPORT_WITHIN_S
) -> list[str]:
    """A line for each module that cannot be imported here. They are imported in a process of their own: they take
    memory, and a broken one may end its process."""
    # The paths of this process, because a Ray worker gets those of its job in other ways than PYTHONPATH.
    own = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(sys.path)}
    where = own["PYTHONPATH"], tuple(sorted((environment or {}).items()))
    needs = [need for need in needs if (need.module, *where) not in _importable]
    if not needs:
        return []
    command = [sys.executable, "-c", _IMPORT_EACH, *(need.module for need in needs)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own, timeout=within_s)
    except subprocess.TimeoutExpired as late:
        begun = _last_module(_lines(late.stdout or b""))
        # No fault: on a machine under load it takes minutes, and engines have a deadline of their own for their start.
        _say.warning("%s: %s was not imported within %g s; the imports are not checked there", node, begun, within_s)
        return []
    lines = _lines(done.stdout)
    by_module = {need.module: need for need in needs}
    faults = [_fault(by_module, line, node) for line in lines if line.startswith("fault ")]
    if done.returncode or lines[-1:] != ["done"]:
        begun = _last_module(lines)
        told = f"{begun} ends its process (exit code {done.returncode}) when it is imported on {node}"
        faults.append(f"{told}; {by_module[begun].remedy}" if begun in by_module else told)
    if not faults:
        _importable.update((module, *where) for module in by_module)
    return faults


def check_imports(config: RunConfig, trains: bool = True) -> None:
    """Raises ConfigError if this machine cannot import what a run of this configuration needs here. The nodes of a
    cluster that is there import for themselves (cluster_checks.py); the machine of the command may be none of them."""
    needs = needs_of_report() if trains else ()
    if config.cluster.address is None and not is_job():
        needs = (*needs_of(config, trains), *needs)
    if faults := import_faults(needs, "this machine", environment_of(config)):
        raise ConfigError(faults[0])


def _fault(by_module: Mapping[str, Need], line: str, node: str) -> str:
    """One line for the user, from a line `fault MODULE MISSING ERROR` of the process."""
    _, module, missing, error = line.split(" ", 3)
    need = by_module[module]
    package, asked = (missing if missing != "-" else module).split(".")[0], module.split(".")[0]
    through = f", through {asked}" if package != asked else ""
    return f"{package} cannot be imported on {node} ({error}); it is needed by {need.part}{through}: {need.remedy}"


def _last_module(lines: Sequence[str]) -> str:
    return next((line.split(" ", 1)[1] for line in reversed(lines) if line.startswith("import ")), "Python")


def _lines(output: bytes) -> list[str]:
    return output.decode(errors="replace").splitlines()
