"""Small games of OpenSpiel, in words (`game: {name: openspiel, env: leduc_poker}`): they can be measured exactly.

    game = OpenSpielGame("leduc_poker")
    game.rule(["raise", "fold"], "0-2-4")       the first player wins

A scenario is what chance does: the outcomes of its draws, in order. A reply is the name of an action. What a player
reads is told from OpenSpiel's information state alone, so it has nothing that the player must not know.
"""

from __future__ import annotations

import functools
import random
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from spag_ray.errors import ConfigError, InputError, extra, meant
from spag_ray.game.game_tree import MOST_NODES, TreeSolved
from spag_ray.game.protocol import MAX_PAYOFF, History, Message, Ruling, breach, tie, win, zero_sum

NO_CHANCE = "start"  # the scenario of a game without chance
NUM_STATES = 4096  # what is remembered of positions
CFR_ITERATIONS = 300  # NashConv of Leduc 0.005: 7 s of one core, once in a process
MCTS_SIMULATIONS = 200
_DEALS_ANEW = ("kuhn_poker", "leduc_poker")  # OpenSpiel's ResampleFromInfostate, which other games here lack
_RANKS = ("Jack", "Queen", "King")
_BID = re.compile(r"\[P\d\]Bid: ")


@dataclass(frozen=True)
class Wording:
    """`rules`: what both players read first. `seen`: what a player knows, from its information state and its seat.
    `tells_moves`: whether a player hears the other one's moves; else `seen` says what becomes known of them."""

    rules: str
    seen: Callable[[str, int], str]
    tells_moves: bool = True


def _leduc(information: str, _: int) -> str:
    own, table = (re.search(rf"{name}: (\d)", information) for name in ("Private", "Public"))
    assert own is not None
    shown = f"; on the table is the {_RANKS[int(table[1]) // 2]}" if table else ""
    return f"You have the {_RANKS[int(own[1]) // 2]}{shown}"


def _goofspiel(information: str, seat: int) -> str:
    found = {key: value.split() for key, _, value in (line.partition(":") for line in information.splitlines())}
    *_, prize = found["Point card sequence"]
    before = {str(seat): "You won. ", str(1 - seat): "The other player won. "}
    last = "".join(before.get(winner, "Nobody won. ") for winner in found["Win sequence"][-1:])
    return f"{last}The prize is {prize}; your cards are {' '.join(found[f'P{seat} hand'])}"


WORDINGS = {
    "kuhn_poker": Wording(
        "Kuhn poker, one chip each: the King beats the Queen, the Queen beats the Jack. To pass after a bet is to "
        "fold.",
        lambda information, _: f"You have the {_RANKS[int(information[0])]}",
    ),
    "leduc_poker": Wording(
        "Leduc poker, two rounds of bets: a card like the one on the table wins; else the King beats the Queen, the "
        "Queen beats the Jack.",
        _leduc,
    ),
    "liars_dice": Wording(
        "Liar's dice. The bid 2-3 says that at least two of all dice show a three or the highest number, which counts "
        "as any. Bid more, or say liar.",
        lambda information, _: f"You rolled {' '.join(information.split()[0])}",
    ),
    "goofspiel": Wording(
        "Goofspiel. For each prize both players play a card in secret; the higher one wins it. Most points win.",
        _goofspiel,
        tells_moves=False,
    ),
}


