"""The losses that a policy is updated with: what the service is told of each, and the value of each.

Sums over completion tokens. With l the trainer's log-probability of a token, q the sampler's, A the completion's
advantage and r = exp(l - q) the importance ratio:

    importance_sampling   -r A
    ppo                   -min(r A, clip(r, low, high) A)
    cispo                 -clip(r, low, high) l A            the gradient is that of l alone
    gspo                  -min(s A, clip(s, low, high) A)    s = exp(mean of l - q over the completion) for each token
    dro                   -(l A - beta / 2 (l - q)^2)

The service computes gradients and reports a sum of its own. The value is worked out here from the log-probabilities
that it returns, in float64, since services name and add up theirs in their own ways. Thresholds are always sent:
defaults are the service's affair too.

Not covered: stable_reinforce. It reads records of the sampler that end with its session, and after a day: an update
that a crash lost could not be replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tinker

from coderl_tasks.settings.update_settings import LossName

Advantage = float | np.ndarray
"""Of a completion, or of each of its tokens (T,)."""


@dataclass(frozen=True, slots=True)
class CompletionLoss:
    """The loss of one completion, summed over its tokens; their importance ratios (T,) as the loss takes them; how many
    it cuts at a threshold, None for a loss without one."""

    loss: float
    ratios: np.ndarray
    clipped: int | None


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A loss with all that it is told (a key for each that LOSS_CONFIG has of it)."""

    name: LossName = "importance_sampling"
    config: Mapping[str, float] = field(default_factory=dict)

    def of_completion(self, trainer: np.ndarray, sampler: np.ndarray, advantage: Advantage) -> CompletionLoss:
        """The loss of a completion from both sides' log-probabilities (T,) of its tokens, float64, and its advantage or
        that of each token (T,)."""
        if self.name == "gspo":
            ratios = np.full(len(trainer), np.exp((trainer - sampler).mean()))
        else:
            ratios = np.exp(trainer - sampler)
        if self.name == "importance_sampling":
            return CompletionLoss(-_weighted(ratios, advantage), ratios, None)
        if self.name == "dro":
            penalty = self.config["beta"] / 2 * ((trainer - sampler) ** 2).sum()
            return CompletionLoss(float(penalty) - _weighted(trainer, advantage), ratios, None)
        low, high = self.config["clip_low_threshold"], self.config["clip_high_threshold"]
        cut = np.clip(ratios, low, high)
        if self.name == "cispo":
            return CompletionLoss(-_weighted(cut * trainer, advantage), ratios, int((cut != ratios).sum()))
        # Only on the side where the advantage would push the ratio on: the other one is still to be pulled back.
        clipped = cut * advantage < ratios * advantage
        return CompletionLoss(-float(np.minimum(ratios * advantage, cut * advantage).sum()), ratios, int(clipped.sum()))

    def named(self) -> dict[str, Any]:
        """The arguments by which a request names this loss."""
        return {"loss_fn": self.name} | ({"loss_fn_config": dict(self.config)} if self.config else {})

    def complete(self, datum: tinker.Datum, prompt_len: int) -> tinker.Datum:
        """`datum` with the inputs that this loss needs beside those of all; the prompt has `prompt_len` tokens."""
        if self.name != "gspo":
            return datum
        marks = np.zeros(datum.model_input.length, dtype=np.float32)
        marks[prompt_len - 1 :] = 1.0
        return with_input(datum, "sequence_ratio_mask", marks)

    @property
    def reads_prompt(self) -> bool:
        """Whether the loss reads the sampler's log-probabilities of the prompt too: dro's penalty is on every target,
        and would pull on a prompt that has zeros there."""
        return self.name == "dro"


def _weighted(values: np.ndarray, advantage: Advantage) -> float:
    """The sum of `values` (T,), each times its advantage."""
    # One advantage is taken out of the sum: recorded losses are such products, to the bit.
    return float((values * advantage).sum()) if isinstance(advantage, np.ndarray) else float(values.sum()) * advantage


def with_input(datum: tinker.Datum, name: str, values: np.ndarray) -> tinker.Datum:
    """`datum` with the loss input `name` (one value per target) as `values`."""
    inputs = {**datum.loss_fn_inputs, name: tinker.TensorData.from_numpy(values)}
    return tinker.Datum(model_input=datum.model_input, loss_fn_inputs=inputs)
