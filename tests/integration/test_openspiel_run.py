"""A run of a game of OpenSpiel, measured exactly after each stage, and a match against its CFR."""

from pathlib import Path

import pytest

from cluster.cli import app
from cluster.guarded import run_guarded
from spag_ray.config.loading import to_yaml
from spag_ray.episodes.log import read_log
from spag_ray.game.game_form import verdict_of
from spag_ray.games.registry import load_game
from spag_ray.results.matches import read_matches
from tests.support.not_here import needs_openspiel
from tests.support.runs import quiet, records_of, tiny_run
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.usefixtures("local_ray")

WORDS = ("fold", "call", "raise", "pass", "bet", "you", "have", "the", "jack", "queen", "king", "on", "table", "or")
NAME = "openspiel:kuhn_poker"


@pytest.mark.long  # another whole run
@pytest.mark.timeout(300)
def test_a_game_of_openspiel_is_trained_against_cfr_and_measured(tmp_path: Path) -> None:
    needs_openspiel()
    from cluster.commands.train import run_training

    model = make_tiny_model(tmp_path / "model", more_words=WORDS)
    config = tiny_run(
        model,
        Path("deck"),
        prompts="chat",
        game={"name": "openspiel", "env": "kuhn_poker", "max_turns": 5},
        sampling={"temperature": 1.0, "max_new_tokens": 4},
        engine={"kind": "transformers"},
        imitation={"games": 48, "batch_games": 4, "learning_rate": 1e-2, "learn_from": "all"},
        objective={"learn_from": "both", "baseline": "scenario", "role_weights": "none"},
        self_play={"rounds": 1, "games_per_round": 24},
        league={"fixed": [{"model": "scripted:cfr", "share": 0.5}]},
    )
    folder = tmp_path / "run"
    run_training(config, folder, quiet())
    game = load_game(NAME)
    measured = records_of(folder, "exploitability")
    assert [line["stage"] for line in measured] == ["base", "imitated", "spag-1"]
    assert all(0 <= line["exact legal_nash_conv"] <= 4 for line in measured)
    assert measured[1]["exact illegal"] < 0.9, "it has learned some of the words"
    met = set()
    for episode in read_log(folder / "episodes" / "spag-1.log"):
        assert verdict_of(game, [turn.text for turn in episode.turns], episode.scenario) == episode.verdict
        met |= {turn.policy for turn in episode.turns}
    assert met == {"policy", "scripted:cfr"}


@pytest.mark.long  # an engine for each seat
@pytest.mark.timeout(300)
def test_a_match_is_played_against_cfr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    needs_openspiel()
    model = make_tiny_model(tmp_path / "model", more_words=WORDS)
    leduc = {"name": "openspiel", "env": "leduc_poker"}
    config = tiny_run(
        model, Path("deck"), prompts="chat", engine={"kind": "transformers"}, game={**leduc, "max_turns": 5}
    )
    (tmp_path / "leduc.yaml").write_text(to_yaml(config))
    out = tmp_path / "matches.json"
    command = ["match", str(tmp_path / "leduc.yaml"), "--games", "3", "--out", str(out), "--against", "cfr"]
    players = (f"--player=new={model}", "--player=cfr=scripted:cfr")
    assert run_guarded(lambda standalone_mode: app([*command, *players])) == 0, capsys.readouterr().err
    matches = {(match.attacker, match.defender): match for match in read_matches(out)}
    assert {*matches} == {("cfr", "new"), ("new", "cfr")}
    assert all(len(match.games) == 3 for match in matches.values())
    refused = [*command, "--player=new=scripted:cfrr", "--player=cfr=scripted:cfr"]
    assert run_guarded(lambda standalone_mode: app(refused)) == 2
    assert "openspiel:leduc_poker has no strategy of this name; it has cfr, mcts" in capsys.readouterr().err