class OpenSpielGame(TreeSolved):
    """Raises ConfigError for an environment that cannot be played here. Payoffs are OpenSpiel's, made smaller where
    more than 2 can be won; figures are in OpenSpiel's own. A reply that is not legal loses the most that can be
    lost."""

    seats = ("first player", "second player")
    is_exhaustive = True

    def __init__(self, env: str, strategy: str | None = None) -> None:
        self.env, self._strategy = env, strategy
        self._table = _table_of(env)
        self.unit = max(1.0, self._table.most / MAX_PAYOFF)
        self.max_turns = self._table.max_turns

    def __reduce__(self) -> tuple[type[OpenSpielGame], tuple[str, str | None]]:
        return type(self), (self.env, self._strategy)

    @property
    def strategies(self) -> Sequence[str]:
        """`cfr`: the average of CFR+ (Tammelin, 2014); `mcts`: information-set MCTS (Cowling et al., 2012), in games
        whose hidden cards OpenSpiel can deal anew."""
        return ("cfr", "mcts") if self._table.deals_anew else ("cfr",)

    def with_strategy(self, name: str) -> OpenSpielGame:
        assert name in self.strategies
        return type(self)(self.env, name)

    def scenarios(self) -> Sequence[str]:
        return self._table.scenarios

    def to_move(self, history: History, scenario: str) -> int:
        return int(self._at(history, scenario).current_player())

    def legal(self, history: History, scenario: str) -> Sequence[str]:
        return list(_actions(self._at(history, scenario)))

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        """Before each turn what the other player did, what is known now, and what can be done."""
        wording, heard, messages = self._table.wording, [self._table.wording.rules], list[dict[str, str]]()
        for place in range(len(history) + 1):
            state = self._at(history[:place], scenario)
            is_own = state.current_player() == seat
            if is_own:
                known = wording.seen(state.information_state_string(seat), seat)
                asked = f"{known}. {_listed(list(_actions(state)))}?"
                messages.append({"role": "user", "content": "\n".join([*heard, asked])})
                heard = []
            if place < len(history):
                if is_own:
                    messages.append({"role": "assistant", "content": history[place]})
                elif wording.tells_moves:
                    heard.append(f"The other player: {history[place]}")
        return messages

    def rule(self, history: History, scenario: str) -> Ruling | None:
        *before, said = history
        state = self._at(before, scenario)
        mover = int(state.current_player())
        if said not in _actions(state):
            payoffs = zero_sum(1 - mover, self._table.most / self.unit)
            return breach(mover, "illegal move", payoffs, reason=f"{_listed(list(_actions(state)))} was expected")
        state = self._at(history, scenario)
        if not state.is_terminal():
            return None
        first, second = (float(each) / self.unit for each in state.returns())
        if first == second:
            return tie("draw", (first, second))
        return win(0 if first > second else 1, "fold" if said == "fold" else "won", (first, second))

    def hidden(self, seat: int, scenario: str) -> Sequence[str]:
        """What the other player knows at first, unless it is the same."""
        state = self._at((), scenario)
        own, other = (self._table.wording.seen(state.information_state_string(each), each) for each in (seat, 1 - seat))
        return [] if own == other or not self._table.wording.tells_moves else [f"{other}."]

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        """A legal move at random, so that imitation teaches how to speak and not how to play; or by a strategy."""
        state = self._at(history, scenario)
        names = {action: name for name, action in _actions(state).items()}
        if self._strategy == "mcts":
            return names[self._table.searched(state, rng)]
        shares = [1.0] * len(names) if self._strategy is None else self._table.equilibrium(state, names)
        return rng.choices(list(names.values()), shares)[0]

    def _at(self, history: History, scenario: str) -> Any:
        return self._table.at(tuple(history), scenario)


