"""`check` plays a game and names each promise of the protocol that it breaks."""

import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, cast

import pytest

import spag_ray.game
from spag_ray.game.conformance import MOST_TURNS, check
from spag_ray.game.game_form import listed
from spag_ray.game.protocol import History, Message, Ruling, breach, tie, win
from spag_ray.games.kuhn import KuhnPoker
from tests.support.ordered_games import Stairs

COLOURS = ("red", "green", "blue", "black", "white", "brown")


class Undeclared:
    """Seat 0 knows a colour and hints; seat 1 says one of the colours. A sound game, which the tests spoil."""

    seats: Any = ("hinter", "guesser")
    max_turns: Any = 2
    is_exhaustive = False

    def scenarios(self) -> Any:
        return list(COLOURS)

    def messages(self, seat: int, history: History, scenario: str) -> Any:
        messages: list[Message] = [{"role": "user", "content": self.opening(seat, scenario)}]
        for index, text in enumerate(history):
            if index % 2 == seat:
                messages.append({"role": "assistant", "content": text})
            elif messages[-1]["role"] == "user":
                messages[-1] = {"role": "user", "content": f"{messages[-1]['content']}\nHeard: {text}"}
            else:
                messages.append({"role": "user", "content": f"Heard: {text}"})
        return messages

    def opening(self, seat: int, scenario: str) -> str:
        rules = f"Colours: {', '.join(COLOURS)}."
        return f"{rules} {secret(scenario)}" if seat == 0 else f"{rules} Which one is it?"

    def rule(self, history: History, scenario: str) -> Any:
        if len(history) % 2 == 1:
            return breach(0, "empty") if not history[-1].strip() else None
        if history[-1] not in COLOURS:
            return breach(1, "no colour", span=(0, len(history[-1])))
        return win(1, "right") if history[-1] == scenario else (win(0, "wrong") if len(history) == 4 else None)

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> Any:
        return rng.choice(COLOURS if seat == 1 else ("warm", "cold"))


class Colours(Undeclared):
    """The same, with what is hidden from whom."""

    def hidden(self, seat: int, scenario: str) -> Any:
        return [secret(scenario)] if seat == 1 else []


def secret(scenario: str) -> str:
    return f"The colour is {scenario}."


def test_kuhn_poker_and_a_game_of_a_users_own_conform() -> None:
    assert check(KuhnPoker) == []
    assert check(Colours) == []
    assert check(lambda: Colours(), num_games=20, seed=7) == []


def test_a_game_with_four_faults_is_told_these_four() -> None:
    class Faulty(Colours):
        _rulings = count()

        def scenarios(self) -> list[str]:
            return [*COLOURS, "Red"]

        def opening(self, seat: int, scenario: str) -> str:
            return f"{super().opening(seat, scenario)} {secret(scenario)}"

        def rule(self, history: History, scenario: str) -> Ruling | None:
            found: Ruling | None = super().rule(history, scenario)
            if history[-1] == "warm" and next(self._rulings) % 2:
                return tie("warm")
            return replace(found, payoffs=(-3.0, 3.0)) if found and found.end_reason == "right" else found

    faults = check(Faulty)
    assert len(faults) == 4, faults
    case, leak, changed, paid = faults
    assert case.startswith("the scenarios 'red' and 'Red' differ only in case or white space")
    assert leak.startswith("seat 1 reads 'The colour is ")
    assert "which is hidden from it (seat 1, scenario '" in leak
    assert changed.startswith("rule gives another answer when it is asked again")
    assert "'warm']" in changed, "with the history"
    assert paid.startswith("a payoff is -3.0; payoffs are numbers from -2 to 2 (scenario '")


def spoiled(**attributes: Any) -> type[Colours]:
    return type("Spoiled", (Colours,), attributes)


def ruled(found: Any, at: str = "right") -> type[Colours]:
    """The game with `found(history)` in place of the ruling whose end reason is `at`."""

    def rule(self: Colours, history: History, scenario: str) -> Any:
        sound = Colours.rule(self, history, scenario)
        return found(history) if sound is not None and sound.end_reason == at else sound

    return spoiled(rule=rule)


def raises(*_: Any) -> Any:
    raise RuntimeError("no such move")


