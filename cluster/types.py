"""Types that several rooms of this floor share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cluster.handles import EngineHandle
from spag_ray.game.rules import Role

if TYPE_CHECKING:  # a session (console.py) imports this, and has little installed
    from actors.endpoint_policy import Endpoint
    from actors.policy import Sampling
    from spag_ray.games.taboo.decks import Deck


Says = Callable[[str, str | None], None]  # (a part of the run, what it waits for or None)


def says_nothing(part: str, what: str | None) -> None:
    """Where nobody shows it."""


@dataclass(frozen=True)
class Engine:
    """A reference to an engine: its actor's handle, and the pool (a policy's engines) that it plays in."""

    handle: EngineHandle
    name: str
    pool: str


@dataclass(frozen=True)
class Seat:
    """The player of a seat: the engines of a pool, the scripted expert (its cards), or a chat endpoint. `policy` stamps
    its turns; `model` is the folder of the tokenizer; `adapter` names the adapter of the engines that plays, or the
    player whose weights they take in turn with others'; `script`: by which of the game's strategies a scripted player
    plays, "" for the usual one."""

    pool: str
    policy: str
    sampling: Sampling
    model: str
    cards: Deck | None = None
    endpoint: Endpoint | None = None
    adapter: str | None = None
    script: str = ""


def engine_players(seats: Iterable[Seat]) -> frozenset[str]:
    """The names with which turns of engines are stamped, not those of scripted and outside players."""
    return frozenset(seat.policy for seat in seats if seat.cards is None and seat.endpoint is None)


@dataclass(frozen=True)
class NodeResources:
    """What Ray says that a node has."""

    name: str
    num_cpus: float
    num_gpus: float


@dataclass(frozen=True)
class Node:
    """One of Ray's. `object_store_bytes` is its share of the object store."""

    node_id: str
    address: str
    resources: NodeResources
    object_store_bytes: int


@dataclass(frozen=True)
class Progress:
    """What a run is doing now. `waits`: what parts of the run wait for, and for how long. `notes`: the last of
    `num_notes` lines worth showing. `seats`: what the game calls them, for the outcomes."""

    stage: str = "starting"
    done: int = 0
    total: int = 0
    unit: str = ""
    seconds: float = 0.0
    num_tokens: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    seats: tuple[str, str] = (str(Role.ATTACKER), str(Role.DEFENDER))
    loss: float | None = None
    version: int = 0
    notes: tuple[str, ...] = ()
    num_notes: int = 0
    is_paused: bool = False
    waits: tuple[str, ...] = ()
