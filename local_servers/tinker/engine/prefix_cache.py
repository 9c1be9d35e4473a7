"""Prompts that requests which have ended computed: a request that begins with the same tokens takes them on."""

import weakref
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from local_servers.memory import OutOfMemory, require_memory
from local_servers.tinker.engine.adapter import SnapshotWeights
from local_servers.tinker.engine.causal_lm import Weights
from local_servers.tinker.engine.packing import common_prefix


@dataclass(frozen=True, eq=False)
class _Prompt:
    """Its tokens, and the keys and values of them that these weights make, all layers' (tokens, KV, d)."""

    weights: Callable[[], Weights | None]
    tokens: np.ndarray
    tensors: list[torch.Tensor]
    nbytes: int


def _begins_with(tokens: np.ndarray, prefix: np.ndarray) -> bool:
    last = len(prefix) - 1
    return last < len(tokens) and tokens[last] == prefix[last] and np.array_equal(tokens[: last + 1], prefix)


def longer_prefix(a: np.ndarray, b: np.ndarray, known: int) -> int:
    """How many tokens a and b have in common at their beginning, if those are more than `known`, else 0."""
    if len(a) <= known or len(b) <= known or a[known] != b[known]:  # as almost all that are compared
        return 0
    shared = common_prefix(a, b)
    return shared if shared > known else 0


class KeptPrompts:
    """Keys and values of prompts, those used last, up to `max_bytes`; none of weights that nobody samples from."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._prompts: list[_Prompt] = []

    def add(self, weights: Weights, tokens: np.ndarray, tensors: list[torch.Tensor]) -> None:
        """Keeps a copy, in place of prompts that this one goes on from; not where there is no memory for it."""
        need = sum(tensor.nbytes for tensor in tensors)
        if need > self._max_bytes:
            return
        self._prompts = [
            each
            for each in self._prompts
            if (its := each.weights()) is not None and not (its is weights and _begins_with(tokens, each.tokens))
        ]
        held = need + sum(each.nbytes for each in self._prompts)
        while held > self._max_bytes:
            held -= self._prompts.pop(0).nbytes
        try:
            require_memory(need, "a prompt that later ones may begin with", tensors[0].device.type)
        except OutOfMemory:
            self._prompts.clear()
            return
        # The base model's live as long as the server.
        holder: Callable[[], Weights | None] = (
            weakref.ref(weights) if isinstance(weights, SnapshotWeights) else lambda: weights
        )
        self._prompts.append(_Prompt(holder, tokens, [tensor.clone() for tensor in tensors], need))

    def find(self, weights: Weights, tokens: np.ndarray) -> tuple[int, list[torch.Tensor]]:
        """How many of these tokens, the last not among them, the best prompt begins with, and its tensors."""
        found, best = 0, None
        for each in self._prompts:
            if each.weights() is weights and (shared := longer_prefix(tokens[:-1], each.tokens, found)):
                found, best = shared, each
        if best is None:
            return 0, []
        self._prompts.remove(best)
        self._prompts.append(best)
        return found, best.tensors
