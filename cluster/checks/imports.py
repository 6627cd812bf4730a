"""Whether a machine can import what a run needs, with everything that these packages import in turn. A package that is
missing is otherwise found when it is first used: minutes into the run, or at its end.

faults = import_faults(needs_of(config), "node-2", environment_of(config))
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from cluster.checks.known_imports import KnownImports
from cluster.runtime.ray_session import is_job
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError

IMPORT_WITHIN_S = 240.0  # 15 s of one core; a cold file system that nodes share takes a minute
_KILLED_WITHIN_S = 5.0  # longer only if it waits for a disk that is gone
_say = logging.getLogger("spag_ray")
_REFEREE = ("textblob", "lemminflect", "wordfreq", "confusable_homoglyphs.confusables")
# (module, sys.path, environment) that was imported once: a second run of this process need not wait for it again.
_importable: set[tuple[object, ...]] = set()
# Prints the module before it is imported, so that a crash of the interpreter names it, too. Libraries print from
# C, too: file descriptor 1 is no longer that of these lines. An interrupt is not caught: it ends the process.
_IMPORT_EACH = """
import importlib, os, sys
out = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace")
os.dup2(2, 1)
for module in sys.argv[1:]:
    print("import", module, file=out, flush=True)
    try:
        importlib.import_module(module)
    except (Exception, SystemExit) as error:
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


def environment_of(config: RunConfig) -> dict[str, str]:
    """The environment of engines and ranks, which may say where libraries are (LD_LIBRARY_PATH)."""
    return {**config.learner.env, **config.engine.env}


def needs_of(config: RunConfig, trains: bool = True, has_engines: bool = True) -> Iterator[Need]:
    """What actors import on any node. `trains`: whether there is a learner; `has_engines`: whether any player is a
    model of this run. The report's packages are not among them: a run does not fail without its report."""
    lock = "gpu" if config.engine.num_gpus or config.learner.num_gpus else "cpu"
    whole = f"install requirements/{lock}.txt, or the wheel with [{lock}], on it"
    if has_engines and config.engine.kind == "vllm":
        yield Need("vllm.v1.engine.async_llm", "engines", whole)
        yield Need("actors.vllm_weights", "engines", whole)
    elif has_engines:
        yield Need("actors.transformers_policy", "engines", whole)
    if trains:
        yield Need("learners.learner", "the learner", whole)
        yield Need("xxhash", "sending weights", whole)
    if trains and config.learner.lora is not None:
        yield Need("peft", "learner.lora", "install peft on it")
    if any(game.guesses for game in config.games):
        yield from (Need(module, "the referee", whole) for module in _REFEREE)
    packages = {game.full_name.partition(":")[0]: game.package.module for game in config.games if game.package}
    for name, module in sorted(packages.items()):
        yield Need(module, f"game.name: {name}", f"install requirements/{name}.txt on it")
    if trains and config.evaluation.tasks:
        yield Need("lm_eval.evaluator", "evaluation.tasks", "install lm-eval on it")
        yield Need("lm_eval.tasks", "evaluation.tasks", "install lm-eval on it")
    if config.tracking.tensorboard:  # the Run of games without training opens them, too
        yield Need("cluster.tracking.tensorboard", "tracking.tensorboard", f"{whole}, or set it to false")
    if config.tracking.wandb is not None:
        yield Need("wandb", "tracking.wandb", "pip install wandb on it, or leave the key out")


def import_faults(
    needs: Iterable[Need], node: str, environment: Mapping[str, str] | None = None, within_s: float = IMPORT_WITHIN_S
) -> list[str]:
    """A line for each module that cannot be imported here."""
    with _importing(needs, node, environment, within_s) as faults:
        return faults()


def check_imports(config: RunConfig, trains: bool = True, has_engines: bool = True) -> None:
    """Raises ConfigError if this machine cannot import what a run of this configuration needs here."""
    with imports_checked(config, trains, has_engines) as check:
        check()


@contextlib.contextmanager
def imports_checked(config: RunConfig, trains: bool = True, has_engines: bool = True) -> Iterator[Callable[[], None]]:
    """Another process imports during the block; the end of the block ends it. The function waits for it, and raises as
    `check_imports`. What an earlier command could import here is not imported again (known_imports.py). The nodes of a
    cluster that is there import for themselves (cluster_checks.py); the machine of the command may be none of them."""
    is_node = config.cluster.address is None and not is_job()
    needs = needs_of(config, trains, has_engines) if is_node else ()
    environment = environment_of(config)
    with _importing(needs, "this machine", environment, IMPORT_WITHIN_S, KnownImports(environment)) as faults:

        def check() -> None:
            if found := faults():
                raise ConfigError(found[0])

        yield check


@contextlib.contextmanager
def _importing(
    needs: Iterable[Need],
    node: str,
    environment: Mapping[str, str] | None,
    within_s: float,
    known: KnownImports | None = None,
) -> Iterator[Callable[[], list[str]]]:
    """Gives a function that waits for the faults. Modules are imported in a process of their own: they take memory, and
    a broken one may end its process."""
    # The paths of this process, because a Ray worker gets those of its job in other ways than PYTHONPATH.
    own = {**os.environ, **(environment or {}), "PYTHONPATH": os.pathsep.join(sys.path)}
    where = own["PYTHONPATH"], tuple(sorted((environment or {}).items()))
    by_module = {
        need.module: need
        for need in needs
        if (need.module not in known if known is not None else (need.module, *where) not in _importable)
    }
    if not by_module:
        yield list
        return
    command = [sys.executable, "-c", _IMPORT_EACH, *by_module]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=own)

    def faults() -> list[str]:
        found = _faults(process, by_module, node, within_s)
        if not found and process.returncode is not None:  # None: it was late, so it is not known
            _importable.update((module, *where) for module in by_module)
            if known is not None:
                known.add(by_module)
        return found

    try:
        yield faults
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_KILLED_WITHIN_S)


def _faults(process: subprocess.Popen[bytes], by_module: Mapping[str, Need], node: str, within_s: float) -> list[str]:
    """What a process of _IMPORT_EACH says. Its exit code says nothing after `done`: libraries crash at its end, too."""
    try:
        output, is_late = process.communicate(timeout=within_s)[0], False
    except subprocess.TimeoutExpired as late:
        output, is_late = late.stdout or b"", True
    lines = output.decode(errors="replace").splitlines()
    faults = [_fault(by_module, line, node) for line in lines if line.startswith("fault ")]
    if "done" in lines:
        return faults
    begun = next((line.split(" ", 1)[1] for line in reversed(lines) if line.startswith("import ")), "Python")
    if is_late:
        # No fault: on a machine under load it takes minutes, and engines have a deadline of their own for their start.
        _say.warning("%s: %s was not imported within %g s; the imports are not checked there", node, begun, within_s)
        return faults
    told = f"{begun} ends its process (exit code {process.returncode}) when it is imported on {node}"
    return [*faults, f"{told}; {by_module[begun].remedy}" if begun in by_module else told]


def _fault(by_module: Mapping[str, Need], line: str, node: str) -> str:
    """One line for the user, from a line `fault MODULE MISSING ERROR` of the process."""
    _, module, missing, error = line.split(" ", 3)
    need = by_module[module]
    package, asked = (missing if missing != "-" else module).split(".")[0], module.split(".")[0]
    through = f", through {asked}" if package != asked else ""
    return f"{package} cannot be imported on {node} ({error}); it is needed by {need.part}{through}: {need.remedy}"
