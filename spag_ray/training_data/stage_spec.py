"""What a stage of training is, as it travels whole from the run to each learner rank."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from spag_ray.config.objective import ObjectiveConfig

Method = Literal["imitation", "self_play"]


@dataclass(frozen=True)
class StageSpec:
    """`num_steps`: optimiser steps of the whole stage, over which the learning rate falls; of a stream, of all its
    parts; 0 until they are counted. `kl_coeff`, `listening_coeff`: of this stage, beside the coefficients of the
    objective. `temperature`: of the softmax in which turns are trained. `name`: of the stage, or of the stream that
    comes in parts (`is_part`), which are one stage to the learner."""

    method: Method
    num_steps: int
    learning_rate: float
    kl_coeff: float
    listening_coeff: float = 0.0
    temperature: float = 1.0
    name: str = ""
    is_part: bool = False

    def trains_tokens(self, objective: ObjectiveConfig) -> bool:
        """Whether turns are trained by the importance ratios of their tokens, or by one mean, as published."""
        return self.method == "self_play" and objective.loss != "published"


def learning_rate_at(step: int, num_steps: int, peak: float, warmup_share: float) -> float:
    """Linear warm-up over the first `warmup_share` of the steps, then a cosine to zero; `step` counts from 0."""
    num_warmup = math.ceil(warmup_share * num_steps)
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(num_steps - num_warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
