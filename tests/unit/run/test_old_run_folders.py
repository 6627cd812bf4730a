"""Run folders that an earlier version made keep the defaults that they were made with."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from cluster.commands.report import report_finished
from cluster.runtime.run_folder import resumed_config
from spag_ray.config.former_defaults import FORMER_DEFAULTS, keep_former_defaults
from spag_ray.config.loading import load_config, parse_config
from spag_ray.episodes.log import read_log
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
    assert changed == [] and kept == parse_config({}), "3.0 was never a default: reopening refuses it"


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
