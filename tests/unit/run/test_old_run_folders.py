"""Run folders that an earlier version made keep the defaults that they were made with."""

from __future__ import annotations

import io
import stat
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from cluster.commands.report import report_finished
from cluster.runtime.run_folder import make_run_folder, reopen_run_folder, resumed_config
from spag_ray.config.files import shown_config, write_config
from spag_ray.config.former_defaults import FORMER_DEFAULTS, keep_former_defaults
from spag_ray.config.loading import load_config, parse_config
from spag_ray.episodes.log import read_log
from spag_ray.errors import RunFolderError, SpagError
from tests.support.full_disk import full_disk
from tests.support.old_run_folders import placed


@pytest.mark.parametrize("name", ["rounds", "stream"])
def test_an_old_run_folder_is_reported(name: str, tmp_path: Path) -> None:
    folder = placed(name, tmp_path)
    said = io.StringIO()
    report_finished(folder, Console(file=said, width=200))
    assert "report:" in said.getvalue(), said.getvalue()
    num_games = sum(1 for log in (folder / "episodes").glob("*.log") for _ in read_log(log))
    assert f"{num_games} games" in said.getvalue()
    assert (folder / "report.html").stat().st_size > 100_000


def test_a_default_that_has_changed_stays_what_it_was_in_an_old_folder(tmp_path: Path) -> None:
    folder = placed("rounds", tmp_path)
    config, changed = resumed_config(folder, parse_config({}))
    assert set(changed) <= set(FORMER_DEFAULTS)
    assert config.objective.role_weight_cap is None


def test_a_chosen_value_is_not_taken_for_a_changed_default() -> None:
    before = parse_config({"objective": {"role_weight_cap": None}})
    chosen, changed = keep_former_defaults(parse_config({"objective": {"role_weight_cap": 2.5}}), before)
    assert (chosen.objective.role_weight_cap, changed) == (2.5, [])
    other = parse_config({"objective": {"role_weight_cap": 3.0}})
    kept, changed = keep_former_defaults(parse_config({}), other)
    assert changed == [], "3.0 was never a default: reopening refuses it"
    assert kept == parse_config({}), "3.0 was never a default: reopening refuses it"


def test_every_former_default_differs_from_the_one_of_today() -> None:
    today = parse_config({}).model_dump(mode="json")
    for key, former in FORMER_DEFAULTS.items():
        value = today
        for name in key.split("."):
            value = value[name]
        assert value not in former, key


@pytest.mark.parametrize("name", ["quickstart", "cpu_proof"])
def test_shipped_configurations_are_unchanged_by_their_own_folder(name: str) -> None:
    config = load_config(name)
    assert keep_former_defaults(config, config) == (config, [])


@pytest.mark.parametrize("source", ["textarena", "/golden/words.txt"])
def test_a_run_from_before_decks_keeps_its_words_and_the_cards_of_textarena(source: str, tmp_path: Path) -> None:
    folder = placed("rounds", tmp_path)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    assert "deck" not in settings["words"]
    settings["words"]["source"] = source
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    config, changed = resumed_config(folder, parse_config(settings))
    assert (config.words.source, config.words.cards_from, changed) == (source, "textarena", ["words.deck"])
    reopen_run_folder(folder, config)
    again, _ = resumed_config(folder, parse_config(settings))
    assert again == config, "after it was written down, too"


def test_a_run_of_textarena_words_is_resumed_by_a_file_that_now_plays_the_deck(tmp_path: Path) -> None:
    folder = placed("rounds", tmp_path)
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["words"]["source"] = "textarena"
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    del settings["words"]["source"]
    config, changed = resumed_config(folder, parse_config(settings))
    assert (config.words.source, changed) == ("textarena", ["words.source", "words.deck"])
    reopen_run_folder(folder, config)


def test_a_run_of_today_is_not_resumed_with_another_deck(tmp_path: Path) -> None:
    folder = make_run_folder(tmp_path / "run", parse_config({}))
    given = parse_config({"words": {"deck": "textarena"}})
    config, changed = resumed_config(folder, given)
    assert (config, changed) == (given, [])
    with pytest.raises(RunFolderError, match=r"words\.deck: 'everyday', not 'textarena'"):
        reopen_run_folder(folder, config)


def test_a_resume_on_a_full_disk_leaves_the_folders_configuration_whole(tmp_path: Path) -> None:
    config = parse_config({})
    folder = make_run_folder(tmp_path / "run", config)
    with full_disk(), pytest.raises(RunFolderError, match=r"its config\.yaml cannot be written: File too large"):
        reopen_run_folder(folder, parse_config({"self_play": {"rounds": 7}}))
    assert resumed_config(folder, config)[0] == config
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
    for read in (lambda: resumed_config(folder, parse_config({})), lambda: shown_config(folder)):
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
