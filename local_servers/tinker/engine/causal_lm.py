"""The base model: a Hugging Face causal LM folder whose linear weights, attention and row kernels are ours to choose.

The architecture (norms, rotary embedding, residuals) stays transformers' own code. What is replaced:

- every `nn.Linear` by a `LinearSlot`, which takes its weight from the bound `Weights` (base or LoRA-merged);
- attention, through transformers' attention registry, by whatever the caller passes along with the rows;
- the rotary embedding by a table, and the activation by a row-exact form of it (see `row_exact`).

Limits: dense decoders with RMSNorm and full attention (Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3, SmolLM3 and
their like); no sliding window, no mixture of experts, no rotary scaling that depends on the sequence's length.

Weights and activations are float32 or bfloat16; log-probabilities are float32. On the CPU a row has the same bits in
every batch, which is tried when the model is loaded. On another device the plain products run, without that promise.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from local_servers.memory import as_out_of_memory, require_memory
from local_servers.server_errors import SetupError
from local_servers.tinker.engine.packing import PackedGroup, TreeAttention
from local_servers.tinker.engine.row_exact import (
    TILE,
    TiledProduct,
    choose_tiled_product,
    padded_rows,
    row_exact_activation,
)

Weights = dict[str, torch.Tensor]
"""Weight matrices (out, in) by module name, `UNEMBED` included: everything that LoRA can change. The factors of an
adapter that is not merged stand beside its matrices, `<name>.lora_A` (rank, in) and `<name>.lora_B` (out, rank)."""
UNEMBED = "lm_head"

_LENGTH_DEPENDENT_ROPE = ("dynamic", "longrope")
_ROTARY_BLOCK = 1024
_PROBE_ROWS = 2 * TILE
_PROBE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 5e-2}


class RowAttention(Protocol):
    """Attention over packed rows: q (R, H, d), k and v (R, KV, d) of one layer -> (R, H, d)."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor: ...


def add_low_rank(
    out: torch.Tensor, x: torch.Tensor, weights: Weights, name: str, product: TiledProduct = F.linear
) -> torch.Tensor:
    """`out`, the product of x (R, in) and the matrix `name`, plus that of the factors beside it, if there are any."""
    if f"{name}.lora_A" not in weights:
        return out
    low = product(x, weights[f"{name}.lora_A"].to(x.dtype))
    return out + product(low, weights[f"{name}.lora_B"].to(x.dtype))


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
        weights, product = self.binding.weights, self.binding.product
        if product is None:
            return add_low_rank(F.linear(x, weights[self.name], self.bias), x, weights, self.name)
        out = add_low_rank(product(x[0], weights[self.name]), x[0], weights, self.name, product)[None]
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
        """Loads the folder. Raises SetupError for an architecture outside the limits above, and OutOfMemory."""
        self.device, self.dtype = device, dtype
        name = str(dtype).removeprefix("torch.")
        require_memory(_parameters(folder) * dtype.itemsize, f"loading {folder} in {name}", device.type)
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
        self.weights: Weights = {UNEMBED: model.get_output_embeddings().weight}
        tokens = torch.arange(_PROBE_ROWS, device=device) % self.vocab_size
        with torch.no_grad():
            model.set_attn_implementation("eager")
            expected = model(tokens[None], use_cache=False).logits[0].float()
            model.set_attn_implementation("coderl_rows")
        self._fit_slots(self._backbone, "model")
        self._refuse_unknown_parts()
        self._backbone.rotary_emb = RotaryTable(self._backbone.rotary_emb)
        # Elsewhere many small products cost more than the promise is worth.
        self._tiled_product = choose_tiled_product(list(self.weights.values())) if device.type == "cpu" else None
        self._refuse_other_results(tokens, expected)

    def _fit_slots(self, module: nn.Module, path: str) -> None:
        for name, child in list(module.named_children()):
            child_path = f"{path}.{name}"
            if isinstance(child, nn.Linear):
                self.weights[child_path] = child.weight
                setattr(module, name, LinearSlot(child_path, child.bias, self._binding))
            elif name in ("act_fn", "activation_fn"):
                setattr(module, name, ActivationSlot(child, self._binding))
            else:
                self._fit_slots(child, child_path)

    def _refuse_unknown_parts(self) -> None:
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
        # Named, as the comparison in bfloat16 is too coarse to notice.
        if any(getattr(self.config, f"{what}_logit_softcapping", None) for what in ("attn", "final")):
            raise SetupError(f"{self.folder}: {kind} caps its logits: the local engine does not")
        if not hasattr(self._backbone, "rotary_emb"):
            raise SetupError(f"{self.folder}: {kind} has no rotary embedding: the local engine does not run it")
        for name, module in self._backbone.named_modules():
            owns = any(True for _ in module.parameters(recurse=False))
            if owns and not isinstance(module, nn.Embedding) and not type(module).__name__.endswith("RMSNorm"):
                raise SetupError(f"{self.folder}: {kind} has a part the local engine does not know: {name}")

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
            packed = torch.cat([*sequences, tokens.new_zeros(padding)])
            positions = torch.cat([torch.arange(group.prefix, device=self.device) for group in groups])
            hidden = self.hidden(self.weights, packed, positions, TreeAttention(tuple(groups)), row_exact=True)
            return self.exact_logits(self.weights, hidden[starts[-1] : total])

        refusal = f"{self.folder}: the local engine does not reproduce this {self.config.model_type} model"
        supported = "it runs Llama, Qwen2, Qwen3, Mistral, Gemma, Phi-3 and models built like them"
        try:
            found = run([tokens])
        except (TypeError, RuntimeError) as error:  # other arguments or other shapes than those of the slots
            if as_out_of_memory(error) is not None:
                raise
            raise SetupError(f"{refusal} ({' '.join(str(error).split())}); {supported}") from error
        tolerance = _PROBE_TOLERANCE[self.dtype]
        if not torch.allclose(found, expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())):
            difference = float((found - expected).abs().max())
            raise SetupError(f"{refusal} (largest difference {difference:.2g}); {supported}")
        if self._tiled_product is not None and not torch.equal(run([tokens.flip(0), tokens[:37], tokens]), found):
            raise RuntimeError(f"{self.folder}: this machine gives a row other bits in another batch")

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
        self._binding.weights = weights
        self._binding.product = self._tiled_product if row_exact else None
        try:
            out = self._backbone(
                input_ids=tokens[None], position_ids=positions[None], use_cache=False, row_attention=attention
            )
        finally:
            self._binding.weights, self._binding.product = {}, None
        return out.last_hidden_state[0]

    def exact_logits(self, weights: Weights, hidden: torch.Tensor) -> torch.Tensor:
        """Row-exact float32 logits (R, vocabulary) of hidden states (R, hidden), R any number."""
        product = self._tiled_product or F.linear
        rows = hidden.shape[0]
        x = F.pad(hidden, (0, 0, 0, padded_rows(rows) - rows))
        return add_low_rank(product(x, weights[UNEMBED]), x, weights, UNEMBED, product)[:rows].float()


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


def _parameters(folder: Path) -> int:
    """How many parameters the model in the folder has, without loading them."""
    with _loadable(folder), torch.device("meta"):
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        return int(AutoModelForCausalLM.from_config(config, trust_remote_code=False).num_parameters())
