"""The form of a game: its parts, its list of scenarios and their split, a ruling and its verdict. Nothing here plays.

form_fault(KuhnPoker())                                            None: arenas can play it
split_scenarios(["red", "green", "blue"], seed=0, num_held_out=1)  (["blue", "red"], ["green"])
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spag_ray.errors import ConfigError, GameError, InputError, SpagError
from spag_ray.game.protocol import (
    MAX_PAYOFF,
    Decision,
    Game,
    Guessing,
    History,
    PaidByEnd,
    ReadsScenarios,
    Ruling,
    Solved,
    seat_of,
    seat_to_move,
    seats_of,
    tie,
)
from spag_ray.game.rules import MAX_END_REASON, EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import one_line

MOST_SCENARIOS = 10_000_000  # a list of so many takes about 1 GiB; a generator may have no end
STYLES = ("chat", "lines", "flat")
_NEEDED = ("seats", "max_turns", "is_exhaustive", "scenarios", "messages", "rule")
_CLAIMS = ("guesser", "claim", "claims_from", "fact")  # mean something together (Guessing)


def _is_none_or(is_right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_right(value)


_FLAG = (lambda value: isinstance(value, bool), "set it to True or False")
_METHOD = (callable, "it has to be a method")
_METHOD_OR_NONE = (_is_none_or(callable), "it has to be a method")
# {part of a game: (whether its value is right, what it has to be)}; the seats' names have messages of their own.
_PARTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("is_exhaustive", "is_simultaneous"), _FLAG),
    **dict.fromkeys(("scenarios", "messages", "rule"), _METHOD),
    **dict.fromkeys(("scripted", "to_move", "hidden", "line_start"), _METHOD_OR_NONE),
    **dict.fromkeys(("decisions", "measure", "average"), _METHOD_OR_NONE),
    "prompt_style": (lambda value: value in (None, *STYLES), f"it is one of {', '.join(STYLES)}"),
    "rule_set": (lambda value: isinstance(value, str | None), "it is the name of its rules"),
    "thought_marks": (
        _is_none_or(
            lambda value: (
                _is_pair(value) and all(isinstance(mark, str) and mark for mark in value) and not value[0][0].isspace()
            )
        ),
        "give what begins a thought and what ends it, or None; a reply begins with no white space",
    ),
    "guesser": (
        lambda value: type(value) is int and value in (0, 1),
        "it is the number of the seat that guesses, 0 or 1",
    ),
    "claim": (
        lambda value: isinstance(value, str) and value.count("{word}") == 1,
        "it needs one {word}, where the fact is named",
    ),
    "claims_from": (lambda value: isinstance(value, str), "it is the words after which a reply counts as a claim"),
    "fact": _METHOD,
    "max_turns": (lambda value: type(value) is int and value > 0, "it is the number of turns of each seat"),
}


def check_form(game: Any, name: str) -> None:
    """Raises ConfigError if the object lacks a part of the protocol, or is a game that arenas cannot play."""
    if fault := form_fault(game):
        raise ConfigError(f"game.name: {name}: {fault}")


def form_fault(game: Any) -> str | None:
    """What is missing in the object, or why arenas cannot play it."""
    found: dict[str, Any] = {}
    for name in ("seats", *_PARTS):
        try:
            found[name] = getattr(game, name)
        except AttributeError:
            continue
        except Exception as error:
            return f"its {name} cannot be read ({type(error).__name__}: {error})"
    if lacks := [each for each in _NEEDED if each not in found]:
        return f"a game needs {', '.join(lacks)} (docs/games.md)"
    is_guessing = found.keys() >= {*_CLAIMS} and found["fact"] is not None
    for name, (is_right, remedy) in _PARTS.items():
        if name in found and (is_guessing or name not in _CLAIMS) and not is_right(found[name]):
            return f"{name} is {found[name]!r:.60}; {remedy}"
    if found.get("is_simultaneous") and found.get("to_move") is None:
        return "its seats move at the same time; give it `to_move`, which says in which order they are asked"
    return _seats_fault(found["seats"]) or _starts_fault(game, found)


def _seats_fault(seats: Any) -> str | None:
    if not _is_pair(seats):
        count = len(seats) if isinstance(seats, tuple | list) else repr(seats)
        return f"it has {count} seats; only games of two seats are played"
    if not all(isinstance(seat, str) and seat for seat in seats) or seats[0] == seats[1]:
        return f"its seats are named {seats[0]!r} and {seats[1]!r}; give two different names"
    return None


def _starts_fault(game: Any, found: Mapping[str, Any]) -> str | None:
    line_start = found.get("line_start")
    if line_start is None or found.get("prompt_style") not in (None, "lines"):
        return None
    try:
        starts = [line_start(seat) for seat in (0, 1)]
    except (Exception, SystemExit) as error:
        return f"line_start raises {type(error).__name__}: {error} ({place_in(game, error)})"
    told = f"line_start returns {starts!r:.60} for the two seats; return a text for each"
    return None if all(isinstance(each, str) for each in starts) else told


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def scenarios_fault(every: Sequence[Any]) -> str | None:
    """Why these are no scenarios: not texts, none at all, or one of them twice."""
    if len(every) > MOST_SCENARIOS:
        return f"it lists more than {MOST_SCENARIOS:,} scenarios; let scenarios() end, or list some of them"
    if not every or not all(isinstance(each, str) and each for each in every):
        return "its scenarios have to be texts, at least one"
    if len(set(every)) < len(every):
        twice, _ = Counter(every).most_common(1)[0]
        return f"the scenario {twice!r} is there twice; give each once"
    return None


def chosen_scenario(game: Game, text: str, name: str, every: Collection[str] = ()) -> str:
    """The scenario that a person chose. Raises InputError if the game, which is called `name`, has no such one.
    `every`: all of them, if they have been listed."""
    if isinstance(game, ReadsScenarios):
        with asking(game, "scenario_of", (), text):
            return game.scenario_of(text)
    every = every or listed(game)
    if text not in every:
        raise InputError(f"{text!r} is no scenario of {name}, such as {next(iter(every))!r}")
    return text


def split_scenarios(every: Sequence[str], seed: int, num_held_out: int) -> tuple[list[str], list[str]]:
    """(scenarios to train on, scenarios held out), a function of the seed. Exhaustive games hold out none."""
    shuffled = list(every)
    random.Random(seed).shuffle(shuffled)
    return shuffled[num_held_out:], shuffled[:num_held_out]


def split_faults(every: Sequence[str]) -> Iterator[str]:
    """What is wrong with scenarios of which some are to be held out."""
    if len(every) < 2:
        yield f"it has one scenario, {every[0]!r}; one to train on and one to hold out are needed, or is_exhaustive"
    first: dict[str, str] = {}
    for scenario in every:
        earlier = first.setdefault(one_line(scenario).casefold(), scenario)
        if earlier == scenario:
            continue
        seed = next(seed for seed in range(1000) if _are_parted(earlier, scenario, every, seed))
        yield (
            f"the scenarios {earlier!r} and {scenario!r} differ only in case or white space: one may be trained on and "
            f"the other held out, as with seed {seed}; leave one of them out"
        )
        return


def _are_parted(one: str, other: str, every: Sequence[str], seed: int) -> bool:
    trained, held_out = split_scenarios(every, seed, len(every) // 2)
    return (one in trained and other in held_out) or (one in held_out and other in trained)


def verdict_of(game: Game, history: History, scenario: str) -> Verdict | None:
    """The verdict after the last turn; None if the game continues.

    A game that has ended for lack of turns (`has_turns_left`) is tied, with payoffs of 0. Raises InputError for a
    ruling with a fault.
    """
    with asking(game, "rule", history, scenario):
        found = game.rule(history, scenario)
    if found is None:
        if has_turns_left(game, history, scenario):
            return None
        found = tie(EndReason.UNDECIDED, reason=f"no turn of the {len(history)} read decided the game")
    with asking(game, "to_move", history[:-1], scenario):
        mover = seat_to_move(game, history[:-1], scenario)
    if fault := next(ruling_faults(found, history, mover, isinstance(game, PaidByEnd)), None):
        raise _wrong(game, "rule", fault[1], f"scenario {scenario!r:.100}, history {list(history)!r:.200}")
    is_tie = found.outcome is Outcome.TIED
    return Verdict(
        outcome=found.outcome,
        end_reason=found.end_reason,
        length=len(history),
        reason=found.reason,
        turn=None if is_tie else len(history) - 1,
        span=None if is_tie else found.span or (0, len(history[-1])),
        payoffs=found.payoffs,
    )


@contextlib.contextmanager
def asking(game: object, method: str, history: History = (), scenario: str = "") -> Iterator[None]:
    """Around a call of a game's method: what it raises becomes a GameError, with what was asked, so that the author of
    the game can ask it again."""
    try:
        yield
    except SpagError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, SystemExit) and not _is_own(game, error):  # a signal's handler
            raise
        asked = f"; scenario {scenario!r:.100}, history {list(history)!r:.200}" if scenario or history else ""
        raised = f"it raises {type(error).__name__}: {error!s:.200}"
        raise _wrong(game, method, raised, place_in(game, error) + asked) from error


def place_in(game: object, error: BaseException) -> str:
    """The file and the line of a game that an error comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = next((each for each in reversed(frames) if each.filename == _file_of(game)), frames[-1])
    return f"{Path(place.filename).name}, line {place.lineno}"


