"""Matches on held-out words: what is counted of them beside their results."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.arena import GameTask
from actors.endpoint_policy import Endpoint
from actors.policy import Sampling
from cluster.schedules import held_out
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.rounds import dealt
from cluster.tracking.recorder import Recorder
from cluster.types import Seat
from spag_ray.config.loading import parse_config
from spag_ray.episodes.episode import Episode
from spag_ray.game.game_form import out_of_room
from spag_ray.game.rules import Outcome, next_role
from spag_ray.game.words import Scenario
from spag_ray.results.matches import Match, others, read_matches
from spag_ray.stages import Stage
from tests.support.episodes import game


@pytest.mark.parametrize(("name", "kinds"), [("taboo", ["held_out"]), ("kuhn", [])])
def test_guesses_and_traps_are_counted_in_taboo_alone(
    name: str, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = [replace(game(number, Outcome.DEFENDER_WINS), game=name) for number in range(4)]
    monkeypatch.setattr(held_out, "play_round", lambda *_, **__: episodes)
    config = parse_config({"game": {"name": name}, "evaluation": {"games": 4}})
    ground: Any = SimpleNamespace(config=config, folder=tmp_path, recorder=Recorder(tmp_path), version=1)
    lease: Any = SimpleNamespace(check=lambda now: None)
    seat: Any = None
    (match,) = HeldOutMatches(ground, lease, {name: ["KJ", "QK"]}).play(seat, seat, Stage.evaluation("spag-1"))
    assert match.outcomes[Outcome.DEFENDER_WINS] == 4
    assert [json.loads(line)["kind"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == kinds


def test_each_of_two_games_has_its_own_scenarios_and_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Scenario] = []

    def played(ground: Any, stage: str, scenarios: list[Scenario], **_: Any) -> list[Episode]:
        asked.extend(scenarios)
        outcome = {"taboo": Outcome.TIED, "kuhn": Outcome.DEFENDER_WINS}
        return [replace(game(n, outcome[str(each.game)]), game=str(each.game)) for n, each in enumerate(scenarios)]

    monkeypatch.setattr(held_out, "play_round", played)
    games = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5}]
    config = parse_config({"games": games, "prompts": "lines", "evaluation": {"games": 3}})
    ground: Any = SimpleNamespace(config=config, folder=tmp_path, recorder=Recorder(tmp_path), version=1)
    lease: Any = SimpleNamespace(check=lambda now: None)
    seat: Any = None
    matches = HeldOutMatches(ground, lease, {"taboo": ["river", "piano"], "kuhn": ["KJ", "QK"]})
    taboo, kuhn = matches.play(seat, seat, Stage.evaluation("spag-1"))
    assert asked == [Scenario(word, "taboo") for word in ("river", "piano", "river")] + [
        Scenario(deal, "kuhn") for deal in ("KJ", "QK", "KJ")
    ]
    assert (taboo.game, taboo.outcomes[Outcome.TIED]) == ("taboo", 3)
    assert (kuhn.game, kuhn.outcomes[Outcome.DEFENDER_WINS]) == ("kuhn", 3)
    assert matches.play(seat, seat, Stage.evaluation("spag-1")) == [taboo, kuhn], "it is not played again"
    assert len(asked) == 6
    assert read_matches(tmp_path / "matches.json") == [taboo, kuhn]
    assert others(read_matches(tmp_path / "matches.json"), [taboo]) == [kuhn]
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert (line["kind"], line["games"]) == ("held_out", 3), "guesses are Taboo's"


def test_games_where_a_served_player_said_nothing_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are ties, so their number has to be said. Of a model of the run, a full context is nobody's silence."""
    whole = game(0, Outcome.DEFENDER_WINS)
    unsaid = [
        replace(game(n, Outcome.TIED), turns=whole.turns[:n], verdict=out_of_room(next_role(n), n)) for n in (0, 2, 3)
    ]
    monkeypatch.setattr(held_out, "play_round", lambda *_, **__: [whole, *unsaid])
    notes: list[str] = []
    config = parse_config({"evaluation": {"games": 4}})
    status = SimpleNamespace(note=notes.append)
    ground: Any = SimpleNamespace(config=config, folder=tmp_path, recorder=Recorder(tmp_path), version=1, status=status)
    lease: Any = SimpleNamespace(check=lambda now: None)
    near = Seat("pool", "a", Sampling(), "model")
    far = replace(near, endpoint=Endpoint("http://127.0.0.1:8000/v1", "talker"))
    for stage, seats, said in (
        ("a", (far, near), "a gave no text in 2 of 4 games against b as attacker; they are ties"),
        ("c", (near, far), "b gave no text in 1 of 4 games against c as defender; they are ties"),
        ("d", (near, near), None),
    ):
        notes.clear()
        HeldOutMatches(ground, lease, {"taboo": ["river"]}).play(*seats, Stage.match(stage, "b"))
        assert len(notes) == (said is not None)
        assert said is None or notes[0].startswith(f"warning: {said}")
        assert said is None or "sampling.max_new_tokens" in notes[0]


def test_arenas_get_equal_parts_of_every_game() -> None:
    tasks = [GameTask(number, "w", "s", game="taboo" if number % 2 else "kuhn") for number in range(8)]
    first, second = dealt(tasks, 2)
    assert [task.number for task in first] == [0, 1, 4, 5]
    assert [task.number for task in second] == [2, 3, 6, 7]
    alone = [GameTask(number, "w", "s") for number in range(5)]
    assert dealt(alone, 2) == [alone[::2], alone[1::2]]


def test_a_match_of_another_game_is_not_taken_for_one_that_was_played() -> None:
    config = parse_config({"game": {"name": "kuhn"}, "prompts": "lines"})
    matches = HeldOutMatches(SimpleNamespace(config=config), Any, {"kuhn": ["KJ"]})  # type: ignore[arg-type]
    stage = Stage.evaluation("spag-1")
    matches.results = [Match(*stage.seats, (), "taboo")]
    assert matches.of(stage) == []
    matches.results.append(Match(*stage.seats, (), "kuhn"))
    assert [match.game for match in matches.of(stage)] == ["kuhn"]
