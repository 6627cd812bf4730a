"""Every attacker against every defender on the same words: `spag-ray match`.

Each seat has its own engines. For the next player they load other weights if its model has the same shape and is saved
as safetensors, and are restarted if not. So only two models are in memory at a time, for any number of players; and
only one where engines take the weights of both seats in turn (evaluation.engines), which both need the same shape for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from actors.endpoint_policy import Endpoint
from actors.models import resolve_model
from cluster.fleet.publisher import Publisher
from cluster.monitor.status_board import StatusBoard
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.seating import Seating
from cluster.types import Seat
from spag_ray.config.opponents import SCRIPTED, is_url, script_of, url_fault
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, InputError, meant
from spag_ray.game.rules import Role
from spag_ray.games.registry import check_strategies, game_of
from spag_ray.results.matches import Match
from spag_ray.results.saved_models import saved_models
from spag_ray.stages import BASE, PLAYER_NAME, Stage, order_of
from spag_ray.weights.weight_files import fingerprint, is_safetensors

Models: TypeAlias = Mapping[str, Sequence[str]]  # {name of a guest: what it is as attacker, and as defender}
SHARED_POOL = "players"  # of engines that play both seats


@dataclass(frozen=True)
class Entrant:
    """A player of a tournament: a model folder, a chat endpoint, or the scripted expert (neither), with the strategy
    `script`. As defender it is `defender`, if that is there."""

    name: str
    folder: str | None = None
    endpoint: Endpoint | None = None
    script: str = ""
    defender: Entrant | None = None

    @property
    def in_seats(self) -> tuple[Entrant, Entrant]:
        """Who it is as attacker, and as defender."""
        return self, self.defender or self

    @property
    def identity(self) -> str:
        """What tells it from another player: of a folder the weights, wherever they are; of a server the model's name,
        wherever it is served."""
        if self.folder is not None:
            return fingerprint(Path(self.folder))
        if self.endpoint is not None:
            return self.endpoint.model
        return f"{SCRIPTED}:{self.script}".removesuffix(":")

    @classmethod
    def parse(cls, text: str) -> Entrant:
        """NAME=MODEL, or NAME=MODEL,MODEL of an attacker and a defender; MODEL is a folder, the built-in model's name,
        `scripted[:STRATEGY]`, or http://HOST:PORT/v1#MODEL.

        Raises ConfigError, and ModelError for a folder that holds no model.
        """
        name, equals, model = (part.strip() for part in text.partition("="))
        if not (name and equals and model):
            raise ConfigError(f"--player {text}: write it as NAME=MODEL, for example new=runs/quickstart/models/spag-2")
        if not PLAYER_NAME.fullmatch(name):
            raise ConfigError(f"--player {text}: games are kept in files of the players' names: letters, digits, . _ -")
        attacker, comma, defender = (part.strip() for part in model.partition(","))
        if comma and not Path(model).exists():
            if not (attacker and defender) or "," in defender:
                raise ConfigError(f"--player {text}: one model, or an attacker's and a defender's, as MODEL,MODEL")
            return replace(cls.parse(f"{name}={attacker}"), defender=cls.parse(f"{name}={defender}"))
        if (script := script_of(model)) is not None:
            return cls(name, script=script)
        if not is_url(model):
            return cls(name, resolve_model(model, others=[SCRIPTED]))
        if fault := url_fault(model):
            raise ConfigError(f"--player {text}: {fault}")
        return cls(name, endpoint=Endpoint.parse(model))


def entrants_of_run(folder: Path, config: RunConfig) -> list[Entrant]:
    """The model that a run of this configuration starts with, or the two of its seats, and every stage's model, or its
    two models, the oldest first; not a stage of which one of the two is missing. Raises ConfigError if there are
    none."""
    found = sorted(saved_models(folder), key=lambda path: order_of(path.name))
    if not found:
        raise ConfigError(f"{folder}: no stage's model in its models/ that could play; is it a run folder?")
    models: dict[str, list[Entrant]] = {}
    for path in found:
        name = str(Stage.parse(path.name).of_all_policies)
        models.setdefault(name, []).append(Entrant(name, str(path.resolve())))
    whole = [its for its in models.values() if its[1:] or Path(its[0].folder or "").name == its[0].name]
    stages = [replace(its[0], defender=its[1]) if its[1:] else its[0] for its in whole]
    attacker, defender = (Entrant(str(BASE), resolve_model(config.model_of(role))) for role in Role)
    return [attacker if attacker == defender else replace(attacker, defender=defender), *stages]


def check_entrants(entrants: Sequence[Entrant], against: str | None) -> None:
    """Raises ConfigError if there is no player, two have the same name, or no player is called `against`."""
    names = [entrant.name for entrant in entrants]
    twice = [name for name in names if names.count(name) > 1]
    if not names:
        raise ConfigError("no players: name some with --player NAME=MODEL, or a run's stages with --stages")
    if twice:
        raise ConfigError(f"--player {twice[0]}: two players have this name; give each player its own name")
    if against is not None and against not in names:
        told = f"--against {against}: no player of this name; there are {', '.join(names)}"
        raise ConfigError(told + meant(against, names))


def models_of(guests: Sequence[Entrant]) -> Models:
    """Of guests, as they are now: a folder may have other weights when the games have been played."""
    return {guest.name: [seat.identity for seat in guest.in_seats] for guest in guests}


def in_match(models: Models, match: Match) -> tuple[str | None, str | None]:
    """What the two players of a match are, if they are guests."""
    return models.get(match.attacker, [None])[0], models.get(match.defender, [None])[-1]


def check_models(played: Sequence[Match], models: Models, out: Path) -> None:
    """Raises InputError if a match that would not be played again had other models under the names of guests."""
    for match in played:
        for name, then, now in zip(
            (match.attacker, match.defender), match.models, in_match(models, match), strict=True
        ):
            if None not in (then, now) and then != now:
                raise InputError(
                    f"{out}: {name} was another model in the match of {match.attacker} against {match.defender}, which "
                    "is not played again; give the player another name, or another --out"
                )


def check_scripts(config: RunConfig, entrants: Sequence[Entrant]) -> None:
    """Raises ConfigError for a scripted player's strategy that a game of the configuration does not have."""
    for each in config.each_game:
        check_strategies(game_of(each), each.game.full_name, [entrant.script for entrant in entrants])


