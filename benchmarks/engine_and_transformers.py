"""Tokens per second of sampling and of training: the engine against plain `transformers` generate and a `peft` loop.

A random Qwen3 of the size given, or the model of a folder: GROUPS prompts, SAMPLES completions each of TOKENS tokens;
then one forward and backward pass over all of them and an Adam step, LoRA on the linear layers. Training counts prompt
and completion tokens, each sequence's own, though the engine runs the prompt of a group once. The plain loop samples
all groups in one call (`num_return_sequences`) and trains `--batch` sequences at a time, base in the same dtype, LoRA
in float32. All variants take turns, `--repeats` times after a short one that warms up; medians. On a busy machine the
rates per second of processor time say more than those of the clock; on a GPU those of the clock alone say anything.

The products' own rate is that of the plain products of the model's matrices with a batch of all samples, measured in
the same run; a token costs two operations per weight to sample, and four to train: what is computed, so each prompt
once. Where CTranslate2 is installed it samples too, in int8 on the CPU. `agreement` is how far the trainer's
log-probabilities are from the sampler's, in nats per token on average.

    python benchmarks/engine_and_transformers.py [--groups 2 --samples 8 --tokens 64]
    python benchmarks/engine_and_transformers.py --model FOLDER --groups 8 --samples 16 --tokens 128
    python benchmarks/engine_and_transformers.py --size 0.6B --groups 8 --samples 16 --tokens 512 --device cuda
"""

import argparse
import contextlib
import os
import resource
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from rich.console import Console
from rich.table import Table
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging as transformers_logging

from local_servers.memory import keep_freed_memory
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine.sampling_processes import sampling_scheduler
from local_servers.tinker.engine_types import AdamSettings, SampleResult, SampleSpec, TrainDatum

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
    """What is timed; one that does not train returns False."""

    def sample(self, prompts: list[list[int]], samples: int, tokens: int, seed: int) -> Groups: ...

    def train(self, prompts: list[list[int]], groups: Groups) -> bool | None: ...


class Ours:
    """The engine as a server runs it: training in this process, sampling in as many as suit the model."""

    def __init__(self, folder: Path, device: str, dtype: str, threads: int) -> None:
        self._engine = Engine(folder, device=device, dtype=dtype, threads=threads)
        self._adapter = self._engine.create_adapter(RANK, seed=0, train_unembed=False)
        self._scheduler = sampling_scheduler(self._engine)

    def sample(self, prompts: list[list[int]], samples: int, tokens: int, seed: int) -> Groups:
        return [
            [sequence.tokens for sequence in result.sequences]
            for result in self._sampled(prompts, samples, tokens, seed)
        ]

    def _sampled(self, prompts: list[list[int]], samples: int, tokens: int, seed: int) -> list[SampleResult]:
        weights = self._engine.sampler_weights(self._adapter)
        specs = [SampleSpec(prompt, samples, tokens, seed=seed + number) for number, prompt in enumerate(prompts)]
        return [future.result() for future in [self._scheduler.submit(weights, spec) for spec in specs]]

    def train(self, prompts: list[list[int]], groups: Groups) -> None:
        self._engine.forward_backward(self._adapter, self._datums(prompts, groups), "cross_entropy", {}, backward=True)
        self._engine.optim_step(self._adapter, AdamSettings(learning_rate=LEARNING_RATE))

    def agreement(self, prompts: list[list[int]], samples: int, tokens: int) -> float:
        """How far the trainer's log-probabilities of sampled tokens are from the sampler's, mean of absolute values."""
        results = self._sampled(prompts, samples, tokens, seed=0)
        datums = self._datums(prompts, [[sequence.tokens for sequence in result.sequences] for result in results])
        found = self._engine.forward_backward(self._adapter, datums, "cross_entropy", {}, backward=False).logprobs
        sampled = [np.array(sequence.logprobs) for result in results for sequence in result.sequences]
        pairs = zip(sampled, found, strict=True)
        return float(np.concatenate([np.abs(ours - row[-len(ours) :]) for ours, row in pairs]).mean())

    @staticmethod
    def _datums(prompts: list[list[int]], groups: Groups) -> list[TrainDatum]:
        datums = []
        for prompt, group in zip(prompts, groups, strict=True):
            for number, completion in enumerate(group):
                row = np.array(prompt + completion)
                weights = np.zeros(len(row) - 1, dtype=np.float32)
                weights[len(prompt) - 1 :] = advantage(number)
                datums.append(TrainDatum(row[:-1], {"target_tokens": row[1:], "weights": weights}))
        return datums


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
        rows = torch.tensor(prompts, device=self._device)
        out = self._model.generate(
            input_ids=rows,
            attention_mask=torch.ones_like(rows),
            do_sample=True,
            top_k=0,
            num_return_sequences=samples,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            pad_token_id=0,
        )
        found = out[:, rows.shape[1] :].tolist()
        return [found[start : start + samples] for start in range(0, len(found), samples)]

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


