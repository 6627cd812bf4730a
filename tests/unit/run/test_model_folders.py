"""`spag-ray doctor` of model folders: what cannot start is told in one line, and the other checks go on."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.checks.check_results import CheckResult
from cluster.commands import doctor
from tests.support.model_folders import CAN_START, CANNOT_START
from tests.support.runs import tiny_run


def fails(*_: Any) -> None:
    """Sent to a check's process by its name."""
    raise ZeroDivisionError("once\nupon")


@pytest.fixture
def checked(tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks_here: None) -> Any:
    """The results for the tiny model's folder after a change, in this process and without a Ray."""
    monkeypatch.setattr(doctor, "check_imports", lambda _: None)

    def results(change: Any, **settings: Any) -> list[CheckResult]:
        folder = tmp_path / "model"
        shutil.copytree(tiny_model, folder)
        change(folder)
        # So large an object store that no Ray is started.
        config = tiny_run(folder, words, cluster={"object_store_gib": 9000}, **settings)
        return [each for each in doctor._results(config, tmp_path / "run") if each.check != "object store"]

    return results


@pytest.mark.parametrize("name", CANNOT_START)
def test_a_folder_that_cannot_start_is_one_failed_check(name: str, checked: Any) -> None:
    change, told = CANNOT_START[name]
    results = checked(change)
    failed = [each for each in results if each.status == "fail"]
    assert len(failed) == 1, failed
    assert re.search(told, failed[0].text), failed[0].text
    assert "\n" not in failed[0].text
    assert {"words", "files", "imports"} <= {each.check for each in results if each.status == "pass"}


@pytest.mark.parametrize("name", CAN_START)
def test_a_folder_that_can_start_passes(name: str, checked: Any) -> None:
    results = checked(CAN_START[name])
    assert [each for each in results if each.status == "fail"] == []
    assert {"model", "prompts", "saving"} <= {each.check for each in results}


def test_adapters_are_trained_on_a_base_that_is_whole(checked: Any) -> None:
    lora = {"lora": {"rank": 4, "alpha": 8, "export": "adapter"}}
    assert [each for each in checked(CAN_START["plain"], learner=lora) if each.status == "fail"] == []


def test_an_error_that_nobody_foresaw_is_a_failed_check_too(checked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_games", fails)
    failed = [each for each in checked(CAN_START["plain"]) if each.status == "fail"]
    assert failed == [CheckResult("prompts", "fail", "ZeroDivisionError: once upon")]
