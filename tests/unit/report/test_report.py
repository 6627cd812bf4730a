"""The report: what it gathers from a run folder, whatever is missing there, and what its source looks like."""

import base64
import gzip
import hashlib
import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

import spag_ray.results.report
from cluster.cli import app
from cluster.commands.report import decoder, make_report, report_finished
from cluster.guarded import run_guarded
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import load_config, parse_config, to_yaml
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.episodes.wire import decode
from spag_ray.errors import InputError, RunFolderError
from spag_ray.game.rules import Outcome, Role, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.referee.judge import judge
from spag_ray.results.evaluations import Evaluation, write_evaluations
from spag_ray.results.game_names import UNKNOWN, GameNames
from spag_ray.results.lines import CollapseLine
from spag_ray.results.matches import Game, Match, write_matches
from spag_ray.results.report.headline import _where
from spag_ray.results.report.measurements import read_measurements
from spag_ray.results.report.packing import BLOCK_GAMES, Packer
from spag_ray.results.report.page import write_report
from spag_ray.results.report.sections import largest_group
from spag_ray.training_data.game_samples import game_samples
from tests.support.hostile import example, values
from tests.support.report_page import Page, page_of
from tests.support.report_runs import (
    HOSTILE,
    hostile_episode,
    make_interrupted_run,
    make_run,
    measurements,
    repeated,
    streamed,
    write_log,
    write_metrics,
)
from tests.support.runs import PENALISED, stream_run


@pytest.fixture(scope="module")
def made(tiny_model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run folder; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("report") / "one-run"
    make_run(folder, tiny_model, words)
    return folder


ASSETS = Path(spag_ray.results.report.__file__).parent


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "one-run")


def test_every_game_is_on_the_page_with_all_that_its_turns_say(run: Path) -> None:
    page = page_of(run, decode=decoder(run, Console(quiet=True)))
    index, games = page.unpacked("index"), page.games()
    logs = {path.stem: list(read_log(path)) for path in (run / "episodes").glob("*.log")}
    assert index["stages"] == ["expert", "eval-imitated", "spag-1", "spag-2", "eval-spag-2"]
    episodes = [episode for stage in index["stages"] for episode in logs[stage]]
    assert len(games) == len(episodes) == 120
    assert len(index["stage"]) == 120
    assert BLOCK_GAMES < 120
    for place, (game, episode) in enumerate(zip(games, episodes, strict=True)):
        assert index["stages"][index["stage"][place]] == episode.stage
        assert index["words"][index["word"][place]] == episode.scenario
        assert index["outcomes"][index["outcome"][place]] == episode.verdict.outcome
        assert game["reason"] == episode.verdict.reason
        assert game["decided"] == episode.verdict.turn
        for shown, turn in zip(game["turns"], episode.turns, strict=True):
            assert shown["text"] == turn.text
            assert index["players"][shown["player"]] == turn.policy
            assert shown["versions"] == [turn.first_version, turn.last_version]
            if turn.policy == "scripted":
                assert "mean" not in shown, "a scripted player has no probabilities"
            else:
                assert sum(shown["lengths"]) == len(turn.text)
                assert len(shown["lengths"]) == turn.num_tokens
                steps = [round(-value * index["stepsPerNat"]) for value in turn.logprobs]
                assert shown["surprise"] == steps


def test_rewards_are_those_that_are_learned_from(run: Path) -> None:
    page = page_of(run)
    index = page.unpacked("index")
    stages = [index["stages"][number] for number in index["stage"]]
    shown = {
        (stage, game["id"]): [turn["reward"] for turn in game["turns"] if "reward" in turn]
        for stage, game in zip(stages, page.games(), strict=True)
    }
    objective = load_config(str(run / "config.yaml")).objective
    for stage in ("expert", "spag-1"):
        samples = game_samples(list(read_log(run / "episodes" / f"{stage}.log")), objective)
        assert len(samples) > 3
        for sample in samples:
            rewards = shown.pop((stage, sample.episode_id))
            if stage == "expert":
                assert rewards == [None] * len(sample.turns), "imitated, all alike"
            else:
                assert rewards == [pytest.approx(turn.advantage, abs=1e-4) for turn in sample.turns]
    # Of the games that are not trained on: ties, breaches, all on held-out words.
    assert {stage for (stage, _), rewards in shown.items() if rewards} == {"spag-2"}


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ("config.yaml", "config.yaml is missing"),
        ("metrics.jsonl", "metrics.jsonl is missing"),
        ("episodes", "No games yet"),
        ("matches.json", "No matches yet"),
        ("versions.json", "The packages are unknown"),
    ],
)
def test_what_is_missing_is_said(run: Path, missing: str, said: str) -> None:
    path = run / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert said in page_of(run).text


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', "\x00\xff", "[" * 100_000, '[{"stage": NaN}]'])
def test_damaged_files_are_said_and_the_rest_is_shown(run: Path, content: str) -> None:
    names = ["config.yaml", "versions.json", "matches.json", "league.json", "evaluations.json", "ended.json"]
    for name in names:
        (run / name).write_text(content)
    page = page_of(run)
    said = [name for name in names if f"{name} cannot be read" in page.text]
    assert said == [name for name in names if (name, content) != ("versions.json", '{"a": 1}')]
    assert len(page.games()) == 120


