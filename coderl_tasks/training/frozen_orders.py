"""The order in which a run's problems are tested: learned once, then read from the run's test_order.json.

It is learned from the pool's counts (columns `test_runs` and `test_catches`, from the profile) and, where asked for,
from the rollouts of earlier runs. The file holds {problem id: test indices}, of those problems only whose order is not
their own. A run that began to score without the file keeps the problems' own order.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import polars as pl

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.grading.priority import CatchCounts, count_catches, learned_priority
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.journal.run_names import did_you_mean, near_runs, run_path
from coderl_tasks.policy.sampling import HISTORY_COLUMNS, first_failures
from coderl_tasks.problems.problem import Problem

logger = logging.getLogger(__name__)

Orders = Mapping[str, Sequence[int]]
COUNT_COLUMNS = ("test_runs", "test_catches")


def frozen_orders(
    directory: RunDirectory, problems: Sequence[Problem], pool: Path, earlier_runs: Iterable[str] = ()
) -> Orders:
    """The run's orders by problem id; learned from the file `pool` and `earlier_runs`, and recorded, if it is new.

    Raises ConfigError for an earlier run that is none, DataError for a file that cannot be read or has other tests.
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
    orders = learned_orders(problems, pool, earlier_runs)
    # Even if it is empty: the file, once there, is what later starts go by, and not what they would learn.
    write_json(path, orders)
    logger.info("tests of %d of %d problems are run in a learned order: %s", len(orders), len(problems), path.name)
    return orders


def learned_orders(problems: Sequence[Problem], pool: Path, earlier_runs: Iterable[str] = ()) -> dict[str, list[int]]:
    """The orders that differ from the problems' own, by problem id; raises as `frozen_orders` does."""
    n_tests = {problem.problem_id: len(problem.tests) for problem in problems}
    known: dict[str, CatchCounts] = {}
    for history in (pool_counts(pool), *(run_counts(run_path(run), n_tests) for run in earlier_runs)):
        for problem_id, counts in history.items():
            if len(counts.runs) == n_tests.get(problem_id):
                known[problem_id] = known[problem_id] + counts if problem_id in known else counts
    orders = {problem_id: learned_priority(counts) for problem_id, counts in sorted(known.items())}
    return {problem_id: order for problem_id, order in orders.items() if order != sorted(order)}


def pool_counts(pool: Path) -> dict[str, CatchCounts]:
    """What the profile saw of each problem's tests; empty for a pool that does not say."""
    if not set(COUNT_COLUMNS) <= pl.read_parquet_schema(pool).keys():
        return {}
    frame = pl.read_parquet(pool, columns=["problem_id", *COUNT_COLUMNS]).drop_nulls()
    return {problem_id: CatchCounts(tuple(runs), tuple(catches)) for problem_id, runs, catches in frame.iter_rows()}


def run_counts(run: Path, n_tests: Mapping[str, int]) -> dict[str, CatchCounts]:
    """What the training rollouts of an earlier run saw of each problem's tests, where it had as many (`n_tests`)."""
    require_run(run)
    files = sorted(run.glob("steps/*/scored.parquet"))
    if not files:
        return {}
    try:
        rollouts = pl.read_parquet(files, columns=list(HISTORY_COLUMNS))
    except (OSError, pl.exceptions.PolarsError) as error:
        raise DataError(
            f"order_from={run}: its rollouts cannot be read ({str(error).partition(chr(10))[0]})"
        ) from error
    same_tests = rollouts.filter(
        pl.col("tests_total") == pl.col("problem_id").replace_strict(n_tests, default=None, return_dtype=pl.Int32)
    )
    path = run / "test_order.json"
    orders = read_json(path) if path.is_file() else {}
    return {
        problem_id: count_catches(n_tests[problem_id], failures, orders.get(problem_id))
        for problem_id, failures in first_failures(same_tests).items()
    }


def require_run(run: Path) -> None:
    """Raise ConfigError if `order_from` names `run`, and there is none."""
    if not (run / "config.json").is_file():
        raise ConfigError(f"order_from: there is no run in {run}{did_you_mean(near_runs(run))}")


def _fits(order: object, n_tests: int) -> bool:
    return order is None or (isinstance(order, list) and sorted(order) == list(range(n_tests)))
