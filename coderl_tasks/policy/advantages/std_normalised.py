"""The deviation from the group's mean reward in units of the group's standard deviation: GRPO as first published.

Every group that is trained on then pulls about equally hard, however little its rewards differ (Shao et al.,
"DeepSeekMath").

    A_i = (r_i - mean(r)) / (std(r) + eps)          std with ddof 1, as torch.std
"""

import math

from coderl_tasks.policy.advantages.mean_centred import compute_advantages

EPS = 1e-6


def std_normalised(rewards: list[float], eps: float = EPS) -> list[float]:
    """Deviations of at least two rewards (G,) from their mean, divided by their sample standard deviation plus
    `eps`."""
    deviations = compute_advantages(rewards)
    std = math.sqrt(math.fsum(deviation**2 for deviation in deviations) / (len(rewards) - 1))
    return [deviation / (std + eps) for deviation in deviations]
