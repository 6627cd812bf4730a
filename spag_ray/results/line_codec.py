"""Frozen dataclasses as lines of flat JSON for metrics.jsonl.

The fields of a nested dataclass, and the entries of a mapping in a `spread` field, become keys of the line itself.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

MOST = 1e100  # largest absolute value of a number, so that sums of numbers stay finite
_KEEPS = "unknown"  # the field for values that no other field takes


def spread(name: str, keys: Iterable[object] = (), rest: str = "") -> Any:
    """A field {key: value} that is written as one entry per key: `name`, with the key in place of its placeholder. When
    read, it takes these `keys`, or any key if `keys` is empty. `rest`: a pattern of what may follow a key as a part of
    it."""
    key = "|".join(re.escape(str(each)) for each in keys) or ".+"
    pattern = re.compile(re.escape(name).replace(r"\{\}", f"((?:{key}){rest})"))
    return field(default_factory=dict, metadata={"name": name, "pattern": pattern})


def written(line: Any) -> dict[str, Any]:
    """The values of a line in the order of its fields, without None."""
    found: dict[str, Any] = {}
    for each in fields(line):
        value = getattr(line, each.name)
        if "name" in each.metadata:
            found |= {each.metadata["name"].format(key): number for key, number in value.items()}
        elif is_dataclass(value):
            found |= written(value)
        elif value is not None and each.name != _KEEPS:
            found[each.name] = value
    return found


def parsed(of: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arguments for the constructor of `of`, values that it has no field for). Raises TypeError or ValueError for a
    value of the wrong type and for a finite number beyond MOST."""
    found: dict[str, Any] = {}
    left = dict(values)
    for each, hint in _fields(of):
        if "pattern" in each.metadata:
            key_type, value_type = get_args(hint)
            caught = {name: match for name in left if (match := each.metadata["pattern"].fullmatch(name))}
            found[each.name] = {key_type(match[1]): _as(value_type, left.pop(name)) for name, match in caught.items()}
        elif isinstance(hint, type) and is_dataclass(hint):
            inner, left = parsed(hint, left)
            found[each.name] = hint(**inner)
        elif each.name in left:
            found[each.name] = _as(hint, left.pop(each.name))
        elif _is_optional(hint):
            found[each.name] = None
    return found, left


@cache
def _fields(of: type) -> tuple[tuple[Any, Any], ...]:
    hints = get_type_hints(of)
    return tuple((each, hints[each.name]) for each in fields(of) if each.name != _KEEPS)


def _is_optional(hint: Any) -> bool:
    return get_origin(hint) is types.UnionType and types.NoneType in get_args(hint)


def _as(hint: Any, value: Any) -> Any:
    """A JSON value as a field's type; null becomes nan in a field for numbers."""
    if _is_optional(hint):
        if value is None:
            return None
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    if hint is float and value is None:
        return math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number if hint in (int, float) else isinstance(value, hint)):
        raise TypeError(f"{value!r} is not of type {hint.__name__}")
    if is_number and MOST < abs(value) < math.inf:
        raise ValueError(f"a number is beyond {MOST:g}")
    if hint is int and value % 1 != 0:
        raise ValueError(f"{value!r} is not a whole number")
    return hint(value)
