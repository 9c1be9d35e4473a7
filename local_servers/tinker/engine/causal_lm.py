"""The base model: a Hugging Face causal LM folder whose linear weights, attention and row kernels are ours to choose.

The architecture (order of the parts, rotary embedding, residuals) stays transformers' own code. What is replaced:

- every `nn.Linear` by a `LinearSlot`, which takes its weight from the bound `Weights` (base or LoRA-merged);
- attention, through transformers' attention registry, by whatever the caller passes along with the rows;
- the rotary embedding by a table, and the activation by a row-exact form of it (see `row_exact`);
- in bfloat16 models, RMSNorm as Llama has it by a form with a shorter backward pass.

Limits: dense decoders with RMSNorm and full attention (Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3, SmolLM3 and
their like); no sliding window, no mixture of experts, no rotary scaling that depends on the sequence's length.

Weights, and what the layers' products take and what is between gate and down, are float32 or bfloat16; all else is
float32. Products are summed in float32 and not rounded where the machine has what that takes
(`row_exact.has_float32_result`); elsewhere the unembedding is float32. Sampler and trainer of SmolLM2-135M are then
0.007 nats apart; with rounded products 0.009, with a rounded residual stream and rounded logits too 0.036.

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
    Factors,
    RowExactProduct,
    gemm,
    has_float32_result,
    padded_rows,
    product,
    row_exact_activation,
)

logger = logging.getLogger(__name__)

Weights = dict[str, torch.Tensor]
"""Weight matrices (out, in) by module name, `UNEMBED` included: all that LoRA can change. The factors of an adapter can
stand beside its matrices, `<name>.lora_A` (rank, in) and `<name>.lora_B` (out, rank): a float32 matrix has them merged
in, a bfloat16 matrix's product is the sum of both. Those of layers of one input are joined too (`SlotGroup.joined`)."""
Product = Callable[[torch.Tensor, torch.Tensor, Factors | None, torch.dtype], torch.Tensor]
"""x (R, in), a matrix (out, in), factors beside it and the dtype of the result -> (R, out)."""
RowAttention = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Attention over packed rows of a layer: q (R, H, d), k and v (R, KV, d) and the scale -> (R, H, d)."""
UNEMBED = "lm_head"

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_ROTARY_BLOCK = 1024
_PROBE_ROWS = 2 * TILE
_PROBE_TOLERANCE = 1e-3
_PROBE_STEP = 7919
"""Tokens of the comparison are this far apart: to the neighbours at the start of a vocabulary a trained model can be
too sensitive for bfloat16."""
_LARGE_WEIGHTS = 50_000_000
"""From so many weights on, a model on the CPU is `large`: requests are worth a process of their own, and memory is
given back to the system at their end (of SmolLM2-135M 3.2 of 5 GB)."""
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
    """x (1, R, in) times [W, ...] + [B A, ...] of a group, not merged -> (1, R, sum of its outputs), with the gradients
    of x and of each A and B. The factors come `joined`, rounded to the weight's dtype, and one by one (A, ..., B, ...),
    float32, to take their gradients; where the group is not adapted `joined` is None, and there are no others. `before`
    is applied to x first, and again in the backward pass, so that its result is not kept."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        before: Callable[[torch.Tensor], torch.Tensor] | None,
        group: "SlotGroup",
        joined: Factors | None,
        *_: torch.Tensor,
    ) -> torch.Tensor:
        multiplied = x if before is None else before(x)
        rows = multiplied[0].to(group.weight.dtype)
        ctx.save_for_backward(rows[None] if before is None else x)
        ctx.before, ctx.group, ctx.joined, ctx.dtype = before, group, joined, multiplied.dtype
        return product(rows, group.weight, joined, group.dtype)[None]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        weight, outputs = ctx.group.weight, ctx.group.outputs
        multiplied = x
        if ctx.before is not None:
            with torch.enable_grad():
                multiplied = ctx.before(x := x.detach().requires_grad_())
        rows, grad = multiplied[0].detach().to(weight.dtype), grads[0][0].to(weight.dtype)
        plus, factor_grads = None, []
        if ctx.joined is not None:
            a, b = ctx.joined
            through, low = gemm(grad, b, transposed=True), gemm(rows, a)
            plus = through, a
            rank = len(a) // len(outputs)
            of_each = zip(grad.split(outputs, dim=1), low.split(rank, dim=1), strict=True)
            b_grads = [(part.t() @ its_low).float() for part, its_low in of_each]
            factor_grads = [*(through.t() @ rows).float().split(rank), *b_grads]
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = gemm(grad, weight, plus, ctx.dtype, transposed=True)[None]
            if ctx.before is not None:
                (x_grad,) = torch.autograd.grad(multiplied, x, x_grad)
        return x_grad, None, None, None, *factor_grads


