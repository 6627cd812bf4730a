"""YAML as this program reads it: plain values, and each key once.

>>> parse_yaml("rounds: 3", "run.yaml")
{'rounds': 3}
>>> parse_yaml("a: {b: 1}\\nc: 2\\na: {b: 3}", "run.yaml")
Traceback (most recent call last):
spag_ray.errors.ConfigError: run.yaml: the key a is there twice, on lines 1 and 3, and only the last one would count; \
keep one of them
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from spag_ray.errors import ConfigError

_MERGE = "tag:yaml.org,2002:merge"  # `<<: *other`, which may come several times
_KINDS = {list: "a list", str: "text", type(None): "empty"}


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text. Raises ConfigError for text that is not valid YAML, or has a key twice. The message
    quotes no value, because values may be secrets."""
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_keys(node, where, "", set())
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{where}: not valid YAML (line {line}: {_without_values(error.problem)})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a control character, the 31st of February
        raise ConfigError(f"{where}: not valid YAML: {_without_values(error)}") from None


def parse_settings(text: str, where: str) -> dict[str, Any]:
    """`parse_yaml` of a text that is a mapping of keys to values. Raises ConfigError for any other."""
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        kind = _KINDS.get(type(data), f"a value of type {type(data).__name__}")
        raise ConfigError(f"{where}: a run is a mapping of keys to values, but this is {kind}")
    return data


def read_settings(path: Path) -> dict[str, Any]:
    """`parse_settings` of a file. Raises OSError if it cannot be opened."""
    try:
        return parse_settings(path.read_text(encoding="utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not valid YAML: byte {error.start} is not UTF-8") from None


def _without_values(fault: object) -> str:
    """A fault's text in one line, with quoted text of the file left out."""
    return re.sub(r"'[^']{3,}'", "'...'", " ".join(str(fault).split()))[:200]


def _check_keys(node: yaml.Node, where: str, above: str, seen: set[int]) -> None:
    """Raise ConfigError for a key that a mapping has twice: YAML readers silently take the last one. `seen`: nodes that
    were looked at, because an alias may lead back to one."""
    if id(node) in seen or not isinstance(node, yaml.CollectionNode):
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            _check_keys(item, where, f"{above}{number}.", seen)
        return
    lines: dict[tuple[str, str], int] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else "?"
        if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
            line = key.start_mark.line + 1
            earlier = lines.setdefault((key.tag, name), 0)
            if earlier:
                on = f"on lines {earlier} and {line}" if earlier != line else f"on line {line}"
                raise ConfigError(
                    f"{where}: the key {above}{name} is there twice, {on}, and only the last one would count; keep one "
                    "of them"
                )
            lines[key.tag, name] = line
        _check_keys(value, where, f"{above}{name}.", seen)
