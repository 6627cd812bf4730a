"""The configuration as a file: YAML -> RunConfig, with `-o a.b=c` overrides, and back; the files and folders that it
names, and those that are shipped.

config = load_config("configs/quickstart.yaml", overrides=["self_play.rounds=1"])
"""

from __future__ import annotations

import copy
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from spag_ray.config.faults import first_fault
from spag_ray.config.games import game_file, package_of
from spag_ray.config.parts import LearnerConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, meant_path
from spag_ray.host.whole_files import write_atomically
from spag_ray.plain_yaml import parse_yaml, read_settings
from spag_ray.stages import PLAYER_NAME

_PACKAGE = Path(__file__).resolve().parent.parent
DEEPSPEED_KEYS = {  # a key of DeepSpeed's file: the learner's
    "gradient_clipping": "max_grad_norm",
    "bf16.enabled": "dtype",
    "zero_optimization.stage": "zero_stage",
    "optimizer.params.weight_decay": "weight_decay",
}


def load_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file (a path, or the name of a shipped one) and apply `key.path=value` overrides.

    Raises ConfigError that names the file, the key, and the nearest known key.
    """
    path = find_config(name)
    data = read_settings(path)
    try:
        return RunConfig.model_validate(_overridden(data, overrides))
    except ValidationError as error:
        key, fault = first_fault(error, RunConfig)
        blamed = _blamed(data, overrides, (key, fault))
        where = ", ".join(f"-o {each}" for each in blamed) or str(path)
        raise ConfigError(f"{where}: {fault}" if blamed == [key] or not key else f"{where}: {key}: {fault}") from error


def check_name(config: RunConfig) -> None:
    """Raise ConfigError for a name that cannot be one of a folder and a job. Called where a run begins: the folder of
    an earlier run may have any name in its config.yaml, and can be read and resumed."""
    if not PLAYER_NAME.fullmatch(config.name):
        raise ConfigError(
            f"name: {config.name!r} cannot name the run's folder and its job: a name begins with a letter or a digit "
            "and has at most 64 letters, digits, . _ -; set another, for example -o name=taboo"
        )


def parse_config(data: Mapping[str, Any], where: str = "config") -> RunConfig:
    """A mapping -> RunConfig; ConfigError reports the first fault in one line."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        key, fault = first_fault(error, RunConfig)
        raise ConfigError(f"{where}: {key}: {fault}" if key else f"{where}: {fault}") from error


def to_yaml(config: RunConfig, for_elsewhere: bool = False) -> str:
    """All keys, but for those of the learner that its DeepSpeed file decides: written, they seem to contradict it.
    `for_elsewhere`: without the dtypes that nobody has set, which other CPUs choose for themselves."""
    settings = config.model_dump(mode="json")
    for name in decided_by_deepspeed(config.learner):
        del settings["learner"][name]
    for name, part in (("engine", config.engine), ("learner", config.learner)):
        if for_elsewhere and "dtype" not in part.model_fields_set:
            settings[name].pop("dtype", None)
    return yaml.safe_dump(settings, sort_keys=False)


def decided_by_deepspeed(learner: LearnerConfig) -> list[str]:
    """Keys of the learner that nobody has set, and that its DeepSpeed file may decide; `dtype` only if the file does,
    because other CPUs have another default for it. A file that cannot be read here may be there where the run is."""
    if learner.deepspeed is None:
        return []
    unset = [name for name in DEEPSPEED_KEYS.values() if name not in learner.model_fields_set]
    try:
        path = find_config(learner.deepspeed, "deepspeed")
        enabled = json.loads(path.read_text(encoding="utf-8")).get("bf16", {}).get("enabled", "auto")
    except (ConfigError, OSError, ValueError, AttributeError):
        enabled = "auto"
    return [name for name in unset if name != "dtype" or enabled != "auto"]


