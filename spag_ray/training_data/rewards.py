"""Rewards of each turn of a decided game (method.md, "Rewards")."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from spag_ray.config.parts import Payoffs, SeatPayoffs
from spag_ray.episodes.formats import Row
from spag_ray.errors import InputError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict, next_role
from spag_ray.games.taboo.referee.judge import judge

STD_EPSILON = 1e-6
# (texts before the turn, role of the turn, target word, max turns) -> the player's prompt text.
RenderQuery = Callable[[Sequence[str], Role, str, int], str]


def decayed_shares(num_turns: int, decay: float) -> list[float]:
    """[num_turns] decay^-t / sum_i decay^-i for t = 1..num_turns: they sum to 1 and later turns get more."""
    if not 0 < decay <= 1:
        raise InputError(f"the decay is {decay}; it must be above 0 and at most 1 (the published value is 0.8)")
    # Numerator and denominator are multiplied by decay^num_turns, so a small decay cannot overflow.
    raw = [decay ** (num_turns - t) for t in range(1, num_turns + 1)]
    total = sum(raw)
    return [value / total for value in raw]


def role_weights(num_attacker_wins: int, num_defender_wins: int, cap: float | None = None) -> dict[Role, float]:
    """decided / (2 * games the role won), 0 if it won none, at most `cap`: each role counts one half."""
    decided = num_attacker_wins + num_defender_wins
    wins = {Role.ATTACKER: num_attacker_wins, Role.DEFENDER: num_defender_wins}
    weights = {role: decided / (2 * count) if count else 0.0 for role, count in wins.items()}
    return weights if cap is None else {role: min(weight, cap) for role, weight in weights.items()}


class RoleWindow:
    """Winners of the last `size` decided games of a stream, because one batch may hold few wins of one role. `winners`:
    one letter each, oldest first: "a" for attacker, "d" for defender."""

    def __init__(self, size: int, winners: str = "") -> None:
        self._size = size
        self.winners = winners

    def weights(
        self, winners: Sequence[Role | None], cap: float | None = None, is_new: Sequence[bool] | None = None
    ) -> dict[Role, float]:
        """Add the winners of a batch, in order (None for a tie). Returns the role weights over the last `size` games,
        at least over the whole batch. `is_new`: for each of these games, whether it is to be added; a game that was
        added before is not (None: all are new)."""
        letters = [str(winner)[0] if winner is not None else "" for winner in winners]
        batch = "".join(letters)
        added = batch if is_new is None else "".join(itertools.compress(letters, is_new))
        self.winners = (self.winners + added)[-max(self._size, len(batch), 1) :]
        # A repeated win may be older than the window. Its role would weigh nothing if no newer game was won by it.
        known = self.winners + "".join(letter for letter in batch if letter not in self.winners)
        return role_weights(known.count("a"), known.count("d"), cap)


Results = Mapping[Role, float | None]  # a game's payoff of each role; None: not trained on


def paid(payoffs: Payoffs, verdict: Verdict) -> Results:
    """The payoff of each role in a game with this verdict: what the game paid, or, in Adversarial Taboo, what `payoffs`
    says. None for both if a full context ended the game.

    >>> paid(Payoffs(wrong_guess=(0.5, -1)), Verdict(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS, 2, "", 1, None))
    {<Role.ATTACKER: 'attacker'>: 0.5, <Role.DEFENDER: 'defender'>: -1.0}
    """
    attacker, defender = verdict.payoffs or _entry(payoffs, verdict)
    return {Role.ATTACKER: attacker, Role.DEFENDER: defender}


def _entry(payoffs: Payoffs, verdict: Verdict) -> SeatPayoffs:
    match verdict.outcome:
        case Outcome.ATTACKER_WINS:
            return payoffs.trap if verdict.end_reason is EndReason.SAID_WORD else payoffs.wrong_guess
        case Outcome.DEFENDER_WINS:
            return payoffs.right_guess
        case Outcome.ATTACKER_BREACH:
            return payoffs.attacker_breach
        case Outcome.DEFENDER_BREACH:
            return payoffs.defender_breach
    return (None, None) if verdict.end_reason is EndReason.CONTEXT_FULL else payoffs.tie


class RoleBaselines:
    """The moving average of each role's payoffs over its games."""

    def __init__(self, decay: float = 0.95) -> None:
        self.values = dict.fromkeys(Role, 0.0)
        self._decay = decay

    def update(self, results: Sequence[Results]) -> None:
        """Add the payoffs of games, in order."""
        for game in results:
            for role, value in game.items():
                if value is not None:
                    self.values[role] += (1 - self._decay) * (value - self.values[role])


