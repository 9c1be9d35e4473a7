"""The rollout record: one sampled completion with everything that was decided about it. One row each, in every log.

One entry says all about a column: its type, its meaning (`make docs` writes it into docs/file-formats.md) and, where
grading gives its value, how that is read off a scored completion.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import polars as pl

from coderl_tasks.grading.scoring import shortened

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
    "attempt": Column(INT, "0 in training; in a profile or an evaluation the round"),
    "problem_id": Column(TEXT, "the problem's id in the pool"),
    "split": Column(TEXT, "the data set's config, or the row's own"),
    "group_index": Column(INT, "the group's place in the step, or the problem's in a profile or an evaluation"),
    "sample_index": Column(INT, "the completion's place in its group"),
    "sampler_step": Column(INT, "the last step whose update is in the weights that sampled it; -1: the base model"),
    "prompt_tokens": Column(pl.List(INT), "as sent"),
    "completion_tokens": Column(
        pl.List(INT), "as received, those of all turns", lambda completion, _: completion.tokens
    ),
    "logprobs": Column(
        pl.List(pl.Float32()),
        "the sampler's, one per completion token; null if the service sent none to train on",
        lambda completion, _: completion.logprobs,
    ),
    "completion": Column(TEXT, "the text that is graded, that of the last turn", lambda _, text: text),
    "stop_reason": Column(
        TEXT,
        "of the last turn: stop, length (reached max_tokens), missing (the service sent nothing)",
        lambda completion, _: completion.stop_reason,
    ),
    "turns": Column(
        pl.List(TURN),
        "with several turns (`max_turns`, `max_tool_calls`) one per answer. environment_text: the message before the "
        "answer. The answer's prompt is the first `kept` tokens of the previous prompt and answer, then "
        "environment_tokens. is_split: whether the turn is a sequence of its own. n_tokens, text, stop_reason: of the "
        "answer. check: its verdict on the statement's samples (environment=tool: called, format_error for an "
        "unreadable call, or answered)",
    ),
}
"""What is known when a group has been sampled."""

GRADED_COLUMNS = {
    "code": Column(TEXT, "the extracted program (word problems: the answer)", lambda scored: scored.code),
    "verdict": Column(
        TEXT,
        "passed, wrong_answer, runtime_error, time_limit, memory_limit, output_limit, format_error, infra_error, "
        "checker_error; environment=custom: passed (at least 1), wrong_answer, reward_error, infra_error",
        lambda scored: scored.grade.verdict.value,
    ),
    "tests_passed": Column(INT, "tests passed of those that ran", lambda scored: scored.grade.tests_passed),
    "tests_run": Column(
        INT, "tests up to the first failure; all with `reward=fraction`", lambda scored: scored.grade.tests_run
    ),
    "tests_total": Column(INT, "tests of the problem", lambda scored: scored.grade.tests_total),
    "first_failed": Column(INT, "index of the first failed test", lambda scored: scored.grade.first_failed),
    "format_score": Column(
        FLOAT,
        "0, or -1 without code; word problems: 0, -0.5 for a bare number, -1 without a number",
        lambda scored: scored.format_score,
    ),
    "correctness_score": Column(
        FLOAT,
        "1 if all tests pass, else 0; with `reward=fraction` the share that passes; environment=custom: the reward, "
        "clipped to 0 to 1",
        lambda scored: scored.correctness,
    ),
    "reward": Column(
        FLOAT,
        "`format_coef` * format_score + correctness_score; environment=gsm8k: 0.2 * (format_score + 1) + 0.8 * "
        "correctness_score; environment=custom: what compute_reward returns, 0 for a reward_error. Null for an "
        "infra_error, a checker_error, and a `suspicion` with `on_hack=quarantine`",
        lambda scored: scored.reward,
    ),
    "advantage": Column(FLOAT, "by the settings `advantage` and `truncation`; null outside training"),
    "turn_advantages": Column(pl.List(FLOAT), "the advantage of each turn, where `turn_credit` gives several"),
    "trained": Column(pl.Boolean(), "whether the update learned from it", lambda scored: False),
    "run_seconds": Column(FLOAT, "CPU seconds of its tests", lambda scored: scored.grade.run_seconds),
    "base_logprobs": Column(
        pl.List(pl.Float32()),
        "the base model's, one per completion token: of trained completions (`kl.penalty_coef`) or of 16 per step "
        "(`kl.base_every`)",
    ),
    "reward_error": Column(
        TEXT,
        "the traceback of compute_reward, or its other fault",
        lambda scored: scored.grade.error if scored.grade.verdict == "reward_error" else None,
    ),
    "failed_output": Column(
        TEXT,
        "the program's output in the first failed test: up to 1,000 characters, then its size",
        lambda scored: scored.grade.output,
    ),
    "reason": Column(
        TEXT,
        "why there was no answer to compare, in one line: the program's error, the exceeded limit, the fault of the "
        "infrastructure",
        # Not of a wrong answer: its reason quotes the expected output, which stays with the problems.
        lambda scored: (
            None if scored.grade.verdict in ("passed", "wrong_answer") else shortened(scored.grade.reason) or None
        ),
    ),
    "suspicion": Column(
        TEXT,
        "signs that a program which passed a test targets the tests or the grader, each with its line",
        lambda scored: scored.suspicion or None,
    ),
    "passes_held_back": Column(
        pl.Boolean(),
        "of a program that passed: whether it also passes the tests of `holdback`",
        lambda scored: scored.passes_held_back,
    ),
    "test_seconds": Column(
        pl.List(pl.Float32()),
        "CPU seconds of each test, in the order in which they ran; tests that share a process have its mean",
        lambda scored: list(scored.grade.test_seconds) or None,
    ),
    "sandbox": Column(
        pl.Struct({"server": TEXT, "retries": INT}),
        "address of the last sandbox that answered, and how many requests failed and were sent again",
        lambda scored: asdict(scored.grade.sandbox) if scored.grade.sandbox else None,
    ),
    "turn_verdicts": Column(
        pl.List(TEXT), "in evaluations and profiles with several turns: each answer's verdict on all tests"
    ),
}
"""What scoring adds. A row that could not be graded has null scores, reward and advantage, and is never trained on.
`advantage` and `trained` are null / false outside training. In training a row with null `logprobs` is left out of its
group: it is not graded, so that all of these are null but `trained`, which is false."""

SAMPLED_SCHEMA = {name: column.dtype for name, column in SAMPLED_COLUMNS.items()}
GRADED_SCHEMA = {name: column.dtype for name, column in GRADED_COLUMNS.items()}
ROLLOUT_SCHEMA = SAMPLED_SCHEMA | GRADED_SCHEMA
TRAINER_SCHEMA: dict[str, pl.DataType] = {
    "step": INT,
    "group_index": INT,
    "sample_index": INT,
    "trainer_logprobs": SAMPLED_SCHEMA["logprobs"],
}
"""Of the completions that a step trained on: the log-probability of each token (nats, at temperature 1) by the policy
in training, when it first computed the completion's gradient. Less `logprobs` it is the log of the importance ratio."""
ENVIRONMENT, KEPT, REPEATED = "environment", "kept", "repeated"
"""What TURN_TOKENS counts."""
VARYING_COLUMNS = ("run_seconds", "test_seconds", "sandbox")
"""What differs between two runs that are equal otherwise."""
REQUIRED_COLUMNS = frozenset({
    "step", "problem_id", "group_index", "sample_index", "sampler_step", "prompt_tokens", "completion_tokens",
    "logprobs", "stop_reason", "verdict", "reward", "advantage", "trained",
})  # fmt: skip
"""What every file of rollouts has. Another column may be newer than a file, and is then null."""


_turn = pl.element().struct
_later = pl.col("turns").list.eval(pl.element().filter(_turn.field("stop_reason").is_not_null())).list.slice(1)
TURN_TOKENS = {
    name: _later.list.eval(tokens.cast(pl.Int64)).list.sum().fill_null(0).cast(pl.Int64)
    for name, tokens in {
        ENVIRONMENT: _turn.field("environment_tokens").list.len(),
        KEPT: _turn.field("kept"),
        REPEATED: pl.when(_turn.field("is_split")).then(_turn.field("kept")).otherwise(0),
    }.items()
}
"""Sums over the turns after the first of the column `turns`, 0 without turns: the environment's tokens; those that a
turn's prompt repeats (KEPT); and those of them that are trained on once more, where a turn is split off."""
