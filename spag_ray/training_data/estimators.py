"""How what games paid becomes advantages of turns, by the names of the field (`objective.advantage`).

    rloo([Trajectory("KJ", 0, 1.0, (3,)), Trajectory("KJ", 0, -1.0, (3,))])         [[2.0], [-2.0]]

A trajectory is the turns of one seat in one game. R is what the game paid it; nothing is paid before the end, so the
return of every turn is R (without discount). Every turn of a trajectory gets the same advantage:

    rae          R - b, b the moving average of what this game paid this seat, before this game (SPIRAL, 2506.24119)
    rloo         R minus the mean of the others of the group (2402.14740); R itself in a group of one
    grpo         (R - mean) / (std + 1e-6) over the group (DeepSeekMath, 2402.03300); R itself in a group of one
    reinforce++  (R - mean) / sqrt(var + 1e-8) over all trained tokens that a policy learns from (2501.03262)
    marshal      (R - mean) / (std + 1e-6) over all turns of this seat in the batch (2510.15414)

A group: the trajectories of one seat in games of one scenario (word, deal). Deviations are of samples (n - 1). The
batch: the games of a round, or of a version of a stream, of one game. The function of a user's own has the same form;
`check_estimator` says what is wrong with one.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeAlias

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.errors import ConfigError, InputError
from spag_ray.game.protocol import SEATS
from spag_ray.games.registry import own_function
from spag_ray.training_data.rewards import STD_EPSILON, RoleBaselines

KEY = "objective.advantage"
VARIANCE_EPSILON = 1e-8


@dataclass(frozen=True)
class Trajectory:
    """The turns of a seat (0 opens) in a game about `scenario`: what the game paid the seat, and the trained tokens of
    each turn [turns]."""

    scenario: str
    seat: int
    payoff: float
    num_tokens: tuple[int, ...]

    @property
    def group(self) -> tuple[str, int]:
        return self.scenario, self.seat


Advantages: TypeAlias = Sequence[Sequence[float]]  # [trajectories][turns]
Estimator: TypeAlias = Callable[[Sequence[Trajectory]], Advantages]


def rae(baselines: RoleBaselines, is_new: Sequence[bool]) -> Estimator:
    """With these averages, which are updated game by game, as SPIRAL's code does: each is read before its game.
    `is_new` [trajectories]: whether the averages do not have the game yet."""

    def found(trajectories: Sequence[Trajectory]) -> Advantages:
        advantages = []
        for each, counts in zip(trajectories, is_new, strict=True):
            role = SEATS[each.seat]
            advantages.append(each.payoff - baselines.values[role])
            if counts:
                baselines.update([{role: each.payoff}])
        return _whole(trajectories, advantages)

    return found


def rloo(trajectories: Sequence[Trajectory]) -> Advantages:
    groups = _paid(trajectories, lambda each: each.group)
    advantages = []
    for each in trajectories:
        paid = groups[each.group]
        others = (sum(paid) - each.payoff) / (len(paid) - 1) if len(paid) > 1 else 0.0
        advantages.append(each.payoff - others)
    return _whole(trajectories, advantages)


def grpo(trajectories: Sequence[Trajectory]) -> Advantages:
    return _normalised(trajectories, lambda each: each.group)


def reinforce_plus_plus(trajectories: Sequence[Trajectory]) -> Advantages:
    counts = [sum(each.num_tokens) for each in trajectories]
    total = sum(counts)
    if total < 2:
        return _whole(trajectories, [0.0] * len(trajectories))
    pairs = list(zip((each.payoff for each in trajectories), counts, strict=True))
    mean = math.fsum(payoff * count for payoff, count in pairs) / total
    variance = math.fsum(count * (payoff - mean) ** 2 for payoff, count in pairs) / (total - 1)
    return _whole(trajectories, [(payoff - mean) / math.sqrt(variance + VARIANCE_EPSILON) for payoff, _ in pairs])


def marshal(trajectories: Sequence[Trajectory]) -> Advantages:
    return _normalised(trajectories, lambda each: each.seat, by_turn=True)


def of_each_seat(estimator: Estimator) -> Estimator:
    """The same, of the trajectories of each seat alone."""

    def found(trajectories: Sequence[Trajectory]) -> Advantages:
        own = {
            seat: iter(estimator([each for each in trajectories if each.seat == seat])) for seat in range(len(SEATS))
        }
        return [next(own[each.seat]) for each in trajectories]

    return found


def _normalised(
    trajectories: Sequence[Trajectory], key: Callable[[Trajectory], Hashable], by_turn: bool = False
) -> Advantages:
    """Payoffs above the mean of those with the same key, in standard deviations; each counts once in both, or once for
    each turn."""
    scales = {group: _scale(paid) for group, paid in _paid(trajectories, key, by_turn).items()}
    found = ((each.payoff, *scales[key(each)]) for each in trajectories)
    return _whole(trajectories, [(payoff - mean) / deviation for payoff, mean, deviation in found])


def _paid(
    trajectories: Sequence[Trajectory], key: Callable[[Trajectory], Hashable], by_turn: bool = False
) -> dict[Hashable, list[float]]:
    groups: dict[Hashable, list[float]] = defaultdict(list)
    for each in trajectories:
        groups[key(each)] += [each.payoff] * (len(each.num_tokens) if by_turn else 1)
    return groups


def _scale(paid: Sequence[float]) -> tuple[float, float]:
    """(mean, what deviations from it are divided by); as in verl (0, 1) for a value alone."""
    mean, deviation = (fmean(paid), stdev(paid)) if len(paid) > 1 else (0.0, 1.0)
    return mean, deviation + STD_EPSILON


def _whole(trajectories: Sequence[Trajectory], advantages: Sequence[float]) -> Advantages:
    """The same for every turn of a trajectory."""
    return [[value] * len(each.num_tokens) for each, value in zip(trajectories, advantages, strict=True)]


PURE: dict[str, Estimator] = {"rloo": rloo, "grpo": grpo, "reinforce++": reinforce_plus_plus, "marshal": marshal}


def estimator_of(
    objective: ObjectiveConfig, baselines: RoleBaselines | None, is_new: Sequence[bool], separate: bool = False
) -> Estimator:
    """The one of `objective.advantage`. `baselines`, `is_new`: see `rae`. `separate`: each seat's policy learns alone.
    Raises ConfigError for a function of the user's own that is not there."""
    name = objective.advantage
    if name == "rae":
        return rae(baselines or RoleBaselines(objective.baseline_decay), is_new)
    if name == "reinforce++" and separate:  # the others compare no seat with another one
        return of_each_seat(reinforce_plus_plus)
    return PURE.get(name) or own_function(name, KEY)


