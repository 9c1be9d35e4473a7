"""The base model: a Hugging Face causal LM folder whose linear weights, attention and row kernels are ours to
choose.

The architecture (norms, rotary embedding, residuals) stays transformers' own code. What is replaced:

- every `nn.Linear` by a `LinearSlot`, which takes its weight from the bound `Weights` (base or LoRA-merged);
- attention, through transformers' attention registry, by whatever the caller passes along with the rows;
- the rotary embedding by a table, and the activation by a row-exact form of it (see `row_exact`).

Limits: float32 on the CPU; dense decoders with full attention (Qwen3, Qwen2, Llama and their like); no
sliding window, no mixture of experts, no rotary scaling that depends on the sequence's length.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from coderl_tasks.embedded.tinker.engine.packing import PackedGroup, TreeAttention
from coderl_tasks.embedded.tinker.engine.row_exact import (
    TILE,
    TiledProduct,
    choose_tiled_product,
    padded_rows,
    row_exact_activation,
)
from coderl_tasks.errors import ConfigError

Weights = dict[str, torch.Tensor]
"""Weight matrices (out, in) by module name, `UNEMBED` included: everything that LoRA can change."""
UNEMBED = "lm_head"

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_ROTARY_BLOCK = 1024
_PROBE_ROWS = 2 * TILE


class RowAttention(Protocol):
    """Attention over packed rows: q (R, H, d), k and v (R, KV, d) of one layer -> (R, H, d)."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor: ...


class _Binding(threading.local):
    """What the slots of one model use during this thread's current forward pass."""

    weights: Weights = {}  # noqa: RUF012 - replaced whole, never changed in place
    product: TiledProduct | None = None


