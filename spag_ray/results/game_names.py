"""What people read about a run's game: the names of its seats and of its scenarios, and payoffs that differ by round or
pay both seats if the word is found. Data has attacker and defender for the first and the second seat of every game.

>>> names = GameNames("kuhn", ("first", "second"), "scenario", guesses=False, is_exhaustive=True)
>>> names.seat(Role.DEFENDER), names.outcome(Outcome.ATTACKER_BREACH), names.held_out
('second', 'first breaks the rules', 'All scenarios')
>>> GameNames().outcome(Outcome.TIED), GameNames().held_out
('tied game', 'Held-out words')
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TypeAlias

from spag_ray.config.parts import Payoffs
from spag_ray.config.run import RunConfig
from spag_ray.game.protocol import TABOO, Game, seat_of
from spag_ray.game.rules import Outcome, Role
from spag_ray.games.registry import load_game
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.former_records import names_of_seats
from spag_ray.stages import Stage


@dataclass(frozen=True)
class GameNames:
    """The default is Adversarial Taboo. `seats`: of seat 0 and seat 1. `scenario`: what a game begins with.
    `guesses`: whether seat 1 guesses the scenario, so that guesses and traps can be counted. `is_exhaustive`: no
    scenario is held out. `max_turns`: of each seat; None if it is not known."""

    name: str = "Adversarial Taboo"
    seats: tuple[str, str] = (str(Role.ATTACKER), str(Role.DEFENDER))
    scenario: str = "word"
    guesses: bool = True
    is_exhaustive: bool = False
    max_turns: int | None = None

    def seat(self, role: Role) -> str:
        return self.seats[seat_of(role)]

    def title(self, role: Role) -> str:
        """The seat as the first word of a heading."""
        return self.seat(role)[:1].upper() + self.seat(role)[1:]

    def policy(self, name: str) -> str:
        """A policy's name for people. Policies of one seat have the seat's name; a league adds @ and a version."""
        seat, at, version = name.partition("@")
        return f"{self.seat(Role(seat))}{at}{version}" if seat in tuple(Role) else name

    def outcome(self, outcome: Outcome) -> str:
        if outcome.winner is not None:
            return f"{self.seat(outcome.winner)} wins"
        return str(outcome) if outcome.breaker is None else f"{self.seat(outcome.breaker)} breaks the rules"

    def short_outcome(self, outcome: Outcome) -> str:
        """An outcome where there is little room.

        >>> [GameNames().short_outcome(outcome) for outcome in Outcome]
        ['attacker', 'defender', 'attacker breach', 'defender breach', 'tie']
        """
        if outcome.winner is not None:
            return self.seat(outcome.winner)
        return "tie" if outcome.breaker is None else f"{self.seat(outcome.breaker)} breach"

    @property
    def scenarios(self) -> str:
        return f"{self.scenario}s"

    @property
    def held_out(self) -> str:
        """The scenarios of an evaluation."""
        return f"{'All' if self.is_exhaustive else 'Held-out'} {self.scenarios}"


NamesByGame: TypeAlias = Mapping[str, GameNames]  # {full name of a game: its names}
UNKNOWN: NamesByGame = {TABOO: GameNames()}  # of a run whose configuration cannot be read
FILE = "game.json"  # in a run's folder, if a game of it is a user's own or TextArena's
MAX_NAME = 200  # characters of a seat's name


def told_apart(games: Collection[str], text: str) -> str:
    """A text that tells one of these games from the others: nothing where there is no other. What people read decides
    here alone whether to name the game.

    >>> told_apart(["taboo", "kuhn"], "kuhn: "), told_apart(["kuhn"], "kuhn: ")
    ('kuhn: ', '')
    """
    return text if len(games) > 1 else ""


def write_names(folder: Path, config: RunConfig, games: Mapping[str, Game | None] | None = None) -> None:
    """Keep the names of a user's own games in the run's folder, for readers that must not run their code, and those of
    environments of TextArena, for readers without it. `games`: {full name: the game}, of those that are there already.
    """
    found = {}
    for each in config.each_game:
        if _is_kept(each):
            names = names_of(each, (games or {}).get(each.game.full_name))
            kept = {"seats": names.seats, "is_exhaustive": names.is_exhaustive, "max_turns": names.max_turns}
            found[each.game.full_name] = kept
    if found:
        write_atomically(folder / FILE, json.dumps({"games": found}) + "\n")


def read_names_by_game(folder: Path, config: RunConfig | None) -> NamesByGame:
    """The names of each game of a run's folder, which may come from a stranger: no code of a user's own game is run.
    Its names are those in the folder, or plain ones."""
    return UNKNOWN if config is None else {each.game.full_name: _read(folder, each) for each in config.each_game}


def names_of(config: RunConfig, game: Game | None = None) -> GameNames:
    """The names of a configuration's only game. A game that cannot be loaded here, such as a user's own on another
    machine, has plain names."""
    if config.game.guesses:
        return GameNames(max_turns=config.game.max_turns)
    name = config.game.full_name
    try:
        game = game or load_game(name, config)
        first, second = game.seats
        is_exhaustive, max_turns = bool(game.is_exhaustive), game.max_turns
    except Exception:  # a user's module may raise anything, and its names are no reason to show nothing
        return plain_names(name)
    return GameNames(name, (first, second), "scenario", guesses=False, is_exhaustive=is_exhaustive, max_turns=max_turns)


def plain_names(name: str) -> GameNames:
    """The names of a game of which only its own name is known."""
    return GameNames(name, scenario="scenario", guesses=False)


def names_by_game(config: RunConfig, games: Mapping[str, Game | None] | None = None) -> NamesByGame:
    """`names_of` each game of the run. `games` as in `write_names`."""
    return {each.game.full_name: names_of(each, (games or {}).get(each.game.full_name)) for each in config.each_game}


def names_of_all(names: NamesByGame) -> GameNames:
    """Names that fit every game of a run; those of the only one, if there is one."""
    every = list(names.values())
    if len(every) == 1:
        return every[0]
    title = f"{', '.join(each.name for each in every[:-1])} and {every[-1].name}"
    return GameNames(title, ("first", "second"), "scenario", False, all(each.is_exhaustive for each in every))


def payoffs_line(config: RunConfig) -> str | None:
    """The payoffs of all rounds in one line, in a configuration of one game; None for `game.payoffs` in every round
    that pay nobody for helping.

    >>> from spag_ray.config.loading import parse_config
    >>> helping = {"right_guess": [1, 1], "cooperative": True}
    >>> phases = {"rounds": 6, "phases": [{"rounds": 2, "payoffs": helping}, {"rounds": 1}]}
    >>> told = parse_config({"self_play": phases, "objective": {"learn_from": "both"}})
    >>> payoffs_line(told)
    'rounds 1 to 2: phase 1, cooperative; rounds 3 to 6: game.payoffs'
    >>> cooperative_note(told)[:57]
    'Trained with cooperative payoffs (rounds 1 to 2): a right'
    """
    told = [f"{rounds}: {name}{', cooperative' * payoffs.rewards_helping}" for rounds, name, payoffs in _spans(config)]
    is_usual = not config.self_play.phases and not config.game.payoffs.rewards_helping
    return None if is_usual or not told else "; ".join(told)


def cooperative_note(config: RunConfig | None) -> str | None:
    """A sentence beside scores of a run, in a configuration of one game; None if no round pays the attacker for
    helping, or nobody knows."""
    spans = [] if config is None else list(_spans(config))
    helping = [rounds for rounds, _, payoffs in spans if payoffs.rewards_helping]
    if not helping:
        return None
    which = "" if len(helping) == len(spans) else f" ({', '.join(helping)})"
    return (
        f"Trained with cooperative payoffs{which}: a right guess paid the attacker at least as much as a tie. Scores, "
        "ratings and wins count it for the defender alone."
    )


def _is_kept(config: RunConfig) -> bool:
    return config.game.is_own or config.game.env is not None


def _read(folder: Path, config: RunConfig) -> GameNames:
    if not _is_kept(config):
        return names_of(config)
    plain = plain_names(config.game.full_name)
    try:
        found = names_of_seats(json.loads((folder / FILE).read_text(encoding="utf-8")), config.game.full_name)
        first, second = (str(seat)[:MAX_NAME] for seat in found["seats"])
        return replace(
            plain, seats=(first, second), is_exhaustive=bool(found["is_exhaustive"]), max_turns=int(found["max_turns"])
        )
    except (OSError, ValueError, TypeError, KeyError):
        return plain


def _spans(config: RunConfig) -> Iterator[tuple[str, str, Payoffs]]:
    """(rounds, name of their payoffs, payoffs) of rounds in a row that have the same."""

    def named(number: int) -> tuple[str, Payoffs]:
        phase = config.self_play.phase_of(number)
        name = "game.payoffs"
        if phase is not None and phase.payoffs is not None:
            name = f"phase {next(place for place, each in enumerate(config.self_play.phases, 1) if each is phase)}"
        return name, config.payoffs_of(Stage.of_round(number))

    for (name, payoffs), found in groupby(range(1, config.self_play.rounds + 1), key=named):
        numbers = list(found)
        rounds = f"rounds {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"round {numbers[0]}"
        yield rounds, name, payoffs
