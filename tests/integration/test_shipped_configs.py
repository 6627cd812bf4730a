"""A whole run of every shipped configuration, made small: a tiny model, two CPU cores, two optimiser steps or more."""

from pathlib import Path
from typing import Any

import pytest

from cluster.commands.train import run_training
from cluster.planning.plan import make_plan
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Role
from spag_ray.games.kuhn import HISTORIES, legal_actions
from spag_ray.games.taboo.decks import load_deck
from spag_ray.results.matches import read_matches
from tests.support.not_here import needs_games_of
from tests.support.runs import quiet, records_of
from tests.support.shipped import SHIPPED
from tests.support.shrunk import shrunk
from tests.support.tiny_model import make_tiny_model

pytestmark = [pytest.mark.parallel, pytest.mark.usefixtures("local_ray")]

# Rounds with players in turn; the others take longer or are much the same (test_stream.py, test_adapters.py).
QUICK = ("colocated_1gpu",)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It can say every word of the deck and every action of Kuhn poker, so that what the experts say is the same when
    it has become its tokens."""
    words = tuple(load_deck("everyday")), tuple({action for history in HISTORIES for action in legal_actions(history)})
    return make_tiny_model(tmp_path_factory.mktemp("deck"), more_words=sum(words, ()))


def by_cost(path: Path) -> Any:
    return pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.long)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("path", [by_cost(path) for path in SHIPPED])
def test_a_run_of_a_shipped_configuration_made_small(path: Path, model: Path, tmp_path: Path) -> None:
    config, folder = shrunk(path, model), tmp_path / "run"
    needs_games_of(config)
    run_training(config, folder, quiet())
    plan = make_plan(config).schedule
    for policy in config.policy_names:
        versions = [line["version"] for line in records_of(folder, "sync") if line["policy"] == policy]
        assert versions == list(range(1, plan.versions + 1))
        steps = [line for line in records_of(folder, "step") if line["policy"] == policy]
        assert 2 <= len(steps) <= plan.steps + (plan.imitation_steps or 0)
    stages = [*(["imitated"] if config.imitation.enabled else []), "spag-1"]
    parts = [""] if config.policies == "shared" else [f"-{policy}" for policy in config.policy_names]
    assert {each.name for each in (folder / "models").iterdir()} == {stage + part for stage in stages for part in parts}
    check_opponents(config, folder, stages)


def check_opponents(config: RunConfig, folder: Path, stages: list[str]) -> None:
    """Every stage met the base model in both seats, as the configuration says, and the run's engine played both where
    they play in turn."""
    met = {(match.attacker, match.defender) for match in read_matches(folder / "matches.json")}
    against = {pair for stage in stages for pair in ((stage, "base"), ("base", stage))}
    last = {("spag-1", stages[0]), (stages[0], "spag-1")} if len(stages) > 1 else set()
    assert met - {(name, name) for name, _ in met} == (against if config.evaluation.against else set()) | last
    logs = {log.stem for log in (folder / "logs").glob("engine-*.log")}
    assert (logs == {"engine-policy-0"}) == config.plays_in_turn
    if not config.evaluation.against:
        return
    newest = max(line["version"] for line in records_of(folder, "sync"))
    for attacker, defender in (("spag-1", "base"), ("base", "spag-1")):
        for episode in read_log(folder / "episodes" / f"match-{attacker}@{defender}.log"):
            for turn in episode.turns:
                name = attacker if turn.role is Role.ATTACKER else defender
                assert turn.policy == ("base-policy" if name == "base" else "policy")
                assert turn.first_version == turn.last_version == (0 if name == "base" else newest)
