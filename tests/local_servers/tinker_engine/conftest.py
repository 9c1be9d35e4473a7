"""Small random models with a byte tokenizer, and what the tests compare the engine with."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from local_servers.tinker.engine.adapter import Adapter
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine_types import (
    AdamSettings,
    SampledSequence,
    SampleResult,
    SampleSpec,
    TrainDatum,
)

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 96,
    "intermediate_size": 160,  # not a multiple of 64: the activation's padding is used
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "initializer_range": 0.15,  # distributions far from uniform
    "eos_token_id": 257,
}


def write_tokenizer(folder: Path) -> None:
    """One token per byte, then <pad> 256 and <end> 257."""
    vocab = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<end>")
    fast.save_pretrained(folder)


def random_model(architecture: str, **config: Any) -> PreTrainedModel:
    """A random model of an architecture by transformers' name for it. The classes are not imported by their names: each
    process that collects these tests would import the modules of all of them."""
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **config))
    return model


def write_model(folder: Path, architecture: str) -> Path:
    """A random model of one of the supported architectures."""
    model = random_model(architecture, **SHAPE, tie_word_embeddings=architecture == "qwen3")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter, std=0.1)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("qwen3"), "qwen3")


@pytest.fixture(scope="session", params=["qwen3", "qwen2", "llama"])
def any_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def engine(qwen3_folder: Path) -> Engine:
    return Engine(qwen3_folder)


class Cases:
    """What tests of this room build and compare with."""

    @staticmethod
    def reference_model(folder: Path) -> torch.nn.Module:
        """The same model in transformers' plain form."""
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    @staticmethod
    def reference_logprobs(model: torch.nn.Module, tokens: list[int]) -> torch.Tensor:
        """Log-probabilities (T - 1,) of tokens 1.. given those before."""
        logits = model(torch.tensor([tokens])).logits[0, :-1]
        return logits.log_softmax(dim=1).gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]

    @staticmethod
    def prompt(seed: int, length: int) -> list[int]:
        return np.random.default_rng(seed).integers(0, 256, length).tolist()

    @staticmethod
    def datum(prompt: list[int], sequence: SampledSequence, advantage: float) -> TrainDatum:
        """The reinforcement-learning datum of one completion."""
        tokens = np.array(prompt + sequence.tokens)
        before = np.zeros(len(prompt) - 1, dtype=np.float32)
        top_k = sequence.top_k
        return TrainDatum(
            tokens[:-1],
            {
                "target_tokens": tokens[1:],
                "logprobs": np.concatenate([before, np.array(sequence.logprobs, dtype=np.float32)]),
                "advantages": np.concatenate([before, np.full(len(sequence.tokens), advantage, dtype=np.float32)]),
            },
            None if top_k is None else replace(top_k, positions=top_k.positions + len(before)),
        )

    @staticmethod
    def datums(specs: list[SampleSpec], results: list[SampleResult]) -> list[TrainDatum]:
        """Datums of all completions, with advantages that differ."""
        rng = np.random.default_rng(0)
        return [
            Cases.datum(spec.prompt, sequence, float(rng.normal()))
            for spec, result in zip(specs, results, strict=True)
            for sequence in result.sequences
        ]


@pytest.fixture(scope="session")
def cases() -> type[Cases]:
    return Cases


@pytest.fixture(scope="session")
def trained(engine: Engine) -> Callable[..., Adapter]:
    """Makes an adapter, of `engine` or another, whose delta is not zero: some supervised steps on noise."""

    def make(seed: int, engine: Engine = engine) -> Adapter:
        adapter = engine.create_adapter(8, seed)
        for step in range(3):
            tokens = np.array(Cases.prompt(seed + step, 40))
            inputs = {"target_tokens": tokens[1:], "weights": np.ones(39, dtype=np.float32)}
            engine.forward_backward(adapter, [TrainDatum(tokens[:-1], inputs)], "cross_entropy", {}, backward=True)
            engine.optim_step(adapter, AdamSettings(learning_rate=1e-2))
        return adapter

    return make