class _PassState(threading.local):
    """What the slots of one model use during this thread's current forward pass."""

    weights: Weights
    product: Product | None  # the row-exact one; None: plain products, which are differentiable
    in_float32: bool  # whether products are float32 whatever the weights' dtype, without LoRA factors
    group_outputs: dict[str, torch.Tensor]  # of slots whose group was multiplied for an earlier slot, by their names


@dataclass(frozen=True)
class SlotGroup:
    """Linear layers of one input, as queries, keys and values are, whose bfloat16 products are one: `weight` (sum of
    `outputs`, in) has their matrices below each other, and what comes out is of `dtype`."""

    names: tuple[str, ...]
    outputs: list[int]
    weight: torch.Tensor
    dtype: torch.dtype = torch.float32

    def sampled(self, x: torch.Tensor, weights: Weights, multiply: Product) -> tuple[torch.Tensor, ...]:
        """The outputs (R, out) for x (R, in), without gradients."""
        return multiply(x, self.weight, self.joined(weights), self.dtype).split(self.outputs, dim=1)

    def trained(
        self, x: torch.Tensor, weights: Weights, before: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The outputs (1, R, sum of `outputs`) for x (1, R, in), or for `before` of x, differentiable."""
        joined = self.joined(weights)
        factors = [] if joined is None else [weights[f"{name}.lora_{each}"] for each in "AB" for name in self.names]
        return cast(torch.Tensor, _RoundedProduct.apply(x, before, self, joined, *factors))

    def joined(self, weights: Weights) -> Factors | None:
        """A (rank of all, in) and B (out, rank of all) of the whole, which are kept among the weights. None where these
        layers are not adapted."""
        if f"{self.names[0]}.lora_A" not in weights:
            return None
        a, b = (f"{'+'.join(self.names)}.joined_{factor}" for factor in "AB")
        if b not in weights:
            of_each = ([weights[f"{name}.lora_{factor}"] for name in self.names] for factor in "AB")
            weights[a], weights[b] = torch.cat(next(of_each)), torch.block_diag(*next(of_each))
        return Factors(weights[a], weights[b])


class LinearSlot(nn.Module):
    """A linear layer that takes its weight from the state of the pass; row-exact when that has a product."""

    bias: torch.Tensor | None

    def __init__(self, name: str, bias: torch.Tensor | None, pass_state: _PassState) -> None:
        super().__init__()
        self.name, self.pass_state = name, pass_state
        self.group: SlotGroup | None = None
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass_state, weights = self.pass_state, self.pass_state.weights
        weight = weights[self.name]
        if pass_state.in_float32:
            return _linear(x, weight, self.bias)
        group = self.group
        if group is not None:
            if self.name not in pass_state.group_outputs:
                pass_state.group_outputs |= zip(group.names, self._of_group(group, x), strict=True)
            out = pass_state.group_outputs.pop(self.name)
        elif pass_state.product is not None:
            out = pass_state.product(x[0], weight, None, weight.dtype)[None]
        elif f"{self.name}.lora_A" in weights:
            factors = weights[f"{self.name}.lora_A"], weights[f"{self.name}.lora_B"]
            return cast(torch.Tensor, _MergedProduct.apply(x, weight, self.bias, *factors))
        else:
            out = F.linear(x, weight)
        return out if self.bias is None else out + self.bias

    def _of_group(self, group: SlotGroup, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        weights, multiply = self.pass_state.weights, self.pass_state.product
        if multiply is None and torch.is_grad_enabled():
            return group.trained(x, weights).split(group.outputs, dim=2)
        return tuple(out[None] for out in group.sampled(x[0], weights, multiply or product))


class ActivationSlot(nn.Module):
    """The MLP's activation function; row-exact when the pass is."""

    def __init__(self, function: nn.Module, pass_state: _PassState) -> None:
        super().__init__()
        self.function, self.pass_state = function, pass_state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) if self.pass_state.product is None else row_exact_activation(self.function, x[0])[None]


