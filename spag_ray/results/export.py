"""A run's games as rows of data for other programs: JSON lines, Parquet, a folder for Hugging Face `datasets`.

jsonl      one JSON object a line
parquet    one file
hf         a folder that Hugging Face `datasets` loads and its hub takes: a split for each stage, and a README.md

A row is a turn, or a game; docs/data.md describes the columns. A few rows are in memory at a time; a partial file is
never left under the final name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_type_hints

import yaml

from spag_ray.config.parts import Payoffs
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import LogFaults, read_stage, stage_logs
from spag_ray.errors import InputError, extra, meant
from spag_ray.game.rules import Role
from spag_ray.host.whole_files import refuse_existing, whole
from spag_ray.results.game_names import GameNames
from spag_ray.results.report.files import RunFiles
from spag_ray.results.trained_turns import NOTHING, round_in, trained_turns
from spag_ray.stages import Stage, StageKind
from spag_ray.training_data.game_samples import compared_results
from spag_ray.training_data.rewards import MeanPayoffs, Results, paid

Format: TypeAlias = Literal["parquet", "jsonl", "hf"]
Row: TypeAlias = dict[str, Any]
Unit: TypeAlias = Literal["turns", "games"]
Expect: TypeAlias = Callable[[str], Mapping[Role, float]]  # {role: its baseline} in games of a scenario
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


@dataclass(frozen=True)
class GameColumns:
    """Of a game. The referee read `num_turns`. `deciding_span`: characters [begin, end) of the deciding turn."""

    stage: str
    game_id: str
    number: int
    game: str
    scenario: str
    max_turns: int
    rules: str
    temperature: float
    outcome: str
    winner: str | None
    breaker: str | None
    end_reason: str
    reason: str
    num_turns: int
    deciding_turn: int | None
    deciding_span: tuple[int, ...] | None


@dataclass(frozen=True)
class TurnColumns:
    """Of a turn. `prompt_ids` [P], `token_ids` [L], `logprobs` [L] in nats. `reward`: what the game paid its seat.
    `trained`: `self_play`, `imitation`, or None; `advantage`: of a turn of self-play."""

    turn: int
    seat: str
    text: str
    policy: str
    first_version: int
    last_version: int
    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    forced: tuple[int, ...] | None
    finish_reason: str
    word_logprob: float | None
    listener_logprob: float | None
    reward: float | None
    trained: str | None
    advantage: float | None


@dataclass
class Rows:
    """The rows of a run's stages, read from its logs one game at a time. `faults`: {log: what could not be read}."""

    run: RunFiles
    unit: Unit
    num_games: int = 0
    num_rows: int = 0
    faults: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._of_games = {name: self.run.of_game(name) for name in self.run.games}

    def logs(self, stages: Collection[str] = ()) -> dict[str, Path]:
        """{stage: its log}, in the order of the run; all of them if no stage is named. Raises InputError."""
        found = stage_logs(self.run.folder / "episodes")
        if not found:
            raise InputError(f"{self.run.folder}: there are no games in it yet (episodes/*.log)")
        if unknown := [stage for stage in stages if stage not in found]:
            told = f"{self.run.folder}: it has no games of stage {unknown[0]!r}; it has {', '.join(found)}"
            raise InputError(told + meant(unknown[0], found))
        return {stage: path for stage, path in found.items() if not stages or stage in stages}

    def of_stage(self, stage: str, path: Path) -> Iterator[Row]:
        """The rows of a log, in its order: that in which games ended."""
        faults, left_out = LogFaults(), dict[str, str]()
        expected = {
            name: None if run.config is None else _baselines(run.config, name, stage, path)
            for name, run in self._of_games.items()
        }
        for _, episode in read_stage(path, faults):
            name = episode.game
            if self.run.config is None:
                self._of_games.setdefault(name, self.run.of_game(name))
            if name not in self._of_games:
                left_out[name] = f"games of {name}, which is not in the configuration, are left out"
                continue
            found = self._rows(self._of_games[name], stage, episode, expected.get(name))
            self.num_games += 1
            self.num_rows += len(found)
            yield from found
        if told := [*left_out.values(), *([str(faults)] if faults else [])]:
            self.faults[path.name] = "; ".join(told)

    def _rows(self, run: RunFiles, stage: str, episode: Episode, expect: Expect | None) -> list[Row]:
        payoffs = _payoffs(run.config, stage, episode)
        game = vars(_game_columns(stage, episode, run.game))
        turns = [vars(turn) for turn in _turn_columns(stage, episode, run, payoffs, expect)]
        if self.unit == "turns":
            return [game | turn for turn in turns]
        return [game | {"payoffs": tuple(payoffs[role] for role in Role), "turns": turns}]


