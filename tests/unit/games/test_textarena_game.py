"""TextArena's environments as games: what seats read, how games end, replays, and what is refused."""

import pickle
import random
import socket
from itertools import pairwise
from typing import Any, NoReturn

import pytest

from cluster.serve.server import _table
from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError, InputError
from spag_ray.game import check
from spag_ray.game.game_form import verdict_of
from spag_ray.game.protocol import seats_of
from spag_ray.game.rules import Outcome
from spag_ray.games import textarena_game
from spag_ray.games.registry import game_of, load_game, scenarios_of
from spag_ray.games.textarena_game import Table, TextArenaGame
from tests.support.not_here import needs_textarena

TEN = (
    "TicTacToe-v0", "WildTicTacToe-v0", "ConnectFour-v0", "Nim-v0", "Breakthrough-v0-tiny",
    "SimpleNegotiation-v0", "IteratedRockPaperScissors-v0", "IteratedMatchingPennies-v0", "Chopsticks-v0",
    "SimpleTak-v0",
)  # fmt: skip
WON = ("[0]", "[3]", "[1]", "[4]", "[2]")  # the first row


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment that opens a connection fails."""
    needs_textarena()

    def refuse(*_: object) -> NoReturn:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def played(game: Any, scenario: str, seed: int) -> list[str]:
    """A game of the scripted seats."""
    rng, history = random.Random(seed), list[str]()
    while not history or verdict_of(game, history, scenario) is None:
        history.append(game.scripted(game.to_move(history, scenario), history, scenario, rng))
    return history


@pytest.mark.parametrize("env_id", TEN)
def test_ten_environments_are_played_to_an_end_by_their_scripted_seats(env_id: str) -> None:
    game = load_game(f"textarena:{env_id}")
    for number, scenario in enumerate([*game.scenarios()[:2], game.scenarios()[0]]):
        history = played(game, scenario, number)
        verdict = verdict_of(game, history, scenario)
        assert verdict is not None
        assert verdict.payoffs is not None
        assert verdict == verdict_of(TextArenaGame(env_id), history, scenario), "a new process replays it"


@pytest.mark.parametrize("env_id", [*TEN[:2], "TicTacToe-v0-train", "SimpleNegotiation-v0"])
def test_environments_keep_the_promises_of_the_protocol(env_id: str) -> None:
    assert check(lambda: TextArenaGame(env_id), num_games=6) == []


def test_a_seat_reads_the_messages_to_it_and_its_own_moves_as_the_assistant() -> None:
    game = TextArenaGame("TicTacToe-v0")
    [opening] = game.messages(0, [], "0")
    assert opening["content"].startswith("[GAME] You are Player 0 in Tic Tac Toe.")
    messages = game.messages(0, WON[:2], "0")
    assert [each["role"] for each in messages] == ["user", "assistant", "user"]
    assert messages[0] == opening
    assert messages[1]["content"] == "[0]"
    assert "[Player 1] [3]" in messages[2]["content"]
    assert "[Player 0]" not in messages[2]["content"]
    assert "You are Player 0" not in game.messages(1, WON[:1], "0")[0]["content"], "the prompt of the other player"


def test_what_was_sent_to_one_player_alone_is_not_read_by_the_other() -> None:
    """Each player is told its items and their values."""
    game = TextArenaGame("SimpleNegotiation-v0")
    table = Table("SimpleNegotiation-v0-raw", seed=3)
    private = [str(seen).partition("] ")[2] for seen in table.seen[1] if seen not in table.seen[0]]
    assert private
    for text in private:
        assert all(text.strip() not in each["content"] for each in game.messages(0, [], "3"))
    assert any(private[0].strip() in each["content"] for each in game.messages(1, ["Hello."], "3"))


def test_a_wrapper_that_leaves_something_out_gives_one_message() -> None:
    game = TextArenaGame("TicTacToe-v0-train")
    [message] = game.messages(0, WON[:2], "0")
    assert message["role"] == "user"
    assert message["content"].count("Current Board") == 1


def test_games_end_with_the_rewards_of_the_environment() -> None:
    game = TextArenaGame("TicTacToe-v0")
    assert game.rule(WON[:4], "0") is None
    won = game.rule(WON, "0")
    assert won is not None
    assert (won.outcome, won.payoffs) == (Outcome.ATTACKER_WINS, (1.0, -1.0))
    drawn = game.rule(["[0]", "[1]", "[2]", "[4]", "[3]", "[5]", "[7]", "[6]", "[8]"], "0")
    assert drawn is not None
    assert (drawn.outcome, drawn.payoffs) == (Outcome.TIED, (0.0, 0.0))


@pytest.mark.parametrize(
    ("move", "end", "said"),
    [
        ("[0]", "invalid move", "cell 0 is already occupied."),
        ("I pass", "invalid move", "The submitted move does not follow the correct format."),
        ("9" * 5000, "environment error", "the environment raised ValueError"),
    ],
)
def test_a_move_that_is_not_accepted_is_a_breach_paid_as_the_environment_does(move: str, end: str, said: str) -> None:
    ruling = TextArenaGame("TicTacToe-v0").rule(["[0]", move], "0")
    assert ruling is not None
    assert (ruling.outcome, ruling.payoffs) == (Outcome.DEFENDER_BREACH, (1.0, -1.0))
    assert (ruling.end_reason, ruling.reason) == (end, said)


def test_seeds_give_other_games_and_the_same_seed_the_same_one(monkeypatch: pytest.MonkeyPatch) -> None:
    game = TextArenaGame("SimpleNegotiation-v0")
    assert not game.is_exhaustive
    told = [repr(game.messages(0, [], seed)) for seed in ("0", "1", "2")]
    assert len(set(told)) == 3
    history = played(game, "1", 5)
    read = [list(game.messages(n % 2, history[:n], "1")) for n in range(len(history))]
    monkeypatch.setattr(textarena_game, "NUM_STATES", 2)
    monkeypatch.setattr(textarena_game, "NUM_TABLES", 1)
    small = TextArenaGame("SimpleNegotiation-v0")
    for n in random.Random(0).sample(range(len(history)), len(history)):
        played(small, "2", n)  # others are stepped between its turns
        assert list(small.messages(n % 2, history[:n], "1")) == read[n]


def test_the_global_generator_is_left_as_it_was() -> None:
    game = TextArenaGame("SimpleNegotiation-v0")
    random.seed(7)
    expected = random.Random(7).random()
    played(game, "4", 0)
    assert random.random() == expected


def test_an_environment_that_draws_nothing_has_one_scenario() -> None:
    game = TextArenaGame("TicTacToe-v0")
    assert game.is_exhaustive
    assert (game.scenarios(), game.max_turns) == (["0"], 5)
    config = parse_config({"game": {"name": "textarena", "env": "SimpleNegotiation-v0"}, "prompts": "chat"})
    trained, held_out = scenarios_of(config, TextArenaGame("SimpleNegotiation-v0"))
    assert (len(trained), len(held_out)) == (960, 40)
    assert not set(trained) & set(held_out)


def test_a_game_travels_to_another_process_without_its_tables() -> None:
    game = TextArenaGame("TicTacToe-v0")
    played(game, "0", 0)
    sent = pickle.dumps(game)
    assert len(sent) < 200
    assert pickle.loads(sent).messages(1, WON[:1], "0") == game.messages(1, WON[:1], "0")


REFUSED = {
    "Chaos-v0": r"^game.env: Chaos-v0 is no environment of textarena 0.7.4; docs/appendix/.*did you mean `Chess-v0`\?$",
    "SpellingBee-v0": r"^game.env: SpellingBee-v0: it downloads word lists \(nltk\); games are played without network$",
    "WordChains-v0": r"it downloads word lists",
    "Debate-v0": r"^game.env: Debate-v0: it asks a language model over the network \(OpenRouter\)$",
    "Sudoku-v0": r"^game.env: Sudoku-v0: it is not for two players \(AssertionError",
    "Codenames-v0": r"^game.env: Codenames-v0: it downloads word lists",
    "SecretMafia-v0": r"^game.env: SecretMafia-v0: it is not for two players",
    "UsedCarNegotiation-v0": r"a data file of it is missing in the package",
    "Othello-v0-flat": r"^game.env: Othello-v0-flat is no environment",
}


@pytest.mark.parametrize("env_id", REFUSED)
def test_environments_that_cannot_be_played_are_refused_in_one_line(env_id: str) -> None:
    with pytest.raises(ConfigError, match=REFUSED[env_id]) as caught:
        load_game(f"textarena:{env_id}")
    assert "\n" not in str(caught.value)


IN_A_ROW = ("KuhnPoker-v0", "PigDice-v0-50", "GameOfPureStrategy-v0", "IteratedUltimatumGame-v0-alternate")


@pytest.mark.parametrize("env_id", IN_A_ROW)
def test_environments_in_which_a_player_moves_twice_in_a_row_are_played(env_id: str) -> None:
    game = TextArenaGame(env_id)
    assert check(lambda: TextArenaGame(env_id), num_games=2) == []
    order = seats_of(game, played(game, "0", 0), "0")
    assert any(one == other for one, other in pairwise(order))
    assert max(order.count(seat) for seat in (0, 1)) <= game.max_turns


def test_a_player_is_asked_again_as_the_environment_says_and_reads_its_own_moves() -> None:
    game, history = TextArenaGame("PigDice-v0-short"), ["[roll]", "[roll]", "[hold]"]
    scenario = next(seed for seed in game.scenarios() if seats_of(game, history, seed) == [0, 0, 0])
    assert game.to_move(history, scenario) == 1
    assert [each["role"] for each in game.messages(0, history[:2], scenario)] == ["user", "assistant"] * 2 + ["user"]
    assert game.messages(0, history[:1], scenario)[:1] == game.messages(0, [], scenario)


def test_a_choice_made_at_the_same_time_is_told_once_both_have_chosen() -> None:
    game = TextArenaGame("GameOfPureStrategy-v0")
    read = [game.messages(game.to_move([bid], "0"), [bid], "0") for bid in ("[2]", "[K]")]
    assert read[0] == read[1]
    assert game.to_move(["[2]", "[K]"], "0") == 1, "who bids last opens the next round"


def test_a_move_that_drops_a_player_of_many_ends_a_game_of_two() -> None:
    """It would play on with the other one alone, and look for a player for ever once that is dropped, too."""
    game = TextArenaGame("MarketEntryGame-v0")
    history = ["Hello."] * 6
    assert game.rule(history, "0") is None
    ruling = game.rule([*history, "I stay"], "0")
    assert ruling is not None
    assert (ruling.outcome, ruling.payoffs, ruling.end_reason) == (Outcome.ATTACKER_BREACH, (-1.0, 1.0), "invalid move")


def test_turns_that_alternate_are_half_of_the_environments_limit_others_all_of_it() -> None:
    assert TextArenaGame("IteratedUltimatumGame-v0").max_turns == 6
    assert TextArenaGame("MemoryGame-v0").max_turns == 30
    assert [TextArenaGame(name).max_turns for name in ("TicTacToe-v0", "KuhnPoker-v0")] == [5, 5]


def test_who_moves_is_remembered_where_positions_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    history = played(TextArenaGame("KuhnPoker-v0"), "3", 1)
    monkeypatch.setattr(textarena_game, "NUM_STATES", 1)
    monkeypatch.setattr(textarena_game, "NUM_TABLES", 1)
    game = TextArenaGame("KuhnPoker-v0")
    seats = seats_of(game, history, "3")
    opened: list[str] = []
    monkeypatch.setattr(textarena_game, "_opened", lambda *_: opened.append("a table"))
    assert seats_of(game, history, "3") == seats
    assert opened == []


def test_an_ended_game_and_a_scenario_that_is_no_seed_are_refused() -> None:
    game = TextArenaGame("TicTacToe-v0")
    with pytest.raises(InputError, match="the game had ended before its last turn"):
        game.rule([*WON, "[5]"], "0")
    with pytest.raises(InputError, match="the scenario 'red' is no seed; give a number"):
        game.rule(WON, "red")


def test_the_environment_is_part_of_the_name() -> None:
    config = parse_config({"game": {"name": "textarena", "env": "TicTacToe-v0"}, "prompts": "chat"})
    assert config.game.full_name == "textarena:TicTacToe-v0"
    assert isinstance(game_of(config), TextArenaGame)


def test_a_page_keeps_its_games_under_their_whole_name() -> None:
    config = parse_config({"game": {"name": "textarena", "env": "TicTacToe-v0"}, "prompts": "chat"})
    assert _table(config, None).rules.name == "textarena:TicTacToe-v0"
