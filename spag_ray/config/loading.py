"""YAML -> RunConfig, with `-o a.b=c` overrides, and back.

config = load_config("configs/quickstart.yaml", overrides=["self_play.rounds=1"])
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from spag_ray.config.faults import first_fault
from spag_ray.config.parts import LearnerConfig
from spag_ray.config.run import RunConfig
from spag_ray.config.shipped import find_config
from spag_ray.errors import ConfigError
from spag_ray.plain_yaml import parse_yaml, read_settings
from spag_ray.stages import PLAYER_NAME

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
