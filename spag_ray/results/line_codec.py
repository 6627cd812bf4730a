"""Frozen dataclasses as the flat JSON of a line of metrics.jsonl: a dataclass in a field, and the keys of a mapping in
one that is `spread`, stand in the line itself."""

from __future__ import annotations

import math
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import field, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

MOST = 1e100  # of a number; sums of such numbers are numbers too
_KEEPS = "unknown"  # the field for what no other takes


def spread(name: str, keys: Iterable[object] = ()) -> Any:
    """A field {key: value} that is written as one entry per key, `name` with the key in its place. When read, it takes
    all of these `keys`, or any key in that place."""
    key = "|".join(re.escape(str(each)) for each in keys) or ".+"
    pattern = re.compile(re.escape(name).replace(r"\{\}", f"({key})"))
    return field(default_factory=dict, metadata={"name": name, "pattern": pattern})


def written(line: Any) -> dict[str, Any]:
    """Its values in the order of its fields, without those that are None."""
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
    """The arguments that make one from the values, and the values that it has no field for. Raises
    TypeError or ValueError for a value of another type and for a finite number beyond MOST."""
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
    """JSON's value as a field's type; null is nan where a number belongs."""
    if _is_optional(hint):
        if value is None:
            return None
        (hint,) = (each for each in get_args(hint) if each is not types.NoneType)
    if hint is float and value is None:
        return math.nan
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number if hint in (int, float) else isinstance(value, hint)):
        raise TypeError(f"{value!r} is no {hint.__name__}")
    if is_number and MOST < abs(value) < math.inf:
        raise ValueError(f"a number is beyond {MOST:g}")
    if hint is int and value % 1 != 0:
        raise ValueError(f"{value!r} is no whole number")
    return hint(value)