def _is_own(game: object, error: BaseException) -> bool:
    """Whether the game itself raises it, not what it calls or a handler that interrupts it."""
    return traceback.extract_tb(error.__traceback__)[-1].filename == _file_of(game)


def _file_of(game: object) -> str | None:
    return getattr(sys.modules.get(type(game).__module__), "__file__", None)


def listed(game: Game) -> list[str]:
    """All scenarios of the game; of too many (scenarios_fault), one more than there may be."""
    with asking(game, "scenarios"):
        return list(itertools.islice(game.scenarios(), MOST_SCENARIOS + 1))


def decisions_of(game: Solved) -> Sequence[Decision]:
    """All decisions of a solved game."""
    with asking(game, "decisions"):
        return list(game.decisions())


def figures_of(game: Solved, policy: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
    """What a solved game measures of a policy."""
    with asking(game, "measure"):
        return game.measure(policy)


def fact_of(game: Guessing, scenario: str) -> str:
    """What is hidden from the seat that guesses."""
    with asking(game, "fact", (), scenario):
        return game.fact(scenario)


def _wrong(game: object, method: str, fault: str, where: str) -> GameError:
    return GameError(f"{type(game).__name__}.{method}: {fault} ({where}); mend the game (docs/games.md)")


def has_turns_left(game: Game, history: History, scenario: str) -> bool:
    """Whether the seat to move has had fewer than `max_turns` turns in a game that no ruling has ended."""
    if len(history) < game.max_turns:
        return True
    with asking(game, "to_move", history, scenario):
        seat = seat_to_move(game, history, scenario)
        return seats_of(game, history, scenario).count(seat) < game.max_turns


def out_of_room(role: Role, num_turns: int) -> Verdict:
    """The verdict on a game whose context was full after `num_turns` turns, or a served player's budget, so that `role`
    could not reply. No player gains, and the game is not trained on."""
    reason = f"there was no room for the {role}'s reply"
    return Verdict(Outcome.TIED, EndReason.CONTEXT_FULL, num_turns, reason)


def ruling_faults(
    ruling: Any, history: Sequence[str], mover: int, paid_by_end: bool = False
) -> Iterator[tuple[str, str]]:
    """(kind, text) of each fault of a ruling on the last turn of `history`, which is by seat `mover`. `paid_by_end`: it
    has no payoffs."""
    if not isinstance(ruling, Ruling) or not isinstance(ruling.outcome, Outcome):
        yield "no ruling", f"rule returns {ruling!r:.60}; return win(...), breach(...), tie(...) or None"
        return
    breaker = ruling.outcome.breaker
    if breaker is not None and seat_of(breaker) != mover:
        yield "breaker", f"seat {seat_of(breaker)} is said to have broken the rules, but seat {mover} moved last"
    if not isinstance(ruling.end_reason, str) or not ruling.end_reason.strip():
        yield "end reason", f"the end reason is {ruling.end_reason!r:.60}; give a short text"
    elif len(ruling.end_reason) > MAX_END_REASON:
        yield "end reason", f"an end reason has {len(ruling.end_reason)} characters; at most {MAX_END_REASON} are read"
    if not isinstance(ruling.reason, str):
        yield "reason", f"the reason is {ruling.reason!r:.60}; give a text"
    if ruling.span is not None and not _is_inside(ruling.span, len(history[-1])):
        yield "span", f"the span is {ruling.span!r:.60}, but the last turn has {len(history[-1])} characters"
    if paid_by_end:
        if ruling.payoffs is not None:
            yield "payoffs", "the ruling has payoffs, but the game is paid by how it ended (`paid_by_end`)"
        return
    yield from _payoff_faults(ruling)


def _payoff_faults(ruling: Ruling) -> Iterator[tuple[str, str]]:
    payoffs: Any = ruling.payoffs
    if not _is_pair(payoffs):
        yield "payoffs", f"the payoffs are {payoffs!r:.60}; give each seat a number, or None to leave it untrained"
        return
    if unfit := [each for each in payoffs if each is not None and not _is_payoff(each)]:
        yield "payoffs", f"a payoff is {unfit[0]!r:.60}; payoffs are numbers from -{MAX_PAYOFF:g} to {MAX_PAYOFF:g}"
        return
    better, worse = ruling.outcome.winner, ruling.outcome.breaker
    paid = [each or 0 for each in payoffs]  # a seat that is left untrained is neither paid nor charged
    if better is not None and paid[seat_of(better)] < paid[seat_of(better.other)]:
        yield "winner", f"the winner, seat {seat_of(better)}, is paid less than the loser: {tuple(payoffs)}"
    if worse is not None and paid[seat_of(worse)] > paid[seat_of(worse.other)]:
        yield "breach", f"seat {seat_of(worse)} broke the rules and is paid more than the other: {tuple(payoffs)}"


def _is_payoff(value: Any) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= MAX_PAYOFF


def _is_inside(span: Any, length: int) -> bool:
    return _is_pair(span) and all(type(each) is int for each in span) and 0 <= span[0] <= span[1] <= length
