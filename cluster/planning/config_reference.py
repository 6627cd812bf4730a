"""Every key of a run's configuration, explained from the one place that declares it (RunConfig).

    entries()["objective.clip_range"].lines()          type, default, meaning, and the keys that it goes with

`spag-ray config` is `explain`, and docs/configuration.md is `reference()`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, meant

_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
_DEFAULT_BY_MACHINE = "depends on the machine"


@dataclass(frozen=True)
class Entry:
    """A key. `default`: as YAML has it; None if it has to be set. `is_part`: whether it has keys of its own."""

    key: str
    type: str
    default: str | None
    meaning: str
    is_part: bool

    def lines(self) -> Iterator[str]:
        """What is printed about it."""
        yield f"{self.key}: {self.type}"
        yield "default: " + ("none, it has to be set" if self.default is None else self.default)
        yield self.meaning
        if found := related(self.key):
            yield "see also: " + ", ".join(found)


@functools.cache
def entries() -> Mapping[str, Entry]:
    """{key: its entry}, in the order of a dumped configuration. Keys of an item of a list are `list[].key`."""
    schema = RunConfig.model_json_schema(by_alias=False)
    return {entry.key: entry for entry in _walked(schema, schema["$defs"], "")}


def _walked(schema: Mapping[str, Any], parts: Mapping[str, Any], prefix: str) -> Iterator[Entry]:
    needed = schema.get("required", ())
    for name, field in schema["properties"].items():
        key = prefix + name
        part, is_list = _part_of(field)
        meaning = field.get("description") or (parts[part].get("description", "") if part else "")
        default = None if name in needed else _DEFAULT_BY_MACHINE
        if "default" in field:
            is_mapping = isinstance(field["default"], dict)
            default = "the defaults of its keys" if part and is_mapping else _yaml(field["default"])
        yield Entry(key, _type(field, parts), default, " ".join(meaning.split()), part is not None)
        if part is not None:
            yield from _walked(parts[part], parts, f"{key}[]." if is_list else f"{key}.")


def _part_of(field: Mapping[str, Any]) -> tuple[str | None, bool]:
    """(the part whose keys this field has, whether it is a list of them)"""
    if "items" in field:
        return _part_of(field["items"])[0], True
    for each in (field, *field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())):
        if "$ref" in each:
            return each["$ref"].rpartition("/")[2], False
    return None, False


def _type(field: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    if "$ref" in field:
        return "keys of its own"
    if "enum" in field or "const" in field:
        return " | ".join(map(_yaml, field.get("enum", [field.get("const")])))
    if choices := field.get("anyOf") or field.get("oneOf") or field.get("allOf"):
        told = [_type(each, parts) for each in choices if each.get("type") != "null"]
        return " | ".join([*told, *(["empty"] if len(told) < len(choices) else [])])
    kind = field["type"]
    if kind == "array":
        if "prefixItems" in field:
            return f"[{', '.join(_type(each, parts) for each in field['prefixItems'])}]"
        return f"list of ({_type(field['items'], parts)})"
    if kind == "object":
        return "mapping"
    bounds = [f"{word} {field[bound]:g}" for bound, word in _BOUNDS.items() if bound in field]
    return ", ".join([_WORDS[kind], *bounds])


def _yaml(value: Any) -> str:
    """As a line of YAML has it; an empty value is `empty`."""
    if value is None:
        return "empty"
    return value if isinstance(value, str) else json.dumps(value).replace('"', "").replace("null", "empty")


def related(key: str) -> list[str]:
    """The keys that this key's explanation names, and those whose explanations name it; of the same part, or by their
    whole names."""
    return [other for other in entries() if other != key and (_names(key, other) or _names(other, key))]


def _names(key: str, other: str) -> bool:
    """Whether the explanation of `key` names `other`."""
    part, _, name = other.rpartition(".")
    own_part = key.rpartition(".")[0]
    if not part and f"{own_part}.{other}" in entries():
        return False
    names = [other] if own_part != part else [other, name]
    # A word such as `games` means something else in a sentence, unless it is marked as a key.
    patterns = [rf"(?<![\w.]){re.escape(each)}(?!\w)" if {"_", "."} & {*each} else f"`{each}[`:]" for each in names]
    return any(re.search(pattern, entries()[key].meaning) for pattern in patterns)


def explained(key: str) -> list[Entry]:
    """The entry of a key; of a part also those of its keys. `game` is the short form of `games[]`. Raises ConfigError
    for a key that is not there, with the nearest one."""
    asked = re.sub(r"\bgames\.\d+\b", "games[]", re.sub(r"^game(?=\.|$)", "games[]", key)).rstrip(".")
    asked = re.sub(r"\b(fixed|phases)\.\d+\b", r"\1[]", asked).removesuffix("[]")
    if asked not in entries():
        raise ConfigError(f"there is no key {key}{meant(asked, list(entries()))}; `spag-ray config` lists the parts")
    return [
        entry for name, entry in entries().items() if name == asked or name.startswith((f"{asked}.", f"{asked}[]."))
    ]


def reference() -> str:
    """docs/configuration.md: a table for each part."""
    lines = [
        "# Configuration reference",
        "",
        "Every key of a YAML configuration, generated from its declaration: `spag-ray config --markdown`. On the "
        "command line `spag-ray config KEY`",
        "explains one key, with those it goes with, and `-o KEY=VALUE` sets one. Misspelt keys are refused with the "
        "nearest one. `game` is short for a list of one",
        "in `games`.",
    ]
    tops = [entry for entry in entries().values() if "." not in entry.key]
    lines += ["", "## Keys of the run", "", *_table([entry for entry in tops if not entry.is_part])]
    for top in tops:
        if top.is_part:
            lines += ["", f"## {top.key}", "", _capital(top.meaning), "", *_table(explained(top.key)[1:])]
    return "\n".join(lines) + "\n"


def _capital(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _table(found: list[Entry]) -> Iterator[str]:
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for entry in found:
        cells = (
            f"`{entry.key}`",
            entry.type,
            "has to be set" if entry.default is None else entry.default,
            entry.meaning,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def explain(key: str | None, markdown: bool) -> None:
    """`spag-ray config`: print a key, a part with all its keys, or the parts; with `markdown` the whole reference."""
    if markdown:
        print(reference(), end="")
        return
    console = Console()

    def say(line: str, style: str = "") -> None:
        console.print(Text(line, style), soft_wrap=True)

    if key is None:
        for entry in entries().values():
            if "." not in entry.key:
                say(f"{entry.key:22}{entry.meaning}")
        say("`spag-ray config objective` explains all keys of a part, `spag-ray config objective.clip_range` one key.")
        return
    first, *others = explained(key)
    for line in first.lines():
        say(line)
    for entry in others:
        say("")
        say(entry.key, "bold")
        say(f"  {entry.type}; default: {'has to be set' if entry.default is None else entry.default}")
        say(f"  {entry.meaning}")
