"""The losses, as Tinker defines them: sums over tokens, https://tinker-docs.thinkingmachines.ai/tinker/losses.

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

stable_reinforce has the interface of the service's loss of this name, whose objective is not published: what follows
is OURS and not the service's. It is REINFORCE with PPO's penalty on the divergence from the policy that sampled
(Schulman et al. 2017, section 4, https://arxiv.org/abs/1707.06347), without ratios that could grow:

    stable_reinforce      -l A + kl_coeff KL(Q || P)     the divergence on sampled tokens alone

    KL(Q || P) = sum over v in K of Q(v) (log Q(v) - log P(v))  +  Q' (log Q' - log P')

K are the sampler's likeliest tokens at the position, as they were recorded, Q and P the sampler's and the trainer's
probabilities of them, both at temperature 1 whatever temperature drew the tokens, and Q' and P' the two remainders,
1 less the sum over K, at least 1e-6: all other tokens count as one. `kl_coeff` is 0.01, as the service's.
"""

import math

import numpy as np
import torch

from local_servers.tinker.engine_types import LOSS_NAMES, LossName, SamplerTopK, TrainDatum
from local_servers.tinker.refusal import BadRequest

_RL = ("logprobs", "advantages")
LOSS_INPUTS: dict[str, tuple[str, ...]] = {
    "cross_entropy": ("weights",),
    "importance_sampling": _RL,
    "ppo": _RL,
    "cispo": _RL,
    "dro": _RL,
    "gspo": (*_RL, "sequence_ratio_mask"),
    "stable_reinforce": ("advantages",),
}
OPTIONAL_INPUTS = ("weights",)
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
_CONFIG: dict[str, dict[str, float]] = {
    "ppo": _CLIP,
    "cispo": _CLIP,
    "gspo": _CLIP,
    "dro": {"beta": 0.05},
    "stable_reinforce": {"kl_coeff": 0.01},
}
_LEAST_REMAINDER = 1e-6
"""A remainder is the difference of two numbers near 1 and of no meaning below their error."""


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


def scored_tokens(loss: LossName, datum: TrainDatum, config: dict[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Positions and tokens, (N,) int64 each, whose log-probabilities the loss reads: the T targets first."""
    targets = datum.loss_inputs["target_tokens"].astype(np.int64)
    positions = np.arange(len(targets))
    if not _reads_sampler(loss, config):
        return positions, targets
    assert datum.sampler is not None
    tokens = datum.sampler.tokens
    recorded = np.repeat(datum.sampler.positions, tokens.shape[1])
    return np.concatenate([positions, recorded]), np.concatenate([targets, tokens.ravel()])


def token_losses(
    loss: LossName, datum: TrainDatum, logprobs: np.ndarray, config: dict[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of each target (T,) and the derivative of their sum with respect to each log-probability (N,), both float32.

    `logprobs` (N,) are those of `scored_tokens`; `config` comes from `checked_config`.
    """
    current = torch.tensor(logprobs, requires_grad=True)
    n_targets = len(datum.tokens)
    losses = _losses(loss, datum, current[:n_targets], config)
    if _reads_sampler(loss, config):
        assert datum.sampler is not None
        penalty = config["kl_coeff"] * _divergence(datum.sampler, current[n_targets:])
        losses = losses.index_add(0, torch.from_numpy(datum.sampler.positions), penalty)
    (slope,) = torch.autograd.grad(losses.sum(), current)
    return losses.detach().numpy(), slope.numpy()


def _reads_sampler(loss: LossName, config: dict[str, float]) -> bool:
    return loss == "stable_reinforce" and config["kl_coeff"] > 0


def _divergence(sampler: SamplerTopK, current: torch.Tensor) -> torch.Tensor:
    """KL(Q || P) at each recorded position (S,), from the trainer's log-probabilities (S * k,) of its tokens."""
    trainer = current.double().reshape(sampler.tokens.shape)
    recorded = torch.from_numpy(sampler.logprobs).double()
    shares = recorded.exp()
    p_rest, q_rest = ((1 - part.sum(dim=1)).clamp(min=_LEAST_REMAINDER) for part in (trainer.exp(), shares))
    inside = (shares * (recorded - trainer)).sum(dim=1)
    return (inside + q_rest * (q_rest.log() - p_rest.log())).float()


def _losses(loss: LossName, datum: TrainDatum, current: torch.Tensor, config: dict[str, float]) -> torch.Tensor:
    """Each target's loss (T,) as far as its own log-probability (T,) decides it."""
    given = {
        name: torch.from_numpy(datum.loss_inputs[name].astype(np.float32))
        for name in LOSS_INPUTS[loss]
        if name in datum.loss_inputs
    }
    if loss == "cross_entropy":
        return -given.get("weights", torch.ones_like(current)) * current
    advantages = given["advantages"]
    if loss == "stable_reinforce":
        return -current * advantages
    log_ratio = current - given["logprobs"]
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
