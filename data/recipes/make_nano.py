"""Trains the nano models, Qwen3s of 1.7 million parameters that solve some of the bundled problems some of the time.

    python -m data.recipes.make_nano [folder] [--steps N]                       data/nano, on programs like data/mini's
    python -m data.recipes.make_nano --environment gsm8k [folder] [--steps N]   data/nano_words, on those of data/words

1. Supervised on fresh lessons of a noisy teacher (teacher.py, word_teacher.py), in exactly the prompts that the
   pipeline builds; the loss is on the answers alone.
2. Two processes of one thread each share a batch and average their gradients: on two cores that is faster than one
   process of two threads, above all when other work runs beside them.
3. Weights are stored in float16 to stay small in git; the configuration says float32, so that is what loading gives.
"""

import argparse
import os
import random
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.multiprocessing
from torch import distributed
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from coderl_tasks.paths import NANO_MODEL, NANO_WORDS_MODEL, PROJECT_ROOT
from coderl_tasks.prompts import Message, get_renderer, problem_messages
from data.recipes.make_mini import split_combinations
from data.recipes.nano_tokenizer import code_sentences, gsm8k_sentences, train_tokenizer
from data.recipes.teacher import Teacher
from data.recipes.word_teacher import WordTeacher

SEED = 7
CONTEXT = 16384
WORKERS = 2
BUCKET = 16
LEARNING_RATE = 3e-3
WARM_UP = 50
TOKENIZER_LESSONS = 4000

Row = tuple[list[int], list[float]]
"""A lesson's tokens, and the weight of each in the loss: 1 in the answer, else 0."""


@dataclass(frozen=True, slots=True)
class Course:
    """What a model is taught, and where it goes: so many steps of `batch` rows per worker; the texts and fixed
    sentences that its tokenizer is made of; an endless source of rows for a tokenizer and a seed."""

    folder: str
    steps: int
    batch: int
    texts: Callable[[], list[str]]
    sentences: Callable[[], list[str]]
    rows: Callable[[PreTrainedTokenizerFast, int], Callable[[], Row]]


def code_texts() -> list[str]:
    """Statements, starter code and answers of programs."""
    combinations, _ = split_combinations()
    teacher = Teacher(combinations, SEED)
    lessons = [teacher.lesson() for _ in range(TOKENIZER_LESSONS)]
    return [text for each in lessons for text in (each.problem.statement, each.problem.starter_code, each.answer)]


def code_rows(tokenizer: PreTrainedTokenizerFast, seed: int) -> Callable[[], Row]:
    """Lessons on programs, as chats."""
    combinations, _ = split_combinations()
    teacher, renderer = Teacher(combinations, seed), get_renderer("qwen3_instruct", tokenizer)

    def row() -> Row:
        lesson = teacher.lesson()
        answer: Message = {"role": "assistant", "content": lesson.answer}
        return renderer.build_supervised_example([*problem_messages(lesson.problem), answer])

    return row


def word_texts() -> list[str]:
    """Questions and solutions of word problems."""
    teacher = WordTeacher(SEED)
    lessons = [teacher.lesson() for _ in range(TOKENIZER_LESSONS)]
    return [text for each in lessons for text in (each.question, each.completion)]


def word_rows(tokenizer: PreTrainedTokenizerFast, seed: int) -> Callable[[], Row]:
    """Lessons on word problems: plain text, the end of which is the environment's."""
    teacher = WordTeacher(seed)

    def row() -> Row:
        lesson = teacher.lesson()
        prompt, answer = (tokenizer.encode(text) for text in (lesson.prompt, lesson.completion))
        return [*prompt, *answer], [0.0] * len(prompt) + [1.0] * len(answer)

    return row


COURSES = {
    "code": Course(NANO_MODEL, 800, 16, code_texts, code_sentences, code_rows),
    "gsm8k": Course(NANO_WORDS_MODEL, 300, 32, word_texts, gsm8k_sentences, word_rows),
}
"""By environment."""


def pad_token(tokenizer: PreTrainedTokenizerFast) -> int:
    """The id of `<|endoftext|>`, which pads batches."""
    token = tokenizer.convert_tokens_to_ids("<|endoftext|>")
    assert isinstance(token, int)
    return token


def nano_config(tokenizer: PreTrainedTokenizerFast) -> Qwen3Config:
    """The architecture: 4 layers of width 192."""
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.convert_tokens_to_ids("<|im_end|>"),
        pad_token_id=pad_token(tokenizer),
        dtype="float32",
    )