def pairings(names: Sequence[str], against: str | None = None) -> Iterator[tuple[str, str]]:
    """(attacker, defender) of every match, ordered so that seats change players as rarely as possible. With `against`:
    only the matches of that player with others, in both seats.

    >>> list(pairings("ab"))
    [('a', 'a'), ('a', 'b'), ('b', 'b'), ('b', 'a')]
    >>> list(pairings("abc", against="b"))
    [('b', 'a'), ('b', 'c'), ('c', 'b'), ('a', 'b')]
    """
    if against is not None:
        others = [name for name in names if name != against]
        yield from ((against, other) for other in others)
        yield from ((other, against) for other in reversed(others))
        return
    for row, attacker in enumerate(names):
        yield from ((attacker, defender) for defender in (names if row % 2 == 0 else reversed(names)))


class Tournament:
    """Engines are started and given models as players take their seats."""

    def __init__(
        self, config: RunConfig, matches: HeldOutMatches, publisher: Publisher, seating: Seating, status: StatusBoard
    ) -> None:
        self._matches = matches
        self._status = status
        self._seats = (_SharedSeats if config.plays_in_turn else _OwnSeats)(config, publisher, seating)

    def play(self, entrants: Sequence[Entrant], against: str | None = None) -> list[Match]:
        """`evaluation.games` of every pairing on held-out words; what has been played is not played again."""
        by_name = {entrant.name: entrant for entrant in entrants}
        self._seats.check([seat for entrant in entrants for seat in entrant.in_seats])
        for stage in [Stage.match(*names) for names in pairings(list(by_name), against)]:
            if self._matches.of(stage):
                continue
            self._status.set_status(f"{stage.title}: engines")
            attacker, defender = (by_name[name].in_seats[seat] for seat, name in enumerate(stage.seats))
            self._matches.play(*self._seats.taken_by(attacker, defender), stage)
        return self._matches.results


