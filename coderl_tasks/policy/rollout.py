"""The rollout record: one sampled completion with everything that was decided about it. One row each, in every log."""

import polars as pl

SAMPLED_SCHEMA: dict[str, pl.DataType] = {
    "step": pl.Int32(),
    "attempt": pl.Int32(),
    "problem_id": pl.String(),
    "split": pl.String(),
    "group_index": pl.Int32(),
    "sample_index": pl.Int32(),
    "sampler_step": pl.Int32(),
    "prompt_tokens": pl.List(pl.Int32()),
    "completion_tokens": pl.List(pl.Int32()),
    "logprobs": pl.List(pl.Float32()),
    "completion": pl.String(),
    "stop_reason": pl.String(),
}
"""What is known when a group has been sampled; `attempt` counts from 0, step is -1 outside training. `logprobs` is null
where the service gave none that can be trained on; `stop_reason` is "missing" where it gave no completion at all."""

GRADED_SCHEMA: dict[str, pl.DataType] = {
    "code": pl.String(),
    "verdict": pl.String(),
    "tests_passed": pl.Int32(),
    "tests_run": pl.Int32(),
    "tests_total": pl.Int32(),
    "first_failed": pl.Int32(),
    "format_score": pl.Float64(),
    "correctness_score": pl.Float64(),
    "reward": pl.Float64(),
    "advantage": pl.Float64(),
    "trained": pl.Boolean(),
    "run_seconds": pl.Float64(),
}
"""What scoring adds. An `infra_error` row has null scores, reward and advantage, and is never trained on.
`advantage` and `trained` are null / false outside training. In training a row with null `logprobs` is left out of its
group: it is not graded, so that all of these are null but `trained`, which is false."""

ROLLOUT_SCHEMA: dict[str, pl.DataType] = SAMPLED_SCHEMA | GRADED_SCHEMA

NEVER_LACKING = frozenset(
    ("problem_id", "group_index", "sample_index", "prompt_tokens", "completion_tokens", "completion", "stop_reason")
)
"""Columns without which a file is damaged. Any other one that a file lacks came after it, and is null there."""
