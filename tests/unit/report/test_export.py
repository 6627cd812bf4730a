"""Exported games: every format holds what the log holds, advantages are those of training, memory does not grow."""

import importlib.util
import json
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.cli import app
from cluster.guarded import run_guarded
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import load_config, parse_config
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.errors import extra
from spag_ray.game.rules import Outcome
from spag_ray.results.export import Row, Rows, Unit, write_export
from spag_ray.results.game_names import FILE
from spag_ray.results.report.files import read_files
from spag_ray.training_data.game_samples import game_samples
from tests.support.episodes import game
from tests.support.kuhn_runs import GAMES, kuhn_game, make_kuhn_run, make_two_games_run
from tests.support.not_here import not_here
from tests.support.old_run_folders import FOLDERS, placed
from tests.support.report_runs import write_log

KUHN = {"game": {"name": "kuhn"}, "prompts": "lines", "imitation": {"enabled": False}}


def package(name: str) -> Any:
    if importlib.util.find_spec(name) is None:
        not_here(f"{name} is not installed (requirements/cpu.txt)")
    return importlib.import_module(name)


def export(*arguments: str) -> int:
    return run_guarded(lambda **options: app(["export", *arguments], **options))


def rows_of(folder: Path, unit: Unit = "turns") -> list[Row]:
    rows = Rows(read_files(folder), unit)
    return [row for stage, log in rows.logs().items() for row in rows.of_stage(stage, log)]