def _listed(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _actions(state: Any) -> dict[str, int]:
    """{name: action} of the player to move."""
    player = state.current_player()
    return {_BID.sub("", state.action_to_string(player, each)).lower(): each for each in state.legal_actions()}


class _Table:
    """A game of OpenSpiel that is small enough, and its states."""

    def __init__(self, spiel: Any, game: Any, wording: Wording) -> None:
        self.wording = wording
        self.most = float(max(game.max_utility(), -game.min_utility()))
        self._spiel, self._game = spiel, game
        self.max_turns, self._num_states = 0, 0
        self._lock, self._solved = threading.Lock(), None
        found = dict(self._draws(game.new_initial_state(), "", 1.0, (0, 0)))
        if not found:
            raise InputError("it has no end")
        whole = {key: share for key, share in found.items() if not any(each.startswith(f"{key}-") for each in found)}
        if max(whole.values()) - min(whole.values()) > 1e-9:
            raise InputError("its chance events are not all equally likely")
        self.scenarios = sorted(key or NO_CHANCE for key in whole)
        self.at = functools.lru_cache(NUM_STATES)(self._at)
        self.deals_anew = game.get_type().short_name in _DEALS_ANEW

    def _draws(self, state: Any, drawn: str, share: float, turns: tuple[int, int]) -> Iterator[tuple[str, float]]:
        """(what chance did, how likely it is) of every end."""
        self._num_states += 1
        if self._num_states > MOST_NODES:
            raise InputError(f"it has more than {MOST_NODES:,} states; choose smaller parameters")
        if state.is_terminal():
            self.max_turns = max(self.max_turns, *turns)
            yield drawn, share
        elif state.is_chance_node():
            for outcome, probability in state.chance_outcomes():
                key = f"{drawn}-{outcome}" if drawn else str(outcome)
                yield from self._draws(state.child(outcome), key, share * probability, turns)
        else:
            player = state.current_player()
            more = (turns[0] + (player == 0), turns[1] + (player == 1))
            for action in state.legal_actions():
                yield from self._draws(state.child(action), drawn, share, more)

    def equilibrium(self, state: Any, actions: Iterable[int]) -> list[float]:
        """How likely each of these actions is at the average of CFR+."""
        found = self._average.action_probabilities(state)
        return [found.get(action, 0.0) for action in actions]

    @property
    def _average(self) -> Any:
        """Computed once, for the first who asks; the others wait."""
        with self._lock:
            if self._solved is None:
                solver = self._spiel.CFRPlusSolver(self._game)
                for _ in range(CFR_ITERATIONS):
                    solver.evaluate_and_update_policy()
                self._solved = solver.tabular_average_policy()  # the other one is lost with its solver
            return self._solved

    def searched(self, state: Any, rng: random.Random) -> int:
        """What the search prefers."""
        bot = self._spiel.ISMCTSBot(
            seed=rng.randrange(2**31),
            evaluator=self._spiel.RandomRolloutEvaluator(1, rng.randrange(2**31)),
            uct_c=2 * self.most,
            max_simulations=MCTS_SIMULATIONS,
            final_policy_type=self._spiel.ISMCTSFinalPolicyType.MAX_VISIT_COUNT,
        )
        return int(bot.step(state))

    def _at(self, history: tuple[str, ...], scenario: str) -> Any:
        """The state after these moves, all legal, and the draws that follow them. Not to be changed."""
        outcomes = [] if scenario == NO_CHANCE else scenario.split("-")
        if history:
            before = self.at(history[:-1], scenario)
            state = before.child(_actions(before)[history[-1]])
        else:
            state = self._game.new_initial_state()
        while state.is_chance_node():
            depth = sum(item.player < 0 for item in state.full_history())
            if depth >= len(outcomes) or outcomes[depth] not in {str(each) for each, _ in state.chance_outcomes()}:
                raise InputError(
                    f"the scenario {scenario!r:.60} is no draw of this game, such as {self.scenarios[0]!r}"
                )
            state = state.child(int(outcomes[depth]))
        return state


@functools.cache
def _table_of(env: str) -> _Table:
    try:
        import pyspiel
    except ImportError as error:
        raise ConfigError(f"game.env: {env}: openspiel is not installed; {extra('openspiel')}") from error
    name = env.partition("(")[0]
    if name not in WORDINGS:
        raise ConfigError(
            f"game.env: {env} has no words here; there are {', '.join(WORDINGS)}, each with parameters in brackets"
            f"{meant(name, WORDINGS)}"
        )
    try:
        game = pyspiel.load_game(env)
        if name == "goofspiel" and not game.get_parameters().get("imp_info", False):
            raise InputError("both hands are known in it, and nothing tells them; set imp_info=True")
        if game.get_type().dynamics != pyspiel.GameType.Dynamics.SEQUENTIAL:
            game = pyspiel.convert_to_turn_based(game)
        if game.num_players() != 2:
            raise InputError(f"it has {game.num_players()} players; a game has two")
        return _Table(pyspiel, game, WORDINGS[name])
    except (InputError, RuntimeError) as error:  # pyspiel's error is a RuntimeError
        raise ConfigError(f"game.env: {env}: {' '.join(str(error).split())}") from error
