"""A run on a terminal: what is shown fits, is harmless, and ends with the run."""

import io
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from cluster.commands.watch import FolderSource, watch
from cluster.monitor.frame import frame, headline
from cluster.monitor.run_view import RunView
from cluster.monitor.terminal import bar, plain, say, sparkline
from cluster.types import Progress
from spag_ray.config.loading import load_config, parse_config, to_yaml
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError
from spag_ray.results.game_names import GameNames
from spag_ray.results.lines import CollapseLine, IterationLine
from spag_ray.results.metric_lines import MetricLines
from tests.support.typed import CTRL_C, typed

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests" / "golden" / "metrics.jsonl"  # the quickstart, with every second step left out
LINES = list(MetricLines(RECORDED).new())
SIZES = [(1, 1), (20, 4), (40, 10), (80, 24), (100, 30), (133, 50), (250, 80)]
HOSTILE = "\x1b[2J\x1b]0;title\x07[bold red]no[/] [/nothing] \u202egnirts \u200b\r\n\t漢字 " + "e\u0301" * 500


def view_of(lines: list[dict[str, Any]], config: RunConfig | None = None) -> RunView:
    view = RunView("a-run", config)
    for line in lines:
        view.take(line)
    return view


def shown(view: RunView, width: int = 80, height: int = 24) -> str:
    return "\n".join(line.plain for line in frame(view, width, height, (view.newest or 0.0) + 3))


def check_fit(view: RunView) -> None:
    for width, height in SIZES:
        lines = frame(view, width, height, 2e9)
        assert 0 < len(lines) <= height
        assert all(line.cell_len <= width for line in lines)
        assert all(char.isprintable() for line in lines for char in line.plain)


def streaming(**changes: Any) -> list[dict[str, Any]]:
    """Two versions of a stream by two policies, and what happened meanwhile."""
    lines: list[dict[str, Any]] = []
    for version in (1, 2):
        lags = {"lag_0": 24 * version, "lag_1": 8 * version}
        pace = {"waited_s": 0.5, "games": 32 * version, "tokens_per_s": 100.0, "games_per_s": 2.5}
        counts = dict.fromkeys(("begun", "waiting", "evicted", "lost", "repeated", "permits_free"), 2)
        lines.append({"kind": "stream", "version": version - 1, **pace, **counts, **lags})
        for policy in ("attacker", "defender"):
            step = {"stage": f"spag-1-{policy}", "policy": policy, "step": version, "loss": 0.5, "kl": None}
            lines.append({"kind": "step", **step, "ratio_max": 1.5})
            lines.append({"kind": "sync", "policy": policy, "version": version, "seconds": 0.5, "num_engines": 2})
        lines.append({"kind": "buffer", "waiting": 7, "oldest_s": 3.0, "permits_free": 9, "evicted": 2, **lags})
    lines.append({"kind": "restart", "what": "engine-attacker-0.2", "cause": "crash", "reason": "it is gone"} | changes)
    return [{"time": 1e9 + 10 * number, **line} for number, line in enumerate(lines)]


def test_every_moment_of_a_recorded_run_fits_every_terminal() -> None:
    view = RunView("quickstart", load_config(str(ROOT / "configs" / "quickstart.yaml")))
    check_fit(view)
    for number, line in enumerate(LINES):
        view.take(line)
        if number % 9 == 0:
            check_fit(view)
    check_fit(view)
    assert view.num_unread == 0


def test_80_columns_and_24_lines_hold_the_whole() -> None:
    view = view_of(LINES, load_config(str(ROOT / "configs" / "quickstart.yaml")))
    text = shown(view)
    for part in (
        "match-imitated@spag-2: played | v3",
        "2 of 2 rounds trained",
        "4.02 games/s",
        "loss        -0.514",
        "entropy       1.78",
        "v3 in 0.87 s, engines: 1",
        "2 waiting, the oldest for 2 s",
        "restarts   none",
        "newest line 00:03 ago",
    ):
        assert part in text, part
    (base,) = (line for line in text.splitlines() if line.startswith("base "))
    assert [word for word in base.split() if word.endswith("%")] == ["6%", "0%", "38%", "0%", "56%"]
    tall = shown(view, 200, 60)
    assert all(name in tall for name in ("self-play", "base", "imitated", "spag-1", "spag-2 v imitated"))


