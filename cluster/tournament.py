"""Every attacker against every defender on the same words: `spag-ray match`.

Each seat has engines of its own. From match to match they are given other weights where the next player is of the same
shape, and are started anew where it is not, so two models are in memory at a time, however many players there are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from actors.endpoint_policy import Endpoint
from actors.models import resolve_model
from actors.policy import Sampling
from cluster.arena_actor import Engine, Seat
from cluster.runtime import get
from spag_ray.errors import ConfigError
from spag_ray.game import Role
from spag_ray.matches import Match
from spag_ray.stages import order_of

if TYPE_CHECKING:
    from cluster.run import Run

SCRIPTED = "scripted"
# What a model's config.json says of where it came from, not of its shape.
_NOT_SHAPE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache")


_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Entrant:
    """A player of a tournament: a model folder, a chat endpoint, or the scripted expert (neither)."""

    name: str
    folder: str | None = None
    endpoint: Endpoint | None = None

    @classmethod
    def parse(cls, text: str) -> Entrant:
        """NAME=MODEL; MODEL is a folder, the built-in model's name, `scripted`, or http://HOST:PORT/v1#MODEL.

        Raises ConfigError, and ModelError for a folder that holds no model.
        """
        name, equals, model = (part.strip() for part in text.partition("="))
        if not (name and equals and model):
            raise ConfigError(f"--player {text}: write it as NAME=MODEL, for example new=runs/quickstart/models/spag-2")
        if not _NAME.fullmatch(name):
            raise ConfigError(f"--player {text}: games are kept in files of the players' names: letters, digits, . _ -")
        if model == SCRIPTED:
            return cls(name)
        if not model.startswith(("http://", "https://")):
            return cls(name, resolve_model(model))
        url, hash_sign, served = model.partition("#")
        if not (hash_sign and served):
            raise ConfigError(
                f"--player {text}: which of the server's models? Write http://HOST:PORT/v1#MODEL, with the name that "
                f"{url.rstrip('/')}/models lists"
            )
        return cls(name, endpoint=Endpoint(url.rstrip("/"), served))


def entrants_of_run(folder: Path, base: str) -> list[Entrant]:
    """The base model and every stage's model of a run of one policy, the oldest first. Raises ConfigError where there
    are none."""
    stages = [path for path in (folder / "models").glob("*") if (path / "config.json").is_file()]
    if not stages:
        raise ConfigError(f"{folder}: no stage's model in its models/ that could play; is it a run folder?")
    order = sorted(stages, key=lambda path: order_of(path.name))
    return [Entrant("base", resolve_model(base)), *(Entrant(path.name, str(path.resolve())) for path in order)]


def check_entrants(entrants: Sequence[Entrant], against: str | None) -> None:
    """Raises ConfigError where nobody plays, two have one name, or `against` is nobody's."""
    names = [entrant.name for entrant in entrants]
    twice = [name for name in names if names.count(name) > 1]
    if not names:
        raise ConfigError("nobody plays: name players with --player NAME=MODEL, or a run's stages with --stages")
    if twice:
        raise ConfigError(f"--player {twice[0]}: two players have this name; give each one of its own")
    if against is not None and against not in names:
        raise ConfigError(f"--against {against}: no player of this name; there are {', '.join(names)}")


def pairings(names: Sequence[str], against: str | None = None) -> Iterator[tuple[str, str]]:
    """(attacker, defender): all, each seat's next differing from its last as seldom as can be; or those alone in which
    `against` plays another, in both seats.

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


def play_tournament(run: Run, entrants: Sequence[Entrant], against: str | None = None) -> list[Match]:
    """The run's `evaluation.games` of every pairing on its held-out words; what it has played is not played again."""
    by_name = {entrant.name: entrant for entrant in entrants}
    seats = {role: _SeatOfMany(run, role) for role in Role}
    for attacker, defender in pairings(list(by_name), against):
        names = (attacker, defender)
        if any((match.attacker, match.defender) == names for match in run.results):
            continue
        run.say(f"{attacker} v {defender}: engines")
        first, second = (seats[role].taken_by(by_name[name]) for role, name in zip(Role, names, strict=True))
        run.evaluate(first, second, f"match-{attacker}-{defender}", names)
    return run.results


class _SeatOfMany:
    """One seat, and the engines that play it for whoever's turn it is."""

    def __init__(self, run: Run, role: Role) -> None:
        self._run = run
        self._role = str(role)
        self._pool = ""
        self._engines: list[Engine] = []
        self._folder: str | None = None
        self._num_taken = 0

    def taken_by(self, entrant: Entrant) -> Seat:
        run = self._run
        temperature = run.config.evaluation.temperature
        if entrant.folder is not None:
            self._give_engines(entrant.folder)
            return run.seat(self._pool, self._role, entrant.folder, temperature)
        sampling = Sampling(temperature, run.config.sampling.max_new_tokens)
        cards = None if entrant.endpoint else run.cards
        return Seat(entrant.name, entrant.name, sampling, run.model, cards, entrant.endpoint)

    def _give_engines(self, folder: str) -> None:
        if folder == self._folder:
            return
        run = self._run
        self._num_taken += 1
        if self._folder is not None and shape_of(folder) == shape_of(self._folder):
            get([engine.handle.load_saved.remote(folder, self._num_taken) for engine in self._engines])
            for engine in self._engines:
                run.engines.gave(engine, folder, self._num_taken)
        else:
            for engine in self._engines:
                run.engines.remove(engine.name)
            self._pool = f"{self._role}-{self._num_taken}"
            self._engines = run.engines.start(folder, self._pool, self._role, run.config.engine.num_engines)
        self._folder = folder


def shape_of(folder: str) -> str:
    """What engines of two models have to share for one to take the other's weights."""
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    return json.dumps({key: value for key, value in config.items() if key not in _NOT_SHAPE}, sort_keys=True)