class MeanPayoffs:
    """The mean payoff of each role over the games that paid it. `by_scenario`: over those of them with the same word or
    scenario, where there are at least two."""

    def __init__(self, by_scenario: bool = False) -> None:
        self._by_scenario = by_scenario
        self._paid: dict[tuple[str | None, Role], list[float]] = defaultdict(list)  # by scenario, None for all

    def add(self, scenario: str, results: Results) -> None:
        """Add a game."""
        for role, value in results.items():
            if value is not None:
                for group in {None, scenario if self._by_scenario else None}:
                    self._paid[group, role].append(value)

    def expected(self, scenario: str) -> dict[Role, float]:
        """What a game of this scenario pays each role on average; 0 where no game paid."""
        means = {}
        for role in Role:
            own, every = (self._paid.get((group, role), [0.0]) for group in (scenario, None))
            paid_to = own if len(own) > 1 else every
            means[role] = sum(paid_to) / len(paid_to)
        return means


def deviations(compared: Iterable[tuple[Results, Mapping[Role, float]]]) -> dict[Role, float]:
    """What `objective.baseline_std: batch` divides each role's R - b by: {role: s + 1e-6}, with

        s = sqrt(mean (R - b)^2)

    over the games that paid the role R where b was expected. With `baseline: mean` it is the standard deviation of R,
    with `scenario` that within scenarios. It is taken from 0 and not from the mean of R - b, so that results that are
    all alike, and not what a moving average expected, become 1 or -1 and not huge.

    >>> half = {Role.ATTACKER: 0.5}
    >>> found = deviations([({Role.ATTACKER: 1.0}, half), ({Role.ATTACKER: -1.0}, half)])
    >>> round(found[Role.ATTACKER] ** 2, 3)
    1.25
    """
    squares: dict[Role, list[float]] = {role: [] for role in Role}
    for results, expected in compared:
        for role, value in results.items():
            if value is not None:
                squares[role].append((value - expected[role]) ** 2)
    return {role: math.sqrt(math.fsum(own) / max(1, len(own))) + STD_EPSILON for role, own in squares.items()}


def assign_rewards(
    episodes: Sequence[Mapping[str, Any]], decay: float = 0.8, rules: str = "published"
) -> list[dict[str, Any]]:
    """Games of the published format -> samples {target, reward, role, weight}, by game, then by turn.

    Turns after the deciding one are not trained on. See to_samples for samples with their query.
    """
    return [sample for _, _, sample in rewarded_turns(episodes, decay, rules)]


def rewarded_turns(
    episodes: Sequence[Mapping[str, Any]], decay: float, rules: str
) -> list[tuple[int, int, dict[str, Any]]]:
    """(index of the game, index of the turn, sample) for every turn that is trained on."""
    verdicts = [judge(game["history"], game["target_word"], game["max_turns"], rules) for game in episodes]
    winners = [verdict.outcome.winner for verdict in verdicts]
    weights = role_weights(winners.count(Role.ATTACKER), winners.count(Role.DEFENDER))
    rewarded = []
    for number, (game, verdict, winner) in enumerate(zip(episodes, verdicts, winners, strict=True)):
        if winner is None:
            continue
        indices = [index for index in range(verdict.length) if next_role(index) is winner]
        for index, share in zip(indices, decayed_shares(len(indices), decay), strict=True):
            target = game["history"][index]["content"].strip()
            sample = {"target": target, "reward": share, "role": str(winner), "weight": weights[winner]}
            rewarded.append((number, index, sample))
    return rewarded


def to_samples(games: Sequence[Mapping[str, Any]], decay: float, rules: str, render_query: RenderQuery) -> list[Row]:
    """Games -> training rows with the query that the turn's player read; empty turns are left out."""
    rows = []
    for number, index, sample in rewarded_turns(games, decay, rules):
        if sample["target"]:
            game = games[number]
            texts = [turn["content"] for turn in game["history"][:index]]
            query = render_query(texts, Role(sample["role"]), game["target_word"], game["max_turns"])
            rows.append({"query": query, **sample})
    return rows
