"""TextArena's two-player environments as games (`game: {name: textarena, env: TicTacToe-v0}`).

    game = TextArenaGame("TicTacToe-v0")
    game.rule(["[4]", "[4]"], "0")       a breach: the cell is taken

A scenario is a seed of the environment. A state is the history replayed from it (textarena_table.py), so nothing has to
be saved. Rewards are the environment's. A move that it does not accept ends the game as its last allowed error does.
"""

from __future__ import annotations

import functools
import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cachetools import FIFOCache, LRUCache

from spag_ray.errors import ConfigError, InputError
from spag_ray.game.protocol import History, Message, Ruling, breach, tie, win
from spag_ray.game.rules import MAX_END_REASON
from spag_ray.games.textarena_table import End, Table

NUM_SEEDS = 1000
NUM_STATES = 4096  # what is remembered of positions
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
