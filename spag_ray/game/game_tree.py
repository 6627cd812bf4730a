"""A small game as a tree: what a seat can know, and how far a policy is from its optimum, exactly.

    class MyGame(TreeSolved):
        def legal(self, history, scenario): return ["high", "low"]
        ...
    MyGame().measure(probabilities)["nash_conv"]

Every scenario is as likely as any other. Two places are one to a seat, an information set, if it reads the same
messages there. A reply that is not legal has the payoffs that the game's `rule` gives it. NashConv is what a best
response gains against each seat, summed (Lanctot et al., 2017).
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from spag_ray.errors import InputError
from spag_ray.game.game_form import has_turns_left
from spag_ray.game.protocol import Decision, History, Ruling, seat_to_move

MOST_NODES = 200_000
ROUNDED = 1e-4  # records have six digits of each probability
_NOT_LEGAL = "\0"  # what nobody may say

Policy: TypeAlias = Sequence[Mapping[str, float]]  # [places] {reply: probability}
Payoffs: TypeAlias = tuple[float, float]


class TreeSolved:
    """A base for games that are small enough to be measured; Solved in protocol.py. A subclass is a Game and has
    `legal(history, scenario)`, the replies that the seat to move may give. `unit`: what a payoff of 1 is in figures."""

    unit = 1.0

    def decisions(self) -> Sequence[Decision]:
        """One for each information set, at the first history that leads to it."""
        return [place.decision for place in self._tree.places]

    def order_of(self, decision: Decision) -> tuple[int, ...]:
        """What decisions are sorted by; equal ones stay in the order in which the tree grows. For a game whose recorded
        probabilities, which are told by the number of the decision, have another order."""
        return ()

    def measure(self, probabilities: Policy) -> Mapping[str, float]:
        """`nash_conv` and `value` (of seat 0) count illegal replies as the game pays them; `legal_nash_conv` is that of
        the legal replies, renormalised. `illegal`, `worst_illegal`: mean and largest probability of illegal replies."""
        tree = self._tree
        policy = tree.policy_of(probabilities)
        illegal = [max(0.0, 1 - sum(shares.values())) for shares in policy]
        return {
            "nash_conv": self.unit * tree.nash_conv(policy),
            "legal_nash_conv": self.unit * tree.nash_conv([renormalised(shares) for shares in policy]),
            "value": self.unit * tree.values(policy)[0],
            "illegal": sum(illegal) / len(illegal),
            "worst_illegal": max(illegal),
        }

    def average(self, policies: Sequence[Policy]) -> Policy:
        """The mixture of whole policies: each weighted, at an information set, by how likely its own replies lead
        there. The plain mean where none of them does."""
        return self._tree.average(policies)

    def value_between(self, first: Policy, second: Policy) -> float:
        """What seat 0 gets on average, if the seats play different policies."""
        tree = self._tree
        one, other = tree.policy_of(first), tree.policy_of(second)
        policy = [(one, other)[place.seat][index] for index, place in enumerate(tree.places)]
        return self.unit * tree.values(policy)[0]

    @functools.cached_property
    def _tree(self) -> GameTree:
        return GameTree(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_tree"}


class _Step(NamedTuple):
    """A seat's own reply at one of its places."""

    place: int
    reply: str


@dataclass
class _Place:
    """An information set of `seat`. `own`: its replies on the way there; `nodes`: where in the tree it is."""

    decision: Decision
    seat: int
    own: tuple[_Step, ...]
    nodes: list[_Node] = field(default_factory=list)


@dataclass
class _Node:
    """A turn. `children` by reply; `forfeit`: payoffs of a reply that is not legal."""

    place: int
    children: dict[str, _Node | Payoffs]
    forfeit: Payoffs