@pytest.mark.parametrize(
    "row",
    [{"attacker wins": "x"}, {"attacker wins": -1}, {"tied game": float("nan")}, {"margin": "z"}, {"attacker": 1}],
)
def test_a_league_of_rows_that_are_none_is_said(run: Path, row: dict[str, Any]) -> None:
    (run / "league.json").write_text(json.dumps({"games": [{"attacker": "a", "defender": "b", "margin": 0.0, **row}]}))
    assert "league.json cannot be read" in page_of(run).text


def test_a_log_with_a_torn_tail_and_damage_within_shows_what_is_whole(run: Path) -> None:
    path = run / "episodes" / "spag-1.log"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data[:-5]))
    page = page_of(run)
    assert len(page.games()) == 118
    assert re.search(r"episodes/spag-1\.log: 1 damaged places .* skipped, a torn tail of \d+ bytes", page.text)


def test_torn_and_foreign_lines_of_measurements_are_counted_and_left_out(run: Path) -> None:
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": 7, "time": 1}\n[]\n\xff\n{"time": 1e400, "kind": "step"}\n{"time": 17600')
    # The last has no end yet: somebody may be writing it.
    assert "4 lines cannot be read" in page_of(run).text


def test_lines_that_are_not_what_their_kind_should_be_are_counted_and_left_out(run: Path) -> None:
    odd: list[dict[str, Any]] = [{"kind": "step"}, {"kind": "step", "stage": 7, "policy": None, "step": []}]
    odd += [{"kind": "games", "phase": "self_play", "turns": 4, "tokens": 1e308}, {"kind": "buffer", "waiting": "many"}]
    odd += [{"kind": "sync", "policy": HOSTILE, "version": -1e999, "seconds": {}}, {"kind": "weather", "wind": 3}]
    last = measurements()[-1]["time"]
    write_metrics(run / "metrics.jsonl", [*measurements(), *({"time": last, **line} for line in odd)])
    page = page_of(run)
    assert "metrics.jsonl: 5 lines cannot be read and are left out" in page.text
    assert HOSTILE not in page.text


@pytest.mark.parametrize("content", [b"", b"{}\n"])
def test_a_run_that_has_measured_nothing_has_a_page(run: Path, content: bytes) -> None:
    (run / "metrics.jsonl").write_bytes(content)
    page = page_of(run)
    assert "Last measured never" in page.text
    assert "Nothing was measured yet" in page.text


def test_a_run_that_goes_on_or_was_killed_is_not_called_finished(run: Path) -> None:
    assert "Finished. Last measured" in page_of(run).text
    (run / "ended.json").write_text('{"ended": "failed", "reason": "an engine <died>"}')
    assert "Failed: an engine <died>. Last measured" in page_of(run).text
    (run / "ended.json").unlink()
    assert "Not known to be finished: it is running or was killed." in page_of(run).text


def test_what_is_no_run_folder_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report(folder: Path, *more: str) -> tuple[int, str]:
        code = run_guarded(lambda **options: app(["report", str(folder), *more], **options))
        return code, capsys.readouterr().err

    (tmp_path / "a-file").write_text("x")
    for name in ("nowhere", "a-file", "."):
        code, error = report(tmp_path / name)
        assert code == 2
        assert error.count("\n") == 1
        assert "--run-dir" in error
    assert [path.name for path in tmp_path.iterdir()] == ["a-file"]


