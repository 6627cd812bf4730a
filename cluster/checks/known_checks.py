"""Whether the checks of a run's model, prompts and words need not be made again: they read the same as in an earlier
start on this machine, and found nothing. They take 11 s of CPU time, most of it imports of torch and transformers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cluster.checks.known_imports import CHECK
from spag_ray.config.run import RunConfig
from spag_ray.config.shipped import find_config

_GAMES = ("taboo", "kuhn")
_TASKS = ("spag_reasoning",)  # generated from files of this program; others read data that may be gone or changed


def mark_of(config: RunConfig, model: str, *others: Any) -> str | None:
    """Of everything that the checks read besides packages and this program, which known_imports.py heeds: the whole
    configuration, `others` (JSON), the files of prompts, the names, sizes and times of change of the model's files and
    of the games and rows of files. None if they read more than that: a game of the user's, another model, tasks whose
    data is elsewhere."""
    evaluation = config.evaluation
    ours = all(each.game.name in _GAMES for each in config.each_game)
    if (
        config.own_listener is not None
        or not ours
        or not set(evaluation.tasks) <= set(_TASKS)
        or evaluation.include_path is not None
    ):
        return None
    files = [find_config(each.prompts, "prompts") for each in config.each_game]
    if config.render == "varied":
        files.append(find_config(config.varied_prompts, "prompts"))
    files += [find_config(f"{name}{suffix}", "tasks") for name in evaluation.tasks for suffix in (".yaml", ".json")]
    read = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    data = [config.self_play.sft_file, config.imitation.sft_file, config.imitation.source]
    read += [str(_state(Path(path))) for path in data if path and path != "scripted"]
    files_of_model = [(str(path), *_state(path)) for path in sorted(Path(model).rglob("*"))]
    what = [config.model_dump(mode="json"), model, files_of_model, read, others]
    return CHECK + hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _state(path: Path) -> tuple[int, int]:
    """Size, time of the last change; of a link that leads nowhere, neither."""
    try:
        found = path.stat()
    except OSError:
        return -1, -1
    return found.st_size, found.st_mtime_ns
