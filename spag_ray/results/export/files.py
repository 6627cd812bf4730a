"""Rows -> a file or a folder. A few rows are in memory at a time; a partial file is never left under the final name.

jsonl      one JSON object a line
parquet    one file
hf         a folder that Hugging Face `datasets` loads and its hub takes: a split for each stage, and a README.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

import yaml

from spag_ray.errors import InputError, extra
from spag_ray.host.whole_files import refuse_existing, whole
from spag_ray.results.export.rows import GameColumns, Row, Rows, TurnColumns, Unit

Format: TypeAlias = Literal["parquet", "jsonl", "hf"]
GROUP_ROWS = 10_000
GROUP_VALUES = 2**20  # token ids, log-probabilities and characters of a Parquet row group, which is kept in memory


def write_export(rows: Rows, stages: Collection[str], form: Format, out: Path) -> None:
    """Write the rows of these stages, or of all. Raises InputError if `out` exists or cannot be written, a stage is
    unknown, there are no games, or pyarrow is missing."""
    refuse_existing(out)
    logs = rows.logs(stages)
    if form != "jsonl":
        _pyarrow()
    try:
        with whole(out) as partial:
            {"jsonl": _write_jsonl, "parquet": _write_parquet, "hf": _write_folder}[form](rows, logs, partial)
            if not rows.num_rows:
                raise InputError(f"{rows.run.folder}: there are no games in {', '.join(logs)}")
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror or error}; choose another place with --out"
        ) from error


def _write_jsonl(rows: Rows, logs: Mapping[str, Path], out: Path) -> None:
    with out.open("w", encoding="utf-8") as file:
        for stage, log in logs.items():
            for row in rows.of_stage(stage, log):
                file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def _write_parquet(rows: Rows, logs: Mapping[str, Path], out: Path) -> None:
    arrow, schema = _pyarrow(), _schema(rows.unit)
    with arrow.parquet.ParquetWriter(out, schema, compression="zstd") as writer:
        for stage, log in logs.items():
            for group in _groups(rows.of_stage(stage, log)):
                writer.write_table(arrow.Table.from_pylist(group, schema))


def _write_folder(rows: Rows, logs: Mapping[str, Path], out: Path) -> None:
    splits: dict[str, str] = {}
    (out / "data").mkdir(parents=True)
    for stage, log in logs.items():
        split = _split_name(stage, splits.values())
        before = rows.num_rows
        _write_parquet(rows, {stage: log}, out / "data" / f"{split}.parquet")
        if rows.num_rows == before:
            (out / "data" / f"{split}.parquet").unlink()
        else:
            splits[stage] = split
    (out / "README.md").write_text(_card(rows, splits), encoding="utf-8")


def _split_name(stage: str, taken: Collection[str]) -> str:
    """The stage as `datasets` names splits: letters, digits and _.

    >>> _split_name("match-spag-2@imitated", []), _split_name("spag-1", ["spag_1"])
    ('match_spag_2_imitated', 'spag_1_')
    """
    name = re.sub(r"\W", "_", stage, flags=re.ASCII)
    while name in taken:
        name += "_"
    return name


def _card(rows: Rows, splits: Mapping[str, str]) -> str:
    files = [{"split": split, "path": f"data/{split}.parquet"} for split in splits.values()]
    head = {"tags": ["spag-ray", "self-play"], "configs": [{"config_name": "default", "data_files": files}]}
    stages = "".join(f"| `{stage}` | `{split}` |\n" for stage, split in splits.items())
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n# Games of a run of spag_ray\n\n"
        f"{rows.num_games:,} games of {rows.run.game.name}; one row is a {rows.unit.removesuffix('s')}. "
        "The columns are described in spag_ray's docs/data.md.\n\n"
        f"| stage | split |\n|---|---|\n{stages}"
    )


def _groups(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Rows in lists that fit in memory."""
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += _size(row)
        if size >= GROUP_VALUES or len(group) == GROUP_ROWS:
            yield group
            group, size = [], 0
    if group:
        yield group


def _size(value: Any) -> int:
    """How many numbers and characters; lists are turns, tuples are numbers."""
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, tuple | str) else 1


def _schema(unit: Unit) -> Any:
    arrow = _pyarrow()
    game, turn = _arrow_fields(GameColumns), _arrow_fields(TurnColumns)
    if unit == "turns":
        return arrow.schema(game + turn)
    payoffs = arrow.field("payoffs", arrow.list_(arrow.float64()))
    return arrow.schema([*game, payoffs, arrow.field("turns", arrow.list_(arrow.struct(turn)))])


def _arrow_fields(columns: type) -> list[Any]:
    arrow = _pyarrow()
    whole, number, text = arrow.int64(), arrow.float64(), arrow.string()
    types: dict[Any, Any] = {int: whole, float: number, str: text, tuple[float, ...]: arrow.list_(number)}
    types[tuple[int, ...]] = arrow.list_(whole)
    types |= {each | None: kind for each, kind in types.items()}
    hints = get_type_hints(columns)
    return [arrow.field(each.name, types[hints[each.name]]) for each in fields(columns)]


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise InputError(f"formats parquet and hf need pyarrow: {extra('data')}; or use --format jsonl") from error
    return pyarrow
