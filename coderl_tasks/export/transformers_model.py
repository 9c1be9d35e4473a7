"""Loads an exported adapter in transformers and peft, compares its log-probabilities with sampled ones, and merges it.

The embedded server computes in float32, as transformers does here on the CPU: the largest difference at a token grows
with the number of layers (nano, 4 layers: 1.3e-5 nats; SmolLM2-135M, 30 layers: 4e-5), and has to be below 3e-4. A
service samples in bfloat16 (8 bits of mantissa), where single tokens differ far more than the mean (nano: 0.034 and
6e-4). There the mean decides, with a margin for large models and other kernels: it finds an adapter that is scaled
wrongly or not applied once training has moved the policy by more than the limit.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.export.download import WEIGHTS, SampledSequence, layer_of, tensor_names
from coderl_tasks.paths import local_model_folder

transformers_logging.disable_progress_bar()
EXACT, ROUNDED = 3e-4, 0.05
"""Limits in nats per token: of the largest difference in float32, of the mean one in bfloat16."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a model is from what was sampled, over `tokens` tokens of `sequences` sequences, in nats per token."""

    sequences: int
    tokens: int
    largest: float
    mean: float

    def fault(self, *, exact: bool) -> str | None:
        if exact:
            return None if self.largest < EXACT else f"{self.largest:.2g} nats at a token, and {EXACT:g} is the limit"
        return None if self.mean < ROUNDED else f"{self.mean:.2g} nats per token on average, {ROUNDED:g} is the limit"


def load_adapted(base_model: str, adapter: Path, *, exact: bool) -> PeftModel:
    """The base model with the adapter in the folder `adapter`, in float32 if `exact`, else as the base is stored.
    Raises ConfigError if the base model cannot be loaded, or lacks layers that the adapter is for."""
    base = load_model(base_model, exact=exact)
    layers = {layer_of(name) for name in tensor_names(adapter / WEIGHTS)}
    if unknown := sorted(layers - {name for name, _ in base.named_modules()}):
        raise ConfigError(
            f"the adapter is for layers that transformers' {base_model} does not have ({', '.join(unknown[:3])}): "
            "convert it with tinker_cookbook.weights.build_lora_adapter or build_hf_model, which know the model; "
            "--no-check exports it as it is"
        )
    with warnings.catch_warnings():
        # Of a shared matrix at both ends, which `write_merged` takes apart.
        warnings.filterwarnings("ignore", message=".*tie_word_embeddings.*")
        warnings.filterwarnings("ignore", category=FutureWarning)  # of the libraries, about one another
        return PeftModel.from_pretrained(base, str(adapter))


def load_model(model: str, *, exact: bool) -> Any:
    """A hub model, or the one in a folder; raises ConfigError as `load_adapted`."""
    try:
        place, dtype = str(local_model_folder(model) or model), "float32" if exact else "auto"
        loaded = AutoModelForCausalLM.from_pretrained(place, trust_remote_code=False, dtype=dtype)
    except (OSError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            f"{model} cannot be loaded ({reason}): the check and --merge need it; --no-check exports the adapter alone"
        ) from error
    return loaded.eval()


@torch.no_grad()
def agreement(model: Any, sequences: Sequence[SampledSequence]) -> Agreement:
    """How far the model's log-probabilities are from those in `sequences`."""
    parts = []
    for sequence in sequences:
        logits = model(torch.tensor([sequence.prompt + sequence.completion])).logits
        logprobs = torch.log_softmax(logits[0, len(sequence.prompt) - 1 : -1].float(), dim=-1)
        chosen = logprobs.gather(1, torch.tensor(sequence.completion)[:, None])[:, 0]
        parts.append((chosen - torch.tensor(sequence.logprobs)).abs())
    differences = torch.cat(parts)
    return Agreement(len(sequences), len(differences), float(differences.max()), float(differences.mean()))


def write_merged(model: PeftModel, base_model: str, folder: Path) -> None:
    """Write the model with the adapter added to its weights, and its tokenizer, to the existing `folder`."""
    inner: Any = model.get_base_model()
    head, embeddings = inner.get_output_embeddings(), inner.get_input_embeddings()
    layer = getattr(head, "base_layer", None)
    if layer is not None and layer.weight is embeddings.weight:
        # Small models share one matrix for input and output, and only the output was trained: keep the input as it is.
        layer.weight = torch.nn.Parameter(layer.weight.detach().clone())
        inner.config.tie_word_embeddings = False
    merged: Any = model.merge_and_unload()
    merged.save_pretrained(folder)
    place = str(local_model_folder(base_model) or base_model)
    AutoTokenizer.from_pretrained(place, trust_remote_code=False).save_pretrained(folder)


def require_agreement(what: str, model: Any, sequences: Sequence[SampledSequence], *, exact: bool) -> Agreement:
    """CoderlError if `what` (an adapter, a merged model) does not give the log-probabilities that were sampled."""
    result = agreement(model, sequences)
    if fault := result.fault(exact=exact):
        raise CoderlError(
            f"{what} does not give the log-probabilities that were sampled: {fault}; nothing was exported (--no-check "
            "exports it all the same)"
        )
    return result