def test_the_command_says_where_the_page_is_and_how_large(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):  # its own page it writes again
        assert run_guarded(lambda **options: app(["report", str(run)], **options)) == 0
        said = " ".join(capsys.readouterr().out.split())
        assert re.fullmatch(rf"report: {re.escape(str(run))}/report\.html \(\d\.\d MB, 120 games\)", said)
    (run / "mine.html").write_text("mine")
    out = ["report", str(run), "--out", str(run / "mine.html")]
    assert run_guarded(lambda **options: app(out, **options)) == 2
    assert (run / "mine.html").read_text() == "mine"
    assert "nothing is overwritten" in capsys.readouterr().err
    for place in (run / "no-such-folder", run / "config.yaml"):
        with pytest.raises(InputError, match="cannot be written"):
            make_report(run, place / "x.html", Console(quiet=True))


def test_a_report_that_cannot_be_written_is_no_fault_of_a_finished_run(run: Path) -> None:
    (run / "report.html").mkdir()
    console = Console(record=True, width=300)
    report_finished(run, console)
    said = console.export_text().strip()
    assert said.startswith("no report (InputError: ")
    assert said.endswith(f"`spag-ray report {run}` makes one")
    assert said.count("\n") == 0
    assert not list(run.glob(".report*"))


def test_text_from_anywhere_stays_text(run: Path) -> None:
    write_log(run, "spag-1", [hostile_episode()])
    write_log(run, "<img src=x onerror=alert(3)>", [hostile_episode()])
    rows = json.loads((run / "matches.json").read_text())
    rows[0]["attacker"] = rows[0]["defender"] = HOSTILE
    (run / "matches.json").write_text(json.dumps(rows))
    write_evaluations(run / "evaluations.json", [Evaluation(HOSTILE, HOSTILE, HOSTILE, 0.5, None, 3, 0)])
    write_metrics(run / "metrics.jsonl", [{**line, "policy": HOSTILE} for line in measurements()])
    page = page_of(run)
    assert "cannot be read" not in page.text, "these lines are whole"
    source = (run / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in source
    assert "<img" not in source
    assert "<!-- <img" not in source
    assert len(page.scripts) == 1, "the page's own"
    assert all(link.startswith("href=#") for link in page.links)
    assert page.games()[-1]["turns"][0]["text"] == HOSTILE, "and nothing of it is lost"


def test_the_page_allows_its_own_two_scripts_and_no_network(run: Path) -> None:
    page = page_of(run)
    (script,) = page.scripts
    plotly = gzip.decompress(base64.b64decode(page.data["plotly"])).decode()
    hashes = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (script, plotly)]
    rules = dict(rule.strip().split(" ", 1) for rule in page.policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert rules["script-src"] == " ".join(f"'sha256-{each}'" for each in hashes)
    assert set(rules) == {"default-src", "script-src", "style-src", "img-src", "base-uri", "form-action"}
    assert rules["img-src"] == "data:"
    assert rules["base-uri"] == rules["form-action"] == "'none'"


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2) of "#rrggbb"."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(theme: str) -> None:
    """By 4.5 to 1 (WCAG 2, level AA), in the deepest shade of a token too."""
    style = (ASSETS / "page.css").read_text()
    light, dark = re.findall(r":root[^{]*\{([^}]*)\}", style)
    colours = dict(re.findall(r"--([\w-]+): ([^;]+);", light))
    colours |= dict(re.findall(r"--([\w-]+): ([^;]+);", dark)) if theme == "dark" else {}
    strongest = float(re.findall(r"STRONGEST = ([\d.]+)", (ASSETS / "game.js").read_text())[0])
    tint = [int(part) for part in colours["surprise"].split(",")]

    def shaded(colour: str) -> str:
        parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
        return "#" + "".join(f"{round(p + strongest * (t - p)):02x}" for p, t in zip(parts, tint, strict=True))

    pairs = [(text, behind) for text in ("ink", "muted") for behind in ("paper", "surface", "middle")]
    pairs += [("attacker", "paper"), ("defender", "paper"), ("accent", "paper")]
    grounds = [(colours[text], colours[behind]) for text, behind in pairs]
    for bubble in ("attacker-soft", "defender-soft"):
        grounds += [(colours["ink"], colours[bubble]), (colours["ink"], shaded(colours[bubble]))]
    for text, behind in grounds:
        high, low = sorted((luminance(text), luminance(behind)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (text, behind)


@pytest.fixture(scope="module")
def interrupted(tiny_model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Run folders of runs that were killed: while they imitated, and in round 1 of 2."""
    folder = tmp_path_factory.mktemp("interrupted")
    make_interrupted_run(folder / "early", tiny_model, words)
    make_interrupted_run(folder / "later", tiny_model, words, round_games=10)
    return {path.name: path for path in folder.iterdir()}


def test_a_page_counts_the_tokens_that_were_sampled_apart_from_scripted_ones(interrupted: dict[str, Path]) -> None:
    folder = interrupted["early"]
    tokens = {log: sum(game.num_tokens for game in read_log(folder / "episodes" / f"{log}.log")) for log in STAGES}
    page = page_of(folder)
    assert f"sampled tokens{tokens['expert']} more are of scripted or served players{tokens['eval-base']}" in page.text
    assert "throughput" not in page.unpacked("figures"), "nothing was sampled during the seconds that were measured"
    later = page_of(interrupted["later"]).unpacked("figures")["throughput"]["data"]
    assert [trace["name"] for trace in later] == ["sampled: self-play", "learned"]


STAGES = ("eval-base", "expert")


@pytest.mark.parametrize(
    ("which", "rounds", "done"),
    [
        ("early", {}, "imitates a scripted expert (12 of 12 games so far, nothing trained on yet), then plays itself: "
         "none of 2 rounds of 24 games, play"),
        ("later", {}, "imitates a scripted expert, then plays itself: 10 of 24 games of the first of 2 rounds, play"),
        ("later", {"games_per_round": 10}, "then plays itself: 1 of 2 rounds of 10 games, play"),
        ("later", {"rounds": 1, "games_per_round": 9}, "then plays itself: 1 of 1 round of 9 games, play"),
        ("later", {"rounds": 0}, "imitates a scripted expert."),
    ],
)  # fmt: skip
def test_a_page_says_how_much_of_the_plan_ran(
    interrupted: dict[str, Path], tmp_path: Path, which: str, rounds: dict[str, int], done: str
) -> None:
    folder = shutil.copytree(interrupted[which], tmp_path / "run")
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config["self_play"] |= rounds
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    assert done in page_of(folder).text


def test_of_a_stream_the_page_counts_games(run: Path, tmp_path: Path, tiny_model: Path, words: Path) -> None:
    config = stream_run(tiny_model, words, 4)
    config = config.model_copy(update={"stream": config.stream.model_copy(update={"reuse": 2})})
    make_run_folder(tmp_path / "run", config)
    write_log(tmp_path / "run", "stream", list(read_log(run / "episodes" / "spag-1.log"))[:7])
    planned = config.self_play.rounds * config.self_play.games_per_round // 2  # each is trained on twice
    assert f"plays itself: 7 of {planned} games, play and training at the same time" in page_of(tmp_path / "run").text


def test_the_page_of_a_killed_run_shows_no_empty_charts(interrupted: dict[str, Path]) -> None:
    """No score of one player against itself, no bars without claims, no curve of one point, no staleness of rounds that
    were not trained on, and tasks are called not yet evaluated, not unset."""
    early, later = (page_of(interrupted[name]) for name in ("early", "later"))
    assert set(early.unpacked("figures")) == {"outcomes-trained", "outcomes-held-out", "known-by-turn"}
    assert set(later.unpacked("figures")) == {"outcomes-trained", "outcomes-held-out", "known-by-turn", "throughput"}
    assert "Too few learner steps for curves: 1." in later.text
    for page in (early, later):
        assert "How to read the bars" not in page.text
        assert "no game was stale" not in page.text
        assert "Not evaluated yet: spag_reasoning (evaluation.tasks)" in page.text
        assert "Games that were trained on" not in page.text


def test_without_tasks_the_page_has_no_part_for_them(run: Path) -> None:
    page = page_of(run)
    assert "Evaluation" not in page.text.split("Made with")[0]
    assert "href=#evaluation" not in page.links


def test_names_that_are_no_utf8_do_not_stop_a_report(run: Path) -> None:
    folder = run.rename(run.with_name("caf\udce9"))  # of bytes in another encoding
    (folder / "ended.json").write_text('{"ended": "finished", "reason": "\\ud800"}')
    with (folder / "metrics.jsonl").open("a") as file:
        for step in (1, 2):
            line = {"time": 2e9, "kind": "step", "stage": "spag-9", "policy": "\ud800", "step": step, "loss": 1.0}
            file.write(json.dumps(line) + "\n")
    page = page_of(folder)
    assert "caf? - SPAG run" in page.text
    assert "Finished: ?" in page.text
    assert page.unpacked("curve-data")[0]["name"] == "caf?"


def test_a_report_without_room_for_its_parts_or_of_files_that_cannot_be_read_is_one_line(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        return Path("/dev/full").open("w")

    with monkeypatch.context() as patched:
        patched.setattr("tempfile.TemporaryFile", full)
        with pytest.raises(InputError, match=r"no report can be made: .*No space left.*TMPDIR"):
            write_report(run, run / "report.html")
    with monkeypatch.context() as patched:  # no folder at all, for which tempfile looks once more in each call
        patched.setattr("tempfile._candidate_tempdir_list", lambda: [str(run / "none")])
        patched.setattr("tempfile.tempdir", None)
        with pytest.raises(InputError, match=r"No usable temporary directory"):
            write_report(run, run / "report.html")
    (run / "metrics.jsonl").unlink()
    (run / "metrics.jsonl").mkdir()
    with pytest.raises(InputError, match=r"no report can be made: .*Is a directory"):
        write_report(run, run / "report.html")
    assert not (run / "report.html").exists()


def test_scores_between_players_have_intervals(run: Path) -> None:
    games = [Game(f"word{number}", Outcome.win_of(Role.ATTACKER), 2) for number in range(6)]
    games += [Game(f"word{number}", Outcome.win_of(Role.DEFENDER), 2) for number in range(6)]
    write_matches(run / "matches.json", [Match("spag-2", "imitated", tuple(games)), Match("spag-2", "spag-2", ())])
    (cell,) = page_of(run).unpacked("figures")["matrix"]["data"]
    assert (cell["z"], cell["text"]) == ([[0.5]], [["0.14 to 0.86"]]), "six words, not twelve games"
    few = [Match(*seats, tuple(games[:4])) for seats in (("spag-2", "imitated"), ("imitated", "spag-2"))]
    write_matches(run / "matches.json", few)
    page = page_of(run)
    assert "no interval: fewer than 5 words; 0.5 is even" in page.text
    (cell,) = page.unpacked("figures")["matrix"]["data"]
    assert {text for row in cell["text"] for text in row if text is not None} == {""}
    assert "95%" not in str(cell)


def opened(page: Page) -> tuple[str, str, list[str]]:
    """(stage, outcome, texts) of the game that a page opens."""
    index = page.unpacked("index")
    place = index["opened"]
    texts = [turn["text"] for turn in page.games()[place]["turns"]]
    return index["stages"][index["stage"][place]], index["outcomes"][index["outcome"][place]], texts


def test_a_page_opens_a_decided_game_of_the_newest_stage_with_both(run: Path, interrupted: dict[str, Path]) -> None:
    decisive = set(map(str, (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)))
    for folder, newest in ((run, "eval-spag-2"), (interrupted["early"], "expert"), (interrupted["later"], "spag-1")):
        stage, outcome, texts = opened(page_of(folder))
        assert stage == newest
        assert outcome in decisive
        assert len(texts) > 1
        assert all(texts)
    # A match of guests comes last in the list; the run's own stages come first.
    match = list(read_log(run / "episodes" / "eval-spag-2.log"))
    write_log(run, "match-spag-2@guest", match)
    assert opened(page_of(run))[0] == "eval-spag-2"
    for path in (run / "episodes").glob("*.log"):
        ties = [each for each in read_log(path) if not each.verdict.outcome.is_decided]
        path.unlink()
        write_log(run, path.stem, ties)
    assert len(opened(page_of(run))[2]) > 1, "none is decisive: one in which something is said"


def test_values_of_environment_variables_are_not_on_the_page(run: Path) -> None:
    config = load_config(str(run / "config.yaml"), ["engine.env={HF_TOKEN: hf_secret}", "learner.env={KEY: secret2}"])
    (run / "config.yaml").write_text(to_yaml(config))
    page, source = page_of(run), (run / "report.html").read_text(encoding="utf-8")
    assert "HF_TOKEN" in page.text
    assert "hf_secret" not in source
    assert "secret2" not in source


def test_a_damaged_configuration_is_not_quoted_on_the_page(run: Path) -> None:
    source = (run / "config.yaml").read_text()
    assert "  env: {}\n" in source
    for damage in ("  env: {HF_TOKEN: hf_secret\n", "  env: {HF_TOKEN: 31337}\n"):
        (run / "config.yaml").write_text(source.replace("  env: {}\n", damage, 1))
        page_of(run)
        shown = (run / "report.html").read_text(encoding="utf-8")
        assert "hf_secret" not in shown
        assert "31337" not in shown
    (run / "config.yaml").write_text(source)


def test_of_too_many_games_a_sample_of_every_stage_is_shown_and_all_are_counted(run: Path) -> None:
    played = list(read_log(run / "episodes" / "spag-1.log"))
    write_log(run, "spag-3", list(repeated(played, 380)))  # 500 with the others
    page = page_of(run, max_games=100)
    index = page.unpacked("index")
    shares = {stage: index["stage"].count(number) for number, stage in enumerate(index["stages"])}
    assert shares["spag-3"] == 76
    assert set(shares.values()) == {76, 4}
    assert len(page.games()) == sum(shares.values())
    assert "96 of 500 games are on this page" in page.text
    assert len(set(zip(index["stage"], index["number"], strict=True))) == 96, "no game twice"
    assert page_of(run, max_games=100).games() == page.games(), "the same sample each time"


@settings(max_examples=300)
@given(st.data())
def test_whatever_a_log_holds_it_can_be_packed(data: st.DataObject) -> None:
    record = msgpack.unpackb(example())
    for place in range(5):
        if data.draw(st.booleans()):
            record["verdict"][place] = data.draw(values | st.sampled_from(list(map(str, Outcome))))
    try:
        episode = decode(msgpack.packb(record))
    except InputError:
        return
    blocks: list[str] = []
    objective = {"learn_from": "both", "loser_turns": data.draw(st.sampled_from(["all", "deciding"]))}
    config = parse_config({"game": {"payoffs": PENALISED}, "objective": objective})
    packer = Packer(config, None, blocks.append, UNKNOWN)
    packer.add("spag-1", episode)
    packer.close()
    assert len(blocks) == 1
    assert packer.index()["number"] == [episode.number]


def test_nobody_elses_turns_are_rewarded_in_a_league(run: Path) -> None:
    """Of a game against an earlier version only the learner's own turns are trained on."""
    played = list(read_log(run / "episodes" / "spag-1.log"))
    won = next(episode for episode in played if episode.verdict.outcome is Outcome.ATTACKER_WINS)
    others = tuple(replace(turn, policy="past policy") if turn.role is Role.ATTACKER else turn for turn in won.turns)
    write_log(run, "spag-2", [replace(won, turns=others, episode_id="league")])
    (game,) = (game for game in page_of(run).games() if game["id"] == "league")
    assert not any("reward" in turn for turn in game["turns"])


def test_staleness_is_what_each_version_was_given(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Lines hold sums since the stream began; a stream that was restarted begins at 0."""
    config = stream_run(tiny_model, words, 4)
    make_run_folder(tmp_path / "run", config)
    write_metrics(tmp_path / "run" / "metrics.jsonl", streamed())
    lags = read_measurements(tmp_path / "run" / "metrics.jsonl", config.stream.max_lag).lags.rows()
    assert [row[1:] for row in lags] == [(1, 0, 0, 0), (0, 1, 0, 0), (0.25, 0.75, 0, 0), (0, 0, 0.5, 0.5)]
    assert "Too old and left out: 3." in page_of(tmp_path / "run").text


def test_ratings_compare_only_whom_games_connect() -> None:
    pairs = (("base", "base"), ("imitated", "imitated"), ("spag-2", "imitated"), ("imitated", "spag-2"))
    matches = [Match(attacker, defender, ()) for attacker, defender in pairs]
    assert largest_group(matches) == matches[1:]
    assert largest_group([]) == []
    assert largest_group(matches[:2]) == matches[1:2]


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        (["spag-1 imitated", "spag-10 imitated", "spag-10 guest", "base imitated"], "spag-10 against imitated"),
        (["spag-2 spag-1", "spag-1 imitated", "guest imitated"], "spag-2 against spag-1"),
        (["a b", "b c"], "b against c"),
    ],
)
def test_the_headline_is_the_newest_stage_against_the_imitated_one(run: Path, pairs: list[str], said: str) -> None:
    games = (Game("river", Outcome.ATTACKER_WINS, 2),)
    names = [tuple(pair.split()) for pair in pairs]
    both = [Match(*seats, games) for one, other in names for seats in ((one, other), (other, one))]
    write_matches(run / "matches.json", [*both, Match("newcomer", "imitated", games)])
    assert said in page_of(run).text


def test_without_ratings_the_page_says_what_they_need(run: Path) -> None:
    names = [(one, other) for one in ("spag-2", "imitated") for other in ("spag-2", "imitated")]

    def met(*words: str) -> str:
        games = [Game(word, end, 2) for word in words for end in (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)]
        once = Match("spag-2", "guest", (games[0],))
        write_matches(run / "matches.json", [*(Match(*seats, tuple(games)) for seats in names), once])
        return page_of(run).text

    assert "No ratings: no two players of one seat have games on 5 words or more that did not all end" in met("a", "b")
    rated = met(*"abcdef")
    assert re.search(r"imitated[+-]\d+ \[-", rated)
    assert "with these players: guest." in rated, "who has only defended is named, too"


def test_evaluations_stand_by_task_and_stage_beside_the_papers_numbers(run: Path) -> None:
    rows = [
        Evaluation("base", "arc_easy", "acc", 0.25, 0.0354, 150, 0),
        Evaluation("base", "arc_easy", "acc_norm", 0.3, None, 150, 0),
        Evaluation("spag-1", "arc_easy", "acc", 0.5, None, 150, 0),
        Evaluation("spag-1", "wikitext", "word_perplexity", 18.25, 0.5, 60, 0),
    ]
    write_evaluations(run / "evaluations.json", rows)
    page_of(run)
    source = (run / "report.html").read_text(encoding="utf-8")
    table = source[source.index('id="evaluation"') : source.index('id="games"')]
    stages = ["base", "spag-1", "LLaMA-2-7B, paper", "SPAG-3, paper"]
    assert re.findall(r'scope="col">([^<]*)', table) == ["task", *stages, "samples"]
    lines = [re.findall(r"<t[hd][^>]*>([^<]*)", line) for line in table.split("<tr>")[2:]]
    assert lines == [
        ["arc_easy, acc", "25.0 ± 3.5", "50.0", "76.3", "78.5", "150"],
        ["arc_easy, acc_norm", "30.0", "", "", "", "150"],
        ["wikitext, word_perplexity", "", "18.2 ± 0.5", "", "", "60"],
    ]


def test_a_run_folder_without_a_readable_tokenizer_shades_whole_turns(run: Path) -> None:
    source = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(re.sub(r"(?m)^model: .*", "model: /nowhere", source))
    (run / "models" / "imitated").mkdir()
    (run / "models" / "imitated" / "tokenizer.json").write_text("{}")
    console = Console(record=True, width=200)
    assert decoder(run, console) is None
    assert "tokenizer.json is not used" in console.export_text()
    page = page_of(run)
    assert "turns are shaded as a whole" in page.text
    shown = [turn for game in page.games() for turn in game["turns"]]
    assert any("mean" in turn for turn in shown)
    assert not any("surprise" in turn for turn in shown)


def test_refused_folders_raise_what_the_command_line_says(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no such folder"):
        write_report(tmp_path / "nowhere", tmp_path / "x.html")


def claims(stage: str, *ps: float, right: int) -> list[Episode]:
    """Games of two turns of the defender: it waits at p = 0.2, and claims at a given p; the first `right` rightly."""
    found = []
    for number, p in enumerate(ps):
        texts = ("It purrs.", "Hm.", "Fur.", f"I know the word! It is `{'cat' if number < right else 'dog'}`!")
        known = (None, math.log(0.2), None, math.log(p))
        turns = tuple(
            Turn(next_role(place), text, (1,), (2, 3), (-0.5, -0.5), "policy", word_logprob=word_logprob)
            for place, (text, word_logprob) in enumerate(zip(texts, known, strict=True))
        )
        history = [{"role": str(turn.role), "content": turn.text} for turn in turns]
        verdict = judge(history, "cat", 4)
        found.append(Episode(f"{stage}/{number}", number, stage, "cat", 4, "strict", 1.0, turns, verdict))
    return found


def test_what_defenders_could_have_known_is_shown_by_turn_by_stage_and_as_calibration(run: Path) -> None:
    (run / "episodes" / "eval-imitated.log").unlink()
    (run / "episodes" / "eval-spag-2.log").unlink()
    write_log(run, "eval-imitated", claims("eval-imitated", 0.25, 0.75, 0.5, right=1))
    write_log(run, "eval-spag-2", claims("eval-spag-2", 0.75, 0.79, 0.71, 0.95, right=3))
    page = page_of(run)
    figures = page.unpacked("figures")
    curves = {trace["name"]: (trace["x"], trace["y"]) for trace in figures["known-by-turn"]["data"]}
    assert curves == {"imitated": ([1, 2], [20.0, 50.0]), "spag-2": ([1, 2], [20.0, 80.0])}
    bars = figures["known-claims"]["data"][0]
    assert dict(zip(bars["x"], bars["y"], strict=True)) == {
        5: None, 15: None, 25: 100.0, 35: None, 45: None, 55: 0.0, 65: None, 75: 75.0, 85: None, 95: 0.0
    }  # fmt: skip
    assert bars["customdata"][7] == "3 of 4"
    assert "imitated1 of 30 of 220%50%" in page.text
    assert "spag-23 of 40 of 120%80%" in page.text
    assert "How to read the bars" in page.text
    game = next(game for game in page.games() if game["id"] == "eval-spag-2/0")
    assert [turn.get("known") for turn in game["turns"]] == [None, 0.2, None, 0.75]


def test_a_collapse_is_a_table_and_marks_its_stage(run: Path) -> None:
    assert "Collapse" not in page_of(run).text
    alarm = CollapseLine("spag-1", "ties", True, 0.9, 0.1, 0.35, "base", "mix", 0.25)
    over = replace(alarm, stage="spag-2", is_alarm=False, value=0.2, mix_ratio=0.0)
    elsewhere = replace(alarm, stage="imitated", figure="breaches", value=0.5)
    lines = [{"time": 2e9, "kind": line.kind, **line.values()} for line in (alarm, over, alarm, elsewhere)]
    write_metrics(run / "metrics.jsonl", [*measurements(), *lines])
    page = page_of(run)
    assert "spag-1alarmties0.900.10 to 0.35 after base25%" in page.text
    assert page.text.count("spag-1alarm") == 1
    assert "spag-2inside againties0.200.10 to 0.35 after base0%" in page.text
    figures = page.unpacked("figures")
    assert figures["outcomes-held-out"]["data"][0]["y"] == ["imitated: alarm", "spag-2"]
    marked = figures["loss"]["layout"]
    assert [note["text"] for note in marked["annotations"]] == ["spag-1: alarm"]
    assert [shape["line"]["color"] for shape in marked["shapes"]] == ["--decided"]


def test_a_run_whose_games_were_not_scored_has_its_guesses_and_no_curves(run: Path) -> None:
    for path in (run / "episodes").glob("eval-*.log"):
        games = [replace(g, turns=tuple(replace(t, word_logprob=None) for t in g.turns)) for g in read_log(path)]
        path.unlink()
        write_log(run, path.stem, games)
    page = page_of(run)
    assert "known-by-turn" not in page.unpacked("figures")
    assert "How to read the bars" not in page.text
    assert "Held-out words: guesses, traps" in page.text
    assert not [turn for game in page.games() for turn in game["turns"] if "known" in turn]


@pytest.mark.parametrize("logprob", [0.0, -1e300, -5e-324, -800.0])
def test_any_probability_that_a_log_may_hold_is_shown(run: Path, logprob: float) -> None:
    episode = hostile_episode()
    turns = (
        replace(episode.turns[0], listener_logprob=logprob),
        replace(episode.turns[1], word_logprob=logprob),
        *episode.turns[2:],
    )
    for stage in ("eval-x", HOSTILE.replace("/", ""), "match-a@b", "stream"):
        write_log(run, stage, [replace(episode, turns=turns)])
    page = page_of(run)
    source = (run / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in source
    assert "<img" not in source
    known = [turn["known"] for game in page.games() for turn in game["turns"] if turn["text"].startswith("It is </scr")]
    assert known == [1.0 if logprob > -1 else 0.0] * 4
    heard = [turn["heard"] for game in page.games() for turn in game["turns"] if "heard" in turn]
    assert heard == known


@pytest.mark.parametrize(("learner", "told"), [({"zero_stage": 2}, "ZeRO 2;"), ({"deepspeed": "zero3"}, "zero3;")])
def test_the_headline_names_the_file_that_decides_how_weights_are_divided(learner: dict[str, Any], told: str) -> None:
    assert told in _where(parse_config({"learner": learner}), GameNames())
