"""`spag-ray eval`: tasks of lm-evaluation-harness, of one model."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from actors.models import resolve_model
from cluster.checks.preflight import check_playing, check_tasks, in_a_process
from cluster.launch.placed_run import any_words, placed_run, watch_run
from cluster.monitor.tables import evaluation_tables
from cluster.monitor.terminal import say
from cluster.runtime.output_files import folder_beside
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.host.whole_files import refuse_existing
from spag_ray.results.evaluations import write_evaluations


def with_tasks(
    config: RunConfig, model: str | None, tasks: str | None, limit: int | None, num_fewshot: int | None, downloads: bool
) -> RunConfig:
    """The configuration with what the command's options say; None: as it is. `tasks`: names, separated by commas."""
    names = None if tasks is None else tuple(filter(None, map(str.strip, tasks.split(","))))
    given = {"tasks": names, "task_limit": limit, "num_fewshot": num_fewshot}
    changes = {key: value for key, value in given.items() if value is not None}
    changes |= {"download": True} if downloads else {}
    evaluation = config.evaluation.model_copy(update=changes)
    return config.model_copy(update={"model": model or config.model, "evaluation": evaluation})


def for_tasks(config: RunConfig) -> RunConfig:
    """No game is played, so one policy is enough, and the prompts do not matter: every tokenizer can use these."""
    return config.model_copy(update={"policies": "shared", "seat_models": {}, "prompts": "flat"})


def run_eval(config: RunConfig, out: Path, console: Console) -> None:
    """`spag-ray eval`: `config.model` on `config.evaluation.tasks`; `out` is a file for the rows."""
    refuse_existing(out)
    if not config.evaluation.tasks:
        raise ConfigError("no tasks: name some with --tasks, or in evaluation.tasks; `paper` means the paper's tasks")
    config = for_tasks(config)
    check_playing(config)
    model = resolve_model(config.model)
    in_a_process(check_tasks, config, model, downloads=config.evaluation.download)
    folder = make_run_folder(folder_beside(out), config)
    words = any_words(config)
    with placed_run(config, folder, model, words=words, held_out=words, cards={}) as run:
        evaluating = run.evaluate_only.remote(model, Path(model).name)
        watch_run(run, evaluating, console)
        rows = get(evaluating)
    write_evaluations(out, rows)
    for table in evaluation_tables(rows):
        console.print(table)
    say(console, f"{len(rows)} rows in {out}")
