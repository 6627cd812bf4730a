"""A reward for every turn: how much a hint told a frozen listener (docs/learning.md, "Information gain").

    p(0) = what the listener gives the fact after the rules alone, p(t) = after hint t     (Turn.listener_logprob)
    hint t, and the turn of the seat that guesses before it:  information_gain * clip(p(t) - p(t - 1))
    with gain_of: nats                                        information_gain * clip(log p(t) - log p(t - 1))

A turn after which no hint was heard, such as a claim, has no gain; nor has any turn of a game that was not scored.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Container, Sequence
from itertools import pairwise
from statistics import fmean
from typing import NamedTuple

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Role


class Gain(NamedTuple):
    """Of the turns [start, end): what they gave or asked for. `value`: the change of the listener's probability of the
    fact, from -1 to 1; `nats`: of its logarithm; `guesser`: the seat that heard it; `known`: the probability after it.
    """

    start: int
    end: int
    value: float
    nats: float
    guesser: Role
    known: float


def gains(episode: Episode) -> list[Gain]:
    """The gain of each hint that was heard, in order, of the turns that the verdict is about. None of a game that a
    full context ended, which is not trained on."""
    if not is_scored(episode) or episode.verdict.end_reason is EndReason.CONTEXT_FULL:
        return []
    turns = episode.turns[: episode.verdict.length]
    known = {place: found for place, turn in enumerate(turns) if (found := turn.listener_logprob) is not None}
    told = []
    for start, end in pairwise(known):
        before, after = math.exp(known[start]), math.exp(known[end])
        told.append(
            Gain(start, end, after - before, nats=known[end] - known[start], guesser=turns[end].role, known=after)
        )
    return told


def is_scored(episode: Episode) -> bool:
    """Whether the listener has scored the game: it scores all of a game, the first turn included, or nothing."""
    return bool(episode.turns) and episode.turns[0].listener_logprob is not None


def clipped_gains(
    episode: Episode, objective: ObjectiveConfig, learning: Container[str] | None = None
) -> dict[int, float]:
    """{index of a trained turn: its clipped gain}. `learning`: the policies that are trained (all, if None)."""
    clip, found = objective.gain_clip, {}
    for gain in gains(episode):
        for index in range(gain.start, gain.end):
            turn = episode.turns[index]
            is_paid = objective.gain_seats == "both" or turn.role is not gain.guesser
            if is_paid and turn.token_ids and (learning is None or turn.policy in learning):
                value = gain.nats if objective.gain_of == "nats" else gain.value
                found[index] = max(-clip, min(value, clip))
    return found


def gain_advantages(
    episodes: Sequence[Episode], objective: ObjectiveConfig, learning: Container[str] | None = None
) -> list[dict[int, float]]:
    """For each game {index of a trained turn: what its gain adds to its advantage}. Where results have a baseline, so
    have gains: their mean over the turns of this index and seat in these games, so that no place in a game is favoured
    (an estimator by name has its own for results). Where that baseline compares games of one scenario (`scenario`,
    `rloo`, `grpo`), so does this mean, if there are two of this scenario: a hint is not paid for an easy word, and one
    that no other game of its scenario came to has no gain."""
    found = [clipped_gains(episode, objective, learning) for episode in episodes]
    games = Counter(episode.scenario for episode, own in zip(episodes, found, strict=True) if own)
    values: dict[tuple[str | None, int, Role], list[float]] = defaultdict(list)  # of a scenario, and of all (None)
    for episode, own in zip(episodes, found, strict=True):
        for index, value in own.items():
            for scenario in (episode.scenario, None):
                values[scenario, index, episode.turns[index].role].append(value)
    has_baseline = objective.baseline != "none" or objective.advantage != "spag"

    def expected(episode: Episode, index: int) -> float:
        is_grouped = objective.compares_scenarios and games[episode.scenario] > 1
        return fmean(values[episode.scenario if is_grouped else None, index, episode.turns[index].role])

    return [
        {
            index: objective.information_gain * (value - (expected(episode, index) if has_baseline else 0.0))
            for index, value in own.items()
        }
        for episode, own in zip(episodes, found, strict=True)
    ]
