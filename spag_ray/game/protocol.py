"""Game: the interface of a language game of two seats. Adversarial Taboo, Kuhn poker and a user's own game implement
it.

    class MyGame:
        seats = ("bidder", "caller")                           names for prompts, charts and tables
        max_turns = 2                                          of each seat, see Game.max_turns
        is_exhaustive = False
        def scenarios(self): return ["red", "green", "blue"]
        def messages(self, seat, history, scenario): return [{"role": "user", "content": "..."}]
        def rule(self, history, scenario): return win(0) if history[-1] == "take" else None

Seats are 0 and 1. Seat 0 opens, then they alternate, so turn i of `history`, a list of texts, is by seat i % 2, unless
the game itself says who moves next (Ordered). A scenario is a text: what a game begins with (a target word, a deal, a
seed). docs/games.md explains how to write a game; `spag_ray.game.check` (conformance.py) tests one.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from spag_ray.game.rules import EndReason, Outcome, Role

History: TypeAlias = Sequence[str]
Message: TypeAlias = Mapping[str, str]  # {"role": "user" or "assistant", "content": text}
SEATS = tuple(Role)
MAX_PAYOFF = 2.0
TABOO = "taboo"  # the name of Adversarial Taboo in a configuration


@dataclass(frozen=True)
class Ruling:
    """The last turn ended the game. `reason` says it in words, `end_reason` is a short value to count. `span`:
    the characters [start, end) of that turn that decided. `payoffs` of seats 0 and 1, from -2 to 2; None for a seat
    that is not trained on this end. A game always gives payoffs, unless it is paid by how it ended (PaidByEnd)."""

    outcome: Outcome
    end_reason: EndReason | str
    reason: str
    span: tuple[int, int] | None = None
    payoffs: tuple[float | None, float | None] | None = None


def zero_sum(seat: int, amount: float = 1.0) -> tuple[float, float]:
    """Payoffs: `amount` for the seat, taken from the other one."""
    return (amount, -amount) if seat == 0 else (-amount, amount)


def win(
    seat: int,
    end_reason: str = "won",
    payoffs: tuple[float, float] | None = None,
    span: tuple[int, int] | None = None,
    reason: str = "",
) -> Ruling:
    """Seat `seat` won. Default payoffs: 1 for it, -1 for the other.

    >>> win(1).payoffs
    (-1.0, 1.0)
    """
    return Ruling(Outcome.win_of(SEATS[seat]), end_reason, reason or end_reason, span, payoffs or zero_sum(seat))


def breach(
    seat: int,
    end_reason: str = "illegal move",
    payoffs: tuple[float | None, float | None] | None = None,
    span: tuple[int, int] | None = None,
    reason: str = "",
) -> Ruling:
    """Seat `seat` broke the rules with the last turn. Default payoffs: -1 for it; the other is not trained on it.

    >>> breach(0).payoffs
    (-1.0, None)
    """
    own = payoffs or ((-1.0, None) if seat == 0 else (None, -1.0))
    return Ruling(Outcome.breach_by(SEATS[seat]), end_reason, reason or end_reason, span, own)


def tie(end_reason: str = "tied", payoffs: tuple[float, float] = (0.0, 0.0), reason: str = "") -> Ruling:
    """Nobody won."""
    return Ruling(Outcome.TIED, end_reason, reason or end_reason, None, payoffs)


@runtime_checkable
class Game(Protocol):
    """See the module's docstring. A game is constructed without arguments and has no state: its methods are pure.

    Two attributes more may say what else is the same in all its games: `prompt_style`, how its messages become a prompt
    (chat, lines or flat), whatever `prompts` is; `rule_set`, the name of its rules, recorded with each game."""

    @property
    def seats(self) -> tuple[str, str]: ...

    @property
    def max_turns(self) -> int:
        """Turns of each seat at most. A game is tied, and pays 0, when the seat to move has had so many and no ruling
        has ended it: a game in which only one seat moves ends, too."""
        ...

    @property
    def is_exhaustive(self) -> bool:
        """Whether `scenarios` are all that can happen, so that none are held out."""
        ...

    def scenarios(self) -> Sequence[str]:
        """All scenarios, each once. The configuration's seed decides which are held out, and their order."""
        ...

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        """What `seat`, whose turn it is, reads before it: chat messages of "user", the seat's own turns as
        "assistant". Nothing that the seat must not know. Chat templates need them in strict alternation, from the user
        to the user, so a message of the user stands between two turns of the seat in a row; it may be short ("Roll or
        hold?"). Messages that only grow from turn to turn are cheap to train on."""
        ...

    def rule(self, history: History, scenario: str) -> Ruling | None:
        """The ruling on the last turn of `history`; None if the game continues."""
        ...


@runtime_checkable
class Scripted(Protocol):
    """A game whose seats can also be played by rules; imitation can start from such games. One with a method
    `with_cards(cards)` plays them from a deck (UsesCards)."""

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        """A reply of `seat`; only `rng` may make it vary."""
        ...


@runtime_checkable
class HasStrategies(Protocol):
    """A game whose scripted seats can play in other ways, too: as the model `scripted:NAME` of an opponent."""

    @property
    def strategies(self) -> Sequence[str]: ...

    def with_strategy(self, name: str) -> Game:
        """The same game, whose `scripted` plays in the way of this name."""
        ...