def test_time_left_goes_by_what_the_rounds_before_took() -> None:
    config = parse_config({"self_play": {"rounds": 3}})
    lines: list[dict[str, Any]] = [{"time": 100.0, "kind": "sync", "policy": "policy", "version": 1, "seconds": 1.0}]
    for number, at in ((1, 160.0), (2, 240.0)):
        lines.append({"time": at - 5, "kind": "step", "stage": f"spag-{number}", "policy": "policy", "step": 1})
        lines.append({"time": at, "kind": "sync", "policy": "policy", "version": 1 + number, "seconds": 1.0})
    assert view_of(lines[:2], config).seconds_left(155.0) is None, "nobody can know yet"
    view = view_of(lines, config)
    assert view.learned() == (2, 3)
    assert view.seconds_left(250.0) == 60.0


def test_a_resumed_run_has_trained_on_no_more_than_before_and_its_pause_is_no_time_of_a_round() -> None:
    config = parse_config({"self_play": {"rounds": 6}})
    lines: list[dict[str, Any]] = [{"time": 100.0, "kind": "sync", "policy": "policy", "version": 1, "seconds": 1.0}]
    for number, at in ((1, 400.0), (2, 700.0), (3, 1000.0)):
        lines.append({"time": at - 5, "kind": "step", "stage": f"spag-{number}", "policy": "policy", "step": 1})
        lines.append({"time": at, "kind": "sync", "policy": "policy", "version": 1 + number, "seconds": 1.0})
    at = 36_900.0
    lines[-1] = {"time": at, "kind": "resumed", "stage": "spag-2", "checkpoint": "spag-2", "version": 3}
    assert view_of(lines, config).seconds_left(at) == 4 * 300
    lines.append({"time": at, "kind": "sync", "policy": "policy", "version": 4, "seconds": 1.0})
    view = view_of(lines, config)
    assert view.learned() == (2, 6), "the third round was not trained on to its end"
    assert view.seconds_left(at) == 4 * 300


def test_a_pause_is_no_time_of_the_run() -> None:
    lines: list[dict[str, Any]] = [
        {"time": at, "kind": "step", "stage": "spag-1", "policy": "policy", "step": 1 + int(at)} for at in (0.0, 600.0)
    ]
    lines.append({"time": 87_000.0, "kind": "resumed", "stage": "spag-1", "checkpoint": "spag-1", "version": 1})
    lines.append({"time": 87_060.0, "kind": "step", "stage": "spag-1", "policy": "policy", "step": 700})
    assert "11:00" in headline(view_of(lines), 87_060.0)


def test_a_clock_behind_that_of_the_run_shows_no_negative_time() -> None:
    view = view_of([{"time": 1000.0, "kind": "buffer", "waiting": 0, "oldest_s": 0.0}])
    assert headline(view, 940.0).startswith("00:00 | ")


def test_a_time_that_was_not_written_ends_no_curve() -> None:
    sync = {"kind": "sync", "policy": "policy"}
    times = enumerate((1.0, None, 2.0), start=1)
    lines = [sync | {"time": 100.0 + version, "version": version, "seconds": seconds} for version, seconds in times]
    assert "v3 in 2.00 s" in shown(view_of(lines))


def test_a_step_that_was_not_finite_shows_no_number_of_an_earlier_one() -> None:
    step = {"kind": "step", "stage": "spag-1", "policy": "policy", "learning_rate": 1e-5, "entropy": 1.0}
    lines = [
        step | {"time": 100.0, "step": 1, "loss": 0.5, "gradient_norm": 2.0},
        step | {"time": 101.0, "step": 2, "loss": None, "gradient_norm": None, "skipped": True},
    ]
    assert "step 1, learning rate 1.00e-05, gradient 2\n" in shown(view_of(lines[:1]))
    view = view_of(lines)
    assert "step 2, skipped, learning rate 1.00e-05, gradient -\n" in shown(view)
    (loss,) = (line for line in shown(view).splitlines() if line.startswith("  loss"))
    assert loss.split()[:2] == ["loss", "-"]
    assert "loss -" in headline(view, 102.0)


