"""Collapse: a stage that plays worse than the stages before it, twice in a row.

>>> def ties(games):
...     return {"ties": Figure.of_share(games, 40, rises=True)}
>>> history = [("imitated", ties(8)), ("spag-1", ties(30)), ("spag-2", ties(36))]
>>> (change,) = judge(history).changes
>>> change.figure, change.is_alarm, change.value, change.before
('ties', True, 0.9, 'imitated')
>>> judge([*history, ("spag-3", ties(12))]).alarms
()

A figure is outside if it is worse than what that of the previous stage allows it to be. While it stays outside, later
stages are compared with that same one. The second stage outside raises the alarm; the first stage inside ends it. So a
single jump that lasts also raises it: the next stage is not worse than the one before it, but still outside.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spag_ray.game.rules import Outcome, Role
from spag_ray.results.game_names import GameNames
from spag_ray.results.lines import CollapseLine, StepLine
from spag_ray.results.matches import Match
from spag_ray.results.metric_lines import MetricLines
from spag_ray.results.ratings import wilson_interval
from spag_ray.stages import Stage

MIN_STEPS = 3  # steps that a stage needs for an interval of its entropy
NUM_STAGES = 2  # consecutive stages outside that raise an alarm

# {policy: the entropy of each of its steps, nats per target token}
Entropies = Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class Figure:
    """One number of a stage with its interval; `rises`: a higher value is worse. `is_share`: of games, in [0, 1]."""

    value: float
    low: float
    high: float
    rises: bool
    is_share: bool

    @classmethod
    def of_share(cls, points: float, games: int, rises: bool) -> Figure:
        """A share of `games`, with the Wilson score interval at 95%."""
        value = points / games
        low, high = wilson_interval(points, games)
        return cls(value, min(low, value), max(high, value), rises, is_share=True)

    @classmethod
    def of_steps(cls, values: Sequence[float]) -> Figure:
        """The mean over steps, plus and minus two standard deviations of a single step."""
        mean, spread = statistics.fmean(values), 2 * statistics.stdev(values)
        return cls(mean, mean - spread, mean + spread, rises=False, is_share=False)

    def bounds_of(self, later: Figure) -> tuple[float, float]:
        """What the same figure of a later stage may be: for shares where the interval of the difference has 0 (Newcombe
        1998, method 10), as the chance of both stages' games counts; for means of steps this interval."""
        if not self.is_share:
            return self.low, self.high
        low = self.value - math.hypot(self.value - self.low, later.high - later.value)
        return max(low, 0.0), min(self.value + math.hypot(self.high - self.value, later.value - later.low), 1.0)


# The figures of one stage, by name.
Figures = Mapping[str, Figure]


@dataclass(frozen=True)
class Change:
    """An alarm or its end: `figure` is outside `low` to `high`, what it may be after `before`, or inside it again."""

    figure: str
    is_alarm: bool
    value: float
    low: float
    high: float
    before: str


@dataclass(frozen=True)
class Judgement:
    """The newest stage's changes, and the figures whose alarm is on after it."""

    changes: tuple[Change, ...]
    alarms: tuple[str, ...]


def figures_of(
    stage: str, matches: Iterable[Match], against: Iterable[str], entropies: Entropies, game: GameNames
) -> dict[str, Figure]:
    """The figures of a stage: from its games on held-out words against itself, its score in both seats against each of
    `against`, and its steps. Figures without games or steps are left out."""
    by_seats = {(match.attacker, match.defender): match for match in matches if match.games}
    found: dict[str, Figure] = {}
    if (own := by_seats.get((stage, stage))) is not None:
        outcomes, games = own.outcomes, len(own.games)
        breaches = sum(outcomes[Outcome.breach_by(role)] for role in Role)
        found["ties"] = Figure.of_share(outcomes[Outcome.TIED], games, rises=True)
        found["breaches"] = Figure.of_share(breaches, games, rises=True)
        if game.guesses:  # a right guess is the only way for a defender to win
            found["right guesses"] = Figure.of_share(outcomes[Outcome.DEFENDER_WINS], games, rises=False)
    for policy, values in entropies.items():
        finite = [value for value in values if math.isfinite(value)]
        if len(finite) >= MIN_STEPS:
            name = "entropy" if policy == "policy" else f"entropy of the {game.policy(policy)}"
            found[name] = Figure.of_steps(finite)
    for other in against:
        seats = {Role.ATTACKER: by_seats.get((stage, other)), Role.DEFENDER: by_seats.get((other, stage))}
        met = {role: match for role, match in seats.items() if match is not None}
        if other != stage and len(met) == len(seats):
            games = sum(len(match.games) for match in met.values())
            points = sum(match.score(role) * len(match.games) for role, match in met.items())
            found[f"score against {other}"] = Figure.of_share(points, games, rises=False)
    return found


def judge(history: Sequence[tuple[str, Figures]]) -> Judgement:
    """The judgement of the last stage of `history`. Its items are (stage, figures), the oldest first. If a stage lacks
    a figure, the state of that figure does not change."""
    held_against: dict[str, tuple[str, Figure]] = {}
    num_outside: dict[str, int] = {}
    changes: list[Change] = []
    for stage, figures in history:
        changes = []
        for name, figure in figures.items():
            before, last = held_against.get(name, (stage, figure))
            was_alarm = num_outside.get(name, 0) >= NUM_STAGES
            low, high = last.bounds_of(figure)
            if figure.value > high if figure.rises else figure.value < low:
                num_outside[name] = num_outside.get(name, 0) + 1
            else:
                num_outside[name] = 0
                held_against[name] = stage, figure
            is_alarm = num_outside[name] >= NUM_STAGES
            if is_alarm != was_alarm:
                changes.append(Change(name, is_alarm, figure.value, low=low, high=high, before=before))
    return Judgement(tuple(changes), tuple(name for name, count in num_outside.items() if count >= NUM_STAGES))


def read_learned(metrics: Path) -> tuple[dict[str, Entropies], list[CollapseLine]]:
    """From a run's metrics.jsonl: {stage: the entropies of its steps}, and earlier alarms. If a stage was trained
    again, its last training counts."""
    steps: dict[str, dict[str, dict[int, float]]] = {}
    said = []
    for _, line in MetricLines(metrics).typed():
        if isinstance(line, CollapseLine):
            said.append(line)
        elif isinstance(line, StepLine):
            stage = str(Stage.parse(line.stage).of_all_policies)
            mine = steps.setdefault(stage, {}).setdefault(line.policy, {})
            number = line.report.step
            while mine and next(reversed(mine)) >= number:
                mine.popitem()
            mine[number] = line.report.entropy
    return {
        stage: {policy: list(by_step.values()) for policy, by_step in by_policy.items()}
        for stage, by_policy in steps.items()
    }, said
