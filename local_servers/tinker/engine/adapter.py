"""LoRA adapters: the trainable state of one model, its merge into the base weights, Adam's step, and its files.

W' = W + (alpha / rank) B A with alpha 32 and A uniform in +-1/sqrt(in), B zero, as Tinker does ("LoRA Without
Regret", Schulman et al. 2025, https://thinkingmachines.ai/blog/lora/).

Unlike textbook LoRA, both training and sampling run the merged matrix W' where the matrix is float32: that costs no
more than the base alone, and makes the learner and the sampler use the very same weights. A bfloat16 matrix is not
merged: a delta below half a unit of its weights, as most of it is after the first steps, would be rounded away. The
factors stand beside it, rounded to bfloat16 by themselves for the products; parameters, gradients and moments are
float32 in any case.

Adam has bias correction and decoupled weight decay (Loshchilov and Hutter, https://arxiv.org/abs/1711.05101).

On disk an adapter has PEFT's LoRA format, with the optimizer's state in files beside it:

    adapter_model.safetensors   base_model.model.<matrix>.lora_A.weight and lora_B.weight, float32
    adapter_config.json         PEFT's configuration (rank, alpha 32, target modules)
    training_state.json         LoRA shape, seed, Adam's step count
    optimizer.safetensors       Adam's moments, <key>.first and <key>.second; only where the optimizer is saved
"""

import hashlib
import json
import math
import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from local_servers.memory import require_memory
from local_servers.tinker.engine.causal_lm import UNEMBED, Weights, merges
from local_servers.tinker.engine_types import AdamSettings
from local_servers.tinker.refusal import BadRequest

ALPHA = 32.0
MAX_RANK = 512
_PREFIX = "base_model.model."
_LARGEST = torch.finfo(torch.float32).max


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

        return sorted(filter(wanted, base))


def _adapted_bytes(matrices: list[torch.Tensor], rank: int) -> int:
    """What `Snapshot.weights` makes: merged matrices, and of the others rounded factors and their joined and packed
    forms, some six times as much."""
    return sum(4 * matrix.numel() if merges(matrix) else 6 * 2 * rank * sum(matrix.shape) for matrix in matrices)


class SnapshotWeights(dict[str, torch.Tensor]):
    """The base's weights with an adapter as it was at `snapshot`: float32 matrices merged, A and `scale` B beside the
    others."""

    def __init__(self, snapshot: "Snapshot", weights: Weights) -> None:
        super().__init__(weights)
        self.snapshot = snapshot


class Snapshot:
    """An adapter's factors at one version, which later optimizer steps do not change. The weights that they make are
    several times as large. So they live only as long as somebody holds them, and are made again, with the same bits,
    when they are asked for."""

    def __init__(self, base: Weights, factors: Weights) -> None:
        self.factors = factors
        self._base = base
        self._made: Callable[[], SnapshotWeights | None] = lambda: None
        self._making = threading.Lock()

    @property
    def in_use(self) -> bool:
        """Whether somebody holds its weights."""
        return self._made() is not None

    def weights(self) -> SnapshotWeights:
        """One object for all who hold it at the same time. Raises OutOfMemory before it is made."""
        with self._making:
            made = self._made()
            if made is None:
                made = SnapshotWeights(self, self._base | self._own())
                self._made = weakref.ref(made)
            return made

    @torch.no_grad()
    def _own(self) -> Weights:
        names = _matrices(self.factors)
        need = _adapted_bytes([self._base[name] for name in names], len(self.factors[f"{names[0]}.lora_A"]))
        require_memory(need, "a copy of the weights to sample from", self._base[UNEMBED].device.type)
        own: Weights = {}
        for name in names:
            a, b = f"{name}.lora_A", f"{name}.lora_B"
            if merges(self._base[name]):
                own[name] = torch.addmm(self._base[name], self.factors[b], self.factors[a])
            else:  # views: products attach a packed form to a matrix, which is not to outlive these weights
                own |= {key: self.factors[key].detach() for key in (a, b)}
        return own