class CTranslate2:
    """CTranslate2's generator on the CPU, in int8. It samples and does not train."""

    def __init__(self, folder: Path, made: Path, threads: int) -> None:
        import ctranslate2

        converter = ctranslate2.converters.TransformersConverter(str(folder))
        converter.convert(str(made), quantization="int8_float32")
        self._generator = ctranslate2.Generator(str(made), compute_type="int8_float32", intra_threads=threads)
        self._vocabulary: Any = AutoTokenizer.from_pretrained(folder)

    def sample(self, prompts: list[list[int]], samples: int, tokens: int, seed: int) -> Groups:
        import ctranslate2

        ctranslate2.set_random_seed(seed)
        rows = [self._vocabulary.convert_ids_to_tokens(prompt) for prompt in prompts for _ in range(samples)]
        results = self._generator.generate_batch(
            rows,
            max_batch_size=len(rows),
            max_length=tokens,
            min_length=tokens,
            sampling_topk=0,
            include_prompt_in_result=False,
        )
        found = [result.sequences_ids[0][:tokens] for result in results]
        return [found[start : start + samples] for start in range(0, len(found), samples)]

    def train(self, prompts: list[list[int]], groups: Groups) -> bool:
        return False


def products_rate(folder: Path, dtype: str, device: str, rows: int, threads: int) -> float:
    """Operations per second of the plain products of `rows` rows with the matrices of the model's first layer and its
    unembedding, in the model's proportion of both."""
    torch.set_num_threads(threads)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = model.to(device)
    n_layers = model.config.num_hidden_layers
    layer = [module.weight for module in model.get_decoder().layers[0].modules() if isinstance(module, torch.nn.Linear)]
    parts = [(weight, n_layers) for weight in layer] + [(model.get_output_embeddings().weight, 1)]
    operations = took = 0.0
    with torch.inference_mode():
        for weight, times in parts:
            x = torch.randn(rows, weight.shape[1], device=device, dtype=weight.dtype)
            product = partial(torch.nn.functional.linear, x, weight)
            seconds(product, device)
            took += times * min(seconds(product, device)[0][0] for _ in range(5))
            operations += times * 2.0 * rows * weight.numel()
    return operations / took


def advantage(number: int) -> float:
    """Of a group's completion: +1 and -1 in turn."""
    return 1.0 - 2 * (number % 2)


def seconds(work: Callable[[], Any], device: str) -> tuple[np.ndarray, Any]:
    """Seconds of the clock and of the processor (2,) that `work` takes, and what it gives."""
    start = np.array([time.perf_counter(), processor_seconds()])
    result = work()
    if device == "cuda":
        torch.cuda.synchronize()
    return np.array([time.perf_counter(), processor_seconds()]) - start, result


