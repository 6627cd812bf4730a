"""Run folders that an earlier version made are reported, and what a resume refuses and writes."""

import io
import stat
from pathlib import Path

import pytest
from rich.console import Console

from cluster.commands.report import report_finished
from cluster.commands.train import run_training
from cluster.launch.placed_run import cards_of, every_words
from cluster.run.checkpoint import check_can_resume, to_resume
from cluster.runtime.run_folder import make_run_folder, reopen_run_folder
from spag_ray.config.loading import load_config, parse_config, shown_config, write_config
from spag_ray.episodes.log import read_log
from spag_ray.errors import RunFolderError, SpagError
from tests.support.full_disk import full_disk
from tests.support.old_run_folders import placed


@pytest.mark.parametrize("name", ["rounds", "kuhn", "stream"])
def test_an_old_run_folder_is_reported(name: str, tmp_path: Path) -> None:
    folder = placed(name, tmp_path)
    said = io.StringIO()
    report_finished(folder, Console(file=said, width=200))
    assert "report:" in said.getvalue(), said.getvalue()
    num_games = sum(1 for log in (folder / "episodes").glob("*.log") for _ in read_log(log))
    assert f"{num_games} games" in said.getvalue()
    assert (folder / "report.html").stat().st_size > 100_000


@pytest.mark.parametrize("name", ["rounds", "kuhn", "stream"])
def test_an_old_run_resumes_with_its_words(name: str, tmp_path: Path) -> None:
    folder = placed(name, tmp_path)
    config = load_config(str(folder / "config.yaml"))
    found = to_resume(folder, config.checkpoint)
    assert found is not None
    check_can_resume(*found, config, *every_words(config, cards_of(config)))


def test_a_run_of_today_is_not_resumed_with_another_deck(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", parse_config({}))
    given = parse_config({"words": {"deck": "textarena"}})
    with pytest.raises(RunFolderError, match=r"words\.deck: 'everyday', not 'textarena'"):
        reopen_run_folder(folder, given)


def test_a_run_is_resumed_with_more_rounds_but_not_with_other_phases(tmp_path: Path) -> None:
    phases = [{"rounds": 1, "payoffs": {"trap": [0.5, -1]}}]
    folder = make_run_folder(tmp_path / "run", parse_config({"self_play": {"rounds": 2, "phases": phases}}))
    reopen_run_folder(folder, parse_config({"self_play": {"rounds": 4, "phases": phases}}))
    other = {"rounds": 4, "phases": [*phases, {"rounds": 1}]}
    with pytest.raises(RunFolderError, match=r"this run was started with self_play\.phases"):
        reopen_run_folder(folder, parse_config({"self_play": other}))


def test_a_folder_without_a_run_is_refused_before_anything_is_written_to_it(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunFolderError, match=r"no run to resume: its config\.yaml cannot be read"):
        run_training(parse_config({}), tmp_path, Console(file=io.StringIO()), resume=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_a_resume_on_a_full_disk_leaves_the_folders_configuration_whole(tmp_path: Path) -> None:
    config = parse_config({})
    folder = make_run_folder(tmp_path / "run", config)
    with full_disk(), pytest.raises(RunFolderError, match=r"its config\.yaml cannot be written: File too large"):
        reopen_run_folder(folder, parse_config({"self_play": {"rounds": 7}}))
    reopen_run_folder(folder, config)


def test_an_unchanged_configuration_is_not_written_again(tmp_path: Path) -> None:
    config = parse_config({})
    folder = make_run_folder(tmp_path / "run", config)
    before = (folder / "config.yaml").stat()
    with full_disk():
        reopen_run_folder(folder, config)
    after = (folder / "config.yaml").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(("text", "said"), [("", "is empty"), ("- a\n", "a list"), ("run\n", "text"), ("3", "int")])
def test_a_configuration_that_is_no_mapping_is_refused_in_one_line(text: str, said: str, tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", parse_config({}))
    (folder / "config.yaml").write_text(text)
    for read in (lambda: reopen_run_folder(folder, parse_config({})), lambda: shown_config(folder)):
        with pytest.raises(SpagError, match=f"config.yaml.*{said}") as caught:
            read()
        assert "\n" not in str(caught.value)


def test_a_run_folder_that_cannot_be_made_leaves_nothing_behind(tmp_path: Path) -> None:
    with full_disk(), pytest.raises(RunFolderError, match="File too large"):
        make_run_folder(tmp_path / "run", parse_config({}))
    assert not (tmp_path / "run").exists(), "the next attempt may have the same name"


def test_environment_variables_that_were_removed_leave_the_file_private(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", parse_config({"engine": {"env": {"HF_TOKEN": "x"}}}))
    file = folder / "config.yaml"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    reopen_run_folder(folder, parse_config({}))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    write_config(file, parse_config({"engine": {"env": {"HF_TOKEN": "x"}}}))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
