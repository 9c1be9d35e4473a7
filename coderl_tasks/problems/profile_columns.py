"""The columns that profiling adds to a problem: what is known of a model's answers to it."""

import polars as pl

PROFILE_COLUMNS: dict[str, pl.DataType] = {
    "pass_rate": pl.Float64(),
    "n_samples": pl.Int64(),
    "n_correct": pl.Int64(),
    "ci_low": pl.Float64(),
    "ci_high": pl.Float64(),
    "difficulty": pl.String(),
    "format_rate": pl.Float64(),
    "mean_completion_tokens": pl.Float64(),
    "test_runs": pl.List(pl.Int32()),
    "test_catches": pl.List(pl.Int32()),
}
"""What a pool knows of each problem. `n_samples` counts graded completions; rates are over these, the interval is
Jeffreys' 95% (a posterior's, so that it holds whenever sampling stopped); all are null where none was graded. Mean
tokens are over all completions. By test, in the problem's order: how many programs ran it, and how many of them it
caught (see `grading.priority`)."""

PROFILE_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": pl.String(),
    "split": pl.String(),
    **PROFILE_COLUMNS,
    "truncated_rate": pl.Float64(),
    "infra_errors": pl.Int64(),
    "prompt_tokens": pl.Int64(),
    "rounds": pl.Int64(),
    "prompt_tokens_spent": pl.Int64(),
    "completion_tokens_spent": pl.Int64(),
    "cost": pl.Float64(),
}
"""`prompt_tokens` is the prompt's length; the tokens spent are sums over all requests and completions, infra errors
included, and `cost` their price, null where no price was given."""
