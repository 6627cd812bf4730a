"""What each turn of a decided game is worth (method.md, "Rewards").

>>> [round(share, 3) for share in decayed_shares(3, 0.8)]
[0.262, 0.328, 0.41]
>>> weights = role_weights(num_attacker_wins=3, num_defender_wins=1)
>>> round(weights[Role.ATTACKER], 3), weights[Role.DEFENDER]
(0.667, 2.0)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from spag_ray.errors import InputError
from spag_ray.game.referee.judge import judge
from spag_ray.game.rules import Outcome, Role, next_role


def decayed_shares(num_turns: int, decay: float) -> list[float]:
    """[num_turns] decay^-t / sum_i decay^-i for t = 1..num_turns: they sum to 1 and later turns get more."""
    if not 0 < decay <= 1:
        raise InputError(f"the decay is {decay}; it must be above 0 and at most 1 (the published value is 0.8)")
    # Multiplied by decay^num_turns above and below the fraction: a small decay cannot overflow.
    raw = [decay ** (num_turns - t) for t in range(1, num_turns + 1)]
    total = sum(raw)
    return [value / total for value in raw]


def role_weights(num_attacker_wins: int, num_defender_wins: int, cap: float | None = None) -> dict[Role, float]:
    """decided / (2 * games the role won), 0 where it won none, at most `cap`: each role counts one half."""
    decided = num_attacker_wins + num_defender_wins
    wins = {Role.ATTACKER: num_attacker_wins, Role.DEFENDER: num_defender_wins}
    weights = {role: decided / (2 * count) if count else 0.0 for role, count in wins.items()}
    return weights if cap is None else {role: min(weight, cap) for role, weight in weights.items()}


class RoleWindow:
    """Who won the last `size` decided games of a stream: one batch alone may hold hardly any of one role's wins.

    >>> window = RoleWindow(3, "aaa")
    >>> window.weights([Role.ATTACKER, Role.DEFENDER])[Role.DEFENDER]
    1.5
    >>> window.as_text()
    'aad'
    """

    def __init__(self, size: int, winners: str = "") -> None:
        """`winners`: as `as_text` wrote them."""
        self._size = size
        self._winners = winners

    def weights(self, winners: Sequence[Role | None], cap: float | None = None) -> dict[Role, float]:
        """Take in the games of a batch, in order, by who won them (nobody won a tie), and weigh the roles over the last
        `size` games, the whole batch at least."""
        batch = "".join(str(winner)[0] for winner in winners if winner is not None)
        self._winners = (self._winners + batch)[-max(self._size, len(batch), 1) :]
        return role_weights(self._winners.count("a"), self._winners.count("d"), cap)

    def as_text(self) -> str:
        """Oldest first, a letter each: "a" an attacker, "d" a defender."""
        return self._winners


class RoleBaselines:
    """What each role has lately scored on average, +1 a win and -1 a loss: moving means over decided games."""

    def __init__(self, decay: float = 0.95) -> None:
        self.values = dict.fromkeys(Role, 0.0)
        self._decay = decay

    def update(self, winners: Sequence[Role | None]) -> None:
        """Take in games, in order, by who won them; nobody won a tie."""
        for winner in winners:
            for role in Role:
                self.values[role] += (1 - self._decay) * (result_of(winner, role) - self.values[role])


def mean_results(winners: Sequence[Role | None]) -> dict[Role, float]:
    """What each role scored on average, +1 a win, 0 a tie, -1 a loss; 0 without games."""
    return {role: sum(result_of(winner, role) for winner in winners) / max(1, len(winners)) for role in Role}


def result_of(winner: Role | None, role: Role) -> float:
    if winner is None:
        return 0.0
    return 1.0 if winner is role else -1.0


def winner_turns(outcome: Outcome, num_turns: int) -> list[int]:
    """Indices of the winner's turns among the first `num_turns`; none after a tie or a breach."""
    return [index for index in range(num_turns) if next_role(index) is outcome.winner]


def assign_rewards(
    episodes: Sequence[Mapping[str, Any]], decay: float = 0.8, rules: str = "published"
) -> list[dict[str, Any]]:
    """Games of the published format -> samples {target, reward, role, weight}, by game, then by turn.

    Turns after the deciding one are not learned from. See formats.to_samples for samples with their query.
    """
    return [sample for _, _, sample in rewarded_turns(episodes, decay, rules)]


def rewarded_turns(
    episodes: Sequence[Mapping[str, Any]], decay: float, rules: str
) -> list[tuple[int, int, dict[str, Any]]]:
    """(index of the game, index of the turn, sample) for every turn that is learned from."""
    verdicts = [judge(game["history"], game["target_word"], game["max_turns"], rules) for game in episodes]
    winners = [verdict.outcome.winner for verdict in verdicts]
    weights = role_weights(winners.count(Role.ATTACKER), winners.count(Role.DEFENDER))
    rewarded = []
    for number, (game, verdict, winner) in enumerate(zip(episodes, verdicts, winners, strict=True)):
        if winner is None:
            continue
        indices = winner_turns(verdict.outcome, verdict.length)
        for index, share in zip(indices, decayed_shares(len(indices), decay), strict=True):
            target = game["history"][index]["content"].strip()
            sample = {"target": target, "reward": share, "role": str(winner), "weight": weights[winner]}
            rewarded.append((number, index, sample))
    return rewarded