def plain(value: Any) -> Any:
    """As lists and numbers of Python; pandas has arrays, and NaN where nothing is."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    return None if value != value else value


def read_jsonl(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def read_by_pandas(path: Path) -> list[Row]:
    pandas = package("pandas")
    frame = (
        pandas.read_json(path, lines=True, precise_float=True) if path.suffix == ".jsonl" else pandas.read_parquet(path)
    )
    return [plain(row) for row in frame.to_dict("records")]


def read_by_datasets(path: Path) -> list[Row]:
    datasets = package("datasets")
    cache = str(path.parent / "cache")
    if path.is_dir():
        return [row for split in datasets.load_dataset(str(path), cache_dir=cache).values() for row in split]
    return list(datasets.load_dataset("parquet", data_files=str(path), split="train", cache_dir=cache))


@pytest.mark.parametrize("unit", ["turns", "games"])
@pytest.mark.parametrize(
    ("form", "readers"),
    [
        ("jsonl", [read_jsonl, read_by_pandas]),
        ("parquet", [read_by_pandas, read_by_datasets]),
        ("hf", [read_by_datasets]),
    ],
)
def test_every_format_reads_back_as_what_the_logs_hold(
    form: str, readers: Sequence[Callable[[Path], list[Row]]], unit: Unit, tmp_path: Path
) -> None:
    package("pyarrow")
    out = tmp_path / f"out.{form}"
    assert export(str(FOLDERS / "rounds"), "--format", form, "--rows", unit, "--out", str(out)) == 0
    expected = [plain(row) for row in rows_of(FOLDERS / "rounds", unit)]
    for read in readers:
        assert read(out) == expected
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_row_has_the_tokens_the_version_and_the_verdict_of_its_turn() -> None:
    rows = [row for row in rows_of(FOLDERS / "rounds") if row["stage"] == "spag-2"]
    pairs = [
        (episode, index, turn)
        for episode in read_log(FOLDERS / "rounds" / "episodes" / "spag-2.log")
        for index, turn in enumerate(episode.turns)
    ]
    assert len(pairs) == len(rows) > 5
    for row, (episode, index, turn) in zip(rows, pairs, strict=True):
        assert (row["game_id"], row["number"], row["turn"]) == (episode.episode_id, episode.number, index)
        assert (row["prompt_ids"], row["token_ids"], row["logprobs"]) == (
            turn.prompt_ids,
            turn.token_ids,
            turn.logprobs,
        )
        assert (row["seat"], row["text"], row["policy"]) == (turn.role, turn.text, "policy")
        assert (row["first_version"], row["last_version"]) == (turn.first_version, turn.last_version) > (0, 0)
        assert (row["scenario"], row["outcome"]) == (episode.scenario, str(episode.verdict.outcome))
        assert (row["end_reason"], row["deciding_span"]) == (str(episode.verdict.end_reason), episode.verdict.span)


def test_a_split_is_a_stage_and_stages_can_be_chosen(tmp_path: Path) -> None:
    datasets = package("datasets")
    out = tmp_path / "data"
    chosen = ("--stage", "spag-2", "--stage", "match-spag-2@imitated")
    assert export(str(FOLDERS / "rounds"), "--format", "hf", "--out", str(out), *chosen) == 0
    splits = datasets.load_dataset(str(out), cache_dir=str(tmp_path / "cache"))
    assert list(splits) == ["spag_2", "match_spag_2_imitated"]
    assert set(splits["spag_2"]["stage"]) == {"spag-2"}


def kuhn_games(stage: str) -> list[Episode]:
    deals = [*GAMES, ("KJ", ("check", "check")), ("KJ", ("bet", "call")), ("QK", ("bet", "fold"))]
    return [kuhn_game(stage, number, *each) for number, each in enumerate(deals)]


@pytest.mark.parametrize("baseline", ["none", "mean", "scenario"])
@pytest.mark.parametrize("learn_from", ["winners", "both"])
def test_advantages_are_those_that_are_trained_with(baseline: str, learn_from: str, tmp_path: Path) -> None:
    config = parse_config({**KUHN, "objective": {"baseline": baseline, "learn_from": learn_from}})
    make_run_folder(tmp_path / "run", config)
    episodes = kuhn_games("spag-1")
    opponent = replace(episodes[-1], turns=tuple(replace(turn, policy="policy@1") for turn in episodes[-1].turns))
    episodes[-1] = opponent  # nobody learns from it
    write_log(tmp_path / "run", "spag-1", episodes)
    write_log(tmp_path / "run", "eval-spag-1", episodes)
    samples = game_samples(episodes, config.objective, config.game.payoffs, learning={"policy"})
    expected = {
        (sample.episode_id, turn.role): [each.advantage for each in sample.turns if each.role is turn.role]
        for sample in samples
        for turn in sample.turns
    }
    assert expected
    found: dict[Any, list[float]] = {}
    for row in rows_of(tmp_path / "run"):
        assert (row["trained"] is None) == (row["advantage"] is None)
        if row["trained"] is not None:
            assert (row["stage"], row["trained"]) == ("spag-1", "self_play")
            role = "attacker" if row["turn"] % 2 == 0 else "defender"
            found.setdefault((row["game_id"], role), []).append(row["advantage"])
    assert found == {key: pytest.approx(values) for key, values in expected.items()}


def test_advantages_that_the_log_cannot_tell_are_left_out(tmp_path: Path) -> None:
    moving, mean = {"baseline": "moving"}, {"baseline": "mean"}
    divided = {**mean, "baseline_std": "batch"}
    for name, stage, objective in (("a", "spag-1", moving), ("b", "stream", mean), ("c", "spag-1", divided)):
        more = {"schedule": "stream", "self_play": {"games_per_round": 64}, "stream": {"games_per_version": 8}}
        settings = {**KUHN, "objective": objective, **(more if stage == "stream" else {})}
        make_run_folder(tmp_path / name, parse_config(settings))
        write_log(tmp_path / name, stage, kuhn_games(stage))
        rows = rows_of(tmp_path / name)
        assert {row["trained"] for row in rows} == {"self_play", None}
        assert {row["advantage"] for row in rows} == {None}
        assert {row["reward"] for row in rows} >= {1.0, -1.0}


def test_games_of_an_expert_are_said_to_be_imitated() -> None:
    expert = [row for row in rows_of(FOLDERS / "rounds") if row["stage"] == "expert"]
    assert {row["trained"] for row in expert} == {"imitation", None}
    assert {row["advantage"] for row in expert} == {None}


def test_another_game_has_its_own_seats_and_payoffs(tmp_path: Path) -> None:
    run = make_kuhn_run(tmp_path / "run")
    fold, *_ = rows_of(run, "games")
    assert (fold["game"], fold["scenario"], fold["outcome"]) == ("kuhn", "KJ", "first wins")
    assert (fold["winner"], fold["breaker"], fold["payoffs"]) == ("first", None, (1.0, -1.0))
    assert [turn["seat"] for turn in fold["turns"]] == ["first", "second"]
    assert [turn["reward"] for turn in fold["turns"]] == [1.0, -1.0]
    assert [row["breaker"] for row in rows_of(run, "games")[:5]] == [None, None, "second", "first", None]


def test_a_users_own_game_is_exported_without_its_code(tmp_path: Path) -> None:
    """The folder's game.json has the names; the file with the class may be gone."""
    config = parse_config({"game": {"name": "gone.py:Auction"}, "imitation": {"enabled": False}})
    make_run_folder(tmp_path / "run", config)
    names = {"seats": ["bidder", "caller"], "is_exhaustive": False, "max_turns": 2}
    (tmp_path / "run" / FILE).write_text(json.dumps(names))
    write_log(tmp_path / "run", "spag-1", [replace(game, game="gone.py:Auction") for game in kuhn_games("spag-1")])
    rows = rows_of(tmp_path / "run", "games")
    assert {row["winner"] for row in rows} == {"bidder", "caller", None}
    assert {turn["seat"] for row in rows for turn in row["turns"]} == {"bidder", "caller"}


