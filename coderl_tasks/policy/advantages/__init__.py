"""Advantage estimators, one per file: the rewards of a group -> what each of its completions is reinforced with.

An estimator sees the gradable rewards of one group, at least two of them, and only where they differ: the rule of
`should_skip` is asked before it, on deviations that nothing is divided by.
"""

from collections.abc import Callable
from functools import partial

from coderl_tasks.policy.advantages.leave_one_out import leave_one_out
from coderl_tasks.policy.advantages.maxrl import maxrl
from coderl_tasks.policy.advantages.mean_centred import compute_advantages
from coderl_tasks.policy.advantages.std_normalised import std_normalised

Estimator = Callable[[list[float]], list[float]]

ESTIMATORS: dict[str, Estimator] = {
    "mean_centred": compute_advantages,
    "std_normalised": std_normalised,
    "leave_one_out": leave_one_out,
    "maxrl": maxrl,
}
"""By the value of the setting `advantage`."""


def estimator(name: str, eps: float) -> Estimator:
    """The estimator of this name; `eps` is what std_normalised adds to the standard deviation, the others need none."""
    return partial(std_normalised, eps=eps) if name == "std_normalised" else ESTIMATORS[name]
