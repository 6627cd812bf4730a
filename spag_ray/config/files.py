"""The configuration as a file, and the files and folders that it names."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

from spag_ray.config.games import game_file, package_of
from spag_ray.config.loading import to_yaml, without_environment
from spag_ray.config.run import RunConfig
from spag_ray.host.whole_files import write_atomically
from spag_ray.plain_yaml import read_settings


def write_config(path: Path, config: RunConfig, for_elsewhere: bool = False) -> None:
    """Write all keys as YAML (to_yaml); a run is resumed from this file. It is written atomically, and not at all if it
    would be the same. Values of environment variables may be secrets, so a file with any is readable by its owner only;
    any other new file is as readable as the folder, and an existing one keeps its permissions.

    Raises OSError when it cannot be written.
    """
    text = to_yaml(config, for_elsewhere)
    mode = 0o600 if config.engine.env or config.learner.env else 0o666
    if path.exists():
        before = stat.S_IMODE(path.stat().st_mode)
        mode &= before
        if mode != before:
            path.chmod(mode)
        if path.read_bytes() == text.encode():
            return
    write_atomically(path, text, mode)


def shown_config(folder: Path) -> dict[str, Any]:
    """config.yaml of a run's folder as sent to TensorBoard and W&B: without the values of environment variables.
    Empty if there is no such file. Raises ConfigError if it is no mapping."""
    path = folder / "config.yaml"
    if not path.exists():
        return {}
    return without_environment(read_settings(path))


def own_code(config: RunConfig) -> dict[str, str]:
    """{key: name} of the user's own games, function and classes: `my_module:MyGame`."""
    found = {f"{key}.name": game.name for key, game in zip(config.game_keys, config.games, strict=True)}
    found["objective.advantage"] = config.objective.advantage
    found |= {f"tracking.callbacks.{number}": name for number, name in enumerate(config.tracking.callbacks)}
    return {key: name for key, name in found.items() if ":" in name}


def named_paths(config: RunConfig) -> dict[str, str]:
    """{key: path} of the files and folders that a run of this configuration reads. Names of shipped files
    (`quickstart`, `everyday`, a prompt template) are left out unless a file of that name exists."""
    named: dict[str, str | None] = {"model": config.model, "self_play.sft_file": config.self_play.sft_file}
    named |= {f"seat_models.{role}": path for role, path in config.seat_models.items()}
    named["objective.listener"] = config.own_listener
    named["evaluation.include_path"] = config.evaluation.include_path if config.evaluation.tasks else None
    named |= {
        f"league.fixed.{number}.model": fixed.model
        for number, fixed in enumerate(config.league.fixed)
        if fixed.has_engine
    }
    if config.imitation.enabled:
        named["imitation.sft_file"] = config.imitation.sft_file
        named["imitation.source"] = config.imitation.source if config.imitation.source != "scripted" else None
    maybe_shipped = {"words.source": config.words.source, "words.deck": config.words.deck, "prompts": config.prompts}
    maybe_shipped["learner.deepspeed"] = config.learner.deepspeed or ""
    if config.render == "varied":
        maybe_shipped["varied_prompts"] = config.varied_prompts
    for key, name in own_code(config).items():
        if (module := game_file(name)) is not None:
            named[key] = str(package_of(module) or module)
    named |= {key: path for key, path in maybe_shipped.items() if Path(path).is_file()}
    return {key: path for key, path in named.items() if path}
