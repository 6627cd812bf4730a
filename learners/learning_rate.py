"""The learning rate of a step."""

from __future__ import annotations

import math


def learning_rate_at(step: int, num_steps: int, peak: float, warmup_share: float) -> float:
    """Linear warm-up over the first `warmup_share` of the steps, then a cosine to zero; `step` counts from 0."""
    num_warmup = math.ceil(warmup_share * num_steps)
    if step < num_warmup:
        return peak * (step + 1) / num_warmup
    progress = (step - num_warmup) / max(num_steps - num_warmup, 1)
    return peak * 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))
