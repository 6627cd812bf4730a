"""The configuration as a file, and the files and folders that it names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from spag_ray.config.loading import to_yaml, without_environment
from spag_ray.config.run import RunConfig


def write_config(path: Path, config: RunConfig) -> None:
    """As YAML, whole: a run is resumed from it. Values of environment variables may be secrets, so a file that holds
    any is its owner's alone; any other can be read by whoever may read the folder.

    Raises OSError where it cannot be written.
    """
    is_private = bool(config.engine.env or config.learner.env)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if is_private else 0o666)
    with open(descriptor, "w", encoding="utf-8") as file:
        if is_private:
            os.fchmod(descriptor, 0o600)  # of a file that was there, too
        file.write(to_yaml(config))


def shown_config(folder: Path) -> dict[str, Any]:
    """config.yaml of a run's folder as it is given to TensorBoard and W&B: without the values of environment
    variables. Empty where there is none."""
    path = folder / "config.yaml"
    if not path.exists():
        return {}
    return without_environment(yaml.safe_load(path.read_text(encoding="utf-8")))


def named_paths(config: RunConfig) -> dict[str, str]:
    """{key: path} of what a run of this configuration reads; names of what is shipped (`quickstart`, `everyday`, a
    prompt template) are not among them unless there is such a file."""
    named: dict[str, str | None] = {"model": config.model, "self_play.sft_file": config.self_play.sft_file}
    named["evaluation.include_path"] = config.evaluation.include_path if config.evaluation.tasks else None
    named |= {f"league.fixed.{number}.model": fixed.model for number, fixed in enumerate(config.league.fixed)}
    if config.imitation.enabled:
        named["imitation.sft_file"] = config.imitation.sft_file
        named["imitation.source"] = config.imitation.source if config.imitation.source != "scripted" else None
    maybe_shipped = {"words.source": config.words.source, "words.deck": config.words.deck, "prompts": config.prompts}
    maybe_shipped["learner.deepspeed"] = config.learner.deepspeed or ""
    if config.render == "varied":
        maybe_shipped["varied_prompts"] = config.varied_prompts
    named |= {key: path for key, path in maybe_shipped.items() if Path(path).is_file()}
    return {key: path for key, path in named.items() if path}