def _game_columns(stage: str, episode: Episode, names: GameNames) -> GameColumns:
    verdict = episode.verdict
    winner, breaker = verdict.outcome.winner, verdict.outcome.breaker
    return GameColumns(
        stage=stage,
        game_id=episode.episode_id,
        number=episode.number,
        game=episode.game,
        scenario=episode.scenario,
        max_turns=episode.max_turns,
        rules=episode.rules,
        temperature=episode.temperature,
        outcome=names.outcome(verdict.outcome),
        winner=None if winner is None else names.seat(winner),
        breaker=None if breaker is None else names.seat(breaker),
        end_reason=str(verdict.end_reason),
        reason=verdict.reason,
        num_turns=verdict.length,
        deciding_turn=verdict.turn,
        deciding_span=verdict.span,
    )


def _turn_columns(
    stage: str, episode: Episode, run: RunFiles, payoffs: Results, expect: Expect | None
) -> Iterator[TurnColumns]:
    trained: Mapping[int, float | None] = {}
    if run.config is not None:
        expected = NOTHING if expect is None else expect(episode.scenario)
        trained = trained_turns(stage, episode, run.config, expected)
    for index, turn in enumerate(episode.turns):
        is_trained = index in trained and turn.num_tokens > 0
        yield TurnColumns(
            turn=index,
            seat=run.game.seat(turn.role),
            **{name: value for name, value in vars(turn).items() if name != "role"},
            reward=payoffs[turn.role],
            trained=Stage.parse(stage).phase if is_trained else None,
            advantage=trained[index] if is_trained and expect is not None else None,
        )


def _payoffs(config: RunConfig | None, stage: str, episode: Episode) -> Results:
    """What the game paid each role; None for both if neither the configuration nor the log says it."""
    played = None if config is None else round_in(stage, config)
    if config is None or played is None:
        return dict.fromkeys(Role) if episode.verdict.payoffs is None else paid(Payoffs(), episode.verdict)
    return paid(config.payoffs_of(played), episode.verdict)


def _baselines(config: RunConfig, name: str, stage: str, path: Path) -> Expect | None:
    """The baselines that this stage's games of a name are trained with; None if its log does not tell: a moving average
    depends on all games before, and that of a stream on which games were trained on together; an estimator by name
    compares all games of a batch."""
    objective = config.objective
    if objective.advantage != "spag":
        return None
    if objective.baseline == "none":
        return lambda _: NOTHING
    if objective.information_gain or objective.baseline_std != "none" or objective.drop_agreeing:
        return None  # these depend on the batch, too
    if objective.baseline == "moving" or Stage.parse(stage).kind is not StageKind.ROUND:
        return None
    means = MeanPayoffs(by_scenario=objective.baseline == "scenario")
    payoffs = config.payoffs_of(Stage.parse(stage))
    for _, episode in read_stage(path, LogFaults()):
        results = compared_results(episode, objective, payoffs, config.policy_names)
        if name == episode.game and results is not None:
            means.add(episode.scenario, results)
    return means.expected
