"""The published JSON files: games, training rows, SFT data.

    games     [{"history": [{"role", "content"}, ...], "target_word", "max_turns", ...}, ...]
    samples   [{"query", "target", "reward", "role", "weight"}, ...]
              and SFT rows {"query", "target", "type": "sft", "weight": 1.0}
    SFT data  [{"instruction", "input", "output"}, ...] (Alpaca's),
              or rows with "query" (or "prompt") and "target"

Each may be one JSON list or JSON lines. Every entry is checked; a fault raises an InputError with its place.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spag_ray.errors import InputError
from spag_ray.game.rules import Role, check_history
from spag_ray.host.whole_files import given_text, new_file

MAX_FILE_BYTES = 2**31
_NUM_NAMED = 20  # rows in a message
_say = logging.getLogger("spag_ray")
Row = dict[str, Any]


def read_games(path: str | Path) -> list[Row]:
    """Reads games; other fields are kept. Turns must alternate, the attacker first."""
    games = _read_rows(path)
    for number, game in enumerate(games):
        where = f"{path}: episode {number}"
        _text(game, "target_word", where)
        max_turns = game.get("max_turns")
        if not isinstance(max_turns, int) or isinstance(max_turns, bool) or max_turns < 1:
            raise InputError(f'{where}: "max_turns" must be a whole number of at least 1, found {max_turns!r}')
        try:
            check_history(game.get("history"))
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        for index, turn in enumerate(game["history"]):
            _text(turn, "content", f"{where}: turn {index}", may_be_empty=True)
    return games


def holds_games(path: str | Path) -> bool:
    """Whether this file has games; if not, it has training rows: its first entry says it."""
    return "history" in _read_rows(path)[0]


def write_games(path: str | Path, games: Sequence[Mapping[str, Any]]) -> None:
    """Writes one JSON list that the published tools can read; an existing file is not overwritten."""
    _write_rows(path, games)


def read_samples(path: str | Path) -> list[Row]:
    """Training rows: {"query", "target", "reward", "role", "weight"}, or SFT rows (type "sft", weight 1)."""
    return [_sample(row, f"{path}: row {number}") for number, row in enumerate(_read_rows(path))]


def write_samples(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes one JSON list that the published tools can read; an existing file is not overwritten."""
    for number, row in enumerate(rows):
        _sample(row, f"row {number} to be written to {path}")
    _write_rows(path, rows)


def read_sft(path: str | Path) -> list[Row]:
    """SFT data -> [{"query", "target", "type": "sft", "weight": 1.0}, ...]. Rows whose answer is empty, of which the
    published Alpaca file has some, have nothing to learn: they are left out and logged."""
    rows = list(enumerate(_read_rows(path)))
    empty = [number for number, row in rows if _is_empty(row.get("output" if "instruction" in row else "target"))]
    if len(empty) == len(rows):
        raise InputError(f"{path}: the answer of every row is empty; there is nothing to learn")
    if empty:
        named = ", ".join(map(str, empty[:_NUM_NAMED])) + (", ..." if len(empty) > _NUM_NAMED else "")
        _say.warning(
            "%s: %d of %d rows are left out, because their answer is empty: %s", path, len(empty), len(rows), named
        )
    left_out = set(empty)
    return [_sft_row(row, f"{path}: row {number}") for number, row in rows if number not in left_out]


def _is_empty(answer: Any) -> bool:
    return isinstance(answer, str) and not answer.strip()


def _sample(row: Mapping[str, Any], where: str) -> Row:
    if row.get("type") == "sft":
        _number(row, "weight", where, default=1.0)
        return _sft_row(row, where)
    if row.get("role") not in tuple(Role):
        raise InputError(f'{where}: "role" must be "attacker" or "defender", found {row.get("role")!r}')
    _text(row, "query", where, may_be_empty=True)
    _text(row, "target", where)
    return {**row, "reward": _number(row, "reward", where), "weight": _number(row, "weight", where)}


def _sft_row(row: Mapping[str, Any], where: str) -> Row:
    if "instruction" in row:
        query = _text(row, "instruction", where)
        if "input" in row and (more := _text(row, "input", where, may_be_empty=True)).strip():
            query = f"{query}\n{more}"
        target = _text(row, "output", where)
    elif "query" in row or "prompt" in row:
        query = _text(row, "query" if "query" in row else "prompt", where, may_be_empty=True)
        target = _text(row, "target", where)
    else:
        raise InputError(
            f'{where}: SFT data needs "instruction" and "output", or "query" (or "prompt") and "target"; '
            f"found the keys {sorted(row)}"
        )
    return {"query": query, "target": target, "type": "sft", "weight": 1.0}


def _text(row: Mapping[str, Any], key: str, where: str, may_be_empty: bool = False) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise InputError(f'{where}: "{key}" must be a text, found {value!r}')
    if not value.isprintable() and any("\ud800" <= character <= "\udfff" for character in value):
        raise InputError(f'{where}: "{key}" has half of a surrogate pair, which is not a character; correct the text')
    if not may_be_empty and not value.strip():
        raise InputError(f'{where}: "{key}" is empty; fill it or leave the row out')
    return value


def _number(row: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = row.get(key, default)
    # A whole number of hundreds of digits is finite, but no float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise InputError(f'{where}: "{key}" must be a finite number, found {value!r:.60}')
    return float(value)


def _read_rows(path: str | Path) -> list[Row]:
    """The objects of a file that holds one JSON list or JSON lines."""
    size = os.path.getsize(path) if os.path.isfile(path) else 0
    if size > MAX_FILE_BYTES:
        raise InputError(
            f"{path}: {size} bytes are more than the {MAX_FILE_BYTES} that are read at once; cut it into several files"
        )
    text = given_text(path, "it", "give a UTF-8 file of JSON")
    if not text.strip():
        raise InputError(f"{path}: the file is empty; give a JSON list or JSON lines")
    rows = _parse(text, path, 1) if text.lstrip().startswith("[") else _parse_lines(text, path)
    if not rows:
        raise InputError(f"{path}: the list is empty; there is nothing to read")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InputError(f"{path}: entry {number} must be an object, found {type(row).__name__}")
    return rows


def _parse_lines(text: str, path: str | Path) -> list[Any]:
    try:
        # A single object may be written over several lines.
        return [json.loads(text)]
    except (ValueError, RecursionError):
        lines = enumerate(text.split("\n"), start=1)
        return [_parse(line, path, number) for number, line in lines if line.strip()]


def _parse(text: str, path: str | Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise InputError(
            f"{path}, line {line}, column {error.colno}: not valid JSON ({error.msg}); correct it there"
        ) from error
    except RecursionError as error:
        raise InputError(f"{path}, line {first_line}: nested too deeply to be one of the published files") from error
    except ValueError as error:  # an integer with thousands of digits
        raise InputError(f"{path}, line {first_line}: not valid JSON ({error})") from error


def _write_rows(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with new_file(Path(path)) as file:
        json.dump(list(rows), file, ensure_ascii=False, indent=1, allow_nan=False)
        file.write("\n")
