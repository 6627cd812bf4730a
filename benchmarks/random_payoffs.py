"""A control: games that pay by chance (`-o objective.advantage=benchmarks.random_payoffs:drawn`).

What is then trained on is the model's own turns, as likely made more probable as less, whatever they were worth.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from spag_ray.training_data.estimators import Advantages, Trajectory, rloo


def drawn(trajectories: Sequence[Trajectory]) -> Advantages:
    """RLOO's advantages of payoffs that are 1 or -1 by chance. The same batch has the same ones: a learner that is
    restarted repeats its step."""
    return rloo([replace(each, payoff=_payoff(place, each)) for place, each in enumerate(trajectories)])


def _payoff(place: int, each: Trajectory) -> float:
    return random.Random(f"{place} {each.scenario} {each.seat} {each.num_tokens}").choice((-1.0, 1.0))
