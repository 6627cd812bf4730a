"""`spag-ray doctor`: checks, before a run is placed, that everything it needs is available.

here      words, files, packages, model    (preflight.py, imports.py)
cluster   placement, object store          from Ray's view of its nodes (ray_session.py)
nodes     versions, paths, packages, ...   from each node's own report (node_report.py)
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from actors.models import resolve_model
from cluster.checks.check_results import CheckResult
from cluster.checks.cluster_checks import cluster_checks
from cluster.checks.imports import check_imports
from cluster.checks.node_report import memory_bytes
from cluster.checks.preflight import (
    check_files,
    check_folder,
    check_games,
    check_rows,
    check_seat_models,
    check_tasks,
    check_words,
    in_a_process,
)
from cluster.launch.placed_run import any_words, cards_of, every_words, idle_values
from cluster.planning.memory import GIB
from cluster.runtime.ray_session import address_of, ray_session
from spag_ray.config.run import RunConfig
from spag_ray.errors import ModelError, SpagError
from spag_ray.games.registry import Scenarios
from spag_ray.results.game_names import told_apart


def run_doctor(config: RunConfig, folder: Path, console: Console) -> bool:
    """`spag-ray doctor`: prints a line for each check; returns whether no check failed."""
    num_failed = 0
    for result in _results(config, folder):
        num_failed += result.status == "fail"
        colour = {"pass": "green", "warn": "yellow", "fail": "red"}[result.status]
        console.print(Text.assemble((result.status, colour), f"  {result.check:<14}{result.text}"), soft_wrap=True)
    console.print("all checks passed" if not num_failed else f"{num_failed} check{'s' * (num_failed > 1)} failed")
    return not num_failed


def _results(config: RunConfig, folder: Path) -> Iterator[CheckResult]:
    """The checks without Ray, then those with it."""
    model = None
    try:
        cards = cards_of(config)
        words, held_out = every_words(config, cards)
        for name, own in words.items():
            which = told_apart(words, f"{name}: ")
            told = f"{which}{len(own)} to train on, {len(held_out[name])} held out; read here and sent to the run"
            yield CheckResult("words", "pass", told)
    except Exception as error:
        cards, words = {}, {name: ["word"] for name in config.game_names}
        with contextlib.suppress(Exception):  # a game that cannot be made fails the check of the prompts
            words = any_words(config)
        held_out = words
        yield _failed("words", error)
    yield _checked("files", "every file that the configuration names can be read", lambda: check_files(config))
    if address_of(config.cluster) is None:  # else the nodes of the cluster try it, and this machine may be none of them
        yield _checked("imports", "what the run needs can be imported here", lambda: check_imports(config))
    told = "the referee accepts the claim of the prompt file, and every word can be guessed"
    yield _checked("claims", told, lambda: check_words(config, words, held_out))
    try:
        model = resolve_model(config.model)
    except Exception as error:
        yield _failed("model", error)
    else:
        yield from _model_results(config, model, words, held_out, list(cards))
    for warning in idle_values(config, words):
        yield CheckResult("settings", "warn", warning)
    store, machine = config.cluster.object_store_gib, memory_bytes() / GIB
    if config.cluster.address is None and store > machine / 2:  # Ray's own message is in bytes
        told = f"cluster.object_store_gib {store:g} is more than half of this machine's memory, {machine:.1f} GiB"
        yield CheckResult("object store", "fail", f"{told}; lower it, or use a machine with more memory")
        return
    try:
        with ray_session(config.cluster):
            yield from cluster_checks(config, model, folder)
    except SpagError as error:
        yield CheckResult("ray", "fail", str(error))


def _model_results(
    config: RunConfig, model: str, words: Scenarios, held_out: Scenarios, cards: list[str]
) -> Iterator[CheckResult]:
    """The checks that read the model's folder. A fault of the folder that stops several of them is told once."""

    checks: dict[str, tuple[str, Callable[[], None]]] = {
        "model": (f"{model}: complete, and the learner can load it", lambda: in_a_process(check_folder, model, False)),
        "prompts": (
            "the tokenizer fits the prompts and the model, and a game fits the context",
            lambda: in_a_process(check_games, config, model, words, held_out, cards),
        ),
        "saving": (
            "the model's configuration and tokenizer can be written after its training",
            lambda: in_a_process(check_folder, model),
        ),
    }
    if config.seat_models:
        told = "the model of each seat has the shape and the tokenizer of `model`"
        checks["seat models"] = (told, lambda: in_a_process(check_seat_models, config, model))
    if config.self_play.sft_file or config.imitation.source != "scripted" or config.imitation.sft_file:
        what = "every row and every game of the files fits a micro-batch"
        checks["rows"] = (what, lambda: in_a_process(check_rows, config, model))
    if config.evaluation.tasks:
        checks["tasks"] = (
            f"{', '.join(config.evaluation.tasks)}: found, with their data sets",
            lambda: in_a_process(check_tasks, config, model, downloads=config.evaluation.download),
        )
    known: set[str] = set()
    for name, (told, check) in checks.items():
        try:
            check()
        except ModelError as error:
            if str(error) not in known:
                yield _failed(name, error)
            known.add(str(error))
        except Exception as error:
            yield _failed(name, error)
        else:
            yield CheckResult(name, "pass", told)


def _checked(name: str, told: str, check: Callable[[], None]) -> CheckResult:
    try:
        check()
    except Exception as error:
        return _failed(name, error)
    return CheckResult(name, "pass", told)


def _failed(name: str, error: Exception) -> CheckResult:
    """In one line; an error that is not written for users with its kind. A check that ends by an error that nobody
    foresaw is one that failed, too: the others go on."""
    kind = "" if isinstance(error, SpagError) else f"{type(error).__name__}: "
    return CheckResult(name, "fail", kind + " ".join(str(error).split()))
