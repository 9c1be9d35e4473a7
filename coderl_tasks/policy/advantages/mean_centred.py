"""The deviation from the group's mean reward.

It is not divided by the group's standard deviation, which would give nearly solved and nearly hopeless problems more
weight (Liu et al., "Understanding R1-Zero-Like Training").

    A_i = r_i - mean(r)
"""


def compute_advantages(rewards: list[float]) -> list[float]:
    """Deviation of each reward from the mean of its group, without division by the standard deviation."""
    if not rewards:
        return []
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]
