"""`spag-ray train`: starts or resumes a run, and waits for its end."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import ray
from rich.console import Console

from cluster.checks.cluster_checks import check_cluster
from cluster.commands.report import report_finished
from cluster.launch.jobs import check_run_dir
from cluster.launch.placed_run import idle_values, placed_run, prepare, stream_hint, watch_run
from cluster.monitor.tables import evaluation_tables, guess_tables, head_to_head_lines, outcome_table
from cluster.monitor.terminal import say
from cluster.monitor.train_log import TrainLog, printed_on
from cluster.run.parts import Prepared
from cluster.runtime.ray_session import get, is_job, ray_session
from cluster.runtime.run_folder import check_is_run, make_run_folder, reopen_run_folder, with_kept_dtypes
from cluster.runtime.stop_notice import notice_to_stop
from spag_ray.config.run import RunConfig
from spag_ray.errors import CollapseError, StopRequestedError
from spag_ray.host.folder_lease import FolderLease, held
from spag_ray.results.could_have_known import read_held_out
from spag_ray.results.evaluations import FILE as EVALUATIONS
from spag_ray.results.evaluations import read_evaluations
from spag_ray.results.game_names import cooperative_note, names_by_game, told_apart
from spag_ray.results.matches import of_game


def run_training(config: RunConfig, folder: Path, console: Console, resume: bool = False) -> None:
    """`spag-ray train`: prints the outcome table and where everything is. `resume`: continue the run of this folder,
    if there is one."""
    if is_job():
        check_run_dir(folder)
    with printed_on(console) as log:
        if not (resume and folder.exists()):
            _train(config, folder, console, None, log)
            return
        check_is_run(folder)
        with held(folder, partial(say, console)) as lease:
            log.open(folder)  # not before: the folder may be that of a run that is alive
            _train(with_kept_dtypes(config, folder), folder, console, lease, log)


def _train(config: RunConfig, folder: Path, console: Console, lease: FolderLease | None, log: TrainLog) -> None:
    """`lease`: of the folder of a run that resumes; None for a new one."""
    prepared = prepare(config, folder, resume=lease is not None)
    for line in _advice(config, prepared):
        say(console, line)
    with ray_session(config.cluster):
        for warning in check_cluster(config, prepared.model, folder):
            say(console, f"warning: {warning}")
        folder = make_run_folder(folder, config) if lease is None else reopen_run_folder(lease.folder, config)
        log.open(folder)
        say(console, f"run folder: {folder}")
        say(console, f"model: {prepared.model}; {'; '.join(_splits(config, prepared))}")
        again = (
            f"to continue: spag-ray {shlex.join(['train', f'{folder}/config.yaml', '--run-dir', str(folder)])} --resume"
        )
        with _said_if_interrupted(again, console), placed_run(config, folder, *prepared, lease=lease) as run:
            training = run.train.remote()
            with notice_to_stop() as notice:
                watch_run(
                    run, training, console, notice=notice, stop_within_s=config.checkpoint.stop_within_s, keep=log.line
                )
                if notice and not ray.wait([training], timeout=0)[0]:
                    raise StopRequestedError(f"stopped mid-step; {again}")
            try:
                results = get(training)
            except StopRequestedError as stopped:
                raise StopRequestedError(f"{stopped}; {again}") from None
            except CollapseError as error:
                raise CollapseError(f"{error}; {again} -o self_play.on_collapse=warn") from None
    names = names_by_game(config)
    for name, its in names.items():
        own = of_game(results, name)
        console.print(outcome_table(own, its))
        for line in filter(None, (cooperative_note(config.of_game(name)), *head_to_head_lines(own, its))):
            say(console, line)
    for table in guess_tables(read_held_out(folder / "metrics.jsonl"), names):
        console.print(table)
    if (folder / EVALUATIONS).exists():
        for table in evaluation_tables(read_evaluations(folder / EVALUATIONS)):
            console.print(table)
    say(console, f"models: {folder}/models   metrics: {folder}/metrics.jsonl   games: {folder}/episodes")
    report_finished(folder, console)


def _advice(config: RunConfig, prepared: Prepared) -> Iterator[str]:
    """What is allowed, but may not be what was meant."""
    shared = [each.objective for each in config.each_game if each.objective.advantage == "spag"]
    if any(objective.learn_from == "both" and objective.loser_turns == "all" for objective in shared):
        yield (
            "objective.learn_from: both also pushes losers' turns down; a reproduction saw that not converge: "
            "watch ratio_max and entropy in metrics.jsonl, or lower what a loser is paid in game.payoffs"
        )
    for warning in idle_values(config, prepared.words):
        yield f"warning: {warning}"
    if hint := stream_hint(config):
        yield hint


def _splits(config: RunConfig, prepared: Prepared) -> Iterator[str]:
    """What each game is trained and evaluated on."""
    words, held_out = prepared.words, prepared.held_out
    for name, game in names_by_game(config).items():
        which = told_apart(words, f"{name}: ")
        if game.is_exhaustive:
            yield f"{which}{len(words[name])} {game.scenarios}, all of them also for evaluation"
        else:
            yield f"{which}{len(words[name])} training {game.scenarios}, {len(held_out[name])} held out"


@contextlib.contextmanager
def _said_if_interrupted(again: str, console: Console) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        say(console, f"interrupted; {again}")
        raise
