"""The rollout record: one sampled completion with everything that was decided about it. One row each, in every log.

One entry says all about a column: its type, its meaning (`make docs` writes it into docs/file-formats.md) and, where
grading gives its value, how that is read off a scored completion.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import polars as pl

from coderl_tasks.grading.verdict import shortened

INT, FLOAT, TEXT = pl.Int32(), pl.Float64(), pl.String()
ORDER = ("group_index", "sample_index")
"""What the completions of a step are ordered by."""
TRUNCATED, NO_COMPLETION = "length", "missing"
"""Values of `stop_reason`: the completion ran into max_tokens; the service sent none at all."""


TURN = pl.Struct({
    "environment_text": TEXT,  # what the environment said before the turn; empty before the first
    "environment_tokens": pl.List(INT),  # what its prompt has beyond `kept`: that text as the chat format has it
    "kept": INT,  # tokens of prompt and answer before it that its prompt begins with
    "is_split": pl.Boolean(),  # its prompt does not go on from them: the turn is trained on as a sequence of its own
    "n_tokens": INT,  # of the answer, sampled: its part of completion_tokens
    "text": TEXT,  # the answer's
    "stop_reason": TEXT,  # the answer's; null while it is not sampled
    "check": TEXT,  # what the environment's reply was made of, `Reply.check`; null where it was not asked
})  # fmt: skip
"""One answer of a completion in several turns, and what the environment said before it."""


class Column(NamedTuple):
    dtype: pl.DataType
    meaning: str
    value: Callable[..., Any] | None = None
    """Of a sampled column what it has of (completion, text), of a graded one of (scored completion,). Without it the
    column is of the group, or filled later."""


SAMPLED_COLUMNS = {
    "step": Column(INT, "from 0; -1 outside training"),
    "attempt": Column(INT, "0 in training; in a profile or an evaluation the round that it was sampled in"),
    "problem_id": Column(TEXT, "of the pool"),
    "split": Column(TEXT, "the data set's config, or the row's own"),
    "group_index": Column(INT, "the group's place in the step; in a profile or an evaluation the problem's place"),
    "sample_index": Column(INT, "the completion's place in its group"),
    "sampler_step": Column(INT, "the last step trained into the weights that sampled it; -1 for the base model"),
    "prompt_tokens": Column(pl.List(INT), "as they were sent"),
    "completion_tokens": Column(
        pl.List(INT), "as they came; of several turns all that were sampled", lambda completion, _: completion.tokens
    ),
    "logprobs": Column(
        pl.List(pl.Float32()),
        "the sampler's, one per completion token; null where the service gave none to train on",
        lambda completion, _: completion.logprobs,
    ),
    "completion": Column(TEXT, "their text, which is graded; of several turns the last one's", lambda _, text: text),
    "stop_reason": Column(
        TEXT,
        "stop, length (ran into max_tokens), missing (the service sent nothing); of the last turn",
        lambda completion, _: completion.stop_reason,
    ),
    "turns": Column(
        pl.List(TURN),
        "with several turns (`max_turns`, `max_tool_calls`) each answer and what the environment said before it: "
        "environment_text, "
        "environment_tokens (after the `kept` first tokens of what came before), is_split (a sequence of its own: the "
        "chat format does not go on from what came before), n_tokens, text, stop_reason, check (its verdict on the "
        "statement's samples; environment=tool: called, format_error for a call that cannot be read, or answered); "
        "else null",
    ),
}
"""What is known when a group has been sampled."""

GRADED_COLUMNS = {
    "code": Column(
        TEXT, "what was extracted, of word problems the answer; null if there was nothing", lambda scored: scored.code
    ),
    "verdict": Column(
        TEXT,
        "passed, wrong_answer, runtime_error, time_limit, memory_limit, output_limit, format_error, infra_error, "
        "checker_error; of a user's own reward: passed (at least 1), wrong_answer, reward_error, infra_error",
        lambda scored: scored.grade.verdict.value,
    ),
    "tests_passed": Column(INT, "of those that ran", lambda scored: scored.grade.tests_passed),
    "tests_run": Column(
        INT, "up to the first that failed, unless all were asked for", lambda scored: scored.grade.tests_run
    ),
    "tests_total": Column(INT, "of the problem", lambda scored: scored.grade.tests_total),
    "first_failed": Column(
        INT,
        "index of the first test that failed; null if none did, or none ran",
        lambda scored: scored.grade.first_failed,
    ),
    "format_score": Column(
        FLOAT,
        "0, or -1 without code; of word problems 0, -0.5 for a bare number, -1 without one",
        lambda scored: scored.format_score,
    ),
    "correctness_score": Column(
        FLOAT,
        "1 if all tests pass, else 0; with `reward=fraction` the share that passes; environment=custom: the reward, 0 "
        "to 1",
        lambda scored: scored.correctness,
    ),
    "reward": Column(
        FLOAT,
        "`format_coef` * format_score + correctness_score; environment=gsm8k: 0.2 * "
        "(format_score + 1) + 0.8 * correctness_score; environment=custom: what compute_reward returns, 0 for a "
        "reward_error; null for an infra_error and a checker_error, and with `on_hack=quarantine` where there is a "
        "`suspicion`",
        lambda scored: scored.reward,
    ),
    "advantage": Column(
        FLOAT,
        "reward less the group's mean, or as the settings `advantage` and `truncation` say; null outside training",
    ),
    "turn_advantages": Column(
        pl.List(FLOAT), "the advantage of each turn, where `turn_credit` gives them different ones; else null"
    ),
    "trained": Column(pl.Boolean(), "whether the update learned from it", lambda scored: False),
    "run_seconds": Column(FLOAT, "CPU seconds of its tests", lambda scored: scored.grade.run_seconds),
    "base_logprobs": Column(
        pl.List(pl.Float32()),
        "the base model's, one per completion token, of what is trained on (`kl.penalty_coef`) or of 16 completions "
        "(`kl.base_every`); else null",
    ),
    "reward_error": Column(
        TEXT,
        "the traceback of compute_reward, or what else it did wrong; null if it returned a number",
        lambda scored: scored.grade.error if scored.grade.verdict == "reward_error" else None,
    ),
    "failed_output": Column(
        TEXT,
        "what the program printed or returned in the first test that failed, up to 1,000 characters, then its size; "
        "null if none failed or nothing came back",
        lambda scored: scored.grade.output,
    ),
    "reason": Column(
        TEXT,
        "why there was no answer to compare, in one line: the program's error, the limit it broke, the fault that is "
        "ours; null if passed or wrong_answer",
        # Not of a wrong answer: its reason quotes the expected output, which stays with the problems.
        lambda scored: (
            None if scored.grade.verdict in ("passed", "wrong_answer") else shortened(scored.grade.reason) or None
        ),
    ),
    "suspicion": Column(
        TEXT,
        "signs that a program which passed a test took its reward from the tests or the grader, each with a line; "
        "else null",
        lambda scored: scored.suspicion or None,
    ),
    "passes_held_back": Column(
        pl.Boolean(),
        "whether a program that passed also passes the tests that `holdback` keeps from its reward; else null",
        lambda scored: scored.passes_held_back,
    ),
    "turn_verdicts": Column(
        pl.List(TEXT), "in evaluations and profiles the verdict of each turn's answer on all tests; else null"
    ),
}
"""What scoring adds. A row that could not be graded has null scores, reward and advantage, and is never trained on.
`advantage` and `trained` are null / false outside training. In training a row with null `logprobs` is left out of its
group: it is not graded, so that all of these are null but `trained`, which is false."""

SAMPLED_SCHEMA = {name: column.dtype for name, column in SAMPLED_COLUMNS.items()}
GRADED_SCHEMA = {name: column.dtype for name, column in GRADED_COLUMNS.items()}
ROLLOUT_SCHEMA = SAMPLED_SCHEMA | GRADED_SCHEMA
REQUIRED_COLUMNS = frozenset({
    "step", "problem_id", "group_index", "sample_index", "sampler_step", "prompt_tokens", "completion_tokens",
    "logprobs", "stop_reason", "verdict", "reward", "advantage", "trained",
})  # fmt: skip
"""What every file of rollouts has. Another column may be newer than a file, and is then null."""