def strategies_of(game: Game) -> Sequence[str]:
    """The names of other ways in which its scripted seats can play."""
    return game.strategies if isinstance(game, HasStrategies) else ()


def played_by(game: Game, strategy: str) -> Game:
    """The game, whose scripted seats play by a strategy of it; "" for the usual one."""
    return game.with_strategy(strategy) if isinstance(game, HasStrategies) and strategy else game


@runtime_checkable
class Ordered(Protocol):
    """A game that says who moves next: a seat may move twice in a row, seat 1 may open.

    Both seats move at once if they move one after the other, in any order, and `messages` shows the second one nothing
    of what the first one said:

        def to_move(self, history, scenario): return len(history) % 2        (the default; both choose in secret)
        def messages(self, seat, history, scenario): ...of the rounds before this one alone
    """

    def to_move(self, history: History, scenario: str) -> int:
        """The seat of the next turn, 0 or 1, while no ruling has ended the game. Pure, like every method."""
        ...


@runtime_checkable
class Hides(Protocol):
    """A game that says what a seat must not know, so that `check` can find leaks.

    def hidden(self, seat, scenario): return [f"You have the {scenario[1 - seat]}"]
    """

    def hidden(self, seat: int, scenario: str) -> Sequence[str]:
        """Texts that `seat` must not read, unless a player says them. Name them as the other seat reads them: whole
        sentences, if the rules that both seats read have the same words."""
        ...


@runtime_checkable
class UsesCards(Protocol):
    """A game whose scripted seats know a scenario from its card in a deck."""

    def with_cards(self, cards: Mapping[str, Any]) -> Game:
        """The same game with these cards, by scenario."""
        ...


@runtime_checkable
class Guessing(Protocol):
    """A game with a hidden fact, which the scenario names and the seat `guesser` may claim. The probability of a claim
    can be scored at each of its turns, and trained on (docs/learning.md, "Listening")."""

    guesser: int

    @property
    def claim(self) -> str:
        """What claims a fact, with {word} in its place."""
        ...

    @property
    def claims_from(self) -> str:
        """The words of `claim` after which a reply counts as a claim."""
        ...

    def fact(self, scenario: str) -> str: ...


@runtime_checkable
class Thinks(Protocol):
    """A game whose replies may begin with private text. Neither the other seat nor `rule` reads it."""

    @property
    def thought_marks(self) -> tuple[str, str] | None:
        """What begins and what ends it; None if no reply has any."""
        ...


@runtime_checkable
class Configured(Protocol):
    """A class of games that a run makes from its configuration; any other is made without arguments."""

    @classmethod
    def configured(cls, config: Any) -> Game:
        """The game of a RunConfig of one game. May raise ConfigError."""
        ...


@runtime_checkable
class SpeaksInLines(Protocol):
    """A game that, with `prompts: lines`, begins each line with words of its own."""

    def line_start(self, seat: int) -> str:
        """What stands before a reply of this seat, such as its name; a space follows."""
        ...


@runtime_checkable
class ReadsScenarios(Protocol):
    """A game whose scenarios are more than it can list."""

    def scenario_of(self, text: str) -> str:
        """The scenario that a person chose. Raises InputError, in words for this person."""
        ...


@runtime_checkable
class PaidByEnd(Protocol):
    """A game whose payoffs are a setting (`game.payoffs`), by how it ended. Its rulings have none."""

    paid_by_end: bool


@dataclass(frozen=True)
class Decision:
    """A place in a game where a seat has to choose: what was said, a scenario in which that seat knows what it knows
    here, and the replies whose probabilities are asked for."""

    history: tuple[str, ...]
    scenario: str
    replies: tuple[str, ...]


@runtime_checkable
class Solved(Protocol):
    """A game in which a policy can be measured exactly, from its probabilities at every decision."""

    def decisions(self) -> Sequence[Decision]: ...

    def measure(self, probabilities: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        """{name of a figure: value} of a policy with these {reply: probability} at the decisions, in order."""
        ...

    def average(self, policies: Sequence[Sequence[Mapping[str, float]]]) -> Sequence[Mapping[str, float]]:
        """The policy that plays each of these for a whole game equally often, as probabilities at the decisions."""
        ...


def marks_of(game: Game) -> tuple[str, str] | None:
    """What begins and what ends a thought in this game."""
    return game.thought_marks if isinstance(game, Thinks) else None


def guesser_of(game: Game) -> Role | None:
    """The seat that guesses a hidden fact, in a game that has one."""
    return SEATS[game.guesser] if isinstance(game, Guessing) else None


def seat_of(role: Role) -> int:
    """0 for the seat that opens, which Taboo calls the attacker."""
    return SEATS.index(role)


def seat_to_move(game: object, history: History, scenario: str) -> int:
    """The seat of the next turn: what an Ordered game says; in other games the seats alternate.

    >>> seat_to_move(None, ["check"], "KJ")
    1
    """
    to_move = getattr(game, "to_move", None)  # isinstance of a protocol takes microseconds, and each turn asks often
    return len(history) % 2 if to_move is None else int(to_move(history, scenario))


def seats_of(game: object, history: History, scenario: str) -> list[int]:
    """[turns] The seat of each turn of `history`."""
    if getattr(game, "to_move", None) is None:  # each turn of every game asks: in one step, not one for each turn
        return [index % 2 for index in range(len(history))]
    return [seat_to_move(game, history[:index], scenario) for index in range(len(history))]
