"""One game of a TextArena environment that is being played: made from a seed, stepped, read.

    table = Table("TicTacToe-v0", seed=0)
    table.step("[4]")               table.seen[1]: what Player 1 may read; table.end: how it ended, or None

TextArena's environments draw from Python's global generator. A table keeps a state of its own for it and puts the other
one back, so tables can be stepped in any order. Nothing is downloaded and no model is asked over the network: an
environment that tries to is refused.
"""

from __future__ import annotations

import contextlib
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from spag_ray.errors import ConfigError, InputError, meant

REMEDY = "pip install --no-deps -r requirements/textarena.txt, or the extra `textarena`"


@dataclass(frozen=True)
class End:
    """How an environment ended. `rewards` of players 0 and 1; `breaker`: the player whose move it did not accept."""

    rewards: tuple[float, float]
    reason: str
    breaker: int | None = None
    is_error: bool = False  # the environment raised on the move


class Table:
    """`seen`: the messages to each player so far, None for its own. `view`: what the environment's own wrapper makes of
    them for the player to move, if that wrapper leaves something out (`-train`); else None. `first`, `player`: who
    moved first and has seat 0, and who moves next. `movers`: who has moved, in order.

    Raises ConfigError for an environment that is not there or cannot be played.
    """

    def __init__(self, env_id: str, seed: int) -> None:
        self.env_id = env_id
        self.seen: tuple[list[str | None], list[str | None]] = ([], [])
        self.view: str | None = None
        self.end: End | None = None
        self.movers: list[int] = []
        self._seeded = self._random = random.Random(seed).getstate()
        textarena = _textarena(env_id)
        with self._own_random(), _offline():
            try:
                self._env = textarena.make(env_id)
                self._env.reset(num_players=2, seed=seed)
                *wrappers, innermost = _layers(self._env, textarena)
                self._state = innermost.state
                self._state.error_allowance = 0  # else a player repeats its turn, and nothing is lost
                self.first = self.player = int(self._state.current_player_id)
            except Exception as error:
                raise ConfigError(f"game.env: {env_id}: {_why_not(error)}") from error
            # The observation wrapper that leaves messages out; None if the players read all messages.
            reads_all = textarena.wrappers.LLMObservationWrapper
            readers = (each for each in wrappers if isinstance(each, textarena.ObservationWrapper))
            self._wrapper = next((each for each in readers if not isinstance(each, reads_all)), None)
            self._read()

    @property
    def draws(self) -> bool:
        """Whether anything was drawn from the seed so far."""
        return self._random != self._seeded

    @property
    def limit(self) -> int | None:
        """Turns of both players together after which the environment ends by itself."""
        turns = self._state.max_turns
        return None if turns is None else int(turns)

    def seat(self, player: int) -> int:
        return int(player != self.first)

    def copy(self) -> Table:
        """The same game, to be stepped on its own."""
        return copy.deepcopy(self, {id(each): each for each in (self._random, self._seeded)})

    def step(self, action: str) -> None:
        assert self.end is None
        mover = self.player
        self.movers.append(mover)
        with self._own_random(), _offline():
            try:
                is_done, _ = self._env.step(action)
            except ConfigError as error:
                raise InputError(f"textarena:{self.env_id}: {error}") from error
            except Exception as error:  # hostile texts, such as numbers with more digits than int() reads
                self.end = End(_lost_by(mover), f"the environment raised {type(error).__name__}", mover, is_error=True)
                return
            self.player = int(self._state.current_player_id)
            if is_done:
                self.end = self._ended(mover)
            elif self._state.game_info[mover].get("invalid_move"):
                # One for more than two players drops the player and plays on with the rest, here a single one.
                self.end = End(_lost_by(mover), "the environment does not accept the move", mover)
            self._read()

    def _read(self) -> None:
        names = self._state.role_mapping
        for player in (0, 1):
            if self._wrapper is not None and player != self.player:
                continue  # the wrapper is to take these messages itself
            for sender, text, _ in self._state.observations[player]:
                name = "GAME" if sender == -1 else names.get(sender, f"Player {sender}")
                self.seen[player].append(None if sender == player else f"[{name}] {text.strip()}")
            if self._wrapper is None:
                self._state.observations[player] = []
        if self._wrapper is not None and self.end is None:
            self.view = str(self._wrapper.get_observation()[1]).strip()

    def _ended(self, mover: int) -> End:
        rewards, info = self._env.close()
        if not isinstance(rewards, dict) or set(rewards) != {0, 1}:
            raise InputError(f"textarena:{self.env_id}: its rewards are {rewards!r:.60}, not one of each player")
        told = info.get(mover, {})
        breaker = mover if told.get("invalid_move") else None
        return End((float(rewards[0]), float(rewards[1])), str(told.get("reason") or "the game has ended"), breaker)

    @contextlib.contextmanager
    def _own_random(self) -> Iterator[None]:
        outer = random.getstate()
        random.setstate(self._random)
        try:
            yield
        finally:
            self._random = random.getstate()
            random.setstate(outer)


def _lost_by(player: int) -> tuple[float, float]:
    return (-1.0, 1.0) if player == 0 else (1.0, -1.0)


def _textarena(env_id: str) -> Any:
    try:
        import textarena
    except ImportError as error:
        raise ConfigError(f"game.name: textarena: it cannot be imported ({error}); {REMEDY}") from error
    known = textarena.envs.registration.ENV_REGISTRY
    if env_id not in known:
        raise ConfigError(
            f"game.env: {env_id} is no environment of textarena {textarena.__version__}; docs/appendix/textarena.md "
            f"lists them{meant(env_id, known)}"
        )
    return textarena


@contextlib.contextmanager
def _offline() -> Iterator[None]:
    """Downloads of word lists and models behind an interface raise, before they open a connection."""
    import nltk
    import textarena

    def download(*_: object, **__: object) -> NoReturn:
        raise ConfigError("it downloads word lists (nltk); games are played without network")

    def ask(*_: object, **__: object) -> NoReturn:
        raise ConfigError("it asks a language model over the network (OpenRouter)")

    was = nltk.download, textarena.agents.OpenRouterAgent
    nltk.download, textarena.agents.OpenRouterAgent = download, ask
    try:
        yield
    finally:
        nltk.download, textarena.agents.OpenRouterAgent = was


def _layers(env: Any, textarena: Any) -> Iterator[Any]:
    """The wrappers, the outermost first, and the environment itself."""
    yield env
    while isinstance(env, textarena.Wrapper):
        env = env.env
        yield env


def _why_not(error: Exception) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    text = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return f"its code is no Python of this version ({text})"
    if isinstance(error, FileNotFoundError):
        return "a data file of it is missing in the package"
    if isinstance(error, ImportError):
        return f"a module of it is missing ({text:.80})"
    return f"it is not for two players ({type(error).__name__}: {text:.80})"