def test_a_stream_of_two_policies_shows_staleness_both_learners_and_restarts() -> None:
    config = {"policies": "separate", "schedule": "stream", "stream": {"games_per_version": 32, "max_lag": 2}}
    view = view_of(streaming(), parse_config({**config, "self_play": {"games_per_round": 64, "rounds": 2}}))
    check_fit(view)
    text = shown(view, 100, 40)
    assert "attacker v2 | defender v2" in text
    assert "2 of 4 versions trained" in text
    (staleness,) = (line for line in text.splitlines() if line.startswith("staleness"))
    assert "75%" in staleness
    assert "25%" in staleness
    assert "9 permits free, 2 too old to train on" in text
    assert "restarts   1 engine" in text
    assert "is restarted (crash): it is gone" in text
    assert "attacker   spag-1-attacker, step 2" in text
    assert "defender   spag-1-defender, step 2" in text


KUHN = {"game": {"name": "kuhn"}, "prompts": "lines", "policies": "separate"}


def kuhn_lines() -> list[dict[str, Any]]:
    """Games of Kuhn poker, whose ends are none of Taboo's, and an exact measurement."""
    lines: list[dict[str, Any]] = []
    for count in (1, 2):
        ends = {"attacker win: fold": 6 * count, "defender breach: illegal action": 2 * count}
        lines.append(
            {"kind": "games", "phase": "self_play", "game": "kuhn", "turns": 20 * count, "tokens": 20 * count, **ends}
        )
        for policy in ("attacker", "defender"):
            lines.append({"kind": "sync", "policy": policy, "version": count, "seconds": 0.5})
    lines.append({"kind": "exploitability", "stage": "spag-1", "game": "kuhn", "version": 2, "exact nash_conv": 0.25})
    return [{"time": 1e9 + 10 * number, **line} for number, line in enumerate(lines)]


def test_where_the_newest_iterations_time_went_is_a_line_that_fits() -> None:
    line = IterationLine("spag-1", 2, 8, 10.0, generate_s=6.0, train_s=3.0, sync_s=0.05, evaluate_s=0.5)
    lines = [*streaming(), {"time": 2e9, "kind": "iteration", **line.values()}]
    assert "iteration  10.0 s: generate 60%, train 30%, evaluate 5%\n" in shown(view_of(lines))
    check_fit(view_of(lines))
    assert "iteration" not in shown(view_of(streaming()))


def test_another_game_has_its_seats_and_its_own_ends_are_counted() -> None:
    view = view_of(kuhn_lines(), parse_config(KUHN))
    check_fit(view)
    assert view.num_unread == 0
    lines = shown(view).splitlines()
    (headings,) = (line.split() for line in lines if line.lstrip().startswith("games "))
    assert headings == ["games", "first", "second", "f.", "breach", "s.", "breach", "tie"]
    (shares,) = (line for line in lines if line.startswith("self-play"))
    assert [word for word in shares.split() if word.endswith("%")] == ["75%", "0%", "0%", "25%", "0%"]
    assert "0.27 games/s" in shown(view)
    assert "first v2 | second v2" in lines[0]
    assert "spag-1: nash_conv 0.250" in shown(view)


@pytest.mark.parametrize(
    "seats", [("player one", "player two"), (HOSTILE, f"[/x]{HOSTILE}"), ("買い手", "売り手"), ("", "x")]
)
def test_any_names_of_seats_fit(seats: tuple[str, str]) -> None:
    view = view_of(kuhn_lines(), parse_config(KUHN))
    view.game = GameNames("odd", seats, "scenario", guesses=False)
    check_fit(view)
    assert ("1. breach" in shown(view)) == (seats[0][:1] == seats[1][:1])


def test_what_the_run_says_itself_comes_first() -> None:
    view = view_of(streaming())
    view.progress = Progress("spag-1: play", 7, 20, "games", 65.0, notes=("first", "second"), is_paused=True)
    text = shown(view)
    assert "spag-1: play | 7 of 20 games" in text
    assert "paused" in text
    assert "01:05" in text
    assert text.index("first") < text.index("second")
    assert "is restarted" not in text


