"""The order in which a run's problems are tested: learned once, then read from the run's test_order.json.

It is learned from the pool's counts (columns `test_runs` and `test_catches`, from the profile). The file holds
{problem id: test indices}, of those problems only whose order is not their own. A run that began to score
without the file keeps the problems' own order.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from coderl_tasks.errors import DataError
from coderl_tasks.grading.priority import CatchCounts, learned_priority
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.problems.problem import Problem

logger = logging.getLogger(__name__)

Orders = Mapping[str, Sequence[int]]
COUNT_COLUMNS = ("test_runs", "test_catches")


def frozen_orders(directory: RunDirectory, problems: Sequence[Problem], pool: Path) -> Orders:
    """The run's orders by problem id; learned from the file `pool`, and recorded, if it is new.

    Raises DataError for a file that cannot be read or has other tests.
    """
    path = directory.path / "test_order.json"
    if path.is_file():
        recorded = read_json(path)
        wrong = [p.problem_id for p in problems if not _fits(recorded.get(p.problem_id), len(p.tests))]
        if wrong:
            raise DataError(f"{path} is not of the tests of this pool (problem {wrong[0]})")
        return recorded
    # Begun without the file: another order from here on would name other failures than the steps before it.
    if directory.step(0).has("scored"):
        return {}
    orders = learned_orders(problems, pool)
    # Even if it is empty: the file, once there, is what later starts go by, and not what they would learn.
    write_json(path, orders)
    logger.info("tests of %d of %d problems are run in a learned order: %s", len(orders), len(problems), path.name)
    return orders


def learned_orders(problems: Sequence[Problem], pool: Path) -> dict[str, list[int]]:
    """The orders that differ from the problems' own, by problem id."""
    n_tests = {problem.problem_id: len(problem.tests) for problem in problems}
    known = sorted(pool_counts(pool).items())
    orders = {name: learned_priority(counts) for name, counts in known if len(counts.runs) == n_tests.get(name)}
    return {problem_id: order for problem_id, order in orders.items() if order != sorted(order)}


def pool_counts(pool: Path) -> dict[str, CatchCounts]:
    """What the profile saw of each problem's tests; empty for a pool that does not say."""
    if not set(COUNT_COLUMNS) <= pl.read_parquet_schema(pool).keys():
        return {}
    frame = pl.read_parquet(pool, columns=["problem_id", *COUNT_COLUMNS]).drop_nulls()
    return {problem_id: CatchCounts(tuple(runs), tuple(catches)) for problem_id, runs, catches in frame.iter_rows()}


def _fits(order: object, n_tests: int) -> bool:
    return order is None or (isinstance(order, list) and sorted(order) == list(range(n_tests)))
