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
from coderl_tasks.grading.priority import CatchCounts, learned_priority
from coderl_tasks.journal.atomic import read_json, write_json
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.policy.sampling import completion_budget
from coderl_tasks.problems.problem import Problem, SpilledTests
from coderl_tasks.problems.sides import evaluation_side
from coderl_tasks.rollouts.engine import Session
from coderl_tasks.settings import TrainSettings

logger = logging.getLogger(__name__)

Orders = Mapping[str, Sequence[int]]
COUNT_COLUMNS = ("test_runs", "test_catches")
PROMPTS_OF = ("pool_sha256", "model_name", "renderer_name", "thinking", "environment", "max_tokens")
"""What of config.json decides how long prompts are, and completions may be. With the context it is recorded as `of` in
prompts.json, with the ids of problems `without` room for a completion, and how many have less than max_tokens."""


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
    orders: dict[str, list[int]] = {}
    # A pool without a profile has no counts.
    if set(COUNT_COLUMNS) <= pl.read_parquet_schema(pool).keys():
        n_tests = {problem.problem_id: len(problem.tests) for problem in problems}
        counted = pl.read_parquet(pool, columns=["problem_id", *COUNT_COLUMNS]).drop_nulls().sort("problem_id")
        for problem_id, runs, catches in counted.iter_rows():
            if len(runs) == n_tests.get(problem_id):
                order = learned_priority(CatchCounts(tuple(runs), tuple(catches)))
                if order != sorted(order):
                    orders[problem_id] = order
    # Even if it is empty: the file, once there, is what later starts go by, and not what they would learn.
    write_json(path, orders)
    logger.info("tests of %d of %d problems are run in a learned order: %s", len(orders), len(problems), path.name)
    return orders


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


def fitting_problems(session: Session, problems: list[Problem], directory: RunDirectory) -> list[Problem]:
    """The problems whose prompt leaves room for a completion; says how many do not, and where `max_tokens` is capped.
    Raises ConfigError if no problem is left."""
    of: dict[str, Any] = {key: directory.config.get(key) for key in PROMPTS_OF} | {"context": session.context}
    path = directory.path / "prompts.json"
    room: dict[str, Any] = {}
    # To encode the prompts of thousands of problems takes seconds: an earlier start recorded what came out.
    with suppress(FileNotFoundError, DataError):  # there was none, or the file is damaged
        room = read_json(path)
    if room.get("of") != of:
        limit = of["max_tokens"]
        lengths = [len(session.environment.prompt(problem, session.renderer)) for problem in problems]
        budgets = [completion_budget(length, limit, session.context) for length in lengths]
        unfit = [problem.problem_id for problem, budget in zip(problems, budgets, strict=True) if not budget]
        room = {"of": of, "without": unfit, "capped": sum(0 < budget < limit for budget in budgets)}
        write_json(path, room)
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