class GatedMLP(nn.Module):
    """transformers' MLP, down(activation(gate(x)) * up(x)), whose three products are two where it is trained: what lies
    between them, the widest of a layer, is not kept."""

    def __init__(self, mlp: nn.Module, pass_state: _PassState) -> None:
        super().__init__()
        self.mlp: Any = mlp
        self.pass_state = pass_state

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        """Whether the module is such a one, with bfloat16 products of gate and up in one."""
        gate, up, down = (getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj"))
        slots = [slot for slot in (gate, up, down) if isinstance(slot, LinearSlot) and slot.group and slot.bias is None]
        one_product = len(slots) == 3 and slots[0].group is slots[1].group
        return one_product and isinstance(getattr(module, "act_fn", None), ActivationSlot)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pass_state = self.pass_state
        if pass_state.product is not None or pass_state.in_float32 or not torch.is_grad_enabled():
            return cast(torch.Tensor, self.mlp(x))
        both = self.mlp.gate_proj.group.trained(x, pass_state.weights)
        return cast(torch.Tensor, self.mlp.down_proj.group.trained(both, pass_state.weights, before=self._between))

    def _between(self, gate_and_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_and_up.chunk(2, dim=-1)
        return cast(torch.Tensor, self.mlp.act_fn.function(gate) * up)


class _Normalised(torch.autograd.Function):
    """RMSNorm of x (..., n) with a weight (n,) that is not trained, in half the time of PyTorch's own."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
        scale = mean_square.add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, scale)
        ctx.weight = weight
        return torch.mul(x, scale).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, scale = ctx.saved_tensors
        weighted = grads[0] * ctx.weight
        along_x = torch.linalg.vecdot(weighted, x)[..., None].mul_(scale.pow(3)).div_(x.shape[-1])
        return weighted.mul_(scale).addcmul_(x, along_x, value=-1), None, None


class RmsNorm(nn.Module):
    """transformers' RMSNorm, for float32 activations of a bfloat16 model."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight: torch.Tensor = norm.weight.detach().float()  # type: ignore[operator]
        self.epsilon: float = norm.variance_epsilon  # type: ignore[assignment]

    @classmethod
    def fits(cls, module: nn.Module) -> bool:
        return type(module).__name__.endswith("RMSNorm") and hasattr(module, "variance_epsilon")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast(torch.Tensor, _Normalised.apply(x, self.weight, self.epsilon))


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
        blocks = [(self.cos[None], self.sin[None])] if len(self.cos) else []
        for start in range(len(self.cos), positions, _ROTARY_BLOCK):
            blocks.append(self.rotary(like, torch.arange(start, start + _ROTARY_BLOCK, device=x.device)[None]))
        if len(self.cos) < positions:
            self.cos, self.sin = (torch.cat([table[0] for table in tables]) for tables in zip(*blocks, strict=True))


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


_ATTENTION = "coderl_rows"
ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention_entry)


class BaseModel:
    """A causal LM; `weights` are the base weights. Forward passes may run in several threads."""

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype) -> None:
        """Replaces the linear layers, attention, activation and rotary embedding of the model in `folder`, and compares
        its logits with those of transformers' own form. Raises SetupError for an architecture that is not supported or
        gives other logits, OutOfMemory if it does not fit."""
        self.folder, self.device, self.dtype = folder, device, dtype
        self.needed_bytes = _needed_bytes(folder, device, dtype)
        require_memory(self.needed_bytes, f"loading {folder} in {str(dtype).removeprefix('torch.')}", device.type)
        model = _loaded(folder, dtype).eval()
        model.requires_grad_(False).to(device)
        self.config: Any = model.config
        self.context_length: int = self.config.max_position_embeddings
        self.vocab_size: int = self.config.vocab_size
        self.n_layers: int = self.config.num_hidden_layers
        n_heads: int = self.config.num_attention_heads
        self.n_kv_heads: int = getattr(self.config, "num_key_value_heads", None) or n_heads
        self.head_dim: int = getattr(self.config, "head_dim", None) or self.config.hidden_size // n_heads
        self._pass_state = _PassState()
        self._backbone: Any = model.get_decoder()
        unembedding = model.get_output_embeddings().weight
        float32_result = has_float32_result(unembedding, device)
        self.weights: Weights = {UNEMBED: unembedding if float32_result else unembedding.float()}
        # What transformers' own form computes, before its parts are replaced.
        tokens = torch.arange(1, _PROBE_ROWS + 1, device=device) * _PROBE_STEP % self.vocab_size
        rounded, expected = self._reference_logits(model, tokens)  # in `dtype`, and in float32
        model.set_attn_implementation(_ATTENTION)
        self._groups: list[SlotGroup] = []
        self._replace_layers(self._backbone, "model")  # moves the matrices of linear layers to `weights`
        self.n_weights = sum(weight.numel() for weight in self.weights.values())
        self.large = device.type == "cpu" and self.n_weights >= _LARGE_WEIGHTS
        self._refuse_unknown_parts()
        self._backbone.rotary_emb = RotaryTable(self._backbone.rotary_emb)
        self._row_exact_product: RowExactProduct | None = None
        self._refuse_other_results(tokens, expected)
        # Gives a row the same bits in any batch. Not on a GPU, where its many small products would cost too much.
        if device.type == "cpu":
            self._row_exact_product = self._tried_row_exact_product(tokens)
        if dtype == torch.bfloat16:
            self._refuse_coarse_results(tokens, expected, rounded)
        if self.large:  # of SmolLM2-135M half a gigabyte was needed to load and compare it
            return_freed_memory()

    @torch.no_grad()
    def _reference_logits(self, model: PreTrainedModel, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits (tokens, vocabulary) of transformers' own form of the model: with all of it in the model's dtype, and
        with float32 activations. Its linear layers take their weights as float32 from here on."""
        model.set_attn_implementation("eager")
        rounded = model(tokens[None], use_cache=False).logits[0].float()
        embedding = self._backbone.get_input_embeddings()
        if embedding.weight is model.get_output_embeddings().weight:
            # A float32 copy of the unembedding has the same numbers: keep one table and not two.
            embedding.weight = nn.Parameter(self.weights[UNEMBED], requires_grad=False)
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.forward = partial(_linear, weight=module.weight, bias=module.bias)  # type: ignore[method-assign]
        embedded = model.get_input_embeddings()(tokens).float()
        return rounded, cast(torch.Tensor, model(inputs_embeds=embedded[None], use_cache=False).logits[0])

    def _replace_layers(self, module: nn.Module, path: str) -> None:
        slots = []
        for name, child in list(module.named_children()):
            child_path = f"{path}.{name}"
            if isinstance(child, nn.Linear):
                self.weights[child_path] = child.weight
                slots.append(LinearSlot(child_path, child.bias, self._pass_state))
                setattr(module, name, slots[-1])
            elif name in ("act_fn", "activation_fn"):
                setattr(module, name, ActivationSlot(child, self._pass_state))
            elif self.dtype == torch.bfloat16 and RmsNorm.fits(child):
                setattr(module, name, RmsNorm(child))
            else:
                self._replace_layers(child, child_path)
                if GatedMLP.fits(child):
                    setattr(module, name, GatedMLP(child, self._pass_state))
        if self.dtype == torch.bfloat16:
            for slot in slots:
                alike = next((names for names in _ONE_INPUT if slot.name.rpartition(".")[2] in names), ())
                if slot.group is None:
                    self._group([other for other in slots if other is slot or other.name.rpartition(".")[2] in alike])

    def _group(self, slots: list[LinearSlot]) -> None:
        """Has these slots, which get the same input, multiply together."""
        matrices = [self.weights[slot.name] for slot in slots]
        whole = torch.cat(matrices) if len(slots) > 1 else matrices[0]
        names = tuple(slot.name for slot in slots)
        # What lies between gate and down is the widest of a layer, and down's product rounds it in any case.
        inner = names[0].endswith(_ONE_INPUT[1])
        dtype = self.dtype if inner else torch.float32
        group = SlotGroup(names, [len(matrix) for matrix in matrices], whole, dtype)
        self.weights |= zip(group.names, whole.split(group.outputs), strict=True)  # views: no second copy
        for slot in slots:
            slot.group = group
        self._groups.append(group)

    def _refuse_unknown_parts(self) -> None:
        """Raises SetupError for parts that the local engine cannot compute, or would compute in another way that only
        long or unusual sequences show: the comparison with transformers' logits takes a few tokens."""
        kind = self.config.model_type
        layer_types = getattr(self.config, "layer_types", None)
        window = getattr(self.config, "sliding_window", None) or self.context_length
        if window < self.context_length and (layer_types is None or "sliding_attention" in layer_types):
            raise SetupError(f"{self.folder}: sliding-window attention ({kind}) is not supported by the local engine")
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
    def _probe(self, sequences: list[torch.Tensor], *, in_float32: bool = False) -> torch.Tensor:
        """The last sequence's logits (rows, vocabulary), float32, when they are packed one after the other;
        `in_float32` as for `hidden`."""
        starts = [sum(map(len, sequences[:number])) for number in range(len(sequences))]
        total = starts[-1] + len(sequences[-1])
        groups = [PackedGroup(start, len(rows), ()) for start, rows in zip(starts, sequences, strict=True)]
        padding = padded_rows(total) - total
        if padding:
            groups.append(PackedGroup(total, padding, ()))
        packed = torch.cat([*sequences, sequences[0].new_zeros(padding)])
        positions = torch.cat([torch.arange(group.prefix, device=self.device) for group in groups])
        attention = TreeAttention(tuple(groups))
        hidden = self.hidden(self.weights, packed, positions, attention, row_exact=True, in_float32=in_float32)
        if in_float32:
            return _linear(hidden[starts[-1] : total], self.weights[UNEMBED])
        return self.row_exact_logits(self.weights, hidden[starts[-1] : total])

    def _refuse_other_results(self, tokens: torch.Tensor, expected: torch.Tensor) -> None:
        """Raises SetupError where our form of the model computes something else than transformers' plain form. Both in
        float32: rounding to bfloat16 would hide a difference of the forms."""
        refusal = f"{self.folder}: the local engine does not reproduce this {self.config.model_type} model"
        supported = "it runs Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3 and models built like them"
        try:
            found = self._probe([tokens], in_float32=True)
        except (TypeError, RuntimeError) as error:  # other arguments or other shapes than those of the slots
            if as_out_of_memory(error) is not None:
                raise
            raise SetupError(f"{refusal} ({' '.join(str(error).split())}); {supported}") from error
        atol = _PROBE_TOLERANCE * float(expected.abs().max())
        if not torch.allclose(found, expected, rtol=_PROBE_TOLERANCE, atol=atol):
            difference = float((found - expected).abs().max())
            raise SetupError(f"{refusal} (largest difference {difference:.2g}); {supported}")

    def _tried_row_exact_product(self, tokens: torch.Tensor) -> RowExactProduct | None:
        """The product that gives a row the same bits in any batch, tried on every shape and on the whole model. None
        where bfloat16 has none; raises RuntimeError where float32 has none."""
        try:
            self._row_exact_product = RowExactProduct()
            for group in self._groups:
                self._row_exact_product.sizes(group.weight, dtype=group.dtype)
            for name, weight in self.weights.items():
                if merges(weight) or name == UNEMBED:
                    self._row_exact_product.sizes(weight, dtype=torch.float32)
            alone = self._probe([tokens])
            if torch.equal(self._probe([tokens.flip(0), tokens[:37], tokens]), alone):
                return self._row_exact_product
            raise RuntimeError("this machine gives a row other bits in another batch")
        except RuntimeError as error:
            if self.dtype == torch.float32 or as_out_of_memory(error) is not None:
                raise
            logger.warning("%s: in bfloat16 samples can depend on what is sampled beside them: %s", self.folder, error)
            return None

    def _refuse_coarse_results(self, tokens: torch.Tensor, expected: torch.Tensor, rounded: torch.Tensor) -> None:
        """Raises SetupError where bfloat16's log-probabilities are further from float32's, in the mean of squares, than
        those of transformers' own bfloat16 form, `rounded`, which rounds activations too."""
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

    def join_factors(self, weights: Weights) -> None:
        """Keeps joined LoRA factors among the weights, before threads take copies of these."""
        for group in self._groups:
            group.joined(weights)

    def hidden(
        self,
        weights: Weights,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: RowAttention,
        *,
        row_exact: bool,
        in_float32: bool = False,
    ) -> torch.Tensor:
        """Hidden states (R, hidden) to unembed of packed rows: `tokens` and `positions` are (R,) int64, `attention`
        knows which rows see which. With `row_exact` a row has the same bits in any batch; rows must then come in whole
        tiles (`padded_rows`). Otherwise the result is differentiable in `weights`. `in_float32` is for the comparison
        with transformers: products are float32 whatever the dtype of the weights, without LoRA factors."""
        # transformers calls the layers without our arguments: they read them from this object, which is thread-local.
        state = self._pass_state
        state.weights, state.in_float32 = weights, in_float32
        state.product = self._row_exact_product if row_exact else None  # None: plain products
        state.group_outputs = {}  # layers of one input are multiplied together, and the later ones find theirs here
        embedded = self._backbone.get_input_embeddings()(tokens).float()
        try:
            # transformers hands `row_attention` through to the attention that is registered as _ATTENTION.
            out = self._backbone(
                inputs_embeds=embedded[None], position_ids=positions[None], use_cache=False, row_attention=attention
            )
        finally:
            vars(state).clear()
        states = out.last_hidden_state[0]
        # Granite divides the logits. Dividing the states gives the same, and the backward pass includes it.
        scaling = getattr(self.config, "logits_scaling", 1)
        return states if scaling == 1 else states / scaling

    def row_exact_logits(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        """Row-exact float32 logits (R, vocabulary) of hidden states (R, hidden), R any number."""
        rows = hidden.shape[0]
        padded = F.pad(hidden, (0, 0, 0, padded_rows(rows) - rows))
        return unembedded(padded, weights, self._row_exact_product or product)[:rows]


def unembedded(hidden: torch.Tensor, weights: Weights, multiply: Product = product) -> torch.Tensor:
    """Float32 logits (R, vocabulary) of hidden states (R, hidden), by a row-exact product or the plain one."""
    matrix, factors = weights[UNEMBED], None
    if not merges(matrix) and f"{UNEMBED}.lora_A" in weights:
        factors = Factors(*(weights[f"{UNEMBED}.lora_{factor}"].to(matrix.dtype) for factor in "AB"))
    return multiply(hidden, matrix, factors, torch.float32)


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
    options = {"attn_implementation": _ATTENTION, "local_files_only": True, "trust_remote_code": False}
    with _loadable(folder):
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
    model, found = loaded
    if missing := sorted(found["missing_keys"]):
        # transformers makes up what a file lacks.
        raise SetupError(f"the weights in {folder} lack {missing[0]} and {len(missing) - 1} more of the model's")
    return cast(PreTrainedModel, model)


def _needed_bytes(folder: Path, device: torch.device, dtype: torch.dtype) -> int:
    """The memory of a model's weights, of packed copies, and of a float32 unembedding, without loading them."""
    with _loadable(folder), torch.device("meta"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        matrix = model.get_output_embeddings().weight.to(dtype)
        blocks = has_float32_result(matrix, device)
        in_float32 = dtype != torch.float32 and not blocks
        unembed = 4 * matrix.numel() if in_float32 else 0  # beside the embeddings
        layers = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]  # the unembedding too
        copies = sum(2 * dtype.itemsize * layer.numel() for layer in layers) if blocks else 0
    return int(model.num_parameters() * dtype.itemsize + copies + unembed)
