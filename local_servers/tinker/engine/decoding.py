"""Decoding one request: from its logits and uniform numbers to tokens with log-probabilities, and when one ends."""

from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F

from local_servers.tinker.engine_types import SampleSpec
from local_servers.tinker.refusal import BadRequest

_BLOCK = 64
_SUMMED = 256  # probabilities that are summed to one number before a token is looked for
_SLACK_TOKENS = 8


class UniformDraws:
    """Uniform numbers in [0, 1): sample i's t-th depends on (seed, i, t) alone."""

    def __init__(self, seed: int, samples: range) -> None:
        self._generators = [
            np.random.Generator(np.random.Philox(np.random.SeedSequence([seed % 2**64, sample]))) for sample in samples
        ]
        self._block = np.empty((len(samples), 0))
        self._first = 0

    def at(self, step: int) -> np.ndarray:
        """The numbers (samples,) of a step; steps must be asked for in order."""
        if step >= self._first + self._block.shape[1]:
            self._first = step
            self._block = np.stack([generator.random(_BLOCK) for generator in self._generators])
        return self._block[:, step - self._first]


def draw_tokens(logits: torch.Tensor, spec: SampleSpec, uniforms: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens (G,) drawn from logits (G, V), or (1, V) shared by all, with their log-probabilities (G,) in the
    distribution scaled by the temperature, before it is cut.

    Temperature 0 takes the likeliest token; its log-probability is the one at temperature 1, as the limit would be 0.
    Otherwise the scaled distribution is cut to `top_k` tokens, then to the smallest set that holds `top_p`,
    renormalised, and inverted at `uniforms` (G,). Raises BadRequest for logits that are no numbers."""
    n_samples = len(uniforms)
    if spec.temperature == 0:
        tokens = logits.argmax(dim=1).expand(n_samples)
        logprobs = _at(logits.log_softmax(dim=1), tokens)
        _require_finite(logprobs)
        return tokens, logprobs
    probs = (logits if spec.temperature == 1 else logits / spec.temperature).softmax(dim=1)
    if 0 < spec.top_k < logits.shape[1] or spec.top_p < 1:
        # Stable: equal probabilities, as rare tokens have, keep their order, and a uniform number its token.
        kept, order = probs.sort(dim=1, descending=True, stable=True)
        kept = kept[:, : spec.top_k] if spec.top_k > 0 else kept
        if spec.top_p < 1:
            before = kept.double().cumsum(dim=1) - kept
            within = before < spec.top_p * kept.double().sum(dim=1, keepdim=True)
            within[:, 0] = True  # however small top_p is: of an empty set nothing can be drawn
            kept = kept * within
        tokens = _at(order, _invert(kept, uniforms))
    else:
        tokens = _invert(probs, uniforms)
    return tokens, _at(probs, tokens).log()


def _at(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Of values (G or 1, V), shared by all where it is one row, those (G,) at `places` (G,)."""
    return values.expand(len(places), -1).gather(1, places[:, None])[:, 0]


def _invert(probs: torch.Tensor, uniforms: np.ndarray) -> torch.Tensor:
    """Samples by inverting the distribution: the index (G,) at which the cumulative sum of probs (G or 1, V) passes
    each uniform (G,) times its total. Searches sums of blocks first, then one block: cheaper than a cumulative sum of
    all tokens. Raises BadRequest where the total is no number."""
    n_samples = len(uniforms)
    probs = F.pad(probs, (0, -probs.shape[1] % _SUMMED)) if probs.shape[1] % _SUMMED else probs
    blocks = probs.view(len(probs), -1, _SUMMED)
    # Double between blocks: float32 sums over a large vocabulary are too coarse for tokens of small probability. Within
    # one, double would make a copy of all probabilities first.
    sums = blocks.sum(dim=2).double().cumsum(dim=1)
    _require_finite(sums[:, -1])  # or a token outside the vocabulary would be drawn
    target = torch.from_numpy(uniforms).to(probs.device)[:, None] * sums[:, -1:]
    block = _passed(sums.expand(n_samples, -1), target)
    rows = torch.arange(n_samples, device=probs.device) % len(probs)
    before = F.pad(sums, (1, 0))[rows, block]
    inside = _passed(before[:, None] + blocks[rows, block].double().cumsum(dim=1), target)
    return block * _SUMMED + inside


def _require_finite(values: torch.Tensor) -> None:
    """Raises BadRequest if a value, which comes of logits, is no number."""
    if not values.isfinite().all():
        raise BadRequest(
            "the weights give logits that are not finite: training has diverged. Continue from an earlier "
            "checkpoint with a lower learning rate"
        )


def _passed(sums: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The first place (G,) of ascending sums (G, n) that is above the target (G, 1); the last that adds something where
    none is, as rounding can make a target the total."""
    sums = sums.contiguous()
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(sums, target, right=True), last)[:, 0]


class StopRule:
    """Decides after each token whether a sequence ends, which keeps its stop token or string. `limit` is the number of
    tokens allowed; a tokenizer is needed only for stop strings."""

    def __init__(self, spec: SampleSpec, limit: int, tokenizer: Any | None) -> None:
        self._tokens = frozenset(spec.stop_tokens)
        self._strings = [string for string in spec.stop_strings if string]
        self._limit = limit
        self._tokenizer = tokenizer
        # a token holds at least one byte, so a stop string lies within this many tokens of the end
        self._window = max((len(string.encode()) for string in self._strings), default=0) + _SLACK_TOKENS

    def reason(self, tokens: list[int]) -> Literal["stop", "length"] | None:
        """Why the sequence ends with its last token, None if it goes on."""
        if tokens[-1] in self._tokens:
            return "stop"
        if self._strings:
            assert self._tokenizer is not None
            text = self._tokenizer.decode(tokens[-self._window :], skip_special_tokens=False)
            if any(string in text for string in self._strings):
                return "stop"
        return "length" if len(tokens) >= self._limit else None
