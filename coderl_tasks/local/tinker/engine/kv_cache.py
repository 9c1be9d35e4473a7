"""The key-value cache of one sampling request: the prompt's part once, and each sample's own part."""

import torch

from coderl_tasks.local.memory import require_memory

_GROW = 64


class GroupCache:
    """Keys and values of a prompt shared by G samples, and of what each sample has generated so far.

    Per layer: prompt (KV, P, d); samples (G, KV, capacity, d), of which the first `generated` positions are filled.
    A request for one sample keeps what it generates behind its prompt instead, in prompt (KV, capacity, d).
    The tensors' shapes depend on the request's own tokens only.
    """

    def __init__(self, n_layers: int, n_kv_heads: int, head_dim: int, prompt_length: int, n_samples: int) -> None:
        self.single = n_samples == 1
        self.prompt_length = prompt_length
        self.prompt_filled = 0
        self.generated = 0
        prompt = (n_kv_heads, prompt_length, head_dim)
        samples = (n_samples, n_kv_heads, 0, head_dim)
        self.prompt_k = [torch.empty(prompt) for _ in range(n_layers)]
        self.prompt_v = [torch.empty(prompt) for _ in range(n_layers)]
        self.sample_k = [torch.empty(samples) for _ in range(n_layers)]
        self.sample_v = [torch.empty(samples) for _ in range(n_layers)]

    def reserve(self) -> None:
        """Makes room for one more position per sample. Raises OutOfMemory if there is none."""
        filled = self.prompt_length + self.generated if self.single else self.generated
        caches = [*self.prompt_k, *self.prompt_v] if self.single else [*self.sample_k, *self.sample_v]
        short = [cache for cache in caches if cache.shape[-2] <= filled]
        if not short:
            return
        position_bytes = 4 * sum(cache.shape[:-2].numel() * cache.shape[-1] for cache in short)
        require_memory(_GROW * position_bytes, "the cache of the completions that are being sampled")
        keys, values = (self.prompt_k, self.prompt_v) if self.single else (self.sample_k, self.sample_v)
        _grow(keys, filled)
        _grow(values, filled)

    def keep(self, samples: list[int]) -> None:
        """Drops every sample but those at these places, keeping their order."""
        index = torch.tensor(samples)
        for caches in (self.sample_k, self.sample_v):
            for layer, old in enumerate(caches):
                caches[layer] = old.index_select(0, index)


def _grow(caches: list[torch.Tensor], filled: int) -> None:
    """Gives those of the caches (..., capacity, d) that are filled to the end some more capacity."""
    for layer, old in enumerate(caches):
        if filled < old.shape[-2]:  # also where memory ended on the way to this layer, and the step is run again
            continue
        new = old.new_empty(*old.shape[:-2], filled + _GROW, old.shape[-1])
        new[..., :filled, :] = old
        caches[layer] = new
