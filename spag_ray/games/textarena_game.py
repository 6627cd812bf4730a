"""TextArena's two-player environments as games (`game: {name: textarena, env: TicTacToe-v0}`).

    game = TextArenaGame("TicTacToe-v0")
    game.rule(["[4]", "[4]"], "0")       a breach: the cell is taken

A scenario is a seed of the environment. A state is the history replayed from it at a Table, so nothing has to be saved.
Rewards are the environment's. A move that it does not accept ends the game as its last allowed error does.

    table = Table("TicTacToe-v0", seed=0)
    table.step("[4]")                table.seen[1]: what Player 1 may read; table.end: how it ended, or None

TextArena's environments draw from Python's global generator. A table keeps a state of its own for it and puts the other
one back, so tables can be stepped in any order. Nothing is downloaded and no model is asked over the network: an
environment that tries to is refused.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeAlias

from cachetools import FIFOCache, LRUCache

from spag_ray.errors import ConfigError, InputError, meant
from spag_ray.game.protocol import History, Message, Ruling, breach, tie, win, zero_sum
from spag_ray.game.rules import MAX_END_REASON

REMEDY = "pip install --no-deps -r requirements/textarena.txt, or the extra `textarena`"
NUM_SEEDS = 1000
NUM_STATES = 1024  # what is remembered of positions: up to 50 KiB each, the messages of a long game
NUM_SEATS = 65536  # who moves is remembered longer: it is asked for every turn of a history
NUM_TABLES = 128  # environments that can be stepped at once
DEFAULT_TURNS = 50  # of each seat, in an environment without a limit of its own
# Turns of each seat after which these environments are over at the latest.
LONGEST = {"TicTacToe-v0": 5, "WildTicTacToe-v0": 5, "UltimateTicTacToe-v0": 41, "ConnectFour-v0": 21, "Nim-v0": 6}
LONGEST |= {"KuhnPoker-v0": 5, "GameOfPureStrategy-v0": 13, "Briscola-v0": 20, "GermanWhist-v0": 26}
_PROBES = 2  # games by the scripted seats before an environment is accepted
# Environments in which a player may move twice in a row, but in some games only or late, so that a few games need not
# show it.
_IN_A_ROW = (
    *("Briscola", "GameOfPureStrategy", "GermanWhist", "Golf", "HighSociety", "IndianPoker", "KuhnPoker", "LiarsDice"),
    *("MemoryGame", "PigDice", "Poker"),
)
NUM_VARIATIONS = 100  # of the moves that messages show
_BRACKETED = re.compile(r"\[[^\[\]\n]{1,40}\]")
_SENDER = re.compile(r"\[(GAME|Player \d+)\]")
_PART = re.compile(r"\d+|(?<![A-Za-z])[a-zA-Z](?![A-Za-z])|(?<![A-Za-z])[a-h](?=\d)")

_Key: TypeAlias = tuple[str, tuple[str, ...]]  # (scenario, history)


@dataclass(frozen=True)
class _State:
    """What is known after a history: the seat to move and the messages that it reads, or the ruling."""

    seat: int
    messages: tuple[Message, ...]
    ruling: Ruling | None
    draws: bool  # whether the environment has drawn anything from its seed


class TextArenaGame:
    """Raises ConfigError for an environment that cannot be played here. The player who moves first has seat 0."""

    seats = ("first player", "second player")

    def __init__(self, env_id: str) -> None:
        self.env_id = env_id
        self.max_turns, self.is_exhaustive = _form(env_id)
        self._replays = _Replays(env_id)

    def __reduce__(self) -> tuple[type[TextArenaGame], tuple[str]]:
        return type(self), (self.env_id,)

    def scenarios(self) -> Sequence[str]:
        """Seeds; a single one if the environment draws nothing."""
        return ["0"] if self.is_exhaustive else [str(seed) for seed in range(NUM_SEEDS)]

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        state = self._replays.at(scenario, tuple(history))
        assert seat == state.seat
        return state.messages

    def rule(self, history: History, scenario: str) -> Ruling | None:
        return self._replays.at(scenario, tuple(history)).ruling

    def to_move(self, history: History, scenario: str) -> int:
        """Whom the environment asks next. Where players choose at the same time, it asks one after the other, and tells
        the choices when it has all of them."""
        return self._replays.seat(scenario, tuple(history))

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        """A move at random that the environment accepts, of those that its messages show or suggest; if none of them is
        accepted, any of them."""
        return self._replays.accepted_move(scenario, tuple(history), rng)


class _Replays:
    """Histories replayed through an environment. The newest states are remembered, and tables at the newest of them."""

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._states: LRUCache[_Key, _State] = LRUCache(NUM_STATES)
        self._seats: FIFOCache[_Key, int] = FIFOCache(NUM_SEATS)
        self._tables: LRUCache[_Key, Table] = LRUCache(NUM_TABLES)

    def at(self, scenario: str, history: tuple[str, ...]) -> _State:
        key = (scenario, history)
        if (state := self._states.get(key)) is not None:
            return state
        table = self._table(scenario, history)
        self._states[key] = state = _state_of(table, history)
        self._seats[key] = state.seat
        if table.end is None:
            self._tables[key] = table
        return state

    def seat(self, scenario: str, history: tuple[str, ...]) -> int:
        """The seat to move."""
        seat = self._seats.get((scenario, history))
        return self.at(scenario, history).seat if seat is None else seat

    def accepted_move(self, scenario: str, history: tuple[str, ...], rng: random.Random) -> str:
        read = self.at(scenario, history).messages
        moves = likely_moves([each["content"] for each in read if each["role"] == "user"], rng) or ["[0]"]
        self._tables[scenario, history] = table = self._table(scenario, history)
        for move in moves:
            trial = table.copy()
            trial.step(move)
            if trial.end is None or trial.end.breaker is None:
                return move
        return moves[0]

    def _table(self, scenario: str, history: tuple[str, ...]) -> Table:
        """A table at this history: that of an earlier state, stepped on, or a new one."""
        for length in range(len(history), -1, -1):
            if (table := self._tables.pop((scenario, history[:length]), None)) is not None:
                break
        else:
            length, table = 0, _opened(self._env_id, scenario)
        for action in history[length:]:
            if table.end is not None:
                raise InputError(f"textarena:{self._env_id}: the game had ended before its last turn")
            table.step(action)
        return table


@functools.cache
def _form(env_id: str) -> tuple[int, bool]:
    """(turns of each seat, whether there is one scenario alone), found by playing a few games. Raises ConfigError for
    an environment that cannot be played."""
    limit = Table(env_id, 0).limit
    longest = LONGEST.get(env_id.removesuffix("-train").removesuffix("-raw"))
    draws, alternates = False, env_id.partition("-v0")[0] not in _IN_A_ROW
    for seed in range(_PROBES):
        replays = _Replays(env_id)
        history: tuple[str, ...] = ()
        try:
            while len(history) < 2 * (longest or limit or DEFAULT_TURNS):
                state = replays.at(str(seed), history)
                draws = draws or state.draws
                if state.ruling is not None:
                    break
                alternates = alternates and state.seat == len(history) % 2
                history = (*history, replays.accepted_move(str(seed), history, random.Random(len(history))))
        except InputError as error:
            raise ConfigError(f"game.env: {env_id}: {error}") from error
    if limit is not None and alternates:
        limit = limit // 2 + 1
    return longest or limit or DEFAULT_TURNS, not draws


def _opened(env_id: str, scenario: str) -> Table:
    if not scenario.isdecimal() or len(scenario) > 9:
        raise InputError(f"textarena:{env_id}: the scenario {scenario!r:.60} is no seed; give a number")
    return Table(env_id, int(scenario))


def _state_of(table: Table, history: tuple[str, ...]) -> _State:
    seat = table.seat(table.player)
    if table.end is not None:
        return _State(seat, (), _ruling(table.end, table), table.draws)
    if table.view is not None:
        return _State(seat, ({"role": "user", "content": table.view},), None, table.draws)
    own = [text for text, mover in zip(history, table.movers, strict=True) if mover == table.player]
    parts: list[list[str]] = [[]]
    for seen in table.seen[table.player]:
        if seen is None:
            parts.append([])
        else:
            parts[-1].append(seen)
    # An environment that does not echo a move, or answers one with nothing, gives one message of all its texts.
    if len(parts) != len(own) + 1 or not all(parts):
        whole = "\n".join(line for part in parts for line in part)
        return _State(seat, ({"role": "user", "content": whole},), None, table.draws)
    messages: list[Message] = []
    for part, said in itertools.zip_longest(parts, own):
        messages.append({"role": "user", "content": "\n".join(part)})
        if said is not None:
            messages.append({"role": "assistant", "content": said})
    return _State(seat, tuple(messages), None, table.draws)


def _ruling(end: End, table: Table) -> Ruling:
    """The environment's rewards, by seat."""
    mover = table.seat(table.movers[-1])
    payoffs = (end.rewards[table.first], end.rewards[1 - table.first])
    if end.breaker is not None and payoffs[mover] <= payoffs[1 - mover]:
        kind = "environment error" if end.is_error else "invalid move"
        return breach(mover, kind, payoffs, reason=end.reason)
    reason = " ".join(end.reason.split())[:MAX_END_REASON] or "ended"
    if payoffs[0] == payoffs[1]:
        return tie("draw", payoffs, reason)
    return win(0 if payoffs[0] > payoffs[1] else 1, "won", payoffs, reason=reason)


