"""What passes between the wire (HTTP, protobuf) and the engine (torch): plain data, no torch, no tinker."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class SamplerTopK:
    """A sampler's distribution at S positions, of a sampled sequence's tokens or of a datum's targets (`positions` (S,)
    int64), at temperature 1: its k likeliest `tokens` (S, k) int32 with their `logprobs` (S, k) float32."""

    positions: np.ndarray
    tokens: np.ndarray
    logprobs: np.ndarray


@dataclass(frozen=True)
class TrainDatum:
    """One training sequence: `tokens` (T,) int64 model input; `loss_inputs` maps names to arrays of shape (T,):
    `target_tokens` (int64) always, and the `Loss.inputs` of the loss. stable_reinforce reads `sampler` too."""

    tokens: np.ndarray
    loss_inputs: dict[str, np.ndarray]
    sampler: SamplerTopK | None = None


@dataclass(frozen=True)
class LossOutput:
    """Per datum the log-probabilities of its targets, (T,) float32, and sums over the request (`loss:sum`, ...)."""

    logprobs: list[np.ndarray]
    elementwise_loss: list[np.ndarray]
    metrics: dict[str, float]


@dataclass(frozen=True)
class AdamSettings:
    """An optimizer step's parameters, as the service's AdamParams defines them; a grad_clip_norm of 0 does not clip."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


@dataclass(frozen=True)
class SampleSpec:
    """One sampling request; `seed` decides every draw: the same spec on the same weights gives the same tokens. With
    `record_top_k` each sequence carries that many of the likeliest tokens at each of its positions. Samples count from
    `first_sample`: a part of a request draws what the whole one would draw for it."""

    prompt: list[int]
    num_samples: int
    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    seed: int = 0
    stop_tokens: list[int] = field(default_factory=list)
    stop_strings: list[str] = field(default_factory=list)
    prompt_logprobs: bool = False
    topk_prompt_logprobs: int = 0
    record_top_k: int = 0
    first_sample: int = 0

    def by_sample(self) -> "list[SampleSpec]":
        """A request for each sample; the first one's result has what is asked about the prompt."""
        first = replace(self, num_samples=1)
        other = replace(first, prompt_logprobs=False, topk_prompt_logprobs=0)
        places = range(1, self.num_samples)
        return [first, *(replace(other, first_sample=self.first_sample + place) for place in places)]


@dataclass(frozen=True)
class SampledSequence:
    """One completion, stop token included, with the log-probability of each token under the sampling weights at the
    request's temperature (at 1 where that is 0), before top_k and top_p cut the distribution."""

    tokens: list[int]
    logprobs: list[float]
    stop_reason: Literal["stop", "length"]
    top_k: SamplerTopK | None = None


@dataclass(frozen=True)
class SampleResult:
    """All completions of one request; prompt log-probabilities are at temperature 1, None for the first token."""

    sequences: list[SampledSequence]
    prompt_logprobs: list[float | None] | None = None
    topk_prompt_logprobs: list[list[tuple[int, float]] | None] | None = None

    @classmethod
    def joined(cls, parts: "list[SampleResult]") -> "SampleResult":
        """The result of a request whose samples were requested one by one (`SampleSpec.by_sample`)."""
        sequences = [sequence for part in parts for sequence in part.sequences]
        return replace(parts[0], sequences=sequences)