def reads(change: Any) -> type[Undeclared]:
    """The game with its messages changed by `change(messages, history)`."""

    def messages(self: Undeclared, seat: int, history: History, scenario: str) -> Any:
        return change(Undeclared.messages(self, seat, history, scenario), history)

    return type("Spoiled", (Undeclared,), {"messages": messages})


FORMS = {
    "a game needs is_exhaustive, scenarios": type(
        "Bare", (), {"seats": ("a", "b"), "max_turns": 1, "messages": 0, "rule": 0}
    ),
    "it has 3 seats; only games of two seats are played": spoiled(seats=("a", "b", "c")),
    "it cannot be made without arguments (TypeError": spoiled(__init__=lambda self, words: None),
}


@pytest.mark.parametrize("said", FORMS)
def test_what_arenas_cannot_play_is_the_only_fault(said: str) -> None:
    [fault] = check(FORMS[said])
    assert fault.startswith(said)


SCENARIOS: dict[str, Any] = {
    "its scenarios have to be texts, at least one": [],
    "its scenarios have to be texts": [*COLOURS, 7],
    "the scenario 'red' is there twice": [*COLOURS, "red"],
    "the scenarios 'red' and ' red ' differ only in case or white space": [*COLOURS, " red "],
    "it has one scenario, 'red'": ["red"],
    "scenarios returns a text, 'red green'": "red green",
}


@pytest.mark.parametrize("said", SCENARIOS)
def test_scenarios_that_cannot_be_split_are_named(said: str) -> None:
    [fault] = check(spoiled(scenarios=lambda self: SCENARIOS[said], hidden=lambda *_: []))
    assert fault.startswith(said)


def test_an_exhaustive_game_holds_nothing_out_so_one_scenario_will_do() -> None:
    assert check(spoiled(scenarios=lambda self: ["red", "Red"], is_exhaustive=True)) == []
    assert check(spoiled(scenarios=lambda self: ["red"], is_exhaustive=True)) == []


def test_scenarios_in_another_order_each_time_or_in_each_process_are_a_fault() -> None:
    numbers = count()

    class Shuffled(Colours):
        def __init__(self) -> None:
            self.every = random.Random(next(numbers)).sample(COLOURS, 6)

        def scenarios(self) -> list[str]:
            return self.every

    class Grows(Colours):
        def __init__(self) -> None:
            self.every = list(COLOURS)

        def scenarios(self) -> list[str]:
            return [*self.every, f"colour {next(numbers)}"]

    for faulty in (Shuffled, Grows):
        [fault] = check(faulty)
        assert fault.startswith("scenarios gives another answer when it is asked again of a new instance: first ['")


RULINGS = {
    "rule returns 'won'; return win(...)": ruled(lambda history: "won"),
    "seat 0 is said to have broken the rules, but seat 1 moved last": ruled(
        lambda _: breach(0, "no colour"), "no colour"
    ),
    "the span is (0, 99), but the last turn has": ruled(lambda _: win(1, span=(0, 99))),
    "the span is (2, 1), but": ruled(lambda _: win(1, span=(2, 1))),
    "the payoffs are None; give each seat": ruled(lambda _: replace(win(1), payoffs=None)),
    "a payoff is nan": ruled(lambda _: win(1, payoffs=(float("nan"), 1.0))),
    "a payoff is 1000": ruled(lambda _: win(1, payoffs=(10**400, 1.0))),
    "a payoff is '-1'": ruled(lambda _: win(1, payoffs=("-1", "1"))),  # type: ignore[arg-type]
    "the winner, seat 1, is paid less than the loser: (1.0, -1.0)": ruled(lambda _: win(1, payoffs=(1.0, -1.0))),
    "the winner, seat 1, is paid less than the loser: (None, -1.0)": ruled(
        lambda _: replace(win(1), payoffs=(None, -1.0))
    ),
    "seat 1 broke the rules and is paid more than the other: (None, 1.0)": ruled(
        lambda _: breach(1, payoffs=(None, 1.0)), "no colour"
    ),
    "seat 1 broke the rules and is paid more": ruled(lambda _: breach(1, payoffs=(-1, 1)), "no colour"),
    "the end reason is ' '": ruled(lambda _: win(1, " ")),
    "an end reason has 65 characters; at most 64": ruled(lambda _: win(1, "x" * 65)),
    "the reason is 7": ruled(lambda _: win(1, reason=cast(Any, 7))),
    "rule raises RuntimeError: no such move in test_conformance.py, line ": ruled(raises),
    "rule changes the history that it is given": spoiled(
        rule=lambda self, history, scenario: (
            Colours.rule(self, [*history, *history[:0]], scenario) or history.append("")
        )
    ),
}