@dataclass
class Adapter:
    """LoRA parameters with gradients (None until a backward pass), Adam moments and step count. Keys are
    `<matrix name>.lora_A` and `.lora_B`."""

    shape: LoraShape
    seed: int
    params: dict[str, torch.Tensor]
    grads: dict[str, torch.Tensor] | None = None
    moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    step: int = 0
    _adapted: SnapshotWeights | None = None

    @property
    def scale(self) -> float:
        return ALPHA / self.shape.rank

    def targets(self) -> list[str]:
        return _matrices(self.params)

    def adapted_weights(self, base: Weights) -> SnapshotWeights:
        """The weights with this adapter, kept until it changes. Later optimizer steps do not change them."""
        if self._adapted is None:
            self._adapted = Snapshot(base, self.factors(base)).weights()
        return self._adapted

    def forget_adapted_weights(self) -> None:
        """Before the adapter changes: the memory of its weights is free where nobody samples from them."""
        self._adapted = None

    @torch.no_grad()
    def factors(self, base: Weights) -> Weights:
        """A and `scale` B of every trained matrix, in its dtype: what `add_grads` takes the gradients of. Copies."""
        return {
            key: (self.scale * value if key.endswith(".lora_B") else value).to(
                base[key.rsplit(".", 1)[0]].dtype, copy=True
            )
            for key, value in self.params.items()
        }

    @torch.no_grad()
    def add_grads(self, found: Weights) -> None:
        """Adds the gradients `found`, of the snapshot's factors, as they are for A and B."""
        grads = self.grads or {key: torch.zeros_like(value) for key, value in self.params.items()}
        for name, grad in found.items():
            grads[name].add_(grad, alpha=self.scale if name.endswith(".lora_B") else 1.0)
        self.grads = grads

    def write(self, folder: Path, base_model: Path, *, optimizer: bool) -> None:
        """Writes the adapter into an existing or new folder, with Adam's state if `optimizer`; not atomic by itself."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {f"{_PREFIX}{key}.weight": value.contiguous() for key, value in self.params.items()}
        save_file(weights, folder / "adapter_model.safetensors", metadata={"format": "pt"})
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": str(base_model),
            "r": self.shape.rank,
            "lora_alpha": ALPHA,
            "lora_dropout": 0.0,
            "bias": "none",
            "inference_mode": True,
            "target_modules": sorted({name.rsplit(".", 1)[-1] for name in self.targets()}),
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        state = {"shape": asdict(self.shape), "seed": self.seed, "step": self.step if optimizer else 0}
        (folder / "training_state.json").write_text(json.dumps(state, indent=2) + "\n")
        if optimizer:
            moments = {}
            for key, (first, second) in self.moments.items():
                moments[f"{key}.first"], moments[f"{key}.second"] = first, second
            save_file(moments, folder / "optimizer.safetensors")


def _matrices(factors: Weights) -> list[str]:
    return [key.removesuffix(".lora_A") for key in factors if key.endswith(".lora_A")]


def create_adapter(base: Weights, shape: LoraShape, seed: int) -> Adapter:
    """An adapter with zero delta, the same for the same seed. Raises BadRequest if nothing would be trained."""
    if shape.rank < 1:
        raise BadRequest(f"LoRA rank must be at least 1, not {shape.rank}")
    targets = shape.targets(base)
    if not targets:
        raise BadRequest("nothing to train: train_mlp, train_attn and train_unembed are all off")
    largest = max(max(base[name].shape) for name in targets)
    if shape.rank > min(MAX_RANK, largest):
        raise BadRequest(
            f"LoRA rank is {shape.rank}; it can be {min(MAX_RANK, largest)} at most: a rank beyond a layer's own "
            f"size (the largest here is {largest}) adds nothing, and one beyond {MAX_RANK} trains as many "
            "parameters as the layers themselves"
        )
    device = base[UNEMBED].device
    matrices = [base[name] for name in targets]
    # A and B with their gradients and two moments, float32, and the weights that they make with the base's.
    trained_bytes = 4 * 4 * shape.rank * sum(sum(matrix.shape) for matrix in matrices)
    what = f"training with LoRA rank {shape.rank}"
    require_memory(trained_bytes + _adapted_bytes(matrices, shape.rank), what, device.type)
    params = {}
    for name in targets:
        out_features, in_features = base[name].shape
        # one generator per matrix: what one matrix starts with does not depend on which others are trained
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
        uniform = torch.rand(shape.rank, in_features, generator=generator)
        # drawn on the CPU: the same numbers on every device
        params[f"{name}.lora_A"] = ((2 * uniform - 1) * in_features**-0.5).to(device)
        params[f"{name}.lora_B"] = torch.zeros(out_features, shape.rank, device=device)
    return Adapter(shape, seed, params)


def check_settings(settings: AdamSettings) -> None:
    """Raises BadRequest for settings that Adam cannot run with."""
    for name in ("learning_rate", "eps", "weight_decay", "grad_clip_norm"):
        value = getattr(settings, name)
        if not 0 <= value <= _LARGEST:
            raise BadRequest(f"{name} must be finite in float32 and not negative, not {value}")
    if settings.learning_rate * settings.weight_decay > 1:
        raise BadRequest("learning_rate times weight_decay is above 1: the weights would change their signs and grow")
    for name in ("beta1", "beta2"):
        value = getattr(settings, name)
        if not 0 <= value < 1:
            raise BadRequest(f"{name} must be in [0, 1), not {value}")


@torch.no_grad()
def adam_step(adapter: Adapter, settings: AdamSettings) -> dict[str, float]:
    """One step on the adapter's gradients, which it clears. Returns the gradient's norm before and after clipping.
    Raises BadRequest if there are no gradients or they are not finite; the adapter is then as before, without them."""
    check_settings(settings)
    grads, adapter.grads = adapter.grads, None
    if grads is None:
        raise BadRequest("optim_step without a successful forward_backward since the last one: there are no gradients")
    norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in grads.values()))
    if not math.isfinite(norm):
        raise BadRequest("the gradients are not finite: no step was taken, and they were dropped")
    clip = settings.grad_clip_norm / norm if 0 < settings.grad_clip_norm < norm else 1.0
    adapter.step += 1
    adapter.forget_adapted_weights()  # the parameters change below
    correction1 = 1 - settings.beta1**adapter.step
    correction2 = 1 - settings.beta2**adapter.step
    for name, param in adapter.params.items():
        grad = grads[name] * clip
        if name not in adapter.moments:
            adapter.moments[name] = (torch.zeros_like(param), torch.zeros_like(param))
        first, second = adapter.moments[name]
        first.mul_(settings.beta1).add_(grad, alpha=1 - settings.beta1)
        second.mul_(settings.beta2).addcmul_(grad, grad, value=1 - settings.beta2)
        param.mul_(1 - settings.learning_rate * settings.weight_decay)
        step = (first / correction1) / ((second / correction2).sqrt() + settings.eps)
        # where there never was a gradient, 0 / (0 + eps) is 0 also for eps 0
        param.sub_(step.nan_to_num_(0.0), alpha=settings.learning_rate)
    return {"grad_norm": norm, "grad_norm_clipped": norm * clip}


def read_adapter(folder: Path, base: Weights, *, optimizer: bool) -> Adapter:
    """The adapter saved in `folder`, for the base matrices `base`. Raises BadRequest if the folder holds none, has no
    optimizer state although it is asked for, or does not fit the base model."""
    files = ["adapter_model.safetensors", "training_state.json"] + (["optimizer.safetensors"] if optimizer else [])
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise BadRequest(f"checkpoint {folder.name} has no {', '.join(missing)}")
    state = json.loads((folder / "training_state.json").read_text())
    device = str(base[UNEMBED].device)
    stored = load_file(folder / "adapter_model.safetensors", device)
    params = {key.removeprefix(_PREFIX).removesuffix(".weight"): value for key, value in stored.items()}
    adapter = Adapter(LoraShape(**state["shape"]), state["seed"], params)
    if not adapter.targets():
        raise BadRequest(f"checkpoint {folder.name} has no matrices")
    for name in adapter.targets():
        a, b = params[f"{name}.lora_A"], params[f"{name}.lora_B"]
        if name not in base or base[name].shape != (b.shape[0], a.shape[1]):
            raise BadRequest(f"checkpoint {folder.name} does not fit the base model at {name}")
    if optimizer:
        moments = load_file(folder / "optimizer.safetensors", device)
        adapter.step = state["step"]
        # The first step makes the moments: a checkpoint from before it has none.
        adapter.moments = {
            key: (moments[f"{key}.first"], moments[f"{key}.second"]) for key in params if f"{key}.first" in moments
        }
    return adapter
