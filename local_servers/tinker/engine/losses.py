"""The losses, as Tinker defines them: sums over tokens, https://tinker-docs.thinkingmachines.ai/tinker/losses.

A loss is one entry of LOSSES: what it reads, what it can be told, and its value; servers offer what stands there. In
the formulas, which docs/local-servers.md lists from here, l is the target's log-probability, q the sampler's, A the
advantage, w the weight (1 if left out), r = exp(l - q), and sg(.) a value without its gradient. gspo's ratio s is of
the sequence, m being the mean of l - q over the targets that `sequence_ratio_mask` marks; it has the gradient of the
target's own l. `clip_low_threshold` and `clip_high_threshold` are absolute ratios. What the service takes for gspo and
dro by default is not known here: these are ppo's thresholds, and the beta of its documents' example.

stable_reinforce has the interface of the service's loss of this name, whose objective is not published: what follows
is OURS and not the service's. It is REINFORCE with PPO's penalty on the divergence from the policy that sampled
(Schulman et al. 2017, section 4, https://arxiv.org/abs/1707.06347), without ratios that could grow. On sampled tokens

    KL(Q || P) = sum over v in K of Q(v) (log Q(v) - log P(v))  +  Q' (log Q' - log P')

K are the sampler's likeliest tokens at the position, as recorded, Q and P the sampler's and the trainer's probabilities
of them, at temperature 1 whatever temperature drew the tokens, and Q' and P' the two remainders, 1 less the sum over K,
at least 1e-6: all other tokens count as one. `kl_coeff` is 0.01, as the service's.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from local_servers.tinker.engine_types import TrainDatum
from local_servers.tinker.refusal import BadRequest

if TYPE_CHECKING:
    import torch  # takes seconds, and requests are read by LOSSES before anything is trained

Inputs = Mapping[str, "torch.Tensor"]
Config = Mapping[str, float]
OPTIONAL_INPUTS = ("weights",)
MASK = "sequence_ratio_mask"


@dataclass(frozen=True)
class Loss:
    """`formula` is each target's loss, for people. `of_targets(current, inputs, config)` works it out: (T,), from the
    log-probabilities `current` (T,), whose gradient is wanted, and the `inputs` (T,) of a datum by name, float32.
    `config` has the defaults. `divergence` names the setting that weighs KL(Q || P), where a loss has that."""

    formula: str
    inputs: tuple[str, ...]
    of_targets: "Callable[[torch.Tensor, Inputs, Config], torch.Tensor]"
    config: Config = field(default_factory=dict)
    divergence: str = ""


def _cross_entropy(current: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    return -inputs["weights"] * current if "weights" in inputs else -current


def _importance_sampling(current: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    return -_ratio(current, inputs) * inputs["advantages"]


def _ppo(current: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    return _clipped(_ratio(current, inputs), inputs, config)


def _cispo(current: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    return -_bounded(_ratio(current, inputs), config).detach() * current * inputs["advantages"]


def _dro(current: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    return -(current * inputs["advantages"] - 0.5 * config["beta"] * (current - inputs["logprobs"]) ** 2)


def _gspo(current: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    mean = (current - inputs["logprobs"]).detach()[inputs[MASK] != 0].mean()
    return _clipped(mean.exp() * (current - current.detach()).exp(), inputs, config)


def _reinforce(current: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    return -current * inputs["advantages"]


def _ratio(current: "torch.Tensor", inputs: Inputs) -> "torch.Tensor":
    return (current - inputs["logprobs"]).exp()


def _bounded(ratio: "torch.Tensor", config: Config) -> "torch.Tensor":
    return ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])


def _clipped(ratio: "torch.Tensor", inputs: Inputs, config: Config) -> "torch.Tensor":
    return -(ratio * inputs["advantages"]).minimum(_bounded(ratio, config) * inputs["advantages"])


_RL = ("logprobs", "advantages")
_CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
LOSSES: dict[str, Loss] = {
    "cross_entropy": Loss("-w l; without `weights`, w = 1", ("weights",), _cross_entropy),
    "importance_sampling": Loss("-r A", _RL, _importance_sampling),
    "ppo": Loss("-min(r A, clip(r, low, high) A)", _RL, _ppo, _CLIP),
    "cispo": Loss("-sg(clip(r, low, high)) l A", _RL, _cispo, _CLIP),
    "dro": Loss("-(l A - beta/2 (l - q)^2), on every target", _RL, _dro, {"beta": 0.05}),
    "gspo": Loss("-min(s A, clip(s, low, high) A), s = sg(exp(m)) exp(l - sg(l))", (*_RL, MASK), _gspo, _CLIP),
    "stable_reinforce": Loss(
        "-l A + kl_coeff KL(Q || P) on sampled tokens",
        ("advantages",),
        _reinforce,
        {"kl_coeff": 0.01},
        divergence="kl_coeff",
    ),
}
_LEAST_REMAINDER = 1e-6  # a remainder is the difference of two numbers near 1 and of no meaning below their error


def checked_config(loss: str, config: dict[str, float]) -> dict[str, float]:
    """The loss's settings with defaults filled in. Raises BadRequest for an unknown loss, key or value."""
    if loss not in LOSSES:
        raise BadRequest(f"unknown loss {loss!r}; there are {', '.join(LOSSES)}")
    defaults = dict(LOSSES[loss].config)
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


