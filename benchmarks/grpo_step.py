"""The engine's part of one GRPO step: sampling, forward_backward and optim_step, in seconds.

8 prompts of 211 tokens, 16 completions each of 64 tokens, of which 40 to 64 are trained on. `cpu s` is this process's
processor time: on a busy machine it says more than the clock. With `--server URL` the same step goes through the tinker
SDK to a running server (`coderl serve tinker`). With `--serve` it goes to an embedded server that the script starts,
and `cpu s` is that server's. GB is the most memory of all processes that are timed, shared pages counted once (PSS,
looked at up to ten times per second). Each step is printed on standard error when it ends.

    python benchmarks/grpo_step.py [--model data/nano] [--repeats 5] [--serve | --server http://127.0.0.1:PORT]
"""

import argparse
import os
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import tinker
from rich.console import Console
from rich.table import Table
from sandbox_throughput import family, resident_mib

from coderl_tasks.paths import NANO_MODEL, local_model_folder
from coderl_tasks.services import embedded_tinker
from local_servers.tinker.engine.lora_engine import Engine
from local_servers.tinker.engine_types import AdamSettings, SampleSpec, TrainDatum

LEARNING_RATE = 1e-4
LOOK_S = 0.1
VOCABULARY = 800  # token ids used in prompts: below every nano model's vocabulary size

Completion = tuple[list[int], list[float]]
"""Tokens and their log-probabilities."""


@dataclass(frozen=True)
class Example:
    """One training sequence: tokens, and per target the sampler's log-probability and the advantage."""

    tokens: list[int]
    logprobs: list[float]
    advantages: list[float]


class Trainee(Protocol):
    """What is timed."""

    def sample(self, prompts: list[list[int]], count: int, max_tokens: int, seed: int) -> list[list[Completion]]: ...

    def forward_backward(self, examples: list[Example]) -> None: ...

    def optim_step(self) -> None: ...


class DirectTrainee:
    """The engine in this process."""

    def __init__(self, folder: Path) -> None:
        self._engine = Engine(folder)
        self._adapter = self._engine.create_adapter(32, seed=0)

    def sample(self, prompts: list[list[int]], count: int, max_tokens: int, seed: int) -> list[list[Completion]]:
        weights = self._engine.sampler_weights(self._adapter)
        specs = [SampleSpec(prompt, count, max_tokens, seed=seed + number) for number, prompt in enumerate(prompts)]
        results = self._engine.sample([(weights, spec) for spec in specs])
        return [[(sequence.tokens, sequence.logprobs) for sequence in result.sequences] for result in results]

    def forward_backward(self, examples: list[Example]) -> None:
        datums = [
            TrainDatum(
                np.array(example.tokens[:-1]),
                {
                    "target_tokens": np.array(example.tokens[1:]),
                    "logprobs": np.array(example.logprobs, dtype=np.float32),
                    "advantages": np.array(example.advantages, dtype=np.float32),
                },
            )
            for example in examples
        ]
        self._engine.forward_backward(self._adapter, datums, "importance_sampling", {}, backward=True)

    def optim_step(self) -> None:
        self._engine.optim_step(self._adapter, AdamSettings(learning_rate=LEARNING_RATE))


class ServerTrainee:
    """A server, through the tinker SDK."""

    def __init__(self, url: str, key: str, model: str) -> None:
        service = tinker.ServiceClient(base_url=url, api_key=key)
        self._client = service.create_lora_training_client(base_model=model, rank=32, seed=0).result()

    def sample(self, prompts: list[list[int]], count: int, max_tokens: int, seed: int) -> list[list[Completion]]:
        sampler = self._client.save_weights_and_get_sampling_client().result()
        futures = [
            sampler.sample(
                prompt=tinker.ModelInput.from_ints(prompt),
                num_samples=count,
                sampling_params=tinker.SamplingParams(max_tokens=max_tokens, seed=seed + number, stop=[]),
            )
            for number, prompt in enumerate(prompts)
        ]
        return [
            [(list(sequence.tokens), list(sequence.logprobs or [])) for sequence in future.result().sequences]
            for future in futures
        ]

    def forward_backward(self, examples: list[Example]) -> None:
        datums = [
            tinker.Datum(
                model_input=tinker.ModelInput.from_ints(example.tokens[:-1]),
                loss_fn_inputs={
                    "target_tokens": tinker.TensorData.from_numpy(np.array(example.tokens[1:])),
                    "logprobs": tinker.TensorData.from_numpy(np.array(example.logprobs, dtype=np.float32)),
                    "advantages": tinker.TensorData.from_numpy(np.array(example.advantages, dtype=np.float32)),
                },
            )
            for example in examples
        ]
        self._client.forward_backward(datums, "importance_sampling").result()

    def optim_step(self) -> None:
        self._client.optim_step(tinker.AdamParams(learning_rate=LEARNING_RATE)).result()


