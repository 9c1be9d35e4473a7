"""The columns of profiles, labels and solution checks."""

import polars as pl

POSTERIOR_BINS = 20
TEXT, NUMBER, COUNT = pl.String(), pl.Float64(), pl.Int64()
LABEL_COLUMNS: dict[str, pl.DataType] = {
    "difficulty_probability": NUMBER, "hard_probability": NUMBER, "medium_probability": NUMBER,
    "easy_probability": NUMBER, "posterior_mean": NUMBER, "posterior_low": NUMBER, "posterior_high": NUMBER,
    "posterior": pl.List(NUMBER),
}  # fmt: skip
"""What the whole profile says of a problem, by `curation.labels`: the probability of its difficulty and of each, its
pass rate's mean and 95% interval, and the probability of each of POSTERIOR_BINS equal parts of 0 to 1."""

PROFILE_COLUMNS: dict[str, pl.DataType] = {
    "pass_rate": NUMBER, "n_samples": COUNT, "n_correct": COUNT, "ci_low": NUMBER, "ci_high": NUMBER,
    "difficulty": TEXT, "format_rate": NUMBER, "mean_completion_tokens": NUMBER,
    "test_runs": pl.List(pl.Int32()), "test_catches": pl.List(pl.Int32()),
    **LABEL_COLUMNS,
}  # fmt: skip
"""What a pool knows of each problem. `n_samples` counts graded completions; rates are over these, the interval is
Jeffreys' 95% (a posterior's, so that it holds whenever sampling stopped); all are null where none was graded, and with
profile_mode=none every column is. Mean tokens are over all completions. By test, in the problem's order: how many
programs ran it, and how many of them it caught (see `grading.priority`)."""

PROFILE_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": TEXT, "split": TEXT,
    **PROFILE_COLUMNS,
    "truncated_rate": NUMBER, "infra_errors": COUNT, "prompt_tokens": COUNT, "rounds": COUNT,
    "prompt_tokens_spent": COUNT, "completion_tokens_spent": COUNT, "cost": NUMBER,
}  # fmt: skip
"""Tokens spent are sums over all requests and completions, infra errors included; `cost` is null without a price."""

SHARD_SCHEMA = {name: kind for name, kind in PROFILE_SCHEMA.items() if name not in LABEL_COLUMNS}
"""The profile of a shard: labels need all of them. Its `difficulty` is that of the samples' mean."""

N_FROM_RUN = "n_told"
"""A column of profiles made with from_run: how many of `n_samples` are the run's, not sampled for the profile."""

SOLUTION_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": TEXT, "split": TEXT, "status": TEXT, "detail": TEXT, "n_solutions": COUNT, "n_tried": COUNT,
    "multi_answer_suspect": pl.Boolean(), "suspicion": TEXT, "inferred_comparator": TEXT, "comparator_from": TEXT,
}  # fmt: skip
"""The check of each problem with its own solutions: `status` is a `Status` of `curation.solutions`, `detail` says why;
`n_solutions` counts the distinct ones, `n_tried` those run; `suspicion`: why several answers may be right, or null. A
comparator that was inferred, and what from (`curation.inferred_comparators`), are null otherwise."""

STRENGTH_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": TEXT, "split": TEXT, "reason": TEXT, "inputs": COUNT, "survivors": COUNT, "caught": COUNT,
    "tests": pl.List(pl.Struct({"input": TEXT, "expected": TEXT})), "first_failed": pl.List(COUNT),
}  # fmt: skip
"""The generated `tests` of each problem; `reason`: why there are none, null if some could be tried; on how many
`inputs` the references agree; `survivors`: wrong or unknown programs that pass the given tests, and how many of them
are `caught`; by passing completion of the profile the first generated test that it fails, null if it passes all."""

ANSWER_COLUMNS = {name: SOLUTION_SCHEMA[name] for name in ("comparator_from", "suspicion")}
"""What a pool says of its problems' right answers beside `comparator`; null where nothing was inferred or suspected."""

WRONG_REWARDS = ("contradictory_tests", "samples_failed", "several_answers", "weak")
UNDECIDED = "undecided"
FINDINGS = (
    *WRONG_REWARDS, "own_solution_fails", "tests_fail", "flaky_solution", "too_slow", "slow", "samples_missing",
    "duplicate_tests", UNDECIDED,
)  # fmt: skip
"""What an audit can find (`curation.pool_audit`), the worst first; with WRONG_REWARDS a reward can be wrong."""

AUDIT_COLUMNS: dict[str, pl.DataType] = {
    "audit": pl.List(TEXT), "mutants": COUNT, "mutants_survive": COUNT, "contradictory_tests": COUNT,
    "duplicate_tests": COUNT, "samples": COUNT, "samples_missing": COUNT, "samples_failed": COUNT,
}  # fmt: skip
"""What an audit says of a problem: the names of its findings (`curation.pool_audit`), the worst first, and counts, null
for an undecided problem. Counts that need a reference solution are null where none passes."""

AUDIT_SCHEMA: dict[str, pl.DataType] = {
    "problem_id": TEXT, "split": TEXT,
    **AUDIT_COLUMNS,
    "several_answers": TEXT, "reference": TEXT, "evidence": pl.List(TEXT), "survivors": pl.List(TEXT),
    "statement": TEXT,
}  # fmt: skip
"""`several_answers`: why several answers may be right, or null; `reference`: what the problem's own solutions show, a
`Status` of `curation.solutions`; `evidence`: a text per finding, in the order of `audit`; `survivors`: some mutants
that pass all tests, as unified diffs to the reference."""
