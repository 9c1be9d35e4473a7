"""A run's test orders: learned from the pool, recorded once, and read ever after."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import DataError
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems.problem import Problem, Test, problems_frame
from coderl_tasks.problems.profile_columns import PROFILE_COLUMNS
from coderl_tasks.training.run import frozen_test_orders

TESTS = tuple(Test(f"{number}\n", f"{number}\n") for number in range(3))
PROBLEMS = [
    Problem(name, "taco", "Print it.", "", "stdin", "", TESTS, 3, 3, None, (), number)
    for number, name in enumerate(("strict", "plain", "unknown"))
]
RUNS, CATCHES = [[8, 4, 4], [8, 4, 3], None], [[4, 0, 3], [4, 1, 0], None]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """Of `strict` the last test catches most of what it runs, of `plain` the first; of `unknown` nothing is known."""
    path = tmp_path / "pool.parquet"
    counts = pl.DataFrame(
        {"test_runs": RUNS, "test_catches": CATCHES},
        schema={name: PROFILE_COLUMNS[name] for name in ("test_runs", "test_catches")},
    )
    pl.concat([problems_frame(PROBLEMS), counts], how="horizontal").write_parquet(path)
    return path


def write_rollouts(directory: RunDirectory, *programs: dict[str, Any]) -> None:
    common = {"step": 0, "group_index": 0, "problem_id": "plain", "verdict": "wrong_answer", "tests_total": 3}
    frame = pl.DataFrame([common | program for program in programs], schema=ROLLOUT_SCHEMA)
    directory.step(0).write("scored", frame)


def test_only_orders_that_differ_are_recorded_and_they_stay(pool: Path, tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        assert frozen_test_orders(directory, PROBLEMS, pool) == {"strict": [2, 0, 1]}
        assert read_json(directory.path / "test_order.json") == {"strict": [2, 0, 1]}
        problems_frame(PROBLEMS).write_parquet(pool)  # a pool that knows nothing
        assert frozen_test_orders(directory, PROBLEMS, pool) == {"strict": [2, 0, 1]}
    with RunDirectory.open(tmp_path / "other", {}) as directory:
        assert frozen_test_orders(directory, PROBLEMS, pool) == {}


def test_a_run_that_was_scored_without_orders_goes_on_without(pool: Path, tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        write_rollouts(directory, {"code": "a", "first_failed": 0})
        assert frozen_test_orders(directory, PROBLEMS, pool) == {}
        assert not (directory.path / "test_order.json").exists()


def test_an_order_of_other_tests_is_refused(pool: Path, tmp_path: Path) -> None:
    with RunDirectory.open(tmp_path / "run", {}) as directory:
        write_json(directory.path / "test_order.json", {"plain": [0, 1, 1]})
        with pytest.raises(DataError, match="problem plain"):
            frozen_test_orders(directory, PROBLEMS, pool)