def without_environment(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped RunConfig without the values of environment variables, which may be secrets."""
    parts = {name: dict(settings.get(name) or {}) for name in ("engine", "learner")}
    for part in parts.values():
        part["env"] = dict.fromkeys(part.get("env") or {}, "...")
    return {**settings, **parts}


def config_root() -> Path:
    """The folder that holds quickstart.yaml, prompts/ and deepspeed/."""
    for root in (_PACKAGE.parent / "configs", _PACKAGE / "_configs"):
        if (root / "prompts").is_dir():
            return root
    raise ConfigError("the shipped configs/ folder was not found: reinstall spag-ray, or run from a full checkout")


def find_config(name: str, folder: str = "") -> Path:
    """`name` as a path if there is such a file, else the shipped file of that name (`.yaml` may be left out).

    A path that starts with "configs/" also finds the shipped file, so the README's commands work when installed.
    """
    given = Path(name)
    if given.is_file():
        return given
    root = config_root() / folder
    relative = Path(*given.parts[1:]) if given.parts[:1] == ("configs",) else given
    if folder and relative.parts[:1] == (folder,):
        relative = Path(*relative.parts[1:])
    for candidate in (root / relative, root / f"{relative}.yaml", root / f"{relative}.json"):
        if candidate.is_file():
            return candidate
    shipped = sorted(path.stem for path in root.iterdir() if path.is_file())
    if given.exists():
        told = f"{name} is no plain file; give the path of one, or a shipped one ({', '.join(shipped)})"
        of_run = given / "config.yaml"
        raise ConfigError(f"{told}; did you mean `{of_run}`?" if of_run.is_file() and not folder else told)
    told = f"{name}: no such file, and none of the shipped ones ({', '.join(shipped)}); check the path"
    raise ConfigError(told + meant_path(relative, shipped))


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


def _blamed(data: Mapping[str, Any], overrides: Sequence[str], fault: tuple[str, str]) -> list[str]:
    """The keys of the overrides that make this fault; none if it is the file's own."""
    keys = [override.partition("=")[0].strip() for override in overrides]
    if named := [key for key in keys if f"{fault[0]}.".startswith(f"{key}.")]:
        return named[-1:]  # it is the last one that counts
    of_file = _fault_of(data, ())
    if fault == of_file:
        return []
    blamed = []
    for key, override in zip(keys, overrides, strict=True):
        without = _fault_of(data, [other for other in overrides if other is not override])
        if without != fault and (without is None or without != of_file):  # else the override mends a fault of the file
            blamed.append(key)
    return blamed or ([] if of_file else keys)


def _fault_of(data: Mapping[str, Any], overrides: Sequence[str]) -> tuple[str, str] | None:
    try:
        RunConfig.model_validate(_overridden(data, overrides))
    except ValidationError as error:
        return first_fault(error, RunConfig)
    except ConfigError as error:  # an override that needs another one
        return "", str(error)
    return None


def _overridden(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    changed: dict[str, Any] = copy.deepcopy(dict(data))
    for override in overrides:
        _apply_override(changed, override)
    keys = [override.partition("=")[0].strip() for override in overrides]
    if changed.get("model") != data.get("model") and not any(key.partition(".")[0] == "model_shape" for key in keys):
        changed.pop("model_shape", None)  # of the file's model
    return changed


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"-o {override}: write it as key=value, for example -o self_play.rounds=1")
    value = parse_yaml(text, f"-o {key.strip()}")
    *parents, leaf = key.strip().split(".")
    part: Any = data
    for parent in parents:
        if isinstance(part, list):  # its entries have their places as keys
            if not parent.isdecimal() or int(parent) >= len(part):
                there = ", ".join(map(str, range(len(part))))
                raise ConfigError(f"-o {key.strip()}: the list has no entry {parent}; it has {there or 'none'}")
            part = part[int(parent)]
        else:
            if part.get(parent) is None:  # absent, or left empty
                part[parent] = {}
            part = part[parent]
        if not isinstance(part, dict | list):
            raise ConfigError(f"-o {key.strip()}: {parent} is a value, not a group of keys")  # values may be secrets
    if isinstance(part, list):
        raise ConfigError(f"-o {key.strip()}: {parents[-1]} is a list; name a key of one of its entries")
    part[leaf] = value