class Batches:
    """Supervised batches of rows: tokens and loss weights, padded on the right, of lessons of similar length."""

    def __init__(self, row: Callable[[], Row], size: int, pad: int) -> None:
        self._row = row
        self._size = size
        self._pad = pad
        self._order = random.Random(SEED)
        self._ready: list[list[Row]] = []

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(tokens_B_T int64, weights_B_T float32) of `size` new lessons."""
        if not self._ready:
            rows = sorted((self._row() for _ in range(self._size * BUCKET)), key=lambda row: len(row[0]))
            self._ready = [rows[start : start + self._size] for start in range(0, len(rows), self._size)]
            self._order.shuffle(self._ready)
        rows = self._ready.pop()
        width = max(len(tokens) for tokens, _ in rows)
        tokens_B_T = torch.full((len(rows), width), self._pad)
        weights_B_T = torch.zeros((len(rows), width))
        for row, (tokens, weights) in enumerate(rows):
            tokens_B_T[row, : len(tokens)] = torch.tensor(tokens)
            weights_B_T[row, : len(weights)] = torch.tensor(weights)
        return tokens_B_T, weights_B_T


def answer_loss(model: Qwen3ForCausalLM, tokens_B_T: torch.Tensor, weights_B_T: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy, in nats a token, over the weighted targets. Padding is on the right: causality hides it."""
    hidden = model.model(input_ids=tokens_B_T[:, :-1]).last_hidden_state
    counted = weights_B_T[:, 1:] > 0
    logits = model.lm_head(hidden[counted])
    return torch.nn.functional.cross_entropy(logits, tokens_B_T[:, 1:][counted])


def optimizers(model: Qwen3ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
    others = [weight for weight in model.parameters() if all(weight is not each for each in matrices)]
    return [
        torch.optim.Muon(matrices, lr=LEARNING_RATE, weight_decay=0.05, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def train(model: Qwen3ForCausalLM, batches: Batches, steps: int) -> None:
    """Warm-up, then a linear decay to zero. Gradients are averaged over the workers of the process group."""
    steppers = optimizers(model)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            each, lambda step: min((step + 1) / WARM_UP, max(0.0, (steps - step) / (steps - WARM_UP)))
        )
        for each in steppers
    ]
    started, total = time.monotonic(), 0.0
    for step in range(steps):
        loss = answer_loss(model, *batches.next())
        loss.backward()
        average_gradients(model)
        for stepper, schedule in zip(steppers, schedules, strict=True):
            stepper.step()
            schedule.step()
        model.zero_grad()
        total += loss.item()
        if (step + 1) % 50 == 0 and distributed.get_rank() == 0:
            print(f"step {step + 1}/{steps} loss {total / 50:.4f} {time.monotonic() - started:.0f} s", flush=True)
        total *= (step + 1) % 50 != 0


def average_gradients(model: Qwen3ForCausalLM) -> None:
    """Replaces every gradient by its mean over the workers, clipped to a norm of 1."""
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    flat = torch.nn.utils.parameters_to_vector(gradients)
    distributed.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / distributed.get_world_size(), gradients)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def save(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """The folder in Hugging Face's format, float16 on disk and float32 once loaded."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder)
    model.half().save_pretrained(folder)
    model.float()
    model.config.dtype = "float32"
    model.config.save_pretrained(folder)


def work(rank: int, rendezvous: str, environment: str, folder: Path, steps: int) -> None:
    """One of `WORKERS` training processes of one thread each; the first one saves the model."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORKERS)
    torch.manual_seed(SEED)
    course = COURSES[environment]
    tokenizer = train_tokenizer([*course.texts(), *["system user assistant"] * 1000], course.sentences(), CONTEXT)
    model = Qwen3ForCausalLM(nano_config(tokenizer))
    if rank == 0:
        print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(tokenizer)} tokens", flush=True)
    train(model, Batches(course.rows(tokenizer, SEED + 1 + rank), course.batch, pad_token(tokenizer)), steps)
    if rank == 0:
        save(model, tokenizer, folder)
    distributed.destroy_process_group()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--environment", choices=COURSES, default="code")
    parser.add_argument("--steps", type=int)
    arguments = parser.parse_args()
    course = COURSES[arguments.environment]
    folder, steps = arguments.folder or PROJECT_ROOT / course.folder, arguments.steps or course.steps
    # without these, glibc hands each step's large buffers back to the kernel and faults them in again
    os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(1 << 32))
    os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(1 << 34))
    with tempfile.TemporaryDirectory() as temporary:
        work_arguments = (f"{temporary}/rendezvous", arguments.environment, folder, steps)
        torch.multiprocessing.spawn(work, work_arguments, nprocs=WORKERS)


if __name__ == "__main__":
    main()
