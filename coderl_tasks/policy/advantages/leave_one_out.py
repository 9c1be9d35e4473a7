"""The deviation from the mean reward of the others of the group: RLOO (Ahmadian et al., "Back to Basics").

A completion is not part of its own baseline, which keeps the estimate unbiased. It is the mean-centred advantage times
G / (G - 1): the same directions, with more weight for small groups.

    A_i = r_i - mean of r_j over j != i
"""

import math


def leave_one_out(rewards: list[float]) -> list[float]:
    """Deviation of each of at least two rewards (G,) from the mean of the other ones."""
    total, others = math.fsum(rewards), len(rewards) - 1
    return [reward - (total - reward) / others for reward in rewards]
