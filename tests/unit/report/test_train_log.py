"""logs/train.log: what a run printed, in plain lines, over all its attempts."""

import io
import threading
from pathlib import Path

import pytest
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cluster.commands.train import run_training
from cluster.monitor.progress import ProgressLine, watch
from cluster.monitor.train_log import followed, printed_on
from cluster.runtime.run_folder import make_run_folder
from cluster.types import Progress
from spag_ray.config.loading import parse_config
from spag_ray.errors import InputError, LeaseLostError, RunFolderError, SpagError
from tests.support.waiting import wait_until


def lines_of(folder: Path) -> list[str]:
    text = (folder / "logs" / "train.log").read_text(encoding="utf-8")
    assert "\x1b" not in text
    assert "\r" not in text
    return text.splitlines()


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=40, height=10, color_system="truecolor")


@pytest.mark.parametrize("console", [terminal(), Console(quiet=True), Console(file=io.StringIO(), width=40)])
def test_every_line_of_the_console_is_kept_as_plain_text(console: Console, tmp_path: Path) -> None:
    long = "a line that is longer than the terminal is wide " * 3
    table = Table("player", "wins")
    table.add_row("spag-1", "40 %")
    with printed_on(console) as log:
        console.print(f"[red]warning:[/] {long}", soft_wrap=True)
        assert not (tmp_path / "logs").exists(), "there is no run folder yet"
        log.open(tmp_path)
        console.print(Text("\x1b[31mred\x1b[0m of another program"))
        console.print(table)
    lines = lines_of(tmp_path)
    assert "an attempt starts" in lines[0]
    assert lines[1] == f"warning: {long}"
    assert lines[2] == "red of another program"
    assert any("spag-1" in line and "40 %" in line for line in lines)
    console.print("after the run")
    assert lines_of(tmp_path) == lines


def test_a_name_that_is_no_utf8_does_not_end_the_run(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=40)
    with printed_on(console) as log:
        log.open(tmp_path)
        console.print(Text("runs/\udcff"), soft_wrap=True)
    assert lines_of(tmp_path)[-1] == "runs/\\udcff"


def test_a_live_display_leaves_its_lines_but_not_its_repaints(tmp_path: Path) -> None:
    console = terminal()
    with printed_on(console) as log:
        log.open(tmp_path)
        with Live(console=console, auto_refresh=False) as live:
            line = ProgressLine(console, log.line)
            for done in range(20):
                line.show(Progress("spag-1: play", done, 20, "games", notes=("engine lost",), num_notes=1), live)
                live.refresh()
            line.show(Progress("spag-1: learn", notes=("engine lost",), num_notes=1), live)
    kept = lines_of(tmp_path)[1:]
    assert kept[0] == "engine lost"
    assert [text.split(" | ")[1] for text in kept[1:]] == ["spag-1: play", "spag-1: learn"]


def test_watching_keeps_the_same_lines_with_a_terminal_and_without(tmp_path: Path) -> None:
    kept = []
    for number, console in enumerate((terminal(), Console(file=io.StringIO()))):
        folder = tmp_path / str(number)
        folder.mkdir()
        left = [Progress(stage) for stage in ("play", "play", "learn")]
        with printed_on(console) as log:
            log.open(folder)
            watch(console, lambda _, left=left: not left, lambda left=left: left.pop(0), log.line)  # type: ignore[misc]
        kept.append(lines_of(folder)[1:])
    assert kept[0] == kept[1] == ["00:00 | play | v0", "00:00 | learn | v0"]


def test_a_resumed_run_appends_and_says_when_it_began(tmp_path: Path) -> None:
    for text in ("first", "second"):
        console = Console(quiet=True)
        with printed_on(console) as log:
            log.open(tmp_path)
            console.print(text)
    lines = lines_of(tmp_path)
    assert [line for line in lines if not line.startswith("===")] == ["first", "second"]
    assert [line.startswith("=== 20") for line in lines] == [True, False, True, False]


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (InputError("games.json: no\n   such file"), "spag-ray: games.json: no such file"),
        (ValueError("a bug"), "ValueError: a bug"),
        (KeyboardInterrupt(), "said before"),
        (LeaseLostError("another run has taken it"), "said before"),
    ],
)
def test_the_last_line_is_the_error_that_ended_the_run(error: BaseException, last: str, tmp_path: Path) -> None:
    def fail() -> None:
        console = Console(quiet=True)
        with printed_on(console) as log:
            log.open(tmp_path)
            console.print("said before")
            raise error

    with pytest.raises(type(error)):
        fail()
    assert lines_of(tmp_path)[-1] == last
    assert any("Traceback" in line for line in lines_of(tmp_path)) == isinstance(error, ValueError)


def test_a_full_disk_does_not_end_the_run_here(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("no folder can be made here")
    console = Console(quiet=True)
    with printed_on(console) as log:
        log.open(tmp_path)
        console.print("nothing is raised")


def test_a_run_without_a_console_keeps_its_notes_and_its_end(tmp_path: Path) -> None:
    progress = Progress("spag-1: play")
    with followed(tmp_path, lambda: progress):
        wait_until(lambda: any("spag-1: play" in line for line in lines_of(tmp_path)), 20)
        progress = Progress("spag-1: play", notes=("the last note",), num_notes=1)
    assert lines_of(tmp_path)[-2:] == ["the last note", "the run has finished"]
    assert not any(thread.name == "train-log" for thread in threading.enumerate())

    def fail() -> None:
        with followed(tmp_path, lambda: progress):
            raise SpagError("too many restarts")

    with pytest.raises(SpagError):
        fail()
    assert lines_of(tmp_path)[-1] == "spag-ray: too many restarts"


def test_a_resume_that_is_refused_is_in_the_runs_log(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", parse_config({}))
    with pytest.raises(RunFolderError, match="started with seed: 0, not 7"):
        run_training(parse_config({"seed": 7}), folder, Console(quiet=True), resume=True)
    lines = lines_of(folder)
    assert "an attempt starts" in lines[0]
    assert lines[-1].startswith("spag-ray: ")
    assert "started with seed" in lines[-1]