@dataclass(eq=False)
class _OwnSeats:
    """Engines for each seat."""

    config: RunConfig
    publisher: Publisher
    seating: Seating
    _engines: dict[Role, tuple[str, str]] = field(default_factory=dict)  # (pool, the model that it plays)
    _num_taken: Counter[Role] = field(default_factory=Counter)

    def check(self, entrants: Sequence[Entrant]) -> None:
        """Raises ConfigError, before any is played, for players that cannot meet: here any can."""

    def taken_by(self, attacker: Entrant, defender: Entrant) -> tuple[Seat, Seat]:
        first, second = map(self._seat, Role, (attacker, defender))
        return first, second

    def _seat(self, role: Role, entrant: Entrant) -> Seat:
        temperature = self.config.evaluation.temperature
        if entrant.folder is None:
            return self.seating.guest(entrant.name, entrant.endpoint, temperature, script=entrant.script)
        pool, player = self._engines_with(role, entrant.folder)
        return self.seating.engines_of(pool, str(role), entrant.folder, temperature, player)

    def _engines_with(self, role: Role, folder: str) -> tuple[str, str | None]:
        """(their pool, what requests for these weights name)"""
        pool, before = self._engines.get(role, ("", ""))
        if folder != before:
            from spag_ray.families.torch_free import shape_of

            self._num_taken[role] += 1
            number = self._num_taken[role]
            if before and shape_of(folder) == shape_of(before) and is_safetensors(Path(folder)):
                self.publisher.give(pool, {None: (folder, number)})
            else:
                if before:
                    self.publisher.fleet.remove_pool(pool)
                pool = f"{role}-{number}"
                self.publisher.fleet.start(folder, pool, str(role), self.config.engine.min_engines)
            self._engines[role] = pool, folder
        return pool, None


@dataclass(eq=False)
class _SharedSeats(_OwnSeats):
    """Engines that play both seats, with the weights of both players in turn."""

    _held: dict[str, str | None] = field(default_factory=dict)  # {model: what requests for it name}
    _num_given: int = 0

    def check(self, entrants: Sequence[Entrant]) -> None:
        """For two models of different shapes."""
        from spag_ray.families.torch_free import shape_of

        folders = [entrant.folder for entrant in entrants if entrant.folder is not None]
        for folder in folders:
            if shape_of(folder) != shape_of(folders[0]):
                raise ConfigError(
                    f"{folder} and {folders[0]} have different shapes, so one engine cannot take their weights in "
                    "turn; set evaluation.engines: own, and engine.gpu_memory_utilization so that two fit"
                )

    def taken_by(self, attacker: Entrant, defender: Entrant) -> tuple[Seat, Seat]:
        # The first one's weights are those of requests that name nobody.
        folders = dict.fromkeys(each.folder for each in (attacker, defender) if each.folder is not None)
        self._give(dict(zip(folders, (None, "other"), strict=False)))
        return super().taken_by(attacker, defender)

    def _engines_with(self, role: Role, folder: str) -> tuple[str, str | None]:
        return SHARED_POOL, self._held[folder]

    def _give(self, players: dict[str, str | None]) -> None:
        if players.keys() <= self._held.keys():
            return
        if not self._held:
            self.publisher.fleet.start(next(iter(players)), SHARED_POOL, SHARED_POOL, self.config.engine.min_engines)
        self._num_given += 1
        self.publisher.give(SHARED_POOL, {name: (folder, self._num_given) for folder, name in players.items()})
        self._held = players
