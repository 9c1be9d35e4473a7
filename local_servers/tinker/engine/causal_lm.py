"""The base model: a Hugging Face causal LM folder whose linear weights, attention and row kernels are ours to choose.

The architecture (norms, rotary embedding, residuals) stays transformers' own code. What is replaced:

- every `nn.Linear` by a `LinearSlot`, which takes its weight from the bound `Weights` (base or LoRA-merged);
- attention, through transformers' attention registry, by whatever the caller passes along with the rows;
- the rotary embedding by a table, and the activation by a row-exact form of it (see `row_exact`).

Limits: dense decoders with RMSNorm and full attention (Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3, SmolLM3 and
their like); no sliding window, no mixture of experts, no rotary scaling that depends on the sequence's length.

The layers' weights are float32 or bfloat16, and so are their products and what is between gate and down. All else is
float32: the residual stream, attention, the unembedding and log-probabilities. Rounded to bfloat16, the residual stream
and the logits would make up most of the error: the sampler's log-probabilities of SmolLM2-135M were 0.036 nats from the
trainer's, and are 0.010.

In float32 on the CPU a row has the same bits in every batch, which is tried when the model is loaded; in bfloat16 where
the trial succeeds. On another device the plain products run, without that promise.
"""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from local_servers.memory import as_out_of_memory, require_memory, return_freed_memory
from local_servers.server_errors import SetupError
from local_servers.tinker.engine.packing import PackedGroup, TreeAttention
from local_servers.tinker.engine.row_exact import (
    TILE,
    RowExactProduct,
    gemm,
    packable,
    packed,
    padded_rows,
    row_exact_activation,
)

logger = logging.getLogger(__name__)

Weights = dict[str, torch.Tensor]
"""Weight matrices (out, in) by module name, `UNEMBED` (float32) included: all that LoRA can change. The factors of an
adapter can stand beside its matrices, `<name>.lora_A` (rank, in) and `<name>.lora_B` (out, rank): a float32 matrix has
them merged in, and they take the gradients; a bfloat16 matrix has not, and its product is the sum of both."""
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""x (R, in) and a matrix (out, in) -> (R, out)."""
RowAttention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Attention over packed rows of a layer: q (R, H, d), k and v (R, KV, d) and the scale -> (R, H, d)."""
UNEMBED = "lm_head"

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_ROTARY_BLOCK = 1024
_PROBE_ROWS = 2 * TILE
_PROBE_TOLERANCE = 1e-3
_PROBE_STEP = 7919
"""Tokens of the comparison are this far apart: rows of one kind, as the first of a vocabulary are, can make a model
that was trained on texts so sensitive that bfloat16 tells nothing."""
_LARGE_WEIGHTS = 50_000_000
"""From so many weights on, a model on the CPU is `large`: its requests are long enough to be sampled in a process of
their own, and take enough memory to give it back to the system at their end (of SmolLM2-135M 3.2 of 5 GB)."""
_ONE_INPUT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Linear layers of a module that get the same input, by transformers' names."""


def merges(matrix: torch.Tensor) -> bool:
    """Whether adapters of this matrix are merged into it."""
    return matrix.dtype == torch.float32