class Watch(threading.Thread):
    """Of the process `root` and all below it: processor time, and the most memory since it was last asked."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self._root = root
        self._peak = 0.0
        self.start()

    def run(self) -> None:
        while True:
            start = time.perf_counter()
            self._peak = max(self._peak, resident_mib(family(self._root)))
            # The kernel walks every page: 70 ms for 6 GB, which would take the cores from what is timed.
            time.sleep(max(LOOK_S, 20 * (time.perf_counter() - start)))

    def peak_gigabytes(self) -> float:
        peak, self._peak = self._peak, 0.0
        return peak * 2**20 / 1e9

    def cpu_seconds(self) -> float:
        ticks = 0
        for pid in family(self._root):
            numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(numbers[11]) + int(numbers[12])  # utime and stime, by proc_pid_stat(5)
        return ticks / os.sysconf("SC_CLK_TCK")


def make_prompts(rng: np.random.Generator, count: int, length: int) -> list[list[int]]:
    """Random prompts that share their first half, as a system message is shared."""
    head = rng.integers(10, VOCABULARY, length // 2).tolist()
    return [head + rng.integers(10, VOCABULARY, length - len(head)).tolist() for _ in range(count)]


def make_example(prompt: list[int], completion: Completion, length: int, advantage: float) -> Example:
    """A training sequence from the first `length` tokens of a completion."""
    tokens, logprobs = completion[0][:length], completion[1][:length]
    before = [0.0] * (len(prompt) - 1)
    return Example(prompt + tokens, before + logprobs, before + [advantage] * len(tokens))


def measure(trainee: Trainee, watch: Watch, arguments: argparse.Namespace) -> list[tuple[float, ...]]:
    """Of every repeat: seconds of sampling, forward_backward, optim_step and all, processor seconds, most gigabytes
    while sampling and while training, tokens sampled.

    One more step, the first, warms up.
    """
    rng = np.random.default_rng(0)
    prompts = make_prompts(rng, arguments.prompts, arguments.prompt_tokens)
    rows: list[tuple[float, ...]] = []
    for step in range(arguments.repeats + 1):
        cpu = watch.cpu_seconds()
        watch.peak_gigabytes()
        start = time.perf_counter()
        groups = trainee.sample(prompts, arguments.samples, arguments.max_tokens, 100 * step)
        sampled = time.perf_counter()
        examples = [
            make_example(prompt, completion, int(rng.integers(40, arguments.max_tokens + 1)), float(rng.normal()))
            for prompt, group in zip(prompts, groups, strict=True)
            for completion in group
        ]
        sampling_peak = watch.peak_gigabytes()
        prepared = time.perf_counter()
        trainee.forward_backward(examples)
        learned = time.perf_counter()
        trainee.optim_step()
        end = time.perf_counter()
        seconds = [sampled - start, learned - prepared, end - learned]
        tokens = sum(len(completion[0]) for group in groups for completion in group)
        peaks = sampling_peak, watch.peak_gigabytes()
        rows.append((*seconds, sum(seconds), watch.cpu_seconds() - cpu, *peaks, float(tokens)))
        print(f"step {step}: " + " ".join(f"{value:.2f}" for value in rows[-1]), file=sys.stderr)
    return rows[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=NANO_MODEL)
    parser.add_argument("--server", help="URL of a running Tinker server; default: the engine in this process")
    parser.add_argument("--serve", action="store_true", help="through an embedded server")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--prompt-tokens", type=int, default=211)
    parser.add_argument("--max-tokens", type=int, default=64, help="at least 40")
    arguments = parser.parse_args()
    folder = local_model_folder(arguments.model)
    trainee: Trainee
    with ExitStack() as stack:
        watched = os.getpid()
        if arguments.serve:
            server = stack.enter_context(embedded_tinker(arguments.model))
            trainee, watched = ServerTrainee(server.url, server.key, arguments.model), server.pid
        elif arguments.server:
            trainee = ServerTrainee(arguments.server, "tml-benchmark", arguments.model)
        elif folder:
            trainee = DirectTrainee(folder)
        else:
            parser.error(f"--model {arguments.model}: there is no such model folder")
        rows = measure(trainee, Watch(watched), arguments)
    seconds = ("sample s", "forward_backward s", "optim_step s", "total s", "cpu s")
    table = Table("", *seconds, "GB sampling", "GB training", "tokens sampled")
    middle = tuple(statistics.median(column) for column in zip(*rows, strict=True))
    for name, row in [*((str(number), row) for number, row in enumerate(rows)), ("median", middle)]:
        cells = [f"{value:.3f}" for value in row[:5]] + [f"{value:.2f}" for value in row[5:7]]
        table.add_row(name, *cells, str(int(row[7])))
    console = Console(width=100)
    where = "an embedded server" if arguments.serve else arguments.server or "engine in this process"
    console.print(f"{arguments.model}, {where}: {arguments.prompts} x {arguments.samples} completions")
    console.print(table)


if __name__ == "__main__":
    main()
