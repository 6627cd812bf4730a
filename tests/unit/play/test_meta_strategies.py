"""The benchmark of meta-strategies: the league meets tables, and what they come to is measured exactly."""

import json
from pathlib import Path

import pytest

from actors.league import League
from spag_ray.config.opponents import LeagueConfig
from tests.support.not_here import needs_openspiel


def test_self_play_of_tables_comes_near_the_optimum_of_kuhn_poker_and_is_the_same_each_time() -> None:
    needs_openspiel()
    from benchmarks import meta_strategies

    record = meta_strategies.measured("kuhn_poker", "self-play", 1, rounds=40)
    assert record["newest"][0] == 1.0, "uniform play"
    assert record["newest"][-1] < 0.25
    assert record["average"][-1] < 0.33
    assert record["games"] == 20_000
    again = meta_strategies.measured("kuhn_poker", "self-play", 1, rounds=40)
    assert {**record, "seconds": 0} == {**again, "seconds": 0}


@pytest.mark.parametrize("strategy", ["fictitious", "pfsp-hard", "pfsp-even", "psro"])
def test_every_meta_strategy_gets_below_uniform_play_and_into_tables_and_curves(strategy: str) -> None:
    needs_openspiel()
    from benchmarks import meta_strategies

    record = meta_strategies.measured("kuhn_poker", strategy, 1, rounds=20)
    assert len(record["newest"]) == len(record["average"]) == len(record["equilibrium"]) == 5
    assert record["average"][-1] < 1.0
    assert f"| kuhn | {strategy} |" in "\n".join(meta_strategies.tables([record]))
    assert "equilibrium" in meta_strategies.page([record])


def test_no_version_gains_from_the_equilibrium_of_versions() -> None:
    needs_openspiel()
    from benchmarks import meta_strategies
    from spag_ray.games.openspiel_game import OpenSpielGame

    game = OpenSpielGame("kuhn_poker")
    setting = meta_strategies.SETTINGS["kuhn_poker"]
    league = League(LeagueConfig(past_share=1.0, choose="nash", num_engines=8, max_snapshots=32), 1)
    versions = list(meta_strategies.trained(game, setting, league, 30))
    mixture = list(meta_strategies.solved(game, versions))[-1]
    for version in versions:
        gain = game.value_between(version, mixture) - game.value_between(mixture, version)
        assert gain < 0.01
    assert len(league.kept) == 31
    shares = [each["share"] for each in league.summary()["kept"]]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert max(shares) > 0.2, "few versions are worth playing"
    assert sum(sorted(shares)[-5:]) > 0.5, "five of 31 are worth most of the games"


def test_records_of_other_runs_stay_in_the_file_that_a_run_adds_to(tmp_path: Path) -> None:
    needs_openspiel()
    from benchmarks import meta_strategies

    file = tmp_path / "records.jsonl"
    rows = [{"env": "kuhn_poker", "strategy": name, "seed": seed} for name in ("psro", "fictitious") for seed in (1, 2)]
    assert meta_strategies.records_without([], file) == []
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"env": "kuhn')  # of a run that was killed
    left = meta_strategies.records_without([("kuhn_poker", "psro", 1)], file)
    assert [json.loads(line) for line in left] == rows[1:]
