"""The problems of a run: which are trained on, which are held out or evaluated on, and the order of each one's tests.

That order is learned once from the pool's counts (columns `test_runs` and `test_catches`, from the profile), then read
from the run's test_order.json: {problem id: test indices}, of those problems only whose order is not their own. A run
that began to score without the file keeps the problems' own order.
"""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.environments import environment_of
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.grading.priority import learned_priority
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.policy.sampling import completion_budget
from coderl_tasks.problems.loading import evaluation_side
from coderl_tasks.problems.problem import Problem, SpilledTests
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.settings import TrainSettings

logger = logging.getLogger(__name__)

Orders = Mapping[str, Sequence[int]]
COUNT_COLUMNS = ("test_runs", "test_catches")
PROMPTS_OF = ("pool_sha256", "model_name", "renderer_name", "thinking", "environment", "max_tokens")
"""What of config.json decides how long prompts are, and completions may be."""


def frozen_orders(directory: RunDirectory, problems: Sequence[Problem], pool: Path) -> Orders:
    """The run's orders by problem id; learned from the file `pool`, and recorded, if it is new. Raises DataError for a
    recorded file that cannot be read or has other tests."""
    path = directory.path / "test_order.json"
    if path.is_file():
        recorded = read_json(path)
        for problem in problems:
            order = recorded.get(problem.problem_id, indices := list(range(len(problem.tests))))
            if not isinstance(order, list) or sorted(order) != indices:
                raise DataError(f"{path} is not of the tests of this pool (problem {problem.problem_id})")
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
    """The orders that differ from the problems' own, by problem id; none for a pool without COUNT_COLUMNS."""
    if not set(COUNT_COLUMNS) <= pl.read_parquet_schema(pool).keys():
        return {}
    n_tests = {problem.problem_id: len(problem.tests) for problem in problems}
    counted = pl.read_parquet(pool, columns=["problem_id", *COUNT_COLUMNS]).drop_nulls().sort("problem_id")
    orders = {
        name: learned_priority(runs, catches)
        for name, runs, catches in counted.iter_rows()
        if len(runs) == n_tests.get(name)
    }
    return {problem_id: order for problem_id, order in orders.items() if order != sorted(order)}


def read_evaluation_side(settings: TrainSettings, pool: list[Problem], folder: Path) -> list[Problem]:
    """The test problems, their tests in a file of this process in `folder`; ConfigError if there are none."""
    side = evaluation_side(settings)
    loaded = side.load(rows=environment_of(settings).rows, keep=SpilledTests(folder).keep)
    if not loaded.problems:
        raise ConfigError(
            f"there is nothing to evaluate on in {side}: {loaded.unusable or 'no rows'}; name another "
            "evaluation_dataset, or eval_every=-1"
        )
    # Both: an id may be the data's own, and mean another problem in another data set.
    trained = {(problem.problem_id, problem.statement) for problem in pool}
    both = sum((problem.problem_id, problem.statement) in trained for problem in loaded.problems)
    if both:
        logger.warning("%d of %d test problems are in the pool, and so trained on", both, len(loaded.problems))
    return loaded.problems


def prompt_room(of: dict[str, Any], session: Session, problems: list[Problem], path: Path) -> dict[str, Any]:
    """What room prompts leave for completions, which `of` alone decides: ids of problems `without` any, and how many
    `capped` have less than `max_tokens`.

    To encode the prompts of thousands of problems takes seconds: what came out is recorded at `path`.
    """
    # FileNotFoundError: no earlier start; DataError: damaged.
    with suppress(FileNotFoundError, DataError):
        if (record := read_json(path))["of"] == of:
            return record
    lengths = [len(session.environment.prompt(problem, session.renderer)) for problem in problems]
    budgets = [completion_budget(length, of["max_tokens"], of["context"]) for length in lengths]
    without = [problem.problem_id for problem, budget in zip(problems, budgets, strict=True) if not budget]
    room = {"of": of, "without": without, "capped": sum(0 < budget < of["max_tokens"] for budget in budgets)}
    write_json(path, room)
    return room


def fitting_problems(session: Session, problems: list[Problem], directory: RunDirectory) -> list[Problem]:
    """The problems whose prompt leaves room for a completion; says how many do not, and where `max_tokens` is capped.
    Raises ConfigError if no problem is left."""
    of = {key: directory.config.get(key) for key in PROMPTS_OF} | {"context": session.context}
    room = prompt_room(of, session, problems, directory.path / "prompts.json")
    without = set(room["without"])
    kept = [problem for problem in problems if problem.problem_id not in without]
    if not kept:
        raise ConfigError(f"no prompt of the pool fits in the model's context of {session.context} tokens")
    if without:
        logger.warning("%d of %d problems left out: prompt_too_long", len(problems) - len(kept), len(problems))
    if room["capped"]:
        capped = of["max_tokens"], room["capped"], session.context
        logger.warning("max_tokens=%d is capped for %d prompts: the context is %d", *capped)
    return kept


def split_validation(problems: list[Problem], settings: TrainSettings) -> tuple[list[Problem], list[Problem]]:
    """The pool's problems to train on, and those held out for validation (none unless eval.on=validation)."""
    size = settings.eval.validation_size
    if settings.eval.on != "validation":
        return problems, []
    if size >= len(problems):
        raise ConfigError(f"eval.validation_size={size} leaves nothing of a pool of {len(problems)}")

    def key(problem: Problem) -> bytes:
        # By a hash and not by place: what is held out stays so whatever order the pool has.
        return hashlib.sha256(f"validation/{settings.seed}/{problem.problem_id}".encode()).digest()

    held_out = {problem.problem_id for problem in sorted(problems, key=key)[:size]}
    trained = [problem for problem in problems if problem.problem_id not in held_out]
    return trained, [problem for problem in problems if problem.problem_id in held_out]