def processor_seconds() -> float:
    """Of this process and of those that it has started."""
    total = time.process_time()
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # it has just ended
            for child in (thread / "children").read_text().split():
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                total += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")  # in user mode and in the system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="45M", help="parameters of the random Qwen3")
    parser.add_argument("--model", type=Path, help="folder of a model, in place of a random one")
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
    keep_freed_memory()  # as servers do
    transformers_logging.disable_progress_bar()
    console = Console(width=120)
    sampled = arguments.groups * arguments.samples * arguments.tokens
    trained = arguments.groups * arguments.samples * (arguments.prompt_tokens + arguments.tokens - 1)
    computed = trained - arguments.groups * (arguments.samples - 1) * arguments.prompt_tokens
    rates: dict[str, list[np.ndarray]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.model or random_model(Path(name) / "model", arguments.size, arguments.layers)
        config = AutoConfig.from_pretrained(folder)
        rng = np.random.default_rng(0)
        length = arguments.prompt_tokens
        prompts = [rng.integers(0, config.vocab_size, length).tolist() for _ in range(arguments.groups)]
        trainees: dict[str, tuple[Trainee, int]] = {}
        agreement = {}
        for dtype in arguments.dtypes:
            ours = Ours(folder, arguments.device, dtype, arguments.threads)
            trainees[f"engine, {dtype}"] = (ours, arguments.threads)
            agreement[dtype] = ours.agreement(prompts[:1], 2, 64)
            plain = Plain(folder, arguments.device, dtype, arguments.batch)
            trainees[f"transformers + peft, {dtype}"] = (plain, arguments.plain_threads)
        if arguments.device == "cpu" and find_spec("ctranslate2"):
            other = CTranslate2(folder, Path(name) / "ctranslate2", arguments.plain_threads)
            trainees["CTranslate2, int8"] = (other, arguments.plain_threads)
        for repeat in range(arguments.repeats + 1):
            for label, (trainee, threads) in trainees.items():
                torch.set_num_threads(threads)
                tokens = arguments.tokens if repeat else min(8, arguments.tokens)
                sample = partial(trainee.sample, prompts, arguments.samples, tokens, 100 * repeat)
                took, groups = seconds(sample, arguments.device)
                assert all(len(row) == tokens for group in groups for row in group)
                learnt, trains = seconds(partial(trainee.train, prompts, groups), arguments.device)
                if trains is False:
                    learnt = np.full(2, np.nan)
                console.print(f"{repeat} {label}: sampled in {took[0]:.1f} s, trained in {learnt[0]:.1f} s")
                if repeat:
                    rates.setdefault(label, []).append(np.concatenate([sampled / took, trained / learnt]))
        batch = arguments.groups * arguments.samples
        products = {
            dtype: products_rate(folder, dtype, arguments.device, batch, arguments.plain_threads)
            for dtype in arguments.dtypes
        }
        parameters = weights_in_products(folder)
    medians = {label: np.median(rows, axis=0) for label, rows in rates.items()}
    table = Table("", "sampled/s", "sampled/CPU s", "trained/s", "trained/CPU s", title="tokens")
    for label, row in medians.items():
        table.add_row(label, *("-" if np.isnan(value) else f"{value:,.0f}" for value in row))
    for dtype in arguments.dtypes:
        ratios = medians[f"engine, {dtype}"] / medians[f"transformers + peft, {dtype}"]
        table.add_row(f"ratio, {dtype}", *(f"{value:.2f}" for value in ratios))
    console.print(
        f"{parameters / 1e6:.0f} M weights in products, {arguments.groups} x {arguments.samples} x {arguments.tokens} "
        f"tokens after {length}, {arguments.device}; threads: engine {arguments.threads} per operation, plain loop "
        f"{arguments.plain_threads}"
    )
    console.print(table)
    for dtype in arguments.dtypes:
        sampling, _, training, _ = medians[f"engine, {dtype}"]
        share = 2 * parameters * sampling / products[dtype]
        trained_share = 4 * parameters * training * computed / trained / products[dtype]
        console.print(
            f"{dtype}: products {products[dtype] / 1e9:,.0f} GFLOP/s, of which sampling has {share:.0%}, training "
            f"{trained_share:.0%}; agreement {agreement[dtype]:.4f} nats"
        )
    console.print(f"most memory of this process, all variants: {peak_gigabytes():.1f} GB")


def weights_in_products(folder: Path) -> int:
    """How many weights a token is multiplied with."""
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    layers = sum(part.weight.numel() for part in model.get_decoder().modules() if isinstance(part, torch.nn.Linear))
    return int(layers + model.get_output_embeddings().weight.numel())


def random_model(folder: Path, size: str, layers: int | None) -> Path:
    """Writes a random Qwen3 of this size into `folder`."""
    shape: dict[str, Any] = SIZES[size] | ({"num_hidden_layers": layers} if layers else {})
    config = Qwen3Config(**shape, head_dim=128 if size == "0.6B" else 64, tie_word_embeddings=True)
    config.eos_token_id = None  # every completion has its full length
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def peak_gigabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
