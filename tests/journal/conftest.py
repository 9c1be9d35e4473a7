"""Frames of the journal's schemas, and a configuration."""

from typing import Any

import polars as pl
import pytest

from coderl_tasks.policy.rollout import GRADED_SCHEMA, ROLLOUT_SCHEMA, SAMPLED_SCHEMA


def sampled_rows(step: int, group_index: int, size: int) -> list[dict[str, Any]]:
    return [
        {
            "step": step,
            "attempt": 0,
            "problem_id": f"p{group_index}",
            "split": "taco",
            "group_index": group_index,
            "sample_index": sample_index,
            "sampler_step": step - 1,
            "prompt_tokens": [1, 2, 3],
            "completion_tokens": [4, 5],
            "logprobs": [-0.5, -0.25],
            "completion": "```python\nprint(1)\n```",
            "stop_reason": "stop",
        }
        for sample_index in range(size)
    ]


@pytest.fixture
def group() -> pl.DataFrame:
    """One sampled group of three."""
    return pl.DataFrame(sampled_rows(0, 0, 3), schema=SAMPLED_SCHEMA)


@pytest.fixture
def scored(group: pl.DataFrame) -> pl.DataFrame:
    """The same group, scored."""
    return group.with_columns([pl.lit(None, dtype=kind).alias(name) for name, kind in GRADED_SCHEMA.items()]).select(
        list(ROLLOUT_SCHEMA)
    )


@pytest.fixture
def config() -> dict[str, Any]:
    return {"model_name": "data/nano", "seed": 0, "learning_rate": 4e-5, "eval": {"every": 10}, "max_steps": -1}