def test_text_from_elsewhere_moves_no_cursor_and_is_no_markup() -> None:
    view = view_of(streaming(what=f"engine-{HOSTILE}", reason=HOSTILE, cause=HOSTILE))
    view.name = view.end = HOSTILE
    row = {"stage": HOSTILE, "task": HOSTILE, "metric": HOSTILE, "value": 0.5, "num_samples": 7, "num_fewshot": 0}
    view.evaluated(row)
    check_fit(view)
    assert "[bold red]no[/]" in shown(view, 250, 80)
    view.progress = Progress(HOSTILE, 1, 2, HOSTILE, notes=(HOSTILE,))
    view.end = None
    check_fit(view)
    output = io.StringIO()
    console = Console(file=output, width=100, force_terminal=True, color_system="truecolor")
    for line in frame(view, 100, 40, 1e9):
        console.print(line)
    assert "\x1b[2J" not in output.getvalue()
    assert "\u202e" not in output.getvalue()
    assert "\x07" not in output.getvalue()


FIELDS = ["stage", "policy", "step", "loss", "tokens", "phase", "version", "seconds", "task", "value", "lag_0"]


def test_a_collapse_is_among_what_happened() -> None:
    line = CollapseLine("spag-2", "ties", True, 0.9, 0.1, 0.35, "imitated", "warn")
    view = view_of([{"time": 9.0, "kind": line.kind, **line.values()}])
    assert list(view.happenings) == [
        (9.0, "spag-2: ties 0.90, the second stage outside 0.10 to 0.35, which chance allows after imitated")
    ]
    check_fit(view)


KINDS = ["step", "sync", "games", "play", "stream", "buffer", "restart", "evaluation", "other"]
# What a line of the kind cannot be read without.
NEEDED = {
    "step": {"policy", "stage", "step"},
    "sync": {"policy", "version", "seconds"},
    "games": {"phase", "game", "tokens"},
    "play": {"stage", "game", "games_per_s"},
    "stream": {"games_per_s"},
    "buffer": {"waiting", "oldest_s"},
    "restart": {"what"},
    "evaluation": {"stage", "task", "metric", "value"},
}
VALUES = st.none() | st.text(max_size=4) | st.integers() | st.floats() | st.lists(st.none(), max_size=1)


@given(st.dictionaries(st.sampled_from(FIELDS), VALUES), st.sampled_from(KINDS))
def test_lines_of_another_version_of_spag_ray_are_counted_and_never_end_it(line: dict[str, Any], kind: str) -> None:
    view = view_of([{**line, "time": 1.0, "kind": kind}])
    check_fit(view)
    assert view.num_unread <= 1
    assert kind != "other" or view.num_unread == 0
    if not NEEDED.get(kind, set()) <= line.keys():
        assert view.num_unread == 1
    assert ("1 lines of an unknown format" in shown(view)) == (view.num_unread == 1)


def test_lines_of_this_version_are_understood_beside_others() -> None:
    sync = {"kind": "sync", "time": 1.0, "policy": "policy", "version": 2, "seconds": 0.5}
    view = view_of([sync, {**sync, "version": "second"}, {**sync, "version": 3}, {"kind": "sync", "time": 2.0}])
    assert view.num_unread == 2
    assert view.published["policy"].version == 3


