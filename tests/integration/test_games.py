"""Whole runs of games other than Taboo: Kuhn poker with its exact figures, and a game from a user's file."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.commands.exploitability import run_exploitability
from cluster.commands.train import run_training
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import ConfigError, InputError
from spag_ray.game import check
from spag_ray.game.game_form import verdict_of
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.registry import load_game
from spag_ray.results.lines import ExploitabilityLine
from spag_ray.results.matches import read_matches
from spag_ray.results.metric_lines import MetricLines
from tests.support.runs import quiet, records_of, steps_of, tiny_run
from tests.support.tiny_model import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.parallel, pytest.mark.usefixtures("local_ray")]

WORDS = ("kuhn", "poker", "cards", "card", "jack", "queen", "check", "bet", "call", "fold", "player", "other", "chip")
WORDS += ("duel", "secret", "number", "numbers", "high", "low", "above", "below", "first", "bets", *"123456789")
DUEL = ROOT / "docs" / "examples" / "number_duel.py"


def run_of(game: str, model: Path, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "prompts": "chat",
        "game": {"name": game, "max_turns": 5},  # the default, which other games have
        "sampling": {"temperature": 1.0, "max_new_tokens": 4},
        "imitation": {"games": 48, "batch_games": 4, "learning_rate": 1e-2, "learn_from": "all"},
        "self_play": {"rounds": 2, "games_per_round": 24, "last_learning_rate": 5e-4},
        "objective": {"learn_from": "both", "baseline": "scenario", "role_weights": "none", "kl_reference": "start"},
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(settings.get(key), dict) else value
    return tiny_run(model, Path("deck"), **settings)  # words.source is the default, which other games have


@pytest.fixture(scope="module")
def kuhn_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("kuhn"), more_words=WORDS)


def exact_lines(folder: Path) -> dict[str, ExploitabilityLine]:
    lines = MetricLines(folder / "metrics.jsonl").typed()
    return {line.stage: line for _, line in lines if isinstance(line, ExploitabilityLine)}


@pytest.mark.long  # two minutes; test_kuhn_policy.py compares its probabilities
@pytest.mark.timeout(300)
def test_kuhn_poker_is_trained_and_measured_after_every_stage(kuhn_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    config = run_of("kuhn", kuhn_model, evaluation={"games": 12})
    run_training(config, folder, quiet())
    lines = exact_lines(folder)
    assert list(lines) == ["base", "imitated", "spag-1", "spag-2"]
    assert lines["base"].figures["illegal"] > 0.9, "a random model says anything"
    assert lines["imitated"].figures["illegal"] < 0.5, "imitation teaches how to speak"
    for line in lines.values():
        assert line.figures["nash_conv"] >= line.figures["legal_nash_conv"] - 1e-9 > 0
        assert len(line.probabilities) == 24
    [match, *_] = read_matches(folder / "matches.json")
    assert {game.scenario for game in match.games} == set(KuhnPoker().scenarios()), "nothing is held out"
    episodes = list(read_log(folder / "episodes" / "spag-2.log"))
    assert len(episodes) == 24
    for episode in episodes:
        assert episode.game == "kuhn"
        again = verdict_of(KuhnPoker(), [turn.text for turn in episode.turns], episode.scenario)
        assert episode.verdict == again
        assert episode.verdict.payoffs is not None
    console = Console(width=140, record=True)
    run_exploitability(RunConfig(), str(folder), console)
    shown = console.export_text()
    assert "average of rounds" in shown
    assert f"{lines['spag-2'].figures['nash_conv']:.4f}" in shown
    console = Console(width=140, record=True)
    run_exploitability(config, str(folder / "models" / "spag-2"), console)
    row = next(line for line in console.export_text().splitlines() if line.strip().startswith("spag-2  "))
    found = float(row.split()[1])
    assert found == pytest.approx(lines["spag-2"].figures["nash_conv"], abs=0.02), "transformers and the engine agree"


@pytest.mark.timeout(300)
def test_the_game_of_the_documentation_is_trained_from_its_file(
    kuhn_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/games.md: its own file, here copied to the current folder and named as a module."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(DUEL, tmp_path)
    config = load_config(str(DUEL.with_suffix(".yaml")), ["game.name=number_duel:NumberDuel"])
    assert config.words.num_held_out == 24
    folder = tmp_path / "run"
    run_training(run_of("number_duel:NumberDuel", kuhn_model, engine={"kind": "transformers"}), folder, quiet())
    assert len(check(load_game("number_duel:NumberDuel").__class__)) == 0
    episodes = list(read_log(folder / "episodes" / "spag-1.log"))
    held_out = {game.scenario for match in read_matches(folder / "matches.json") for game in match.games}
    assert len(held_out) == 2
    assert not {episode.scenario for episode in episodes} & held_out
    expert = list(read_log(folder / "episodes" / "expert.log"))
    assert {str(episode.verdict.end_reason) for episode in expert} == {"right bet", "wrong bet"}
    assert not exact_lines(folder)
    names = json.loads((folder / "game.json").read_text())["games"]
    assert names["number_duel:NumberDuel"]["seats"] == ["bettor", "bluffer"]
    with pytest.raises(InputError, match="is not a solved game"):
        run_exploitability(RunConfig(), str(folder), quiet())


SECRET = """
from spag_ray.game.protocol import win


class Secret:
    '''The second player knows a number; the first one bets on it.'''

    seats = ("bettor", "keeper")
    max_turns = 2
    is_exhaustive = False
    guesser = 0
    claim = "bet {word} ."
    claims_from = "bet"

    def scenarios(self):
        return list("12345678")

    def fact(self, scenario):
        return scenario

    def messages(self, seat, history, scenario):
        opening = "number ?" if seat == 0 else f"the number is {scenario} . {history[0]}"
        names = ("user", "assistant")
        return [{"role": names[n % 2], "content": text} for n, text in enumerate([opening, *history[seat:]])]

    def rule(self, history, scenario):
        if len(history) % 2 == 0 or "bet" not in history[-1]:
            return None
        is_right = scenario in history[-1].split()
        return win(0, "right guess") if is_right else win(1, "wrong guess")

    def scripted(self, seat, history, scenario, rng):
        if seat == 1:
            return "high" if int(scenario) > 4 else "low"
        if not history:
            return "high ?"
        return f"bet {rng.choice('5678' if 'high' in history[1] else '1234')} ."
"""


@pytest.mark.long  # another whole run
@pytest.mark.timeout(300)
def test_a_game_of_ones_own_with_a_hidden_fact_is_listened_to(
    kuhn_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.py").write_text(SECRET)
    listens = {"listening_coeff": 0.5}
    config = run_of(
        "secret.py:Secret",
        kuhn_model,
        engine={"kind": "transformers"},
        objective=listens,
        self_play={"rounds": 1, "games_per_round": 16},
        evaluation={"games": 4},
    )
    folder = tmp_path / "run"
    run_training(config, folder, quiet())
    steps = steps_of(folder)
    assert {step["stage"] for step in steps if step.get("listening_loss")} == {"imitated", "spag-1"}
    known = [line for line in records_of(folder, "held_out") if line["game"] == "secret.py:Secret"]
    assert known[-1]["scored_games"] == 4
    assert 0 < known[-1]["could_have_known"] < 1
    duel = run_of("secret.py:Secret", kuhn_model, objective=listens)
    (tmp_path / "secret.py").write_text(SECRET.replace("    guesser = 0\n", ""))
    with pytest.raises(ConfigError, match="Secret has no claims; only a game with a hidden fact has"):
        run_training(duel, tmp_path / "other", quiet())
