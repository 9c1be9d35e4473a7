"""A tiny model that has learned two answers by heart, served by the embedded servers: a policy of known pass rates."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import tinker

from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.policy import clients
from coderl_tasks.problems import Problem, Test
from coderl_tasks.prompts import Renderer, get_renderer, problem_messages
from coderl_tasks.services import embedded_sandbox
from coderl_tasks.services.supervisor import EmbeddedServer
from tests.conftest import Found, Share

CONTEXT = 256
MakeProblem = Callable[..., Problem]
ANSWERS = ("```python\nprint(1)\n```", "```python\nprint(2)\n```", "I do not know.")


def make_problem(name: str, expected: str, statement: str = "Print it.", split: str = "taco") -> Problem:
    return Problem(
        problem_id=name,
        split=split,
        statement=statement,
        starter_code="",
        kind="stdin",
        entry_point="",
        tests=(Test("", f"{expected}\n"),),
        tests_total=1,
        tests_original=1,
        time_limit_s=None,
        solutions=(),
        source_row=0,
    )


def make_model(folder: Path, random_qwen3: Callable[..., Any]) -> None:
    """The model: whatever it is asked, it gives one of ANSWERS, at random."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    texts = [message["content"] for message in problem_messages(make_problem("p", "1"))]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    core.train_from_iterator([*texts, *ANSWERS] * 2, trainer)
    core.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.save_pretrained(folder)

    torch.set_num_threads(1)
    model = random_qwen3(512, CONTEXT, tokenizer.eos_token_id, width=48)
    renderer = get_renderer("qwen3_instruct", tokenizer)
    examples = [
        renderer.build_supervised_example(
            [*problem_messages(make_problem("p", "1")), {"role": "assistant", "content": answer}]
        )
        for answer in ANSWERS
    ]
    longest = max(len(tokens) for tokens, _ in examples)
    tokens_N_T = torch.tensor([tokens + [0] * (longest - len(tokens)) for tokens, _ in examples])
    labels_N_T = tokens_N_T.clone()
    for row, (_, weights) in enumerate(examples):
        padded = torch.tensor(weights + [0.0] * (longest - len(weights)))
        labels_N_T[row, padded == 0] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        model(input_ids=tokens_N_T, labels=labels_N_T).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)


@dataclass(frozen=True)
class Stack:
    """Addresses of the two servers and the model they serve."""

    model: str
    tinker_url: str
    sandbox_url: str


@pytest.fixture(scope="session")
def stack(
    random_qwen3: Callable[..., Any], common: Path, tmp_path_factory: pytest.TempPathFactory, share: Share
) -> Iterator[Stack]:
    def start(running: ExitStack) -> Found:
        model, log = common / "two-answers", tmp_path_factory.mktemp("tinker") / "server.log"
        make_model(model, random_qwen3)
        command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "tinker", "--model", str(model)]
        server = EmbeddedServer("Tinker", command, "/api/v1/healthz", log, environment={"OMP_NUM_THREADS": "1"})
        return [str(model), running.enter_context(server).url, running.enter_context(embedded_sandbox()).address]

    with share("two-answers", start) as found:
        yield Stack(*found)


@dataclass(frozen=True)
class Measuring:
    """What measuring needs, open."""

    sampler: tinker.SamplingClient
    judge: Judge
    renderer: Renderer


@pytest.fixture
async def measuring(stack: Stack) -> AsyncIterator[Measuring]:
    from coderl_tasks.prompts import load_tokenizer

    service = await clients.connect(stack.tinker_url, "tml-test")
    sampler = await clients.create_sampling_client(service, base_model=stack.model)
    async with SandboxClient([stack.sandbox_url]) as client:
        yield Measuring(sampler, Judge(client), get_renderer("qwen3_instruct", load_tokenizer(stack.model)))
    await clients.disconnect(service)


@pytest.fixture(name="make_problem")
def make_problem_fixture() -> MakeProblem:
    return make_problem
