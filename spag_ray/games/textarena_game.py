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
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from spag_ray.errors import ConfigError, InputError
from spag_ray.game.end_reason import MAX_LENGTH
from spag_ray.game.protocol import History, Message, Ruling, breach, tie, win
from spag_ray.games.textarena_moves import likely_moves
from spag_ray.games.textarena_table import End, Table

NUM_SEEDS = 1000
NUM_STATES = 4096  # what is remembered of positions
NUM_TABLES = 128  # environments that can be stepped at once
DEFAULT_TURNS = 50  # of each seat, in an environment without a limit of its own
# Turns of each seat after which these environments are over at the latest.
LONGEST = {
    "TicTacToe-v0": 5,
    "WildTicTacToe-v0": 5,
    "UltimateTicTacToe-v0": 41,
    "ConnectFour-v0": 21,
    "Nim-v0": 6,
    "KuhnPoker-v0": 6,
}
_PROBES = 2  # games by the scripted seats before an environment is accepted
_TWICE = "a player may have to move twice in a row ({}); only games in which the players take turns are played"
# Environments in which that happens in some games or late, so that a few games need not show it.
REFUSED: Mapping[str, str] = {
    **dict.fromkeys(("Briscola", "GermanWhist"), _TWICE.format("who wins a trick leads the next one")),
    **dict.fromkeys(("GameOfPureStrategy", "HighSociety"), _TWICE.format("the last bidder opens the next round")),
    **dict.fromkeys(("IndianPoker", "KuhnPoker", "Poker"), _TWICE.format("the cards decide who opens a round")),
    "Golf": _TWICE.format("a turn has several moves"),
    "LiarsDice": _TWICE.format("a call opens a new round"),
    "MemoryGame": _TWICE.format("after a match"),
    "Othello": _TWICE.format("a player without a move is passed over"),
    "PigDice": _TWICE.format("until it holds"),
}

_Key: TypeAlias = tuple[str, tuple[str, ...]]  # (scenario, history)


@dataclass(frozen=True)
class _State:
    """What is known after a history: the messages that the seat to move reads, or the ruling."""

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
        assert seat == len(history) % 2
        return self._replays.at(scenario, tuple(history)).messages

    def rule(self, history: History, scenario: str) -> Ruling | None:
        return self._replays.at(scenario, tuple(history)).ruling

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        """A move at random that the environment accepts, of those that its messages show or suggest; if none of them is
        accepted, any of them."""
        return self._replays.accepted_move(scenario, tuple(history), rng)


class _Replays:
    """Histories replayed through an environment. The newest states are remembered, and tables at the newest of them."""

    def __init__(self, env_id: str) -> None:
        self._env_id = env_id
        self._states: OrderedDict[_Key, _State] = OrderedDict()
        self._tables: OrderedDict[_Key, Table] = OrderedDict()

    def at(self, scenario: str, history: tuple[str, ...]) -> _State:
        key = (scenario, history)
        if (state := self._states.get(key)) is not None:
            self._states.move_to_end(key)
            return state
        table = self._table(scenario, history)
        state = _state_of(table, history)
        _remember(self._states, key, state, NUM_STATES)
        if table.end is None:
            _remember(self._tables, key, table, NUM_TABLES)
        return state

    def accepted_move(self, scenario: str, history: tuple[str, ...], rng: random.Random) -> str:
        read = self.at(scenario, history).messages
        moves = likely_moves([each["content"] for each in read if each["role"] == "user"], rng) or ["[0]"]
        table = self._table(scenario, history)
        _remember(self._tables, (scenario, history), table, NUM_TABLES)
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
    family = env_id.partition("-v0")[0]
    if family in REFUSED:
        Table(env_id, 0)  # refuses a name that is none
        raise ConfigError(f"game.env: {env_id}: {REFUSED[family]}")
    limit = Table(env_id, 0).limit
    max_turns = LONGEST.get(env_id.removesuffix("-train").removesuffix("-raw")) or limit or DEFAULT_TURNS
    draws = False
    for seed in range(_PROBES):
        replays = _Replays(env_id)
        history: tuple[str, ...] = ()
        try:
            while len(history) < 2 * max_turns:
                state = replays.at(str(seed), history)
                draws = draws or state.draws
                if state.ruling is not None:
                    break
                history = (*history, replays.accepted_move(str(seed), history, random.Random(len(history))))
        except InputError as error:
            raise ConfigError(f"game.env: {env_id}: {error}") from error
    return max_turns, not draws


def _opened(env_id: str, scenario: str) -> Table:
    if not scenario.isdecimal() or len(scenario) > 9:
        raise InputError(f"textarena:{env_id}: the scenario {scenario!r:.60} is no seed; give a number")
    return Table(env_id, int(scenario))


def _state_of(table: Table, history: tuple[str, ...]) -> _State:
    if table.end is not None:
        return _State((), _ruling(table.end, history, table), table.draws)
    if table.view is not None:
        return _State(({"role": "user", "content": table.view},), None, table.draws)
    own = history[len(history) % 2 :: 2]
    parts: list[list[str]] = [[]]
    for seen in table.seen[table.player]:
        if seen.is_own:
            parts.append([])
        else:
            parts[-1].append(f"[{seen.sender}] {seen.text.strip()}")
    # An environment that does not echo a move, or answers one with nothing, gives one message of all its texts.
    if len(parts) != len(own) + 1 or not all(parts):
        whole = "\n".join(line for part in parts for line in part)
        return _State(({"role": "user", "content": whole},), None, table.draws)
    messages: list[Message] = []
    for part, said in itertools.zip_longest(parts, own):
        messages.append({"role": "user", "content": "\n".join(part)})
        if said is not None:
            messages.append({"role": "assistant", "content": said})
    return _State(tuple(messages), None, table.draws)


def _ruling(end: End, history: tuple[str, ...], table: Table) -> Ruling:
    """The environment's rewards, by seat."""
    mover = (len(history) - 1) % 2
    payoffs = (end.rewards[table.first], end.rewards[1 - table.first])
    if end.breaker is not None and payoffs[mover] <= payoffs[1 - mover]:
        kind = "environment error" if end.is_error else "invalid move"
        return breach(mover, kind, payoffs, reason=end.reason)
    reason = " ".join(end.reason.split())[:MAX_LENGTH] or "ended"
    if payoffs[0] == payoffs[1]:
        return tie("draw", payoffs, reason)
    return win(0 if payoffs[0] > payoffs[1] else 1, "won", payoffs, reason=reason)


def _remember(found: OrderedDict[_Key, Any], key: _Key, value: object, at_most: int) -> None:
    found[key] = value
    found.move_to_end(key)
    if len(found) > at_most:
        found.popitem(last=False)
