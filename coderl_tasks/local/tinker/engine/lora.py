"""LoRA adapters: the trainable state of one model, and its merge into the base weights.

W' = W + (alpha / rank) B A with alpha 32 and A uniform in +-1/sqrt(in), B zero, as Tinker does ("LoRA Without
Regret", Schulman et al. 2025, https://thinkingmachines.ai/blog/lora/).

Unlike textbook LoRA, both training and sampling run the merged matrix W': dA and dB follow from dW' = dY^T X
by the chain rule. On small models that costs no more than the low-rank products, needs a third of the
operations, and makes the learner and the sampler use the very same weights.
"""

import hashlib
from dataclasses import dataclass, field

import torch

from coderl_tasks.local.memory import require_memory
from coderl_tasks.local.tinker.engine.base_model import UNEMBED, Weights
from coderl_tasks.local.tinker.engine_types import BadRequest
from coderl_tasks.settings import MAX_LORA_RANK

ALPHA = 32.0


@dataclass(frozen=True)
class LoraShape:
    """Rank and which parts of the model carry a LoRA."""

    rank: int
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = True

    def targets(self, base: Weights) -> list[str]:
        """Names of the adapted matrices, in a fixed order."""

        def wanted(name: str) -> bool:
            if name == UNEMBED:
                return self.train_unembed
            return self.train_mlp if ".mlp." in name else self.train_attn

        return sorted(name for name in base if wanted(name))

    def nbytes(self, base: Weights) -> int:
        """The least memory that a model of this shape is trained in: A and B with their gradients and two moments, the
        merged matrices and a gradient of theirs."""
        low_rank = sum(self.rank * sum(base[name].shape) for name in self.targets(base))
        full = sum(base[name].numel() for name in self.targets(base))
        return 4 * (4 * low_rank + 2 * full)


@dataclass
class Adapter:
    """LoRA parameters with gradients, Adam moments and step count. Keys are `<matrix name>.lora_A` and
    `.lora_B`.

    `grads` is None until a backward pass; `version` counts changes of the parameters.
    """

    shape: LoraShape
    seed: int
    params: dict[str, torch.Tensor]
    grads: dict[str, torch.Tensor] | None = None
    moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    step: int = 0
    version: int = 0
    _merged: tuple[int, Weights] | None = None

    @property
    def scale(self) -> float:
        return ALPHA / self.shape.rank

    def targets(self) -> list[str]:
        """Names of the adapted matrices."""
        return [key.removesuffix(".lora_A") for key in self.params if key.endswith(".lora_A")]

    @torch.no_grad()
    def merged(self, base: Weights) -> Weights:
        """The weights with this adapter's delta added: fresh tensors that later optimizer steps do not change."""
        if self._merged is None or self._merged[0] != self.version:
            delta = {
                name: torch.addmm(
                    base[name], self.params[f"{name}.lora_B"], self.params[f"{name}.lora_A"], alpha=self.scale
                )
                for name in self.targets()
            }
            self._merged = (self.version, base | delta)
        return self._merged[1]

    @torch.no_grad()
    def add_grads(self, parts: list[Weights]) -> None:
        """Adds the gradients that the sum of `parts`, gradients of the merged matrices, means for A and B."""
        grads = self.grads or {key: torch.zeros_like(value) for key, value in self.params.items()}
        for name in self.targets():
            found = [part[name] for part in parts if name in part]
            if not found:
                continue
            grad = sum(found[1:], start=found[0])
            a, b = f"{name}.lora_A", f"{name}.lora_B"
            grads[a].addmm_(self.params[b].t(), grad, alpha=self.scale)
            grads[b].addmm_(grad, self.params[a].t(), alpha=self.scale)
        self.grads = grads


def create_adapter(base: Weights, shape: LoraShape, seed: int) -> Adapter:
    """An adapter with zero delta, the same for the same seed. Raises BadRequest if nothing would be trained."""
    if shape.rank < 1:
        raise BadRequest(f"LoRA rank must be at least 1, not {shape.rank}")
    targets = shape.targets(base)
    if not targets:
        raise BadRequest("nothing to train: train_mlp, train_attn and train_unembed are all off")
    largest = max(max(base[name].shape) for name in targets)
    if shape.rank > min(MAX_LORA_RANK, largest):
        raise BadRequest(
            f"LoRA rank is {shape.rank}; it can be {min(MAX_LORA_RANK, largest)} at most: a rank beyond a layer's own "
            f"size (the largest here is {largest}) adds nothing, and one beyond {MAX_LORA_RANK} trains as many "
            "parameters as the layers themselves"
        )
    require_memory(shape.nbytes(base), f"training with LoRA rank {shape.rank}")
    params = {}
    for name in targets:
        out_features, in_features = base[name].shape
        # one generator per matrix: what one matrix starts with does not depend on which others are trained
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        uniform = torch.rand(shape.rank, in_features, generator=generator)
        params[f"{name}.lora_A"] = (2 * uniform - 1) * in_features**-0.5
        params[f"{name}.lora_B"] = torch.zeros(out_features, shape.rank)
    return Adapter(shape, seed, params)