@pytest.mark.parametrize("said", RULINGS)
def test_each_fault_of_a_ruling_is_named_with_an_example(said: str) -> None:
    [fault] = check(RULINGS[said])
    assert said in fault
    assert "scenario '" in fault
    assert "history ['" in fault


def test_rulings_that_remember_earlier_games_or_this_one_are_found() -> None:
    class Counts(Colours):
        """Decides by how many rulings this instance has made."""

        def __init__(self) -> None:
            self.asked = 0

        def rule(self, history: History, scenario: str) -> Any:
            self.asked += 1
            return tie("tired") if self.asked > 300 else super().rule(history, scenario)

    [fault] = check(Counts)
    assert fault.startswith("rule gives another answer when it is asked again")

    class Follows(Colours):
        """Takes the last hint that it was asked about for the hint of this game."""

        hint = ""

        def rule(self, history: History, scenario: str) -> Any:
            if len(history) == 1:
                self.hint = history[0]
            return tie("cold") if len(history) == 2 and self.hint == "cold" else super().rule(history, scenario)

    [fault] = check(Follows)
    assert fault.startswith("rule gives another answer when it is asked again of a new instance")


def test_a_game_that_can_be_made_only_once_is_found() -> None:
    made: list[Colours] = []

    def make() -> Colours:
        if made:
            raise RuntimeError("the port is taken")
        made.append(Colours())
        return made[0]

    assert check(make) == ["it cannot be made a second time (RuntimeError: the port is taken)"]


MESSAGES = {
    "messages must be of user, assistant, user": reads(
        lambda messages, _: [{"role": "system", "content": "Play."}, *messages]
    ),
    "every message needs a text as its content": reads(lambda messages, _: [{"role": "user", "content": 7}]),
    "the assistant's messages must be the seat's own turns": reads(
        lambda messages, _: [*messages, {"role": "assistant", "content": "I won."}, messages[-1]]
    ),
    "messages raises TypeError": reads(lambda messages, _: None),
    "messages raises RuntimeError: no such move": reads(
        lambda messages, history: raises() if "²" in history else messages
    ),
    "messages changes the history": reads(lambda messages, history: (history.append("x"), messages)[1]),
    "messages gives another answer": reads(
        lambda messages, _: [*messages[:-1], {"role": "user", "content": str(random.random())}]
    ),
}


@pytest.mark.parametrize("said", MESSAGES)
def test_each_fault_of_messages_is_named(said: str) -> None:
    [fault] = check(MESSAGES[said])
    assert said in fault


class TestSecrets:
    def test_a_leak_late_in_a_game_and_in_other_case_is_found(self) -> None:
        def late(self: Colours, seat: int, history: History, scenario: str) -> Any:
            messages = Colours.messages(self, seat, history, scenario)
            if len(history) == 3:
                messages[-1] = {"role": "user", "content": f"THE COLOUR\nis {scenario}. {messages[-1]['content']}"}
            return messages

        [fault] = check(spoiled(messages=late))
        assert fault.startswith("seat 1 reads 'The colour is ")

    def test_what_a_player_said_is_no_leak(self) -> None:
        tells = spoiled(scripted=lambda self, seat, history, scenario, rng: secret(scenario) if seat == 0 else "red")
        assert check(tells) == []

    def test_a_part_of_a_longer_word_is_no_leak(self) -> None:
        told = spoiled(
            hidden=lambda self, seat, scenario: [scenario[:2]] if seat == 1 else [],
            opening=lambda self, seat, scenario: f"It is {scenario[:2]}." if seat == 0 else f"Is it {scenario[:2]}x?",
        )
        assert check(told) == []

    def test_without_a_declaration_nothing_is_assumed(self) -> None:
        class Open(Undeclared):
            def opening(self, seat: int, scenario: str) -> str:
                return secret(scenario)

        assert check(Open) == []

    def test_texts_that_nobody_reads_hide_nothing(self) -> None:
        [fault] = check(spoiled(hidden=lambda self, seat, scenario: ["The color is red."] if seat == 1 else []))
        assert fault.startswith("texts are hidden from seat 1, such as 'The color is red.', that seat 0 never reads")
        assert check(spoiled(hidden=lambda *_: ["The plan of the day."])) == [], "nobody is to read it"

    @pytest.mark.parametrize("texts", ["The colour is red.", [""], [7], 7])
    def test_hidden_texts_that_are_no_list_of_texts_are_named(self, texts: Any) -> None:
        [fault] = check(spoiled(hidden=lambda *_: texts))
        assert fault.startswith(("hidden returns ", "hidden raises TypeError"))