def test_evaluations_are_shown_with_their_errors_the_newest_first(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(to_yaml(parse_config({})))
    row = {"task": "arc_easy", "metric": "acc", "value": 0.25, "stderr": 0.04, "num_samples": 100, "num_fewshot": 0}
    rows = [{"stage": "base", **row}, {"stage": "spag-1", **row, "value": 0.5, "stderr": None}]
    (tmp_path / "evaluations.json").write_text(json.dumps([*rows, {"stage": "odd"}, 7]))
    line = {"time": 1.0, "kind": "evaluation", "policy": "policy", **row, "stage": "spag-2"}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    lines = shown(FolderSource(tmp_path).look()).splitlines()
    tasks = [line.split(maxsplit=1)[1] for line in lines if line.startswith("task")]
    assert tasks == [
        "arc_easy, acc 0.500  spag-1, 100 samples",
        "arc_easy, acc 0.250 ± 0.040  base, 100 samples",
        "arc_easy, acc 0.250 ± 0.040  spag-2, 100 samples",
    ]


@given(st.lists(st.floats(-1e9, 1e9), max_size=30), st.integers(0, 20))
def test_curves_and_bars_have_the_width_they_are_given(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == min(len(values), width)
    for value in values:
        assert len(bar(value, width)) == width


def test_plain_text_stays_as_it_is() -> None:
    assert plain("naïve 漢字 [x] 50%") == "naïve 漢字 [x] 50%"
    assert Text(plain("a\x00b\nc")).plain == "a\N{REPLACEMENT CHARACTER}b c"


@given(st.lists(st.integers(1, 400), max_size=60))
def test_lines_are_read_once_each_however_they_are_cut(cuts: list[int]) -> None:
    data = RECORDED.read_bytes()[:9000]
    whole = LINES[: data.count(b"\n")]
    path = Path(f"/dev/shm/spag-ray-lines-{os.getpid()}")
    lines, found, at = MetricLines(path), [], 0
    try:
        with path.open("wb", buffering=0) as file:
            for cut in [*cuts, len(data)]:
                file.write(data[at : at + cut])
                at += cut
                found += list(lines.new())
    finally:
        path.unlink()
    assert found == whole
    assert lines.num_damaged == 0


def test_a_file_in_the_place_of_another_is_told_from_one_that_grows(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    line = '{"time": 1.5, "kind": "sync"}\n'
    lines = MetricLines(path)
    assert not lines.is_replaced()
    path.write_text(line)
    assert not lines.is_replaced(), "nothing was read before"
    assert len(list(lines.new())) == 1
    with path.open("a") as file:
        file.write(line)
    assert not lines.is_replaced()
    path.write_text("")
    assert lines.is_replaced(), "the same file, shorter"
    path.write_text(4 * line.replace("1.5", "2.5"))
    assert lines.is_replaced(), "another run's, longer, with the number of the former file"
    path.unlink()
    assert not lines.is_replaced(), "what was read is all there is"


def test_a_damaged_line_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = MetricLines(path)
    assert list(lines.new()) == []
    good = '{"time": 1.5, "kind": "sync"}\n'
    path.write_text(good + '{"time": 1, "ki\n[1]\n{"kind": "x"}\n\n\xff\n' + "[" * 100_000 + "\n" + good + '{"time"')
    assert [line["kind"] for line in lines.new()] == ["sync", "sync"]
    assert lines.num_damaged == 5
    assert list(lines.new()) == []


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(to_yaml(load_config(str(ROOT / "configs" / "quickstart.yaml"))))
    (tmp_path / "run" / "metrics.jsonl").write_bytes(RECORDED.read_bytes())
    return tmp_path / "run"


def test_a_folder_of_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run folder"):
        FolderSource(tmp_path)


def test_a_run_that_began_anew_in_its_folder_is_watched_from_its_start(folder: Path) -> None:
    source = FolderSource(folder)
    assert source.look().published
    (folder / "new").write_text('{"time": 5, "kind": "play"}\n')
    (folder / "new").replace(folder / "metrics.jsonl")
    view = source.look()
    assert (view.began, view.published) == (5, {})


def test_a_run_that_has_ended_is_one_frame(folder: Path) -> None:
    (folder / "ended.json").write_text('{"ended": "failed", "reason": "no words"}')
    console = Console(record=True, width=100)
    watch(FolderSource(folder), console, once=False)
    text = console.export_text()
    assert text.count("rounds trained") == 1
    assert text.endswith("the run has failed: no words\n")


def test_without_a_terminal_it_ends_with_the_run(folder: Path) -> None:
    console = Console(record=True, width=100)
    watching = threading.Thread(target=watch, args=(FolderSource(folder), console, False), daemon=True)
    watching.start()
    time.sleep(1.5)
    assert watching.is_alive()
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1795288090.0, "kind": "engine_left", "engine": "engine-x", "policy": "policy"}\n')
    (folder / "ended.json").write_text('{"ended": "finished"}')
    watching.join(timeout=10)
    assert not watching.is_alive()
    text = console.export_text()
    assert text.endswith("the run has finished\n")
    assert "engine-x left: on request" in text
    assert text.count("rounds trained") == 2, "a frame at the beginning and one at the end"


def test_a_terminal_that_knows_ascii_alone_is_given_that(folder: Path) -> None:
    command = [sys.executable, "-m", "spag_ray", "watch", str(folder), "--once"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert b"*" in done.stdout
    assert max(done.stdout) < 128


def test_ctrl_c_leaves_a_terminal_as_it_was_and_the_last_frame_on_it(folder: Path) -> None:
    with typed("watch", str(folder), environment={**os.environ, "COLUMNS": "90", "LINES": "30"}) as watching:
        watching.until("rounds trained", 60)
        watching.until("rounds trained", 30)  # it is drawn again
        watching.type(CTRL_C)
        assert watching.ended(30) == 0
    began, left, last = watching.output.partition(b"\x1b[?1049l")
    assert b"\x1b[?1049h" in began
    assert left
    assert b"rounds trained" in last
    hidden, shown = watching.output.rfind(b"\x1b[?25l"), watching.output.rfind(b"\x1b[?25h")
    assert shown > hidden, "the cursor is there again"
    assert b"Traceback" not in watching.output


def test_several_games_have_lines_of_their_own() -> None:
    ends = {"taboo": {"attacker win: wrong guess": 3}, "kuhn": {"defender win: fold": 9}}
    played = {"kind": "play", "version": 1, "games": 2, "turns": 4, "tokens": 9, "seconds": 1.0, "games_per_s": 2.0}
    played |= {"stage": "eval-spag-1", "tokens_per_s": 9.0}
    lines: list[dict[str, Any]] = [
        {"kind": "games", "phase": "self_play", "turns": 9, "tokens": 30, "game": game, **own}
        for game, own in ends.items()
    ]
    lines += [played | {"tied game": 1, "game": "taboo"}, played | {"tied game": 1, "game": "kuhn", "games_per_s": 1.0}]
    games = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5}]
    config = parse_config({"games": games, "prompts": "lines"})
    view = view_of([{"time": 1e9 + number, **line} for number, line in enumerate(lines)], config)
    assert view.num_unread == 0
    counts = {name: sum(outcomes.values()) for name, outcomes in view.self_play.items()}
    assert counts == {"self-play, taboo": 3, "self-play, kuhn": 9}
    assert list(view.held_out) == ["spag-1, taboo", "spag-1, kuhn"]
    assert view.games_per_s == 3.0, "of all games"
    assert "self-play, kuhn" in shown(view)


def test_a_game_that_is_no_longer_played_has_no_rate() -> None:
    games = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5}]
    line: dict[str, Any] = {"kind": "games", "phase": "self_play", "turns": 9}
    times = {"taboo": [0, 10], "kuhn": [1, 11, 21, 81, 91]}  # seconds
    lines = [
        line | {"time": 1e9 + time, "game": game, "tokens": 100 * time, "ends": {"attacker win: fold": time}}
        for game, every in times.items()
        for time in every
    ]
    lines.sort(key=lambda each: each["time"])
    config = parse_config({"games": games, "prompts": "lines"})
    assert list(view_of(lines[:4], config).tokens_per_s)[-1] == 200, "of both"
    assert list(view_of(lines, config).tokens_per_s)[-1] == 100, "of kuhn alone"


def test_a_run_that_was_resumed_within_a_minute_plays_no_negative_number_of_games() -> None:
    line: dict[str, Any] = {"kind": "games", "phase": "self_play", "game": "taboo", "turns": 90}
    lines = [
        line | {"time": 1e9, "tokens": 300, "attacker win: wrong guess": 20},
        line | {"time": 1e9 + 40, "tokens": 400, "attacker win: wrong guess": 12},
        line | {"time": 1e9 + 50, "tokens": 500, "attacker win: wrong guess": 32},
    ]
    assert view_of(lines[:2]).games_per_s == 0
    view = view_of(lines)
    assert view.games_per_s == 2.0
    assert list(view.tokens_per_s) == [10.0]


def test_a_path_is_said_as_it_is() -> None:
    path = "runs/:dog:/[bold]a/matches.json"
    console = Console(file=io.StringIO(), width=20)
    say(console, path)
    assert console.file.getvalue() == f"{path}\n"  # type: ignore[attr-defined]
