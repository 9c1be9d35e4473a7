"""Tokens per second of sampling and of training: the engine against plain `transformers` generate and a `peft` loop.

A random Qwen3 of the size given: GROUPS prompts, SAMPLES completions each of TOKENS tokens; then one forward and
backward pass over all of them and an Adam step, LoRA on the linear layers. Training counts prompt and completion
tokens, each sequence's own, though the engine runs the prompt of a group once. The plain loop samples a group at a time
(`num_return_sequences`) and trains `--batch` sequences at a time, base in the same dtype, LoRA in float32. All variants
take turns, `--repeats` times after one that warms up; medians. On a busy machine the rates per second of processor time
say more than those of the clock; on a GPU those of the clock alone say anything.

    python benchmarks/engine_and_transformers.py [--groups 2 --samples 8 --tokens 64]
    python benchmarks/engine_and_transformers.py --size 0.6B --groups 8 --samples 16 --tokens 512 --device cuda
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from local_servers.tinker.engine import Engine
from local_servers.tinker.engine_types import AdamSettings, SampleSpec, TrainDatum

RANK = 32
LEARNING_RATE = 4e-5
SIZES: dict[str, dict[str, Any]] = {
    "45M": {
        "hidden_size": 512,
        "intermediate_size": 1536,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 32768,
    },
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
    },
}

Groups = list[list[list[int]]]
"""Completions' tokens, by group."""


class Trainee(Protocol):
    """What is timed."""

    def sample(self, prompts: list[list[int]], samples: int, tokens: int, seed: int) -> Groups: ...

    def train(self, prompts: list[list[int]], groups: Groups) -> None: ...


class Ours:
    """The engine, in this process."""

    def __init__(self, folder: Path, device: str, dtype: str, threads: int) -> None:
        self._engine = Engine(folder, device=device, dtype=dtype, threads=threads)
        self._adapter = self._engine.create_adapter(RANK, seed=0, train_unembed=False)

    def sample(self, prompts: list[list[int]], samples: int, tokens: int, seed: int) -> Groups:
        weights = self._engine.sampler_weights(self._adapter)
        specs = [SampleSpec(prompt, samples, tokens, seed=seed + number) for number, prompt in enumerate(prompts)]
        results = self._engine.sample([(weights, spec) for spec in specs])
        return [[sequence.tokens for sequence in result.sequences] for result in results]

    def train(self, prompts: list[list[int]], groups: Groups) -> None:
        datums = []
        for prompt, group in zip(prompts, groups, strict=True):
            for number, completion in enumerate(group):
                row = np.array(prompt + completion)
                weights = np.zeros(len(row) - 1, dtype=np.float32)
                weights[len(prompt) - 1 :] = advantage(number)
                datums.append(TrainDatum(row[:-1], {"target_tokens": row[1:], "weights": weights}))
        self._engine.forward_backward(self._adapter, datums, "cross_entropy", {}, backward=True)
        self._engine.optim_step(self._adapter, AdamSettings(learning_rate=LEARNING_RATE))


class Plain:
    """transformers and peft as their documents use them."""

    def __init__(self, folder: Path, device: str, dtype: str, batch: int) -> None:
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        model = model.to(device)
        config = LoraConfig(r=RANK, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
        self._model = get_peft_model(model, config)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.Adam(trained, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-12)
        self._device, self._batch = device, batch

    @torch.inference_mode()
    def sample(self, prompts: list[list[int]], samples: int, tokens: int, seed: int) -> Groups:
        torch.manual_seed(seed)
        self._model.eval()
        groups = []
        for prompt in prompts:
            out = self._model.generate(
                input_ids=torch.tensor([prompt], device=self._device),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=self._device),
                do_sample=True,
                top_k=0,
                num_return_sequences=samples,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                pad_token_id=0,
            )
            groups.append(out[:, len(prompt) :].tolist())
        return groups

    def train(self, prompts: list[list[int]], groups: Groups) -> None:
        self._model.train()
        rows = [
            (prompt, completion, advantage(number))
            for prompt, group in zip(prompts, groups, strict=True)
            for number, completion in enumerate(group)
        ]
        for start in range(0, len(rows), self._batch):
            part = rows[start : start + self._batch]
            tokens = torch.tensor([prompt + completion for prompt, completion, _ in part], device=self._device)
            advantages = torch.tensor([value for _, _, value in part], device=self._device)
            # The targets alone: the plain loop too need not compute logits of prompts.
            kept = len(part[0][1])
            logits = self._model(input_ids=tokens[:, :-1], logits_to_keep=kept, use_cache=False).logits.float()
            logprobs = logits.log_softmax(dim=-1).gather(2, tokens[:, -kept:, None])[..., 0]
            (-(advantages[:, None] * logprobs).sum()).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()


