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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from spag_ray.errors import InputError
from spag_ray.game.game_form import asking, has_turns_left, listed
from spag_ray.game.protocol import Decision, Ruling, seat_to_move

MOST_NODES = 200_000
MOST_TURNS = 300  # of one game: the tree is walked by recursion
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
        found = []
        for place in self._tree.places:
            weights = [math.prod(each[at.number].get(reply, 0.0) for at, reply in place.own) for each in policies]
            weights = weights if any(weights) else [1.0] * len(policies)
            pairs = list(zip(weights, policies, strict=True))
            found.append(
                {
                    reply: sum(weight * each[place.number].get(reply, 0.0) for weight, each in pairs) / sum(weights)
                    for reply in place.decision.replies
                }
            )
        return found

    def value_between(self, first: Policy, second: Policy) -> float:
        """What seat 0 gets on average, if the seats play different policies."""
        tree = self._tree
        one, other = tree.policy_of(first), tree.policy_of(second)
        policy = [(one, other)[place.seat][place.number] for place in tree.places]
        return self.unit * tree.values(policy)[0]

    @functools.cached_property
    def _tree(self) -> GameTree:
        return GameTree(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_tree"}


class _Step(NamedTuple):
    """A seat's own reply at one of its places."""

    place: _Place
    reply: str


@dataclass(eq=False)
class _Place:
    """An information set of `seat`. `own`: its replies on the way there; `nodes`: where in the tree it is; `number`:
    its own among all places."""

    decision: Decision
    seat: int
    own: tuple[_Step, ...]
    nodes: list[_Node] = field(default_factory=list)
    number: int = -1


@dataclass(eq=False)
class _Node:
    """A turn. `children` by reply; `forfeit`: payoffs of a reply that is not legal."""

    place: _Place
    children: dict[str, _Node | Payoffs]
    forfeit: Payoffs


class GameTree:
    """The tree of a game of `legal` replies. Raises InputError for one with more than MOST_NODES turns, one without
    payoffs, one in which a seat forgets what it did, and what the game raises (`asking`)."""

    def __init__(self, game: Any) -> None:
        self._game = game
        self._num_nodes = 0
        found: dict[tuple[object, ...], _Place] = {}  # by the seat and what it reads
        self._roots = [self._grown(scenario, (), ((), ()), found) for scenario in listed(game)]
        self.places = sorted(found.values(), key=lambda place: game.order_of(place.decision))
        for number, place in enumerate(self.places):
            place.number = number

    def _grown(
        self,
        scenario: str,
        history: tuple[str, ...],
        own: tuple[tuple[_Step, ...], ...],
        found: dict[tuple[object, ...], _Place],
    ) -> _Node | Payoffs:
        ruling = self._asked("rule", history, scenario) if history else None
        if ruling is not None:
            return self._paid(ruling)
        if not has_turns_left(self._game, history, scenario):
            return 0.0, 0.0  # as arenas end it (game_form.py)
        self._num_nodes += 1
        if self._num_nodes > MOST_NODES or len(history) > MOST_TURNS:
            raise InputError(
                f"{type(self._game).__name__}: more than {MOST_NODES:,} turns, or {MOST_TURNS} in one game; it is too "
                "large to be solved"
            )
        with asking(self._game, "to_move", history, scenario):
            seat = seat_to_move(self._game, history, scenario)
        decision = Decision(history, scenario, tuple(self._asked("legal", history, scenario)))
        if not decision.replies or len({*decision.replies}) < len(decision.replies):
            raise InputError(
                f"{type(self._game).__name__}.legal returns {list(decision.replies)!r:.100} after {list(history)} "
                f"({scenario}); give every reply once, at least one"
            )
        key = (seat, *(each["content"] for each in self._asked("messages", history, scenario, seat)))
        place = found.setdefault(key, _Place(decision, seat, own[seat]))
        if place.own != own[seat] or place.decision.replies != decision.replies:
            raise InputError(
                f"{type(self._game).__name__}: after {list(history)} ({scenario}) a seat reads what it has read after "
                f"{list(place.decision.history)} ({place.decision.scenario}), but did other things or may do others"
            )
        node = _Node(place, {}, self._paid(self._asked("rule", (*history, _NOT_LEGAL), scenario)))
        place.nodes.append(node)
        for reply in decision.replies:
            step = (*own[seat], _Step(place, reply))
            steps = (step, own[1]) if seat == 0 else (own[0], step)
            node.children[reply] = self._grown(scenario, (*history, reply), steps, found)
        return node

    def _asked(self, method: str, history: tuple[str, ...], scenario: str, *seat: int) -> Any:
        with asking(self._game, method, history, scenario):
            return getattr(self._game, method)(*seat, history, scenario)

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
        best: dict[_Place, str] = {}
        for place in sorted(self.places, key=lambda place: -len(place.own)):
            if place.seat == seat:
                gains = dict.fromkeys(place.decision.replies, 0.0)
                for node in place.nodes:
                    for reply in gains:
                        gains[reply] += reach[node] * self._value(node.children[reply], policy, best)[seat]
                best[place] = max(gains, key=lambda reply: gains[reply])
        return self._mean([self._value(root, policy, best) for root in self._roots])[seat]

    def _mean(self, payoffs: Sequence[Payoffs]) -> Payoffs:
        return sum(each[0] for each in payoffs) / len(payoffs), sum(each[1] for each in payoffs) / len(payoffs)

    def _reach(self, policy: Policy, seat: int) -> dict[_Node, float]:
        """{node: how likely the other seat's replies lead there}"""
        found: dict[_Node, float] = {}
        todo = [(root, 1.0) for root in self._roots]
        while todo:
            node, share = todo.pop()
            if isinstance(node, _Node):
                found[node] = share
                is_own = node.place.seat == seat
                shares = policy[node.place.number]
                todo += [
                    (at, share * (1.0 if is_own else shares.get(reply, 0.0))) for reply, at in node.children.items()
                ]
        return found

    def _value(self, node: _Node | Payoffs, policy: Policy, best: Mapping[_Place, str]) -> Payoffs:
        """Payoffs from here on. `best`: places at which a seat gives one reply, whatever the policy is."""
        if not isinstance(node, _Node):
            return node
        if (reply := best.get(node.place)) is not None:
            return self._value(node.children[reply], policy, best)
        first = second = legal = 0.0
        for reply, child in node.children.items():
            if share := policy[node.place.number].get(reply, 0.0):
                found = self._value(child, policy, best)
                first, second, legal = first + share * found[0], second + share * found[1], legal + share
        rest = max(0.0, 1 - legal)
        return first + rest * node.forfeit[0], second + rest * node.forfeit[1]


def uniform(decisions: Sequence[Decision]) -> list[dict[str, float]]:
    """The policy of a player who makes every legal reply equally often."""
    return [dict.fromkeys(each.replies, 1 / len(each.replies)) for each in decisions]


def renormalised(shares: Mapping[str, float]) -> dict[str, float]:
    """Legal replies alone; uniform where none has any probability."""
    total = sum(shares.values())
    return {reply: share / total if total else 1 / len(shares) for reply, share in shares.items()}