SCRIPTED = {
    "scripted returns 'red\\n'; players' replies have no white space": lambda self, seat, history, scenario, rng: (
        "red\n"
    ),
    "scripted returns None; return a text": lambda self, seat, history, scenario, rng: None,
    "scripted raises RuntimeError": lambda self, seat, history, scenario, rng: raises(),
    "scripted gives another answer": lambda self, seat, history, scenario, rng: random.choice(COLOURS),
}


@pytest.mark.parametrize("said", SCRIPTED)
def test_scripted_seats_answer_with_texts_and_vary_by_their_generator_alone(said: str) -> None:
    [fault] = check(spoiled(scripted=SCRIPTED[said]))
    assert fault.startswith(said)


def ordered(to_move: Any, **attributes: Any) -> type[Stairs]:
    return type("Spoiled", (Stairs,), {"to_move": to_move, **attributes})


def plain(self: Any, seat: int, history: History, scenario: str) -> Any:
    return [{"role": "user", "content": f"go or stop? {len(history)}"}]


class TestOrder:
    def test_a_game_that_says_who_moves_conforms_also_with_seats_that_move_at_once(self) -> None:
        assert check(Stairs, 20) == []
        assert check(ordered(Stairs.to_move, is_simultaneous=True), 20) == []

    @pytest.mark.parametrize("seat", [2, -1, "0", None, True, 0.0])
    def test_a_seat_that_is_none_is_named(self, seat: Any) -> None:
        [fault] = check(ordered(lambda self, history, scenario: seat), 20)
        assert fault.startswith(f"to_move returns {seat!r}; return 0 or 1, the seat of the next turn (scenario '")

    @pytest.mark.parametrize(
        ("to_move", "said"),
        [
            (raises, "to_move raises RuntimeError: no such move in test_conformance.py, line "),
            (lambda self, history, scenario: history.append("x") or 0, "to_move changes the history"),
            (lambda self, history, scenario: random.randint(0, 1), "to_move gives another answer when it is asked"),
        ],
    )
    def test_an_order_that_raises_changes_or_varies_is_found(self, to_move: Any, said: str) -> None:
        fault, *_ = check(ordered(to_move, messages=plain, rule=lambda *_: None), 20)
        assert fault.startswith(said)

    def test_an_order_that_remembers_another_scenarios_game_is_found(self) -> None:
        class Follows(Stairs):
            opener = None

            def to_move(self, history: History, scenario: str) -> int:
                self.opener = self.opener or scenario
                return super().to_move(history, self.opener)

        found = check(Follows, 20)
        assert any(fault.startswith("to_move gives another answer when it is asked again of") for fault in found)

    def test_a_ruling_blames_the_seat_that_really_moved_last(self) -> None:
        def rule(self: Stairs, history: History, scenario: str) -> Any:
            found = Stairs.rule(self, history, scenario)
            return breach((len(history) - 1) % 2) if found and found.end_reason == "illegal move" else found

        [fault] = check(ordered(Stairs.to_move, rule=rule), 20)
        assert "is said to have broken the rules, but seat" in fault

    def test_a_seat_that_never_moves_and_one_that_waits_for_ever_are_found(self) -> None:
        [fault] = check(ordered(lambda self, history, scenario: 1), 20)
        assert fault.startswith("seat 0 has no turn in any of ")

        def stuck(self: Stairs, history: History, scenario: str) -> int:
            return min(len(history), 1)

        [fault] = check(ordered(stuck, messages=plain, rule=lambda *_: None), 20)
        assert fault.startswith("no ruling ends a game, and all end with 3 turns in a row of one seat, such as seat 1")
        assert check(ordered(lambda self, history, scenario: len(history) % 2, rule=lambda *_: None), 20) == []


