"""YAML -> RunConfig, with `-o a.b=c` overrides, and back.

config = load_config("configs/quickstart.yaml", overrides=["self_play.rounds=1"])
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from spag_ray.config.engine import KINDS_OF_NUMBER
from spag_ray.config.run import RunConfig
from spag_ray.config.shipped import find_config
from spag_ray.errors import ConfigError
from spag_ray.plain_yaml import parse_yaml, read_settings
from spag_ray.stages import PLAYER_NAME


def load_config(name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a YAML file (a path, or the name of a shipped one) and apply `key.path=value` overrides.

    Raises ConfigError that names the file, the key, and the nearest known key.
    """
    path = find_config(name)
    data = read_settings(path)
    model = data.get("model")
    for override in overrides:
        _apply_override(data, override)
    keys = [override.partition("=")[0].strip() for override in overrides]
    if data.get("model") != model and not any(key.partition(".")[0] == "model_shape" for key in keys):
        data.pop("model_shape", None)  # of the file's model
    return parse_config(data, str(path), keys)


def check_name(config: RunConfig) -> None:
    """Raise ConfigError for a name that cannot be one of a folder and a job. Called where a run begins: the folder of
    an earlier run may have any name in its config.yaml, and can be read and resumed."""
    if not PLAYER_NAME.fullmatch(config.name):
        raise ConfigError(
            f"name: {config.name!r} cannot name the run's folder and its job: a name begins with a letter or a digit "
            "and has at most 64 letters, digits, . _ -; set another, for example -o name=taboo"
        )


def parse_config(data: Mapping[str, Any], where: str = "config", overridden: Sequence[str] = ()) -> RunConfig:
    """A mapping -> RunConfig; ConfigError reports the first fault in one line. `overridden`: keys that were given with
    -o, not in the file."""
    try:
        return RunConfig.model_validate(data)
    except ValidationError as error:
        key = _key_of(error.errors()[0])
        where = f"-o {key}" if key in overridden else where
        raise ConfigError(f"{where}: {_first_fault(error)}") from error


def to_yaml(config: RunConfig) -> str:
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def without_environment(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A dumped RunConfig without the values of environment variables, which may be secrets."""
    parts = {name: dict(settings.get(name) or {}) for name in ("engine", "learner")}
    for part in parts.values():
        part["env"] = dict.fromkeys(part.get("env") or {}, "...")
    return {**settings, **parts}


def _apply_override(data: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"-o {override}: write it as key=value, for example -o self_play.rounds=1")
    value = parse_yaml(text, f"-o {key.strip()}")
    *parents, leaf = key.strip().split(".")
    for parent in parents:
        child = data.setdefault(parent, {})
        if not isinstance(child, dict):
            raise ConfigError(f"-o {override}: {parent} is a value, not a group of keys")
        data = child
    data[leaf] = value


def _first_fault(error: ValidationError) -> str:
    fault = error.errors()[0]
    key = _key_of(fault)
    if fault["type"] == "extra_forbidden":
        known = list(_known_keys(RunConfig.model_fields))
        nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.0)
        same_leaf = [other for other in known if other.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
        return f"unknown key {key!r}; the nearest known one is {(same_leaf or nearest)[0]!r}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["loc"][1:2] == ("env",):  # its values may be secrets
        return f"{key}: {message}"
    return f"{key}: {message} (got {fault['input']!r})" if key else message


def _key_of(fault: ErrorDetails) -> str:
    return ".".join(str(part) for part in fault["loc"] if part not in KINDS_OF_NUMBER)


def _known_keys(fields: Mapping[str, FieldInfo], prefix: str = "") -> Iterator[str]:
    for name, field in fields.items():
        yield prefix + name
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _known_keys(kind.model_fields, f"{prefix}{name}.")