class GameTree:
    """The tree of a game of `legal` replies. Raises InputError for one with more than MOST_NODES turns, one without
    payoffs, and one in which a seat forgets what it did."""

    def __init__(self, game: Any) -> None:
        self._game = game
        self._ids: dict[tuple[object, ...], int] = {}
        self.places: list[_Place] = []
        self.num_nodes = 0
        scenarios = game.scenarios()
        self._roots = [self._grown(scenario, (), ((), ())) for scenario in scenarios]
        self._sort()

    def _grown(self, scenario: str, history: tuple[str, ...], own: tuple[tuple[_Step, ...], ...]) -> _Node | Payoffs:
        ruling = self._game.rule(history, scenario) if history else None
        if ruling is not None:
            return self._paid(ruling)
        if not has_turns_left(self._game, history, scenario):
            return 0.0, 0.0  # as arenas end it (game_form.py)
        self.num_nodes += 1
        if self.num_nodes > MOST_NODES:
            raise InputError(
                f"{type(self._game).__name__}: more than {MOST_NODES:,} turns; it is too large to be solved"
            )
        seat = seat_to_move(self._game, history, scenario)
        place = self._place(seat, scenario, history, own[seat])
        forfeit = self._paid(self._game.rule((*history, _NOT_LEGAL), scenario))
        node = _Node(place, {}, forfeit)
        self.places[place].nodes.append(node)
        for reply in self.places[place].decision.replies:
            step = (*own[seat], _Step(place, reply))
            node.children[reply] = self._grown(
                scenario, (*history, reply), (step, own[1]) if seat == 0 else (own[0], step)
            )
        return node

    def _place(self, seat: int, scenario: str, history: History, own: tuple[_Step, ...]) -> int:
        read = self._game.messages(seat, history, scenario)
        key = (seat, *(each["content"] for each in read))
        if key not in self._ids:
            self._ids[key] = len(self.places)
            replies = tuple(self._game.legal(history, scenario))
            self.places.append(_Place(Decision(tuple(history), scenario, replies), seat, own))
        place = self.places[self._ids[key]]
        if place.own != own or place.decision.replies != tuple(self._game.legal(history, scenario)):
            raise InputError(
                f"{type(self._game).__name__}: after {list(history)} ({scenario}) a seat reads what it has read after "
                f"{list(place.decision.history)} ({place.decision.scenario}), but did other things or may do others"
            )
        return self._ids[key]

    def _sort(self) -> None:
        """Places in the game's own order (TreeSolved.order_of), and their numbers wherever one is told."""
        grown = sorted(range(len(self.places)), key=lambda index: self._game.order_of(self.places[index].decision))
        number = {index: at for at, index in enumerate(grown)}
        self.places = [self.places[index] for index in grown]
        self._ids.clear()  # numbers of before, needed no longer
        for at, place in enumerate(self.places):
            place.own = tuple(_Step(number[step.place], step.reply) for step in place.own)
            for node in place.nodes:
                node.place = at

    def _paid(self, ruling: Ruling | None) -> Payoffs:
        payoffs = None if ruling is None else ruling.payoffs
        if payoffs is None or payoffs[0] is None or payoffs[1] is None:
            raise InputError(f"{type(self._game).__name__}: an end without a payoff for each seat; it cannot be solved")
        return payoffs[0], payoffs[1]

    def policy_of(self, probabilities: Policy) -> list[dict[str, float]]:
        """The probability of every legal reply at every place. Raises ValueError for what are no probabilities."""
        found = []
        for place, shares in zip(self.places, probabilities, strict=True):
            told = {reply: shares.get(reply, 0.0) for reply in place.decision.replies}
            if not all(share >= 0 for share in told.values()) or sum(told.values()) > 1 + ROUNDED:
                raise ValueError(f"the probabilities of {place.decision} are {told}; they are from 0 to 1, 1 together")
            found.append(told)
        return found

    def values(self, policy: Policy) -> Payoffs:
        """What each seat gets on average."""
        return self._mean([self._value(root, policy, {}) for root in self._roots])

    def nash_conv(self, policy: Policy) -> float:
        """The sum of what a best response would gain, over both seats."""
        values = self.values(policy)
        return sum(self.best_response(policy, seat) - values[seat] for seat in (0, 1))

    def best_response(self, policy: Policy, seat: int) -> float:
        """The most that `seat` can get against the policy's other seat. Its last places are decided first, so that what
        follows a reply is known. It never gains by a reply that is not legal."""
        reach = self._reach(policy, seat)
        own = [index for index, place in enumerate(self.places) if place.seat == seat]
        best: dict[int, str] = {}
        for index in sorted(own, key=lambda index: -len(self.places[index].own)):
            place, gains = self.places[index], defaultdict[str, float](float)
            for node in place.nodes:
                for reply in place.decision.replies:
                    gains[reply] += reach[id(node)] * self._value(node.children[reply], policy, best)[seat]
            best[index] = max(place.decision.replies, key=lambda reply: gains[reply])
        return self._mean([self._value(root, policy, best) for root in self._roots])[seat]

    def _mean(self, payoffs: Sequence[Payoffs]) -> Payoffs:
        return sum(each[0] for each in payoffs) / len(payoffs), sum(each[1] for each in payoffs) / len(payoffs)

    def _reach(self, policy: Policy, seat: int) -> dict[int, float]:
        """{node: how likely the other seat's replies lead there}"""
        found: dict[int, float] = {}
        todo = [(root, 1.0) for root in self._roots]
        while todo:
            node, share = todo.pop()
            if isinstance(node, _Node):
                found[id(node)] = share
                is_own = self.places[node.place].seat == seat
                shares = policy[node.place]
                todo += [
                    (at, share * (1.0 if is_own else shares.get(reply, 0.0))) for reply, at in node.children.items()
                ]
        return found

    def _value(self, node: _Node | Payoffs, policy: Policy, best: Mapping[int, str]) -> Payoffs:
        """Payoffs from here on. `best`: places at which a seat gives one reply, whatever the policy is."""
        if not isinstance(node, _Node):
            return node
        if (reply := best.get(node.place)) is not None:
            return self._value(node.children[reply], policy, best)
        first = second = legal = 0.0
        for reply, child in node.children.items():
            if share := policy[node.place].get(reply, 0.0):
                found = self._value(child, policy, best)
                first, second, legal = first + share * found[0], second + share * found[1], legal + share
        rest = max(0.0, 1 - legal)
        return first + rest * node.forfeit[0], second + rest * node.forfeit[1]

    def average(self, policies: Sequence[Policy]) -> list[dict[str, float]]:
        """See TreeSolved.average."""
        found = []
        for index, place in enumerate(self.places):
            weights = [math.prod(each[step.place].get(step.reply, 0.0) for step in place.own) for each in policies]
            weights = weights if any(weights) else [1.0] * len(policies)
            pairs = list(zip(weights, policies, strict=True))
            found.append(
                {
                    reply: sum(weight * each[index].get(reply, 0.0) for weight, each in pairs) / sum(weights)
                    for reply in place.decision.replies
                }
            )
        return found


def uniform(decisions: Sequence[Decision]) -> list[dict[str, float]]:
    """The policy of a player who makes every legal reply equally often."""
    return [dict.fromkeys(each.replies, 1 / len(each.replies)) for each in decisions]


def renormalised(shares: Mapping[str, float]) -> dict[str, float]:
    """Legal replies alone; uniform where none has any probability."""
    total = sum(shares.values())
    return {reply: share / total if total else 1 / len(shares) for reply, share in shares.items()}
