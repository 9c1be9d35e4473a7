"""The learning rate of a step: a warm-up, then constant, linear or cosine.

The step's number alone decides, so that a run that goes on neither warms up again nor begins its schedule anew.
"""

import math
from typing import Literal

Schedule = Literal["constant", "linear", "cosine"]


def learning_rate_at(
    step: int, peak: float, *, warmup_steps: int = 0, schedule: Schedule = "constant", total_steps: int | None = None
) -> float:
    """The learning rate of `step` (from 0).

    It grows in equal parts to `peak`, which the last of the `warmup_steps` has. Then it stays there, or falls, by a
    straight line or half a cosine, so as to be 0 at `total_steps`: the steps before that one learn.
    """
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule == "constant" or total_steps is None:
        return peak
    done = min(1.0, (step - warmup_steps) / (total_steps - warmup_steps))
    return peak * (1 - done) if schedule == "linear" else peak * (1 + math.cos(math.pi * done)) / 2
