"""The losses, as Tinker defines them: sums over tokens,
https://tinker-docs.thinkingmachines.ai/tinker/losses.

With l the target's log-probability, q the sampler's, A the advantage, w the weight (1 if left out), r = exp(l - q)
and sg(.) a value without its gradient:

    cross_entropy         -w l
    importance_sampling   -r A
    ppo                   -min(r A, clip(r, low, high) A)
    cispo                 -sg(clip(r, low, high)) l A
    dro                   -(l A - beta / 2 (l - q)^2)
    gspo                  -min(s A, clip(s, low, high) A)

gspo's ratio is of the sequence, s = sg(exp(mean of l - q over the targets that `sequence_ratio_mask` marks)) with the
gradient of the target's own l: s exp(l - sg(l)).

`clip_low_threshold` (0.8) and `clip_high_threshold` (1.2) are absolute ratios; `beta` is 0.05. What the service takes
for gspo and dro by default is not known here: these are ppo's thresholds, and the beta of its documents' example. dro's
penalty is on every target, those of the prompt too.
"""

import math

import numpy as np
import torch

from coderl_tasks.local.tinker.engine_types import LOSS_NAMES, BadRequest, LossName, TrainDatum

_RL = ("logprobs", "advantages")
LOSS_INPUTS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": _RL,
    "ppo": _RL,
    "cispo": _RL,
    "dro": _RL,
    "gspo": (*_RL, "sequence_ratio_mask"),
}
OPTIONAL_INPUTS = ("weights",)
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_CONFIG: dict[str, dict[str, float]] = {"ppo": _CLIP, "cispo": _CLIP, "gspo": _CLIP, "dro": {"beta": 0.05}}


def checked_config(loss: LossName, config: dict[str, float]) -> dict[str, float]:
    """The loss's settings with defaults filled in. Raises BadRequest for an unknown loss, key or value."""
    if loss not in LOSS_NAMES:
        raise BadRequest(f"unknown loss {loss!r}; there are {', '.join(LOSS_NAMES)}")
    defaults = _CONFIG.get(loss, {})
    unknown = sorted(set(config) - set(defaults))
    if unknown:
        raise BadRequest(f"{loss} has no setting {', '.join(unknown)}; it has {', '.join(defaults) or 'none'}")
    settings = defaults | config
    bad = [f"{key} {value}" for key, value in settings.items() if not math.isfinite(value) or value < 0]
    if bad:
        raise BadRequest(f"{loss}: settings must be finite and not negative: {', '.join(bad)}")
    if "clip_low_threshold" in settings and settings["clip_low_threshold"] > settings["clip_high_threshold"]:
        raise BadRequest(f"{loss}: clip_low_threshold is above clip_high_threshold (they are absolute ratios)")
    return settings


def token_losses(
    loss: LossName, datum: TrainDatum, logprobs: np.ndarray, config: dict[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each token (T,) and the derivative of their sum with respect to each log-probability (T,), both
    float32.

    `config` comes from `checked_config`.
    """
    current = torch.tensor(logprobs, requires_grad=True)
    losses = _losses(loss, datum, current, config)
    (slope,) = torch.autograd.grad(losses.sum(), current)
    return losses.detach().numpy(), slope.numpy()


def _losses(loss: LossName, datum: TrainDatum, current: torch.Tensor, config: dict[str, float]) -> torch.Tensor:
    given = {
        name: torch.from_numpy(datum.loss_inputs[name].astype(np.float32))
        for name in LOSS_INPUTS[loss]
        if name in datum.loss_inputs
    }
    if loss == "cross_entropy":
        return -given.get("weights", torch.ones_like(current)) * current
    advantages, log_ratio = given["advantages"], current - given["logprobs"]
    if loss == "dro":
        return -(current * advantages - 0.5 * config["beta"] * log_ratio**2)
    if loss == "gspo":
        mean = log_ratio.detach()[given["sequence_ratio_mask"] != 0].mean()
        ratio = mean.exp() * (current - current.detach()).exp()
    else:
        ratio = log_ratio.exp()
    if loss == "importance_sampling":
        return -ratio * advantages
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    if loss == "cispo":
        return -clipped.detach() * current * advantages
    return -torch.minimum(ratio * advantages, clipped * advantages)
