"""The columns of profiles, labels and solution checks."""

import polars as pl

POSTERIOR_BINS = 20
LABEL_COLUMNS: dict[str, pl.DataType] = {
    "difficulty_probability": pl.Float64(),
    "hard_probability": pl.Float64(),
    "medium_probability": pl.Float64(),
    "easy_probability": pl.Float64(),
    "posterior_mean": pl.Float64(),
    "posterior_low": pl.Float64(),
    "posterior_high": pl.Float64(),
    "posterior": pl.List(pl.Float64()),
}
"""What the whole profile says of a problem, by `curation.labels`: the probability of its difficulty and of each, its
pass rate's mean and 95% interval, and the probability of each of POSTERIOR_BINS equal parts of 0 to 1."""

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
    **LABEL_COLUMNS,
}
"""What a pool knows of each problem. `n_samples` counts graded completions; rates are over these, the interval is
Jeffreys' 95% (a posterior's, so that it holds whenever sampling stopped); all are null where none was graded, and with
profile_mode=none every column is. Mean tokens are over all completions. By test, in the problem's order: how many
programs ran it, and how many of them it caught (see `grading.priority`)."""

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

SHARD_SCHEMA = {name: kind for name, kind in PROFILE_SCHEMA.items() if name not in LABEL_COLUMNS}
"""The profile of a shard: labels need all of them. Its `difficulty` is that of the samples' mean."""

TOLD = "n_told"
"""A column that only profiles made with from_run have: how many of `n_samples` are what the run's completions are
worth, and were not sampled for the profile."""

SOLUTION_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": pl.String(),
    "split": pl.String(),
    "status": pl.String(),
    "detail": pl.String(),
    "n_solutions": pl.Int64(),
    "n_tried": pl.Int64(),
    "multi_answer_suspect": pl.Boolean(),
    "suspicion": pl.String(),
}
"""The check of each problem with its own solutions: `status` is a `Status` of `curation.solutions`, `detail` says
why; `n_solutions` counts the distinct ones, `n_tried` those run; `suspicion` says why several answers may be right,
null where nothing suggests it."""