def test_what_cannot_be_read_is_said_and_the_rest_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = placed("rounds", tmp_path)
    log = run / "episodes" / "spag-1.log"
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    (run / "config.yaml").write_text("[")
    assert export(str(run), "--format", "jsonl") == 0
    told = capsys.readouterr().out
    assert "spag-1.log: 1 damaged places" in told
    assert "config.yaml cannot be read" in told
    rows = read_jsonl(run / "turns.jsonl")
    assert f"{len(rows)} turns of 31 games in {run / 'turns.jsonl'}" in told
    assert {(row["reward"], row["trained"], row["advantage"]) for row in rows} == {(None, None, None)}


def test_of_a_log_all_that_was_left_out_is_said(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    episodes = list(read_log(run / "episodes" / "spag-1.log"))
    path = write_log(
        run,
        "spag-2",
        [episodes[0], *(replace(episodes[1], game=game) for game in ("gone.py:Auction", "lost.py:Poker"))],
    )
    path.write_bytes(path.read_bytes() + b"torn")
    rows = Rows(read_files(run), "games")
    assert len(list(rows.of_stage("spag-2", path))) > 0
    told = "games of {}, which is not in the configuration, are left out; "
    both = "".join(map(told.format, ("gone.py:Auction", "lost.py:Poker")))
    assert f"{both}a torn" in rows.faults[path.name]


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = placed("rounds", tmp_path)
    (tmp_path / "empty" / "episodes").mkdir(parents=True)
    (tmp_path / "there").write_text("keep")

    def refused(*arguments: str) -> str:
        assert export(*arguments) == 2
        error = capsys.readouterr().err
        assert (error.count("\n"), error[:10]) == (1, "spag-ray: ")
        return error

    assert "no such folder" in refused(str(tmp_path / "nowhere"), "--format", "jsonl")
    assert "is not a run folder" in refused(str(tmp_path), "--format", "hf")
    assert "no games in it yet" in refused(str(tmp_path / "empty"), "--format", "jsonl")
    assert "there exists" in refused(str(run), "--format", "parquet", "--out", str(tmp_path / "there"))
    assert "no games of stage 'spag-7'; it has eval-base, expert" in refused(
        str(run), "--format", "jsonl", "--stage", "spag-7"
    )
    lost = tmp_path / "absent" / "out.jsonl"
    assert "cannot be written: No such file" in refused(str(run), "--format", "jsonl", "--out", str(lost))
    (tmp_path / "empty" / "episodes" / "spag-1.log").touch()
    assert "no games in spag-1" in refused(str(tmp_path / "empty"), "--format", "jsonl")
    assert not (tmp_path / "empty" / "turns.jsonl").exists()
    assert (tmp_path / "there").read_text() == "keep"


@pytest.mark.parametrize("form", ["parquet", "hf"])
def test_without_pyarrow_a_line_says_which_extra_has_it(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    arguments = (str(FOLDERS / "rounds"), "--out", str(tmp_path / "out"))
    assert export(*arguments, "--format", form) == 2
    assert capsys.readouterr().err.endswith(f"need pyarrow: {extra('data')}; or use --format jsonl\n")
    assert export(*arguments, "--format", "jsonl") == 0


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_memory_does_not_grow_with_the_games(form: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrow = package("pyarrow")
    monkeypatch.setattr("spag_ray.results.export.GROUP_VALUES", 10_000)
    config = load_config("quickstart")
    games = list(read_log(FOLDERS / "rounds" / "episodes" / "spag-1.log"))
    peaks = []
    for count in (40, 240):
        make_run_folder(tmp_path / f"run{count}", config)
        write_log(tmp_path / f"run{count}", "spag-1", (games[number % len(games)] for number in range(count)))
        rows = Rows(read_files(tmp_path / f"run{count}"), "turns")
        write_export(rows, (), form, tmp_path / f"warm{count}")
        tracemalloc.start()
        before = arrow.total_allocated_bytes()
        write_export(rows, (), form, tmp_path / f"out{count}")
        peaks.append(tracemalloc.get_traced_memory()[1] + arrow.total_allocated_bytes() - before)
        tracemalloc.stop()
        assert rows.num_games == 2 * count
    assert peaks[1] < 1.5 * peaks[0]


def test_rows_of_two_games_have_the_seats_and_rewards_of_their_game(tmp_path: Path) -> None:
    rows = Rows(read_files(make_two_games_run(tmp_path / "two")), "turns")
    found = [row for stage, path in rows.logs().items() for row in rows.of_stage(stage, path)]
    seats = {(row["game"], row["seat"]) for row in found}
    assert seats == {("taboo", "attacker"), ("taboo", "defender"), ("kuhn", "first"), ("kuhn", "second")}
    assert {row["rules"] for row in found if row["game"] == "taboo"} == {"strict"}
    trained = [row for row in found if row["trained"]]
    assert {row["stage"] for row in trained} == {"spag-1"}
    assert {row["game"] for row in trained} == {"taboo", "kuhn"}
    assert rows.num_games == 2 * (len(GAMES) + len(Outcome))
    assert not rows.faults


def test_rewards_are_those_of_the_rounds_phase_and_unknown_in_a_stream_that_has_several(tmp_path: Path) -> None:
    """A log of a stream does not say in which round a game is trained on."""
    episodes = [replace(game(n, Outcome.ATTACKER_WINS), episode_id=f"g/{n}", game="taboo") for n in range(2)]
    episodes = [replace(each, turns=tuple(replace(turn, policy="policy") for turn in each.turns)) for each in episodes]
    payoffs = {"wrong_guess": [0.5, -1]}

    def rows(name: str, stage: str, rounds: int, baseline: str = "none", **settings: Any) -> list[Row]:
        self_play = {"rounds": rounds, "games_per_round": 64, "phases": [{"rounds": 1, "payoffs": payoffs}]}
        objective = {"decay": 0.5, "baseline": baseline}
        make_run_folder(tmp_path / name, parse_config({"self_play": self_play, "objective": objective, **settings}))
        write_log(tmp_path / name, stage, episodes)
        return rows_of(tmp_path / name)[:4]

    for stage, paid in (("spag-1", 0.5), ("spag-2", 1.0), ("eval-spag-1", 1.0)):
        found = rows(stage, stage, 2)
        assert [row["reward"] for row in found] == [paid, -1.0] * 2
        shares = [None] * 2 if stage.startswith("eval") else [pytest.approx(paid / 3), pytest.approx(paid * 2 / 3)]
        assert [row["advantage"] for row in found] == [shares[0], None, shares[1], None]
    above = rows("mean", "spag-1", 2, baseline="mean")
    assert [row["advantage"] for row in above] == [0.0, None, 0.0, None], "the mean is .5, too"
    unknown = rows("mixed", "stream", 2, schedule="stream")
    assert [(row["reward"], row["trained"]) for row in unknown] == [(None, None)] * 4
    alike = rows("alike", "stream", 1, schedule="stream")
    assert [row["reward"] for row in alike] == [0.5, -1.0] * 2
    assert [row["trained"] for row in alike] == ["self_play", None] * 2
