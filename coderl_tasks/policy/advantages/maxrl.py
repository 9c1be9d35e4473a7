"""The deviation from the group's mean reward in units of that mean: MaxRL (Tajwar et al., "Maximum Likelihood
Reinforcement Learning").

With rewards of 0 and 1 a group's gradient is then the mean over its right completions, an estimate of the gradient of
log pass rate instead of the pass rate: hard problems weigh more.

    A_i = (r_i - mean(r)) / mean(r)

Not covered: rewards below 0, whose mean may have either sign.
"""

from coderl_tasks.errors import ConfigError
from coderl_tasks.policy.advantages.mean_centred import compute_advantages


def maxrl(rewards: list[float]) -> list[float]:
    """Deviations of rewards (G,) that are not all 0 from their mean, divided by it. Raises ConfigError for a negative
    one."""
    if min(rewards) < 0:
        raise ConfigError(
            f"advantage=maxrl divides by a group's mean reward, and there is one of {min(rewards):g}: it needs rewards "
            "that are not negative (of code: format_coef=0), or another advantage"
        )
    # No epsilon: a mean of G such rewards is at least the greatest of them / G, so that no advantage exceeds G - 1.
    mean = sum(rewards) / len(rewards)
    return [deviation / mean for deviation in compute_advantages(rewards)]