BREAKS: dict[str, Callable[[str], Any]] = {
    "an empty text": lambda said: said.split()[0],
    "a digit that is no number": lambda said: int(said) if said.isdigit() and len(said) < 9 else 0,
    "more digits than int() reads": lambda said: int(said) if said.isascii() and said.isdigit() else 0,
    "control characters": lambda said: raises() if "\x00" in said else 0,
    "a long text": lambda said: raises() if len(said) > 9000 else 0,
    "a line of the other seat": lambda said: raises() if said.startswith("Heard: ") else 0,
    "the other seat's name": lambda said: raises() if said.startswith("hinter: ") else 0,
}


@pytest.mark.parametrize("reply", BREAKS)
def test_a_rule_that_breaks_on_a_hostile_reply_is_found(reply: str) -> None:
    def rule(self: Colours, history: History, scenario: str) -> Any:
        BREAKS[reply](history[-1])
        return Colours.rule(self, history, scenario)

    [fault] = check(spoiled(rule=rule))
    assert fault.startswith("rule raises ")


def test_scenarios_without_an_end_are_told_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("conformance", "game_form"):
        monkeypatch.setattr(f"spag_ray.game.{module}.MOST_SCENARIOS", 1000)
    endless = spoiled(scenarios=lambda self: map(str, count()))
    assert check(endless) == ["it lists more than 1,000 scenarios; let scenarios() end, or list some of them"]
    assert len(listed(endless())) == 1001


def test_a_game_without_an_end_is_left_after_so_many_turns() -> None:
    """Once the check of such a game never ended."""
    played = set[int]()

    def rule(self: Colours, history: History, scenario: str) -> None:
        played.add(len(history))

    assert check(spoiled(max_turns=10**9, rule=rule), num_games=1) == []
    assert max(played) == MOST_TURNS


def test_a_game_that_is_left_says_nothing_of_seats_that_may_still_come() -> None:
    """Seat 1 moves after turn 250, and the game ends at 300."""

    def to_move(self: Stairs, history: History, scenario: str) -> int:
        return int(len(history) > 250)

    def rule(self: Stairs, history: History, scenario: str) -> Ruling | None:
        return win(0) if len(history) >= 300 else None

    assert check(ordered(to_move, messages=plain, rule=rule, max_turns=1000), 3) == []


NUMBERS = count()


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        (lambda *_: None, "fact returns None; return a text (scenario '"),
        (raises, "fact raises RuntimeError: no such move in test_conformance.py, line "),
        (lambda *_: str(next(NUMBERS)), "fact gives another answer when it is asked again"),
    ],
)
def test_each_fault_of_a_fact_is_named(fact: Any, said: str) -> None:
    guessing = {"guesser": 1, "claim": "It is {word}.", "claims_from": "It is"}
    assert check(spoiled(fact=lambda self, scenario: scenario, **guessing)) == []
    [fault] = check(spoiled(fact=fact, **guessing))
    assert fault.startswith(said)


def test_the_same_seed_finds_the_same_examples() -> None:
    leaky = spoiled(opening=lambda self, seat, scenario: secret(scenario))
    assert check(leaky, seed=1) == check(leaky, seed=1)
    assert len({tuple(check(leaky, seed=seed)) for seed in range(5)}) > 1


def test_it_is_in_the_package_and_importing_it_loads_neither_torch_nor_ray() -> None:
    assert spag_ray.game.check is check
    code = "import sys, spag_ray.game; spag_ray.game.check; print(sorted({'torch', 'ray', 'vllm'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
    with pytest.raises(AttributeError, match="no attribute 'cheque'"):
        _ = spag_ray.game.cheque