def advantage(number: int) -> float:
    """Of a group's completion: +1 and -1 in turn."""
    return 1.0 - 2 * (number % 2)


def seconds(work: Callable[[], Any], device: str) -> tuple[np.ndarray, Any]:
    """Seconds of the clock and of the processor (2,) that `work` takes, and what it gives."""
    start = np.array([time.perf_counter(), time.process_time()])
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return np.array([time.perf_counter(), time.process_time()]) - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="45M", help="parameters of the random Qwen3")
    parser.add_argument("--layers", type=int, help="another number of layers")
    parser.add_argument("--groups", type=int, default=2)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a backward pass of the plain loop")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1, help="of one operation of the engine (the server's: 1)")
    parser.add_argument("--plain-threads", type=int, default=os.cpu_count() or 1, help="of the plain loop")
    arguments = parser.parse_args()
    transformers_logging.disable_progress_bar()
    console = Console(width=120)
    shape = SIZES[arguments.size] | ({"num_hidden_layers": arguments.layers} if arguments.layers else {})
    config = Qwen3Config(**shape, head_dim=128 if arguments.size == "0.6B" else 64, tie_word_embeddings=True)
    config.eos_token_id = None  # every completion has its full length
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, config.vocab_size, arguments.prompt_tokens).tolist() for _ in range(arguments.groups)]
    sampled = arguments.groups * arguments.samples * arguments.tokens
    trained = arguments.groups * arguments.samples * (arguments.prompt_tokens + arguments.tokens - 1)
    rates: dict[str, list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
        parameters = model.num_parameters()
        model.save_pretrained(folder)
        del model
        trainees: dict[str, tuple[Trainee, int]] = {}
        for dtype in arguments.dtypes:
            ours = Ours(folder, arguments.device, dtype, arguments.threads)
            trainees[f"engine, {dtype}"] = (ours, arguments.threads)
            plain = Plain(folder, arguments.device, dtype, arguments.batch)
            trainees[f"transformers + peft, {dtype}"] = (plain, arguments.plain_threads)
        for repeat in range(arguments.repeats + 1):
            for label, (trainee, threads) in trainees.items():
                torch.set_num_threads(threads)
                sample = partial(trainee.sample, prompts, arguments.samples, arguments.tokens, 100 * repeat)
                took, groups = seconds(sample, arguments.device)
                assert sum(len(row) for group in groups for row in group) == sampled
                learnt, _ = seconds(partial(trainee.train, prompts, groups), arguments.device)
                console.print(f"{repeat} {label}: sampled in {took[0]:.1f} s, trained in {learnt[0]:.1f} s")
                if repeat:
                    rates.setdefault(label, []).append(np.concatenate([sampled / took, trained / learnt]))
    medians = {label: np.median(rows, axis=0) for label, rows in rates.items()}
    table = Table("", "sampled/s", "sampled/CPU s", "trained/s", "trained/CPU s", title="tokens")
    for label, row in medians.items():
        table.add_row(label, *(f"{value:,.0f}" for value in row))
    for dtype in arguments.dtypes:
        ratios = medians[f"engine, {dtype}"] / medians[f"transformers + peft, {dtype}"]
        table.add_row(f"ratio, {dtype}", *(f"{value:.2f}" for value in ratios))
    console.print(
        f"{parameters / 1e6:.0f} M parameters, {arguments.groups} x {arguments.samples} x {arguments.tokens} tokens "
        f"after {arguments.prompt_tokens}, {arguments.device}; threads: engine {arguments.threads}, "
        f"plain loop {arguments.plain_threads}"
    )
    console.print(table)


if __name__ == "__main__":
    main()
