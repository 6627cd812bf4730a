"""Games of OpenSpiel: measured as OpenSpiel measures them, told without what a player must not know."""

import pickle
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError, InputError
from spag_ray.game.conformance import check
from spag_ray.game.protocol import Solved, strategies_of
from spag_ray.game.rules import Outcome
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.openspiel_game import NO_CHANCE, OpenSpielGame
from spag_ray.games.registry import game_of, load_game
from tests.support.not_here import needs_openspiel

DICE = "liars_dice(numdice=1,dice_sides=3)"
GOOFSPIEL = "goofspiel(num_cards=4,imp_info=True,points_order=descending,returns_type=win_loss)"
ENVS = ("kuhn_poker", "leduc_poker", DICE, GOOFSPIEL)


@pytest.fixture(autouse=True)
def spiel() -> Any:
    needs_openspiel()
    import pyspiel

    return pyspiel


def at_random(game: Solved, seed: int, legal: float = 1.0) -> list[dict[str, float]]:
    rng = random.Random(seed)
    found = []
    for decision in game.decisions():
        shares = [rng.random() + 0.01 for _ in decision.replies]
        found.append({reply: legal * p / sum(shares) for reply, p in zip(decision.replies, shares, strict=True)})
    return found


def as_spiels(game: OpenSpielGame, policy: Sequence[dict[str, float]], spiel: Any) -> Any:
    """The same policy as OpenSpiel keeps it, by its own information states."""
    table: dict[str, list[tuple[int, float]]] = {}
    read = {key: number for number, key in enumerate(_keys(game))}

    def walk(state: Any, history: tuple[str, ...], scenario: str) -> None:
        if state.is_terminal():
            return
        seat = state.current_player()
        shares = policy[read[_key(game, seat, history, scenario)]]
        names = dict(zip(game.legal(history, scenario), state.legal_actions(), strict=True))
        table[state.information_state_string(seat)] = [(action, shares[name]) for name, action in names.items()]
        for name in names:
            walk(game._at((*history, name), scenario), (*history, name), scenario)

    for scenario in game.scenarios():
        walk(game._at((), scenario), (), scenario)
    return spiel.TabularPolicy(table)


def _keys(game: OpenSpielGame) -> list[tuple[object, ...]]:
    found = []
    for each in game.decisions():
        found.append(_key(game, game.to_move(each.history, each.scenario), each.history, each.scenario))
    return found


def _key(game: OpenSpielGame, seat: int, history: Sequence[str], scenario: str) -> tuple[object, ...]:
    return (seat, *(each["content"] for each in game.messages(seat, history, scenario)))


@pytest.mark.parametrize("env", ENVS)
def test_nash_conv_is_openspiels(env: str, spiel: Any) -> None:
    game = OpenSpielGame(env)
    uniform = [dict.fromkeys(each.replies, 1 / len(each.replies)) for each in game.decisions()]
    for policy in (uniform, at_random(game, 1)):
        found = game.measure(policy)
        expected = spiel.nash_conv(game._table._game, as_spiels(game, policy, spiel))
        assert found["nash_conv"] == pytest.approx(expected, abs=1e-9)
        assert found["legal_nash_conv"] == pytest.approx(expected, abs=1e-9)
        assert found["illegal"] == pytest.approx(0, abs=1e-12)


def test_kuhn_poker_is_ours() -> None:
    """Also with illegal replies, which both pay alike."""
    theirs, ours = OpenSpielGame("kuhn_poker"), KuhnPoker()
    policy = at_random(theirs, 2, legal=0.9)
    by_place = {}
    for decision, shares in zip(theirs.decisions(), policy, strict=True):
        seat, deal = len(decision.history) % 2, decision.scenario.split("-")
        calls = "bet" in decision.history
        said = tuple({"pass": "check", "bet": "bet"}[each] for each in decision.history)
        names = {"pass": "fold", "bet": "call"} if calls else {"pass": "check", "bet": "bet"}
        by_place["JQK"[int(deal[seat])], said] = {names[name]: share for name, share in shares.items()}
    same = [by_place[each.scenario[len(each.history) % 2], each.history] for each in ours.decisions()]
    found, expected = theirs.measure(policy), ours.measure(same)
    for figure, value in found.items():
        assert value == pytest.approx(expected[figure], abs=1e-9), figure


@pytest.mark.parametrize("env", ENVS)
def test_a_game_keeps_the_promises_of_the_protocol(env: str) -> None:
    assert check(lambda: OpenSpielGame(env), 60) == []
    game = OpenSpielGame(env)
    again = pickle.loads(pickle.dumps(game))
    assert again.scenarios() == game.scenarios()