def likely_moves(messages: Sequence[str], rng: random.Random) -> list[str]:
    """Moves to try, likelier ones first: those of the last message that shows any, of earlier ones, and the same with
    other numbers and letters; a capital letter may stand for a number.

    >>> likely_moves(["Available Moves: '[0]', '[4]'"], random.Random(0))[:2]
    ['[4]', '[0]']
    """
    found: dict[str, None] = {}
    for text in reversed(messages):
        moves = list(dict.fromkeys(move for move in _BRACKETED.findall(text) if not _SENDER.fullmatch(move)))
        found |= dict.fromkeys(rng.sample(moves, len(moves)))
    every = list(found)
    for _ in range(NUM_VARIATIONS if every else 0):
        found.setdefault(_PART.sub(lambda part: _other(part[0], rng), rng.choice(every)))
    return list(found)


def _other(part: str, rng: random.Random) -> str:
    if part.isdigit():
        return str(rng.randint(0, 9 if len(part) < 2 else 30))
    return rng.choice("abcdefgh") if part.islower() else rng.choice((part, str(rng.randint(0, 5))))


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
                self.end = End(
                    zero_sum(1 - mover), f"the environment raised {type(error).__name__}", mover, is_error=True
                )
                return
            self.player = int(self._state.current_player_id)
            if is_done:
                self.end = self._ended(mover)
            elif self._state.game_info[mover].get("invalid_move"):
                # One for more than two players drops the player and plays on with the rest, here a single one.
                self.end = End(zero_sum(1 - mover), "the environment does not accept the move", mover)
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
