"""The columns of the views of `query.py`, which an empty view has too: every query can be asked of every run."""

import polars as pl

from coderl_tasks.curation.solution_check import SOLUTION_SCHEMA
from coderl_tasks.problems import DROPPED_SCHEMA, PROBLEM_SCHEMA, PROFILE_COLUMNS, PROFILE_SCHEMA

METRICS_SCHEMA: dict[str, pl.DataType] = {
    "step": pl.Int64(),
    **dict.fromkeys(("mean_reward", "mean_correct", "format_rate"), pl.Float64()),
    **dict.fromkeys(("groups_skipped", "groups_total", "n_datums"), pl.Int64()),
    **dict.fromkeys(("loss", "kl_sample_train"), pl.Float64()),
    "infra_errors": pl.Int64(),
    "truncated_rate": pl.Float64(),
    "samples_skipped": pl.Int64(),
    "duplicate_rate": pl.Float64(),
    "clone_groups": pl.Int64(),
    "seed": pl.Int64(),
    **dict.fromkeys(
        ("time_sample_s", "time_score_s", "time_train_s", "time_save_s", "time_step_s", "lr"), pl.Float64()
    ),
    "eval/mean_correct": pl.Float64(),
}
CHECKPOINT_SCHEMA: dict[str, pl.DataType] = {
    "name": pl.String(),
    "step": pl.Int64(),
    "dataset_offset": pl.Int64(),
    "state_path": pl.String(),
    "sampler_path": pl.String(),
}
SHARE_SCHEMA: dict[str, pl.DataType] = {
    "n": pl.Int64(),
    "pass_at_1": pl.Float64(),
    "ci_low": pl.Float64(),
    "ci_high": pl.Float64(),
}
EVAL_SCHEMA: dict[str, pl.DataType] = {
    "eval": pl.String(),
    "step": pl.Int64(),
    **SHARE_SCHEMA,
    "format_rate": pl.Float64(),
    "truncated_rate": pl.Float64(),
    "infra_errors": pl.Int64(),
    "temperature": pl.Float64(),
    "max_tokens": pl.Int64(),
    "policy": pl.String(),
    "compare_to": pl.String(),
    "difference": pl.Float64(),
    "difference_low": pl.Float64(),
    "difference_high": pl.Float64(),
}
EVAL_SPLIT_SCHEMA: dict[str, pl.DataType] = {
    "eval": pl.String(),
    "step": pl.Int64(),
    "split": pl.String(),
    **SHARE_SCHEMA,
}
CURATION_SCHEMAS: dict[str, dict[str, pl.DataType]] = {
    "pool": PROBLEM_SCHEMA | PROFILE_COLUMNS,
    "dropped": DROPPED_SCHEMA,
    "profile": PROFILE_SCHEMA,
    "solutions": SOLUTION_SCHEMA,
}
