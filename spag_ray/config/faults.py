"""What pydantic finds wrong with settings, in the words of somebody who writes YAML."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import get_args

from pydantic import AliasChoices, BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from spag_ray.config.parts import Part
from spag_ray.errors import meant, nearest

_GROUP = "should be a group of keys"
# By pydantic's type of an error. `{}` are filled with what pydantic says about it.
_WORDS = {
    "missing": "is missing",
    "bool_type": "should be true or false",
    "bool_parsing": "should be true or false",
    "int_type": "should be a whole number",
    "int_parsing": "should be a whole number",
    "int_parsing_size": "should be a smaller whole number",
    "int_from_float": "should be a whole number",
    "float_type": "should be a number",
    "float_parsing": "should be a number",
    "finite_number": "should be a finite number",
    "string_type": "should be text",
    "list_type": "should be a list, such as [a, b]",
    "tuple_type": "should be a list, such as [a, b]",
    "too_short": "should have at least {min_length} entries, not {actual_length}",
    "too_long": "should have at most {max_length} entries, not {actual_length}",
    "string_too_short": "should have at least {min_length} character{s}",
    "string_too_long": "should have at most {max_length} characters",
    "string_pattern_mismatch": "should match the pattern {pattern}",
    "dict_type": _GROUP,
    "model_type": _GROUP,
}
# What pydantic calls the kinds of values that a key takes one of.
_KINDS = ("bool", "int", "float", "str", "constrained-int", "literal['auto']")
_MAX_GOT = 200  # characters of a value that is repeated


def first_fault(error: ValidationError, model: type[BaseModel]) -> tuple[str, str]:
    """(key, what is wrong with it) of the first fault, in one line; an empty key for the whole. `model`: of the
    settings, whose keys are suggested for one that is unknown."""
    fault, *others = error.errors()
    # After a key that takes values of several kinds, pydantic names the kind that it tried, each in a fault of its own.
    loc = [part for before, part in pairwise((None, *fault["loc"])) if before != "num_engines" and part != "[key]"]
    is_kind = fault["loc"][-1:] and fault["loc"][-1] in _KINDS and fault["type"] != "extra_forbidden"
    kinds = [each for each in others if is_kind and each["loc"] in [(*fault["loc"][:-1], kind) for kind in _KINDS]]
    if kinds:
        del loc[-1]
    if loc[:2] == ["game", 0]:  # short for a list of one
        del loc[1]
    key = ".".join(map(str, loc))
    if fault["type"] == "extra_forbidden":
        known = list(_known_keys(model.model_fields))
        same_leaf = [other for other in known if other.rsplit(".", 1)[-1] == key.rsplit(".", 1)[-1]]
        return "", f"unknown key {key!r}; the nearest known one is {nearest(key, same_leaf or known, cutoff=0.0)!r}"
    message = " ".join(", or ".join([_in_words(fault), *map(_kind_in_words, kinds)]).split())
    is_secret = fault["loc"][1:2] == ("env",) or "'env'" in repr(fault["input"])  # values of environment variables
    is_group = isinstance(fault["input"], Mapping) and fault["type"] in ("value_error", "assertion_error")
    if not key or is_secret or is_group:
        return key, message
    got = repr(fault["input"])
    return key, f"{message} (got {got if len(got) <= _MAX_GOT else got[:_MAX_GOT] + '...'}){_meant_choice(fault)}"


def _in_words(fault: ErrorDetails) -> str:
    kind, context = fault["type"], fault.get("ctx") or {}
    if kind == "model_type" and (keys := _keys_of(str(context.get("class_name")))):
        return f"{_GROUP} ({', '.join(keys[:4])}{', ...' * (len(keys) > 4)})"
    if kind in _WORDS:
        return _WORDS[kind].format(**context, s="s" * (context.get("min_length") != 1))
    return re.sub("^(?:Value error, |Assertion failed, |Input )", "", fault["msg"])


def _kind_in_words(fault: ErrorDetails) -> str:
    """What else the value may be."""
    return _in_words(fault).removeprefix("should be ").strip("'")


def _meant_choice(fault: ErrorDetails) -> str:
    """The end of the message, where the value is none of the names that the key takes."""
    if fault["type"] != "literal_error" or not isinstance(fault["input"], str):
        return ""
    return meant(fault["input"], re.findall(r"'([^']*)'", (fault.get("ctx") or {})["expected"]))


def _keys_of(name: str, of: type[BaseModel] = Part) -> list[str]:
    """The keys of the part of a configuration that a class of this name is."""
    if of.__name__ == name:
        return list(of.model_fields)
    return next((keys for each in of.__subclasses__() if (keys := _keys_of(name, each))), [])


def _known_keys(fields: Mapping[str, FieldInfo], prefix: str = "") -> Iterator[str]:
    for name, field in fields.items():
        yield prefix + name
        kind = field.annotation
        if isinstance(field.validation_alias, AliasChoices):  # its last name is short for a list of one
            name, kind = str(field.validation_alias.choices[-1]), get_args(kind)[0]
            yield prefix + name
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _known_keys(kind.model_fields, f"{prefix}{name}.")