class LinearSlot(nn.Module):
    """A linear layer that takes its weight from the binding; row-exact when the binding has a tiled product."""

    bias: torch.Tensor | None

    def __init__(self, name: str, bias: torch.Tensor | None, binding: _Binding) -> None:
        super().__init__()
        self.name, self.binding = name, binding
        self.register_buffer("bias", bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = self.binding.weights[self.name]
        if self.binding.product is None:
            return F.linear(x, weight, self.bias)
        out = self.binding.product(x[0], weight)[None]
        return out if self.bias is None else out + self.bias


class ActivationSlot(nn.Module):
    """The MLP's activation function; row-exact when the binding asks for it."""

    def __init__(self, function: nn.Module, binding: _Binding) -> None:
        super().__init__()
        self.function, self.binding = function, binding

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x) if self.binding.product is None else row_exact_activation(self.function, x[0])[None]


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
            self._grow(int(rows.max()) + 1)
        return self.cos[rows][None], self.sin[rows][None]

    @torch.inference_mode(False)  # training uses the table too, also where sampling made it
    @torch.no_grad()
    def _grow(self, positions: int) -> None:
        blocks = []
        for start in range(len(self.cos), positions, _ROTARY_BLOCK):
            blocks.append(self.rotary(torch.empty(1), torch.arange(start, start + _ROTARY_BLOCK)[None]))
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
    """A causal LM in float32; `weights` are the base weights. Forward passes may run in several threads."""

    def __init__(self, folder: Path) -> None:
        """Loads the folder. Raises ConfigError for an architecture outside the limits above."""
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="coderl_rows", local_files_only=True
        ).eval()
        model.requires_grad_(False)
        self.config: Any = model.config
        self.folder = folder
        self.context_length: int = self.config.max_position_embeddings
        self.vocab_size: int = self.config.vocab_size
        self.n_layers: int = self.config.num_hidden_layers
        self.n_kv_heads: int = self.config.num_key_value_heads
        self.head_dim: int = (
            getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
        )
        self._binding = _Binding()
        self._backbone: Any = model.get_decoder()
        self.weights: Weights = {UNEMBED: model.get_output_embeddings().weight}
        tokens = torch.arange(_PROBE_ROWS) % self.vocab_size
        with torch.no_grad():
            model.set_attn_implementation("eager")
            expected = model(tokens[None], use_cache=False).logits[0]
            model.set_attn_implementation("coderl_rows")
        self._fit_slots(self._backbone, "model")
        self._backbone.rotary_emb = RotaryTable(self._backbone.rotary_emb)
        self._refuse_unknown_parts()
        self.tiled_product = choose_tiled_product(list(self.weights.values()))
        self._refuse_other_results(tokens, expected)

    def _fit_slots(self, module: nn.Module, path: str) -> None:
        for name, child in list(module.named_children()):
            child_path = f"{path}.{name}"
            if isinstance(child, nn.Linear):
                self.weights[child_path] = child.weight
                setattr(module, name, LinearSlot(child_path, child.bias, self._binding))
            elif name == "act_fn":
                setattr(module, name, ActivationSlot(child, self._binding))
            else:
                self._fit_slots(child, child_path)

    def _refuse_unknown_parts(self) -> None:
        kind = self.config.model_type
        layer_types = getattr(self.config, "layer_types", None)
        window = getattr(self.config, "sliding_window", None) or self.context_length
        if window < self.context_length and (layer_types is None or "sliding_attention" in layer_types):
            raise ConfigError(
                f"{self.folder}: {kind} with sliding-window attention is not supported by the local engine"
            )
        rope = getattr(self.config, "rope_parameters", None) or {}
        if rope.get("rope_type", "default") in _LENGTH_DEPENDENT_ROPE:
            raise ConfigError(f"{self.folder}: rotary scaling {rope['rope_type']} is not supported by the local engine")
        for name, module in self._backbone.named_modules():
            owns = any(True for _ in module.parameters(recurse=False))
            if owns and not isinstance(module, nn.Embedding) and not type(module).__name__.endswith("RMSNorm"):
                raise ConfigError(f"{self.folder}: {kind} has a part the local engine does not know: {name}")

    @torch.no_grad()
    def _refuse_other_results(self, tokens: torch.Tensor, expected: torch.Tensor) -> None:
        """Our form of the model must compute what transformers' plain form does, with the same bits in any batch."""

        def run(sequences: list[torch.Tensor]) -> torch.Tensor:
            """The last sequence's logits, when they are packed one after the other."""
            starts = [sum(map(len, sequences[:number])) for number in range(len(sequences))]
            total = starts[-1] + len(sequences[-1])
            groups = [PackedGroup(start, len(rows), ()) for start, rows in zip(starts, sequences, strict=True)]
            padding = padded_rows(total) - total
            if padding:
                groups.append(PackedGroup(total, padding, ()))
            packed = torch.cat([*sequences, torch.zeros(padding, dtype=torch.long)])
            positions = torch.cat([torch.arange(group.prefix) for group in groups])
            hidden = self.hidden(self.weights, packed, positions, TreeAttention(tuple(groups)), row_exact=True)
            return self.exact_logits(self.weights, hidden[starts[-1] : total])

        found = run([tokens])
        if not torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
            raise ConfigError(
                f"{self.folder}: the local engine does not reproduce this {self.config.model_type} model "
                f"(largest difference {float((found - expected).abs().max()):.2g}); it supports Qwen3, Qwen2, Llama"
            )
        if not torch.equal(run([tokens.flip(0), tokens[:37], tokens]), found):
            raise RuntimeError(f"{self.folder}: this machine gives a row other bits in another batch")

    @contextmanager
    def _bound(self, weights: Weights, row_exact: bool) -> Iterator[None]:
        self._binding.weights = weights
        self._binding.product = self.tiled_product if row_exact else None
        try:
            yield
        finally:
            self._binding.weights, self._binding.product = {}, None

    def hidden(
        self,
        weights: Weights,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attention: RowAttention,
        *,
        row_exact: bool,
    ) -> torch.Tensor:
        """Final hidden states (R, hidden) of packed rows: `tokens` and `positions` are (R,) int64.

        Row-exact rows must come in whole tiles (`padded_rows`). Differentiable in `weights` otherwise.
        """
        with self._bound(weights, row_exact):
            out = self._backbone(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, row_attention=attention
            )
        return out.last_hidden_state[0]

    def exact_logits(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        """Row-exact logits (R, vocabulary) of hidden states (R, hidden), R any number."""
        rows = hidden.shape[0]
        return self.tiled_product(F.pad(hidden, (0, 0, 0, padded_rows(rows) - rows)), weights[UNEMBED])[:rows]