def test_a_game_of_leduc_poker_as_both_read_it() -> None:
    game = OpenSpielGame("leduc_poker")
    assert len(game.scenarios()) == 120
    assert len(game.decisions()) == 288, "suits that do not matter are one"
    history, scenario = ["raise", "call"], "0-4-5"
    assert game.to_move(history, scenario) == 0, "the first player begins both rounds"
    first = game.messages(0, history, scenario)
    assert first[0]["content"].endswith("You have the Jack. call or raise?")
    assert first[2]["content"] == "The other player: call\nYou have the Jack; on the table is the King. call or raise?"
    history = [*history, "raise"]
    second = game.messages(1, history, scenario)
    assert second[0]["content"].endswith("The other player: raise\nYou have the King. fold, call or raise?")
    assert second[2]["content"].startswith("The other player: raise\nYou have the King; on the table is the King.")
    ruling = game.rule([*history, "call"], scenario)
    assert ruling is not None
    assert ruling.outcome is Outcome.DEFENDER_WINS
    assert ruling.payoffs == pytest.approx((-7 / 6.5, 7 / 6.5)), "seven chips; 13 are the most, which is 2"
    illegal = game.rule(["fold"], scenario)
    assert illegal is not None
    assert (illegal.outcome, illegal.payoffs) == (Outcome.ATTACKER_BREACH, (-2.0, 2.0))


def test_nobody_hears_a_card_before_both_have_played_it() -> None:
    game = OpenSpielGame(GOOFSPIEL)
    assert game.scenarios() == [NO_CHANCE]
    assert {str(game.messages(1, [card], NO_CHANCE)) for card in "1234"} == {str(game.messages(1, ["2"], NO_CHANCE))}
    assert game.messages(0, ["1", "2"], NO_CHANCE)[-1]["content"].startswith("The other player won. The prize is 3;")
    assert game.messages(0, ["2", "2"], NO_CHANCE)[-1]["content"].startswith("Nobody won. ")


def test_strategies_play_better_than_chance() -> None:
    game = OpenSpielGame("kuhn_poker")
    assert strategies_of(game) == ("cfr", "mcts")
    assert strategies_of(OpenSpielGame(DICE)) == ("cfr",), "OpenSpiel cannot deal its hidden dice anew"
    replies: dict[str | None, Counter[str]] = {}
    for strategy in (None, "cfr", "mcts"):
        played = game if strategy is None else game.with_strategy(strategy)
        rng = random.Random(0)
        replies[strategy] = Counter(played.scripted(1, ["bet"], "1-0", rng) for _ in range(200))  # it has the Jack
    assert 70 < replies[None]["pass"] < 130
    assert replies["cfr"]["pass"] > 190, "the Jack never calls at the optimum"
    assert replies["mcts"]["pass"] > 150
    assert pickle.loads(pickle.dumps(game.with_strategy("cfr"))).scripted(1, ["bet"], "1-0", random.Random(0)) == "pass"


def test_the_average_of_cfr_is_near_the_optimum() -> None:
    game = OpenSpielGame("leduc_poker")
    policy = []
    for each in game.decisions():
        state = game._at(each.history, each.scenario)
        policy.append(dict(zip(each.replies, game._table.equilibrium(state, state.legal_actions()), strict=True)))
    assert game.measure(policy)["nash_conv"] < 0.01
    mixed = game.average([policy, at_random(game, 3)])
    assert 0.01 < game.measure(mixed)["nash_conv"] < game.measure(at_random(game, 3))["nash_conv"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ("leduc_pokr", "has no words here; there are kuhn_poker, .*did you mean `leduc_poker`"),
        ("leduc_poker(players=3)", "it has 3 players"),
        ("goofspiel(imp_info=True)", "states; choose smaller parameters"),
        ("goofspiel(num_cards=4,points_order=descending)", "both hands are known in it"),
        ("leduc_poker(size=3)", "[Uu]nknown parameter"),
        ("kuhn_poker(", "kuhn_poker"),
        ("goofspiel(num_cards=0,imp_info=True)", "it has no end"),
        ("leduc_poker(suit_isomorphism=True)", "not all equally likely"),
    ],
)
def test_what_cannot_be_played_is_refused_in_one_line(env: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        load_game(f"openspiel:{env}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scenario", ["0-0-1", "x", "", "0", "0-1-2x", "7-1-2"])
def test_a_scenario_that_is_none_is_refused(scenario: str) -> None:
    game = OpenSpielGame("leduc_poker")
    with pytest.raises(InputError, match="is no draw of this game"):
        game.legal(["call", "call"], scenario)


def test_a_run_names_the_game_and_the_strategies_of_its_opponents() -> None:
    leduc = {"name": "openspiel", "env": "leduc_poker"}
    config = parse_config({"game": leduc, "league": {"fixed": [{"model": "scripted:cfr", "share": 0.5}]}})
    assert isinstance(game_of(config), OpenSpielGame)
    assert config.game.full_name == "openspiel:leduc_poker"
    bad = parse_config({"game": leduc, "league": {"fixed": [{"model": "scripted:cfrr", "share": 0.5}]}})
    with pytest.raises(ConfigError, match=r"scripted:cfrr: .* it has cfr, mcts; did you mean `cfr`"):
        game_of(bad)
    taboo = parse_config({"league": {"fixed": [{"model": "scripted:cfr", "share": 0.5}]}})
    with pytest.raises(ConfigError, match="it has none"):
        game_of(taboo)
    one_string = parse_config({"game": {"name": "openspiel:kuhn_poker"}, "imitation": {"games": 64}})
    assert one_string.game.package == config.game.package
    assert isinstance(game_of(one_string), OpenSpielGame)
    with pytest.raises(ConfigError, match=r"so env has to name one of its environments \(leduc_poker\)"):
        parse_config({"game": {"name": "openspiel"}})