def _linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear` in the dtype of x."""
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


class _MergedProduct(torch.autograd.Function):
    """x (..., in) times W' + bias -> (..., out), where W' = W + B A, with the gradients of x, A and B.

    dA = B^T dY^T X and dB = dY^T X A^T are taken without dW' = dY^T X, which would cost as much as the product itself.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, merged: torch.Tensor, bias: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(x, merged, a, b)
        return F.linear(x, merged, bias)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, merged, a, b = ctx.saved_tensors
        rows, grad = x.flatten(0, -2), grads[0].flatten(0, -2)
        x_grad = (grad @ merged).view_as(x) if ctx.needs_input_grad[0] else None
        return x_grad, None, None, (grad @ b).t() @ rows, grad.t() @ (rows @ a.t())


class _RoundedProduct(torch.autograd.Function):
    """x (1, R, in) times [W, ...] + [B A, ...], not merged -> (1, R, sum of `outputs`) of `dtype`, with the gradients
    of x and of each A and B, which come as a, ..., b, ...: products of the dtype of the weight.

    `before` is applied to x first, and again in the backward pass, so that its result is not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        before: Callable[[torch.Tensor], torch.Tensor] | None,
        weight: torch.Tensor,
        outputs: list[int],
        dtype: torch.dtype,
        *factors: torch.Tensor,
    ) -> torch.Tensor:
        multiplied = x if before is None else before(x)
        rows = multiplied[0].to(weight.dtype)
        half = len(outputs)
        a = torch.cat(factors[:half]).to(rows.dtype)
        b = torch.block_diag(*factors[half:]).to(rows.dtype)
        low = gemm(rows, a)
        ctx.save_for_backward(rows[None] if before is None else x, weight, low, a, b)
        ctx.before, ctx.outputs, ctx.dtype = before, outputs, multiplied.dtype
        return gemm(rows, packed(weight)).to(dtype).add_(gemm(low, b))[None]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight, low, a, b = ctx.saved_tensors
        multiplied = x
        if ctx.before is not None:
            with torch.enable_grad():
                multiplied = ctx.before(x := x.detach().requires_grad_())
        rows, grad = multiplied[0].detach().to(weight.dtype), grads[0][0].to(weight.dtype)
        through = grad @ b
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = gemm(grad, packed(weight, transposed=True)).to(ctx.dtype).add_(through @ a)[None]
            if ctx.before is not None:
                (x_grad,) = torch.autograd.grad(multiplied, x, x_grad)
        rank = a.shape[0] // len(ctx.outputs)
        b_grads = [
            (part.t() @ its_low).float()
            for part, its_low in zip(grad.split(ctx.outputs, dim=1), low.split(rank, dim=1), strict=True)
        ]
        return x_grad, None, None, None, None, *(through.t() @ rows).float().split(rank), *b_grads


class _Binding(threading.local):
    """What the slots of one model use during this thread's current forward pass."""

    weights: Weights
    product: Product | None
    exact: bool  # products in float32, whatever the weights' dtype
    ready: dict[str, torch.Tensor]  # outputs of slots whose group was multiplied


@dataclass(frozen=True)
class SlotGroup:
    """Linear layers of one input, as queries, keys and values are, whose bfloat16 products are one: `weight` (sum of
    `outputs`, in) has their matrices below each other, and what comes out is of `dtype`."""

    names: tuple[str, ...]
    outputs: list[int]
    weight: torch.Tensor
    dtype: torch.dtype = torch.float32

    def adapted(self, weights: Weights) -> bool:
        return f"{self.names[0]}.lora_A" in weights

    def sampled(self, x: torch.Tensor, weights: Weights, product: Product) -> tuple[torch.Tensor, ...]:
        """The outputs (R, out) for x (R, in), without gradients."""
        rows = x.to(self.weight.dtype)
        out = product(rows, self.weight).to(self.dtype)
        if self.adapted(weights):
            a, b = self._factors(weights)
            out.add_(product(product(rows, a), b))
        return out.split(self.outputs, dim=1)

    def trained(
        self, x: torch.Tensor, weights: Weights, before: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The outputs (1, R, sum of `outputs`) for x (1, R, in), or for `before` of x, differentiable."""
        factors = [weights[f"{name}.lora_{factor}"] for factor in "AB" for name in self.names]
        out = _RoundedProduct.apply(x, before, self.weight, self.outputs, self.dtype, *factors)
        return cast(torch.Tensor, out)

    def _factors(self, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
        """A (rank of all, in) and B (out, rank of all) of the whole, which are kept among the weights."""
        name = "+".join(self.names)
        if f"{name}.lora_B" not in weights:
            a, b = ([weights[f"{each}.lora_{factor}"] for each in self.names] for factor in "AB")
            weights[f"{name}.lora_A"], weights[f"{name}.lora_B"] = torch.cat(a), torch.block_diag(*b)
        return weights[f"{name}.lora_A"], weights[f"{name}.lora_B"]


class LinearSlot(nn.Module):
    """A linear layer that takes its weight from the binding; row-exact when the binding has a product."""

    bias: torch.Tensor | None

    def __init__(self, name: str, bias: torch.Tensor | None, binding: _Binding) -> None:
        super().__init__()
        self.name, self.binding = name, binding
        self.group: SlotGroup | None = None
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        binding, weights = self.binding, self.binding.weights
        weight = weights[self.name]
        if binding.exact:
            return _linear(x, weight, self.bias)
        group = self.group
        if group is not None and (binding.product is not None or group.adapted(weights)):
            if self.name not in binding.ready:
                binding.ready |= zip(group.names, self._of_group(group, x), strict=True)
            out = binding.ready.pop(self.name)
        elif binding.product is not None:
            out = binding.product(x[0], weight)[None]
        elif f"{self.name}.lora_A" in weights:
            factors = weights[f"{self.name}.lora_A"], weights[f"{self.name}.lora_B"]
            return cast(torch.Tensor, _MergedProduct.apply(x, weight, self.bias, *factors))
        else:
            out = F.linear(x.to(weight.dtype), weight).to(torch.float32 if group is None else group.dtype)
        return out if self.bias is None else out + self.bias

    def _of_group(self, group: SlotGroup, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights, product = self.binding.weights, self.binding.product
        if product is None and torch.is_grad_enabled():
            return group.trained(x, weights).split(group.outputs, dim=2)
        return tuple(out[None] for out in group.sampled(x[0], weights, product or F.linear))


class ActivationSlot(nn.Module):
    """The MLP's activation function; row-exact when the binding asks for it."""

    def __init__(self, function: nn.Module, binding: _Binding) -> None:
        super().__init__()
        self.function, self.binding = function, binding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) if self.binding.product is None else row_exact_activation(self.function, x[0])[None]


class GatedMLP(nn.Module):
    """An MLP of transformers, down(activation(gate(x)) * up(x)), whose three products are two where it is trained: what
    lies between them is the widest of a layer, and of it only the outputs of gate and up are kept."""

    def __init__(self, mlp: nn.Module, binding: _Binding) -> None:
        super().__init__()
        self.mlp: Any = mlp
        self.binding = binding

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether the module is such a one, with bfloat16 products of gate and up in one."""
        gate, up, down = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
        slots = [slot for slot in (gate, up, down) if isinstance(slot, LinearSlot) and slot.group and slot.bias is None]
        one_product = len(slots) == 3 and slots[0].group is slots[1].group
        return one_product and isinstance(getattr(module, "act_fn", None), ActivationSlot)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, binding = self.binding.weights, self.binding
        inner, outer = self.mlp.gate_proj.group, self.mlp.down_proj.group
        plain = binding.product is not None or binding.exact or not torch.is_grad_enabled()
        if plain or not inner.adapted(weights) or not outer.adapted(weights):
            return cast(torch.Tensor, self.mlp(x))
        both: torch.Tensor = inner.trained(x, weights)
        return cast(torch.Tensor, outer.trained(both, weights, before=self._between))

    def _between(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        return cast(torch.Tensor, self.mlp.act_fn.function(gate) * up)


class RotaryTable(nn.Module):
    """cos and sin of every position, computed once in fixed blocks: a position has the same bits in every batch."""

    def __init__(self, rotary: nn.Module) -> None:
        super().__init__()
        self.rotary = rotary
        self.cos = self.sin = torch.empty(0, 0)
        self._growing = threading.Lock()

    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        rows = position_ids[0]
        with self._growing:
            self._grow(int(rows.max()) + 1, x)
        return self.cos[rows][None], self.sin[rows][None]

    @torch.inference_mode(False)  # training uses the table too, also where sampling made it
    @torch.no_grad()
    def _grow(self, positions: int, x: torch.Tensor) -> None:
        like = torch.empty(1, dtype=x.dtype, device=x.device)
        blocks = []
        for start in range(len(self.cos), positions, _ROTARY_BLOCK):
            blocks.append(self.rotary(like, torch.arange(start, start + _ROTARY_BLOCK, device=x.device)[None]))
        if blocks:
            old = [(self.cos[None], self.sin[None])] if len(self.cos) else []
            self.cos = torch.cat([cos[0] for cos, _ in old + blocks])
            self.sin = torch.cat([sin[0] for _, sin in old + blocks])


def _attention_entry(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    row_attention: RowAttention,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' attention interface: (1, heads, R, d) in, (1, R, heads, d) out."""
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    layer: int = module.layer_idx  # type: ignore[assignment]
    return row_attention(layer, q, k, v, scaling)[None], None


ALL_ATTENTION_FUNCTIONS.register("coderl_rows", _attention_entry)


class BaseModel:
    """A causal LM; `weights` are the base weights. Forward passes may run in several threads."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Loads the Hugging Face model in `folder`, replaces its linear layers and attention by our own forms, and
        tries on a few tokens that the logits are still those of transformers' form. Raises SetupError for an
        architecture that is not supported or gives other logits, OutOfMemory if the model does not fit."""
        self.device, self.dtype = device, dtype
        name = str(dtype).removeprefix("torch.")
        self.needed_bytes = _needed_bytes(folder, device, dtype)
        require_memory(self.needed_bytes, f"loading {folder} in {name}", device.type)
        model = _loaded(folder, dtype).eval()
        model.requires_grad_(False).to(device)
        self.config: Any = model.config
        self.folder = folder
        self.context_length: int = self.config.max_position_embeddings
        self.vocab_size: int = self.config.vocab_size
        self.n_layers: int = self.config.num_hidden_layers
        n_heads: int = self.config.num_attention_heads
        self.n_kv_heads: int = getattr(self.config, "num_key_value_heads", None) or n_heads
        self.head_dim: int = getattr(self.config, "head_dim", None) or self.config.hidden_size // n_heads
        self._binding = _Binding()
        self._backbone: Any = model.get_decoder()
        self.weights: Weights = {UNEMBED: model.get_output_embeddings().weight.float()}
        # First the trial's reference, by transformers' own form: `rounded` in `dtype`, `expected` in float32.
        tokens = torch.arange(1, _PROBE_ROWS + 1, device=device) * _PROBE_STEP % self.vocab_size
        model.set_attn_implementation("eager")
        with torch.no_grad():
            rounded = model(tokens[None], use_cache=False).logits[0].float()
        embedding = self._backbone.get_input_embeddings()
        if embedding.weight is model.get_output_embeddings().weight:  # one table for both: float32 has its numbers
            embedding.weight = nn.Parameter(self.weights[UNEMBED], requires_grad=False)
        expected = _exact_logits(model, tokens)
        # Then the replacements. `_fit_slots` puts a slot in place of each linear layer, its matrix into `weights`.
        model.set_attn_implementation("coderl_rows")
        self._fit_slots(self._backbone, "model")
        self.n_weights = sum(weight.numel() for weight in self.weights.values())
        self.large = device.type == "cpu" and self.n_weights >= _LARGE_WEIGHTS
        self._refuse_unknown_parts()
        self._backbone.rotary_emb = RotaryTable(self._backbone.rotary_emb)
        self._product: RowExactProduct | None = None
        self._refuse_other_results(tokens, expected)
        # `_product` gives a row the same bits in any batch. On a GPU its many small products would cost too much.
        if device.type == "cpu":
            self._product = self._row_exact_product(tokens)
        if dtype == torch.bfloat16:
            self._refuse_coarse_results(tokens, expected, rounded)
        if self.large:  # of SmolLM2-135M half a gigabyte was needed to load and compare it
            return_freed_memory()

    def _fit_slots(self, module: nn.Module, path: str) -> None:
        slots = []
        for name, child in list(module.named_children()):
            child_path = f"{path}.{name}"
            if isinstance(child, nn.Linear):
                self.weights[child_path] = child.weight
                slots.append(LinearSlot(child_path, child.bias, self._binding))
                setattr(module, name, slots[-1])
            elif name in ("act_fn", "activation_fn"):
                setattr(module, name, ActivationSlot(child, self._binding))
            else:
                self._fit_slots(child, child_path)
                if GatedMLP.fits(child):
                    setattr(module, name, GatedMLP(child, self._binding))
        if self.dtype == torch.bfloat16:
            for slot in slots:
                alike = next((names for names in _ONE_INPUT if slot.name.rpartition(".")[2] in names), ())
                if slot.group is None:
                    self._group([other for other in slots if other is slot or other.name.rpartition(".")[2] in alike])

    def _group(self, slots: list[LinearSlot]) -> None:
        """Has these slots, which get the same input, multiply together, unless their matrix is too large for the order
        that each of theirs is kept in."""
        matrices = [self.weights[slot.name] for slot in slots]
        whole = torch.cat(matrices) if len(slots) > 1 else matrices[0]
        if not packable(whole) and len(slots) > 1 and any(map(packable, matrices)):
            for slot in slots:
                self._group([slot])
            return
        names = tuple(slot.name for slot in slots)
        # What lies between gate and down is the widest of a layer, and down's product rounds it in any case.
        inner = names[0].endswith(_ONE_INPUT[1])
        dtype = self.dtype if inner else torch.float32
        group = SlotGroup(names, [len(matrix) for matrix in matrices], whole, dtype)
        self.weights |= zip(group.names, whole.split(group.outputs), strict=True)  # views: no second copy
        for slot in slots:
            slot.group = group

    def _refuse_unknown_parts(self) -> None:
        """Raises SetupError for parts that the local engine cannot compute, or would compute in another way that the
        trial (a few tokens, perhaps in bfloat16) does not show."""
        kind = self.config.model_type
        layer_types = getattr(self.config, "layer_types", None)
        window = getattr(self.config, "sliding_window", None) or self.context_length
        if window < self.context_length and (layer_types is None or "sliding_attention" in layer_types):
            raise SetupError(
                f"{self.folder}: {kind} with sliding-window attention is not supported by the local engine"
            )
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") in _LENGTH_DEPENDENT_ROPE:
            raise SetupError(f"{self.folder}: rotary scaling {rope['rope_type']} is not supported by the local engine")
        if any(getattr(self.config, f"{what}_logit_softcapping", None) for what in ("attn", "final")):
            raise SetupError(f"{self.folder}: {kind} caps its logits: the local engine does not")
        if not hasattr(self._backbone, "rotary_emb"):
            raise SetupError(f"{self.folder}: {kind} has no rotary embedding: the local engine does not run it")
        for name, module in self._backbone.named_modules():
            owns = any(True for _ in module.parameters(recurse=False))
            if owns and not isinstance(module, nn.Embedding) and not type(module).__name__.endswith("RMSNorm"):
                raise SetupError(f"{self.folder}: {kind} has a part the local engine does not know: {name}")

    @torch.no_grad()
    def _probe(self, sequences: list[torch.Tensor], *, exact: bool = False) -> torch.Tensor:
        """The last sequence's logits (rows, vocabulary), float32, when they are packed one after the other; `exact` as
        for `hidden`."""
        starts = [sum(map(len, sequences[:number])) for number in range(len(sequences))]
        total = starts[-1] + len(sequences[-1])
        groups = [PackedGroup(start, len(rows), ()) for start, rows in zip(starts, sequences, strict=True)]
        padding = padded_rows(total) - total
        if padding:
            groups.append(PackedGroup(total, padding, ()))
        packed = torch.cat([*sequences, sequences[0].new_zeros(padding)])
        positions = torch.cat([torch.arange(group.prefix, device=self.device) for group in groups])
        attention = TreeAttention(tuple(groups))
        hidden = self.hidden(self.weights, packed, positions, attention, row_exact=True, exact=exact)
        return self.exact_logits(self.weights, hidden[starts[-1] : total])

    def _refuse_other_results(self, tokens: torch.Tensor, expected: torch.Tensor) -> None:
        """Our form of the model must compute what transformers' plain form does. Both compute in float32 here: rounding
        to bfloat16 would hide a difference of the forms."""
        refusal = f"{self.folder}: the local engine does not reproduce this {self.config.model_type} model"
        supported = "it runs Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3 and models built like them"
        try:
            found = self._probe([tokens], exact=True)
        except (TypeError, RuntimeError) as error:  # other arguments or other shapes than those of the slots
            if as_out_of_memory(error) is not None:
                raise
            raise SetupError(f"{refusal} ({' '.join(str(error).split())}); {supported}") from error
        atol = _PROBE_TOLERANCE * float(expected.abs().max())
        if not torch.allclose(found, expected, rtol=_PROBE_TOLERANCE, atol=atol):
            difference = float((found - expected).abs().max())
            raise SetupError(f"{refusal} (largest difference {difference:.2g}); {supported}")

    def _row_exact_product(self, tokens: torch.Tensor) -> RowExactProduct | None:
        """The product that gives a row the same bits in any batch, tried on every shape and on the whole model. None
        where bfloat16 has none; raises RuntimeError where float32 has none."""
        try:
            self._product = RowExactProduct()
            for weight in self.weights.values():
                self._product.sizes(weight)
            alone = self._probe([tokens])
            if torch.equal(self._probe([tokens.flip(0), tokens[:37], tokens]), alone):
                return self._product
            raise RuntimeError("this machine gives a row other bits in another batch")
        except RuntimeError as error:
            if self.dtype == torch.float32 or as_out_of_memory(error) is not None:
                raise
            logger.warning("%s: in bfloat16 samples can depend on what is sampled beside them: %s", self.folder, error)
            return None

    def _refuse_coarse_results(self, tokens: torch.Tensor, expected: torch.Tensor, rounded: torch.Tensor) -> None:
        """In bfloat16, log-probabilities must differ from those of float32 by what rounding explains: in the mean of
        squares no more than those of transformers' own bfloat16 form, `rounded`, which rounds activations too."""
        found = self._probe([tokens])
        ours, theirs = (
            float((logits.log_softmax(dim=1) - expected.log_softmax(dim=1)).square().mean().sqrt())
            for logits in (found, rounded)
        )
        if ours > theirs:
            raise SetupError(
                f"{self.folder}: in bfloat16 the local engine's log-probabilities are off by {ours:.2g} nats, "
                f"transformers' by {theirs:.2g}: `coderl serve tinker --dtype float32` serves it (set TINKER_BASE_URL)"
            )

    def hidden(
        self,
        weights: Weights,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: RowAttention,
        *,
        row_exact: bool,
        exact: bool = False,
    ) -> torch.Tensor:
        """Final hidden states (R, hidden) of packed rows, the tokens of one or more sequences: `tokens` and `positions`
        are (R,) int64, `attention` knows which rows see which.

        With `row_exact` a row has the same bits in any batch; rows must then come in whole tiles (`padded_rows`).
        Otherwise the result is differentiable in `weights`. With `exact`, for the trial of a new model, products are
        float32, whatever the dtype of the weights, and LoRA factors are left out."""
        # The layers read their weights and mode from this object, which is thread-local: they have no such arguments.
        bound = self._binding.__dict__
        bound.update(weights=weights, product=self._product if row_exact else None, exact=exact, ready={})
        embedded = self._backbone.get_input_embeddings()(tokens).float()
        try:
            out = self._backbone(
                inputs_embeds=embedded[None], position_ids=positions[None], use_cache=False, row_attention=attention
            )
        finally:
            bound.clear()
        return out.last_hidden_state[0]

    def exact_logits(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        """Row-exact float32 logits (R, vocabulary) of hidden states (R, hidden), R any number."""
        product = self._product or _linear
        rows = hidden.shape[0]
        return product(F.pad(hidden, (0, 0, 0, padded_rows(rows) - rows)), weights[UNEMBED])[:rows]


@contextmanager
def _loadable(folder: Path) -> Iterator[None]:
    """Turns what transformers raises of a folder that is no model, or a damaged one, into SetupError."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        if as_out_of_memory(error) is not None:
            raise
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise SetupError(f"the model in {folder} cannot be loaded: {reason}") from error


def _loaded(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    with _loadable(folder):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation="coderl_rows",
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        # transformers makes up what a file lacks.
        raise SetupError(f"the weights in {folder} lack {missing[0]} and {len(missing) - 1} more of the model's")
    return cast(PreTrainedModel, model)


@torch.no_grad()
def _exact_logits(model: PreTrainedModel, tokens: torch.Tensor) -> torch.Tensor:
    """Logits (tokens, vocabulary) of transformers' own form of the model with float32 activations; its linear layers
    take their weights as float32 from here on."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = partial(_linear, weight=module.weight, bias=module.bias)  # type: ignore[method-assign]
    embedded = model.get_input_embeddings()(tokens).float()
    return cast(torch.Tensor, model(inputs_embeds=embedded[None], use_cache=False).logits[0])


def _needed_bytes(folder: Path, device: torch.device, dtype: torch.dtype) -> int:
    """The memory of the weights of the model in the folder, of packed copies, and of an unembedding in float32, without
    loading them."""
    with _loadable(folder), torch.device("meta"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        unembed = 0 if dtype == torch.float32 else 4 * model.get_output_embeddings().weight.numel()
        matrices = [layer.weight.to(dtype) for layer in model.modules() if isinstance(layer, nn.Linear)]
    copies = sum(2 * matrix.nbytes for matrix in matrices if device.type == "cpu" and packable(matrix))
    return int(model.num_parameters() * dtype.itemsize + copies + unembed)
