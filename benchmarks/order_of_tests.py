"""What the learned order of tests saves on a wrong program, over the programs of a pool's profile.

    python benchmarks/order_of_tests.py data/pools/NAME

The order is learned from every other completion of the profile, as it was graded: each wrong program tells of its first
failing test only. The wrong programs among the other completions are then graded in the problems' own order and in the
learned one, by the judge on the embedded sandbox.
"""

import argparse
import asyncio
import json
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from coderl_tasks.grading import Judge, RunRequest, RunResult, SandboxClient
from coderl_tasks.grading.priority import count_catches, learned_priority
from coderl_tasks.policy.sampling import first_failures
from coderl_tasks.problems.problem import Problem, problems_from_frame
from coderl_tasks.services import embedded_sandbox

IN_WORK = 16
Orders = dict[str, list[int]]
HISTORY_COLUMNS = ("step", "group_index", "problem_id", "code", "verdict", "tests_total", "first_failed")
"""What `first_failures` needs, and `tests_total`, which tells two lists of tests of one problem apart."""


class CountingClient(SandboxClient):
    """Counts the requests it is asked for, and the tests in them."""

    requests = 0
    tests = 0

    async def run_code(self, request: RunRequest, *, at: str | None = None) -> RunResult:
        self.requests += 1
        self.tests += len(json.loads(request.files["tests.json"])["inputs"])
        return await super().run_code(request, at=at)


@dataclass(frozen=True)
class Measured:
    """Sums over all programs: tests up to the first failure, tests sent, requests, those caught by their first test."""

    to_failure: int
    sent: int
    requests: int
    by_first: int
    wall_s: float


async def measure(url: str, programs: list[tuple[Problem, str]], orders: Orders) -> Measured:
    async with CountingClient([url], os.cpu_count() or 1) as client:
        judge = Judge(client)
        slots = asyncio.Semaphore(IN_WORK)

        async def grade(problem: Problem, code: str) -> int:
            async with slots:
                done = await judge.grade(problem, code, priority=orders.get(problem.problem_id))
            assert done.gradable and not done.passed, f"{problem.problem_id}: {done.verdict} {done.reason}"
            return done.tests_run

        started = time.perf_counter()
        runs = await asyncio.gather(*(grade(problem, code) for problem, code in programs))
        wall_s = time.perf_counter() - started
        return Measured(sum(runs), client.tests, client.requests, runs.count(1), wall_s)


def profile_rollouts(pool: Path, problem_ids: Iterable[str]) -> pl.DataFrame:
    files = sorted(pool.glob("shards/*/rollouts.parquet"))
    frame = pl.read_parquet(files, columns=[*HISTORY_COLUMNS, "sample_index"])
    return frame.filter(pl.col("problem_id").is_in(list(problem_ids)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pool", type=Path, help="a pool's folder, as curate leaves it")
    pool = parser.parse_args().pool
    problems = {p.problem_id: p for p in problems_from_frame(pl.read_parquet(pool / "pool.parquet"))}
    rollouts = profile_rollouts(pool, problems)
    known = first_failures(rollouts.filter(pl.col("sample_index") % 2 == 0))
    orders = {
        name: learned_priority(*count_catches(len(problems[name].tests), failed)) for name, failed in known.items()
    }
    others = rollouts.filter((pl.col("sample_index") % 2 == 1) & pl.col("first_failed").is_not_null())
    distinct = others.unique(["problem_id", "code"], maintain_order=True).select("problem_id", "code")
    programs = [(problems[name], code) for name, code in distinct.iter_rows()]
    changed = sum(order != sorted(order) for order in orders.values())
    with embedded_sandbox() as server:
        rows = {
            "original": asyncio.run(measure(server.address, programs, {})),
            "learned": asyncio.run(measure(server.address, programs, orders)),
        }
    table = Table(title=f"{len(programs)} wrong programs; another order for {changed} of {len(problems)} problems")
    for title in ("order", "tests to failure", "tests sent", "requests", "caught by the first", "programs/s"):
        table.add_column(title, justify="left" if title == "order" else "right")
    for name, sums in rows.items():
        means = (f"{total / len(programs):.2f}" for total in (sums.to_failure, sums.sent, sums.requests))
        table.add_row(name, *means, f"{sums.by_first / len(programs):.0%}", f"{len(programs) / sums.wall_s:.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