def agreeing(trajectories: Sequence[Trajectory]) -> list[bool]:
    """[trajectories] Whether all of a group of two or more were paid the same, so that there is nothing to compare."""
    groups = _paid(trajectories, lambda each: each.group)
    alike = {key: len(paid) > 1 and len(set(paid)) == 1 for key, paid in groups.items()}
    return [alike[each.group] for each in trajectories]


def applied(estimator: Estimator, name: str, trajectories: Sequence[Trajectory]) -> list[list[float]]:
    """[trajectories][turns] What an estimator computes. Raises InputError for an answer of another form, numbers that
    are not finite, and an error of its own."""
    try:
        found = [[float(value) for value in turns] for turns in estimator(tuple(trajectories))]
    except Exception as error:
        raise InputError(f"{KEY}: {name}: {type(error).__name__}: {error}") from error
    if len(found) != len(trajectories):
        raise InputError(f"{KEY}: {name} gave advantages of {len(found)} trajectories for {len(trajectories)}")
    for place, (values, each) in enumerate(zip(found, trajectories, strict=True)):
        if len(values) != len(each.num_tokens):
            raise InputError(
                f"{KEY}: {name} gave {len(values)} advantages for the {len(each.num_tokens)} turns of "
                f"trajectory {place}"
            )
        if not all(map(math.isfinite, values)):
            raise InputError(f"{KEY}: {name} gave {values} for trajectory {place}: they are not all finite")
    return found


# A batch to try estimators on: groups of one and of several, seats of one game and of both, one turn and many.
SAMPLE = (
    Trajectory("river", 0, 1.0, (5, 7)),
    Trajectory("river", 1, -1.0, (4,)),
    Trajectory("river", 0, -1.0, (6,)),
    Trajectory("river", 1, 1.0, (3, 9, 2)),
    Trajectory("stone", 0, 0.5, (1,)),
    Trajectory("bread", 1, 0.0, (8, 8)),
    Trajectory("bread", 1, 0.0, (2,)),
)


def check_advantage(objective: ObjectiveConfig) -> None:
    """Check the function of the user's own that is configured, if one is. Raises ConfigError."""
    if ":" in objective.advantage:
        check_estimator(own_function(objective.advantage, KEY), objective.advantage)


def check_estimator(estimator: Estimator, name: str) -> None:
    """Try an estimator on batches. Raises ConfigError if an answer has another form than Advantages, is not finite, or
    is another one the second time: it has to be a pure function of the batch."""
    try:
        for batch in (SAMPLE, SAMPLE[:1], SAMPLE[::-1], ()):
            first = applied(estimator, name, batch)
            if first != applied(estimator, name, batch):
                raise ConfigError(
                    f"{KEY}: {name} gave other advantages for the same games the second time; it has to "
                    "depend on nothing else"
                )
    except InputError as error:
        raise ConfigError(f"{error} (tried with {len(batch)} trajectories)") from error
