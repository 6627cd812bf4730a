"""A run is begun here: all that can be checked is checked first, then Ray is started, and a Run placed on it."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ray
from rich.console import Console

from actors.models import resolve_model
from cluster.evaluation_table import evaluation_tables
from cluster.jobs import check_run_dir
from cluster.nodes import check_cluster
from cluster.places import free, places_of
from cluster.preflight import check_files, check_model, check_tasks, in_a_process
from cluster.progress import Progress, watch
from cluster.reporting import report_finished
from cluster.run import Cards, Run
from cluster.run_folder import make_run_folder, reopen_run_folder
from cluster.runtime import NAMESPACE, get, is_job, ray_session
from cluster.tables import head_to_head_lines, outcome_table
from spag_ray.cards import split_words, taboo_cards, without_words
from spag_ray.config import RunConfig
from spag_ray.errors import ConfigError, StopRequestedError
from spag_ray.evaluations import FILE as EVALUATIONS
from spag_ray.evaluations import read_evaluations
from spag_ray.words import read_words


def run_training(config: RunConfig, folder: Path, console: Console, resume: bool = False) -> None:
    """`spag-ray train`: prints the outcome table and where everything is. `resume`: go on with the run of this folder,
    if there is one."""
    if is_job():
        check_run_dir(folder)
    goes_on = resume and folder.exists()
    prepared = prepare(config, folder, resume)
    if config.objective.learn_from == "both" and config.objective.loser_turns == "all":
        console.print(
            "objective.learn_from: both also pushes losers' turns down; a reproduction saw that not converge: "
            "watch ratio_max and entropy in metrics.jsonl, or lower objective.loser_coeff",
            soft_wrap=True,
        )
    if hint := stream_hint(config):
        console.print(hint, soft_wrap=True)
    with ray_session(config.cluster):
        for warning in check_cluster(config, prepared.model, folder):
            console.print(f"warning: {warning}", soft_wrap=True)
        folder = folder.resolve() if goes_on else make_run_folder(folder, config)
        console.print(f"run folder: {folder}", soft_wrap=True)
        console.print(
            f"model: {prepared.model}; {len(prepared.words)} training words, {len(prepared.held_out)} held out",
            soft_wrap=True,
        )
        with placed_run(config, folder, *prepared) as run:
            training = run.train.remote()
            with _notice_to_stop() as notice:
                watch_run(run, training, console, notice, config.checkpoint.stop_within_s)
                if notice and not ray.wait([training], timeout=0)[0]:
                    raise StopRequestedError(f"stopped in the midst of a step; go on with --resume --run-dir {folder}")
            try:
                results = get(training)
            except StopRequestedError as stopped:
                raise StopRequestedError(f"{stopped}; go on with --resume --run-dir {folder}") from None
    console.print(outcome_table(results))
    for line in head_to_head_lines(results):
        console.print(line, soft_wrap=True)
    if (folder / EVALUATIONS).exists():
        for table in evaluation_tables(read_evaluations(folder / EVALUATIONS)):
            console.print(table)
    console.print(
        f"models: {folder}/models   metrics: {folder}/metrics.jsonl   games: {folder}/episodes",
        soft_wrap=True,
    )
    report_finished(folder, console)


class Prepared(NamedTuple):
    """What a run is given besides its configuration and its folder: a model's folder, words to train on, words held
    out, and the cards of the scripted expert."""

    model: str
    words: list[str]
    held_out: list[str]
    cards: Cards


def prepare(config: RunConfig, folder: Path, resume: bool) -> Prepared:
    """Check all that can be checked before Ray is started. Raises SpagError for the first thing that is wrong."""
    if resume and folder.exists():
        reopen_run_folder(folder, config)
    elif folder.exists():
        make_run_folder(folder, config)  # refuses, before anything slow
    cards = taboo_cards() if needs_cards(config) else {}
    words, held_out = training_words(config, cards)
    check_files(config)
    model = resolve_model(config.model)
    in_a_process(check_model, config, model, [*words, *held_out])
    if config.evaluation.tasks:
        in_a_process(check_tasks, config, model)
    return Prepared(model, words, held_out, without_words(cards, held_out))


def place_detached(config: RunConfig, folder: Path, resume: bool) -> list[str]:
    """Start a Run that belongs to nobody: it goes on when whoever asked for it has gone, and ends itself. Called on the
    cluster (console.py); returns what the checks warn of."""
    prepared = prepare(config, folder, resume)
    warnings = check_cluster(config, prepared.model, folder)
    folder = folder.resolve() if resume and folder.exists() else make_run_folder(folder, config)
    actor = ray.remote(Run).options(
        name=f"run-{folder.name}", namespace=NAMESPACE, lifetime="detached", num_cpus=0, max_concurrency=8
    )
    run = actor.remote(config, str(folder), *prepared)
    ray.get(run.status.remote())  # its own mistakes are the caller's to hear
    run.train_alone.remote()
    return warnings


def stream_hint(config: RunConfig) -> str | None:
    """What to change where permits, not engines, decide how many games are under way."""
    permits = (config.stream.max_lag + 1) * config.stream.games_per_version
    wanted = config.self_play.games_in_flight * config.self_play.num_arenas + config.stream.games_per_version
    if config.schedule != "stream" or config.stream.max_lag == 0 or permits >= wanted:
        return None
    return (
        f"permits for {permits} games are fewer than the {wanted} that keep engines and learner busy (games in flight "
        "and one version's): raise stream.max_lag or stream.games_per_version, or lower self_play.games_in_flight"
    )


def training_words(config: RunConfig, cards: Cards) -> tuple[list[str], list[str]]:
    """(words to train on, words held out), disjoint, a function of the seed."""
    every = sorted(cards) if config.words.source == "textarena" else read_words(Path(config.words.source))
    if len(every) <= config.words.num_held_out:
        raise ConfigError(
            f"words.num_held_out is {config.words.num_held_out}, but {config.words.source} has {len(every)} words; "
            "hold fewer out, or give more words"
        )
    words, held_out = split_words(every, config.words.num_held_out, config.seed)
    return words[: config.words.num_train], held_out


@contextlib.contextmanager
def placed_run(
    config: RunConfig, folder: Path, model: str, words: list[str], held_out: list[str], cards: Cards
) -> Iterator[Any]:
    """Ray, and a Run in it; with the Run goes everything it owns."""
    with ray_session(config.cluster):
        actor = ray.remote(Run).options(name=f"run-{folder.name}", num_cpus=0, max_concurrency=4)
        run = actor.remote(config, str(folder), model, words, held_out, cards)
        try:
            yield run
        finally:
            ray.kill(run)
            free(places_of(folder))


@contextlib.contextmanager
def _notice_to_stop() -> Iterator[list[float]]:
    """SIGTERM meanwhile is a notice, not the end: the list holds when it came. A spot machine and `ray job stop` send
    one."""
    notice: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield notice
        return
    before = signal.signal(signal.SIGTERM, lambda *_: notice.append(time.monotonic()))
    try:
        yield notice
    finally:
        signal.signal(signal.SIGTERM, before)


def watch_run(
    run: Any, ending: ray.ObjectRef, console: Console, notice: Sequence[float] = (), stop_within_s: float = 30.0
) -> None:
    """Until it ends; or, after a notice, until the time is up that there is then."""
    margin = min(2.0, stop_within_s / 4)  # to end everything
    was_told = False

    def is_done(seconds: float) -> bool:
        nonlocal was_told
        if notice and not was_told:
            was_told = True
            console.print(f"asked to stop: at most {stop_within_s:g} s for it")
            run.stop_soon.remote(stop_within_s - margin)
        if notice and time.monotonic() - notice[0] > stop_within_s - margin:
            return True
        return bool(ray.wait([ending], timeout=seconds)[0])

    def status() -> Progress:
        return ray.get(run.status.remote())

    try:
        watch(console, is_done, status)
    except ray.exceptions.RayActorError:
        return  # the ending itself says why


def needs_cards(config: RunConfig) -> bool:
    scripted = config.imitation.enabled and config.imitation.source == "scripted"
    return scripted or config.words.source == "textarena"
