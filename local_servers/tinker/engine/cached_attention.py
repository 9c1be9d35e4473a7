"""Attention of a sampling step, over key-value caches: bits of a request depend on its own tokens only.

1. A request for several samples has a cache (`GroupCache`) and attention of its own.
2. Requests for one sample lie side by side in `SlotCaches`, and one product does the attention of many.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from local_servers.memory import require_memory
from local_servers.tinker.engine.slot_caches import SlotAttention, SlotCache

_GROW = 64


class GroupCache:
    """Keys and values of a prompt shared by G samples, and of what each sample has generated so far. Per layer: prompt
    (KV, P, d); samples (G, KV, capacity, d), of which the first `generated` positions are filled. The tensors' shapes
    depend on the request's own tokens only; they are float32, as all activations are."""

    def __init__(
        self, n_layers: int, n_kv_heads: int, head_dim: int, prompt_length: int, n_samples: int, device: torch.device
    ) -> None:
        self.prompt_length = prompt_length
        self.prompt_filled = 0
        self.generated = 0
        prompt = (n_kv_heads, prompt_length, head_dim)
        samples = (n_samples, n_kv_heads, 0, head_dim)
        self.prompt_k, self.prompt_v, self.sample_k, self.sample_v = (
            [torch.empty(shape, device=device, dtype=torch.float32) for _ in range(n_layers)]
            for shape in (prompt, prompt, samples, samples)
        )

    def reserve(self) -> None:
        """Makes room for one more position per sample. Raises OutOfMemory if there is none."""
        filled = self.generated
        short = [cache for cache in (*self.sample_k, *self.sample_v) if cache.shape[-2] <= filled]
        if short:
            position_bytes = sum(cache.shape[:-2].numel() * cache.shape[-1] * cache.itemsize for cache in short)
            what = "the cache of the completions that are being sampled"
            require_memory(_GROW * position_bytes, what, short[0].device.type)
            for caches in (self.sample_k, self.sample_v):
                for layer, old in enumerate(caches):
                    if filled < old.shape[-2]:  # where memory ended behind this layer, and the step is run again
                        continue
                    new = old.new_empty(*old.shape[:-2], filled + _GROW, old.shape[-1])
                    new[..., :filled, :] = old
                    caches[layer] = new

    def keep(self, samples: list[int]) -> None:
        """Drops every sample but those at these places, keeping their order."""
        index = torch.tensor(samples, device=self.sample_k[0].device)
        for caches in (self.sample_k, self.sample_v):
            for layer, old in enumerate(caches):
                caches[layer] = old.index_select(0, index)


@dataclass(frozen=True)
class Segment:
    """The rows `start:stop` of a step that are one request's: a chunk of its prompt, or one new token per sample."""

    start: int
    stop: int
    cache: GroupCache | SlotCache
    prefill: bool


class SampleAttention:
    """Attention over the packed rows of one step; also fills the caches. Rows outside all segments (padding) are 0."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._groups = [(each, each.cache) for each in segments if isinstance(each.cache, GroupCache)]
        slots = [(range(each.start, each.stop), each.cache) for each in segments if isinstance(each.cache, SlotCache)]
        self._slots = SlotAttention(slots) if slots else None

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        out = torch.zeros_like(q, memory_format=torch.contiguous_format)
        for segment, cache in self._groups:
            rows = slice(segment.start, segment.stop)
            attend = prefill if segment.prefill else decode
            out[rows] = attend(cache, layer, q[rows], k[rows], v[rows], scale)
        if self._slots is not None:
            self._slots.attend(out, layer, q, k, v, scale)
        return out


def prefill(
    cache: GroupCache, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """A chunk of C prompt tokens attends to the prompt up to itself: q (C, H, d), k and v (C, KV, d) -> (C, H, d)."""
    start, stop = cache.prompt_filled, cache.prompt_filled + q.shape[0]
    cache.prompt_k[layer][:, start:stop] = k.transpose(0, 1)
    cache.prompt_v[layer][:, start:stop] = v.transpose(0, 1)
    keys, values = cache.prompt_k[layer][None, :, :stop], cache.prompt_v[layer][None, :, :stop]
    mask = None if start == 0 else torch.ones(stop - start, stop, dtype=torch.bool, device=q.device).tril(start)
    out = F.scaled_dot_product_attention(
        q.transpose(0, 1)[None], keys, values, mask, is_causal=mask is None, scale=scale, enable_gqa=True
    )
    return out[0].transpose(0, 1)


def decode(
    cache: GroupCache, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """The attention of one new token of each of G samples to the shared prompt and the sample's own past; stores the
    token's key and value. q (G, H, d), k, v (G, KV, d) -> (G, H, d), for H query heads and KV key heads. The prompt's
    keys are read once for all samples: its scores and those of the samples' own parts are computed apart and normalised
    together."""
    (n_samples, n_heads, d), kv = q.shape, k.shape[1]
    group = n_heads // kv
    now = cache.generated  # the token's position after the prompt
    cache.sample_k[layer][:, :, now] = k
    cache.sample_v[layer][:, :, now] = v
    own_k, own_v = cache.sample_k[layer][:, :, : now + 1], cache.sample_v[layer][:, :, : now + 1]
    q = (q * scale).view(n_samples, kv, group, d)
    # (KV, G * group, P)
    shared = torch.bmm(q.transpose(0, 1).reshape(kv, n_samples * group, d), cache.prompt_k[layer].transpose(1, 2))
    own = torch.matmul(q, own_k.transpose(2, 3))  # (G, KV, group, now + 1)
    prompt_length = shared.shape[2]
    own = own.transpose(0, 1).reshape(kv, n_samples * group, now + 1)
    weights = torch.cat([shared, own], dim=2).softmax(dim=2)
    out = torch.bmm(weights[:, :, :prompt_length], cache.prompt_v[layer]).view(kv, n_samples, group, d)
    own_weights = weights[:, :, prompt_length:].reshape(kv, n_samples, group, now + 1).transpose(0, 1)
    return (out.transpose(0, 1) + torch.matmul(own_weights, own_v)).reshape(n_samples, n_heads, d)