class ScoredTokens(NamedTuple):
    """Tokens of a datum and their positions, (N,) int64 each: the targets first."""

    positions: np.ndarray
    tokens: np.ndarray


def scored_tokens(loss: str, datum: TrainDatum, config: dict[str, float]) -> ScoredTokens:
    """The tokens whose log-probabilities the loss reads, in the order of `token_losses`."""
    targets = datum.loss_inputs["target_tokens"].astype(np.int64)
    positions = np.arange(len(targets))
    if not _reads_sampler(loss, config):
        return ScoredTokens(positions, targets)
    assert datum.sampler is not None
    tokens = datum.sampler.tokens
    recorded = np.repeat(datum.sampler.positions, tokens.shape[1])
    return ScoredTokens(np.concatenate([positions, recorded]), np.concatenate([targets, tokens.ravel()]))


def token_losses(
    loss: str, datum: TrainDatum, logprobs: np.ndarray, config: dict[str, float]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the loss of each target of a datum (T,) and the derivative of their sum with respect to each of
    `logprobs` (N,), both float32. `config` comes from `checked_config`, `logprobs` are those of `scored_tokens`."""
    import torch

    rule, n_targets = LOSSES[loss], len(datum.tokens)
    current = torch.tensor(logprobs, requires_grad=True)
    given = {name: datum.loss_inputs[name] for name in rule.inputs if name in datum.loss_inputs}
    inputs = {name: torch.from_numpy(values.astype(np.float32)) for name, values in given.items()}
    losses = rule.of_targets(current[:n_targets], inputs, config)
    if _reads_sampler(loss, config):
        assert datum.sampler is not None
        # KL(Q || P) at each recorded position (S,)
        trainer = current[n_targets:].double().reshape(datum.sampler.tokens.shape)
        recorded = torch.from_numpy(datum.sampler.logprobs).double()
        shares = recorded.exp()
        p_rest, q_rest = ((1 - part.sum(dim=1)).clamp(min=_LEAST_REMAINDER) for part in (trainer.exp(), shares))
        inside = (shares * (recorded - trainer)).sum(dim=1)
        penalty = config[rule.divergence] * (inside + q_rest * (q_rest.log() - p_rest.log())).float()
        # added to the losses of the targets at the same positions
        losses = losses.index_add(0, torch.from_numpy(datum.sampler.positions), penalty)
    (slope,) = torch.autograd.grad(losses.sum(), current)
    return losses.detach().numpy(), slope.numpy()


def _reads_sampler(loss: str, config: dict[str, float]) -> bool:
    setting = LOSSES[loss].divergence
    return bool(setting) and config[setting] > 0
