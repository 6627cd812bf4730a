"""What a stage of training is, as it travels whole from the run to each learner rank."""

from __future__ import annotations

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
        """Whether turns are trained token by token, with the objective `spag`, or by their mean, as published."""
        return self.method == "self_play" and objective.name == "spag"
