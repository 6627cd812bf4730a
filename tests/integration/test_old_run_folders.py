"""Run folders that an earlier version made are resumed and reported (tests/golden/run_folders, made by its make.py)."""

from pathlib import Path

import pytest
import yaml

from cluster.commands.train import run_training
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import EpisodeLog, read_log, read_records
from spag_ray.results.matches import read_matches
from tests.support.old_run_folders import placed
from tests.support.runs import quiet, records_of, steps_of

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(300), pytest.mark.usefixtures("local_ray")]


def config_of(folder: Path, **self_play: int) -> RunConfig:
    settings = yaml.safe_load((folder / "config.yaml").read_text())
    settings["self_play"].update(self_play)
    return parse_config(settings)


@pytest.mark.parametrize("name", ["rounds", "kuhn"])
def test_an_old_run_of_rounds_is_resumed_for_one_round_more(name: str, tmp_path: Path) -> None:
    folder = placed(name, tmp_path)
    steps_before = len(steps_of(folder))
    run_training(config_of(folder, rounds=3), folder, quiet(), resume=True)
    (resumed,) = records_of(folder, "resumed")
    assert (resumed["checkpoint"], resumed["stage"]) == ("spag-2", "spag-2")
    assert {step["stage"] for step in steps_of(folder)[steps_before:]} == {"spag-3"}
    assert (folder / "models" / "spag-3" / "model.safetensors").exists()
    versions = [line["version"] for line in records_of(folder, "sync")]
    assert versions == sorted(set(versions)), "published versions only rise"


@pytest.mark.long  # a third run
def test_matches_that_an_old_run_has_begun_go_on_in_their_logs(tmp_path: Path) -> None:
    folder = placed("rounds", tmp_path)
    (folder / "matches.json").write_text("[]")
    one, other = (folder / "episodes" / f"match-{name}.log" for name in ("spag-2@imitated", "imitated@spag-2"))
    first, _ = read_records(other)
    other.unlink()
    log = EpisodeLog(other)
    log.append(first)
    log.close()
    before, begun = one.read_bytes(), other.read_bytes()
    run_training(config_of(folder), folder, quiet(), resume=True)
    assert one.read_bytes() == before, "it was played to its end"
    assert other.read_bytes().startswith(begun)
    assert sorted(game.number for game in read_log(other)) == [0, 1]
    played = {(match.attacker, match.defender): len(match.games) for match in read_matches(folder / "matches.json")}
    assert played["spag-2", "imitated"] == played["imitated", "spag-2"] == 2


@pytest.mark.long  # another whole run
def test_an_old_stream_is_resumed_mid_round_and_learns_every_game_once(tmp_path: Path) -> None:
    folder = placed("stream", tmp_path)
    run_training(config_of(folder), folder, quiet(), resume=True)
    (resumed,) = records_of(folder, "resumed")
    assert resumed["checkpoint"] == "version-2"
    (reference,) = records_of(folder, "reference")
    assert (reference["stage"], reference["saved"], reference["is_exact"]) == ("spag-1", "base", True)
    batches = records_of(folder, "stream")
    lags = {int(key[4:]): batches[-1][key] for key in batches[-1] if key.startswith("lag_")}
    assert sum(lags.values()) == 32, "two rounds of 16 games, counted on from the checkpoint's"
    numbers = [episode.number for episode in read_log(folder / "episodes" / "stream.log")]
    assert len(numbers) == len(set(numbers)), "no game is lost, none is there twice"
    assert set(range(32)) <= set(numbers), "no game is lost, none is there twice"
    assert (folder / "models" / "spag-2" / "model.safetensors").exists()
