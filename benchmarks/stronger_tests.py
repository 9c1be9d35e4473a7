"""strengthen: how many wrong programs that thinned tests pass are caught by the generated tests, and at what cost.

    python benchmarks/stronger_tests.py --humaneval test.jsonl --mbpp mbpp/ --rows data/mini data/intro
                                        [--keep 2] [--most 16] [--mutants 60] [--limit N] [--programs programs.jsonl]

Each problem keeps its first `--keep` tests (of HumanEval's check function, its first assertions). Wrong programs are
mutants of its reference, drawn by another seed than the mutants that strengthening uses, that pass the tests kept and
fail the full tests. `--programs` adds programs of a policy: lines of problem_id and code, right or wrong by the full
tests. A right program that a generated test fails is listed. "unseen" counts the wrong programs that strengthening did
not have. Exit code 1 if a right program fails.
"""

import argparse
import ast
import asyncio
import json
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from assertions import read
from rich.console import Console
from rich.progress import track
from rich.table import Table

from coderl_tasks.curation.mutants import mutants
from coderl_tasks.curation.solutions import program_of
from coderl_tasks.curation.stronger_tests import Strengthened, strengthen
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems.loading import load_problems
from coderl_tasks.problems.problem import Problem, RowDropped, Test
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.services import embedded_sandbox

AT_ONCE = 8


@dataclass
class Outcome:
    """What became of one problem: its wrong and right programs by whether the generated tests fail them."""

    problem: Problem
    found: Strengthened
    seconds: float
    wrong: dict[str, bool] = field(default_factory=dict)  # the code, and whether it is caught
    right: int = 0
    failed: list[str] = field(default_factory=list)  # right programs that the generated tests fail


def thinned(problem: Problem, keep: int) -> Problem:
    """`problem` with its first tests only, or, of a single script of assertions, its first assertions."""
    problem = problem.whole()
    if problem.kind != "assert" or len(problem.tests) > 1:
        return replace(problem, tests=tuple(problem.tests[:keep]), tests_total=min(keep, len(problem.tests)))
    tree = ast.parse(problem.tests[0].expected)
    left = keep
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            kept = []
            for statement in body:
                left -= isinstance(statement, ast.Assert)
                if not isinstance(statement, ast.Assert) or left >= 0:
                    kept.append(statement)
            node.body = kept or [ast.Pass()]  # type: ignore[attr-defined]
    return replace(problem, tests=(Test("", ast.unparse(tree)),))


async def outcome(problem: Problem, judge: Judge, programs: Sequence[str], options: argparse.Namespace) -> Outcome:
    thin = thinned(problem, options.keep)
    reference = program_of(problem.solutions[0])
    quick = replace(problem, time_limit_s=1.0)
    codes = list(dict.fromkeys([*programs, *mutants(reference, options.seed, options.mutants)]))
    at_first = await asyncio.gather(*(judge.grade(replace(thin, time_limit_s=1.0), code) for code in codes))
    passing = [code for code, grade in zip(codes, at_first, strict=True) if grade.passed]
    grades = await asyncio.gather(*(judge.grade(quick, code) for code in passing))
    right = [code for code, grade in zip(passing, grades, strict=True) if grade.passed and code in set(programs)]
    wrong = [
        code
        for code, grade in zip(passing, grades, strict=True)
        if grade.gradable and not grade.passed and grade.verdict not in ("time_limit", "memory_limit")
    ]
    # The completions of a profile are half of the policy's programs: the others are unseen.
    profiled = [code for code in programs[::2] if code in set(passing)]
    began = time.monotonic()
    found = await strengthen(thin, judge, profiled, options.most, seed=7)
    result = Outcome(problem, found, time.monotonic() - began)
    stronger = replace(thin, tests=found.tests, tests_total=len(found.tests))
    solutions = [program_of(each) for each in problem.solutions]
    own = await asyncio.gather(*(judge.grade(quick, code) for code in solutions))
    right += [code for code, grade in zip(solutions, own, strict=True) if grade.passed]
    result.right = len(right)
    if not found.tests:
        result.wrong = dict.fromkeys(wrong, False)
        return result
    grades = await asyncio.gather(*(judge.grade(stronger, code) for code in [*wrong, *right]))
    result.wrong = {code: not grade.passed for code, grade in zip(wrong, grades, strict=False)}
    result.failed = [
        f"{grade.reason}\n{code}" for code, grade in zip(right, grades[len(wrong) :], strict=True) if not grade.passed
    ]
    return result


def problems_of(options: argparse.Namespace) -> dict[str, list[Problem]]:
    sets: dict[str, list[Problem]] = {}
    for name in ("humaneval", "mbpp"):
        rows = read(path) if (path := getattr(options, name)) else []
        for row in rows:
            try:
                sets.setdefault(name, []).append(problem_from_row(row, split=name, source_row=0))
            except RowDropped as drop:
                print(f"{name}/{row['task_id']} is not used: {drop}")
    for source in options.rows:
        sets[Path(source).name] = load_problems(source, role="train").problems
    return {name: [each for each in problems if each.solutions][: options.limit] for name, problems in sets.items()}


async def run(options: argparse.Namespace) -> int:
    programs: dict[str, list[str]] = defaultdict(list)
    for line in options.programs.read_text().splitlines() if options.programs else ():
        row = json.loads(line)
        programs[row["problem_id"]].append(row["code"])
    console, status = Console(width=120), 0
    table = Table(title=f"generated tests: {options.keep} tests kept, at most {options.most} added")
    for column in (
        "set",
        "problems",
        "with new tests",
        "tests",
        "wrong",
        "false passes left",
        "share caught",
        "right",
        "failed",
        "s/problem",
    ):
        table.add_column(column, justify="left" if column == "set" else "right")
    with embedded_sandbox() as server:
        async with SandboxClient([server.address]) as client:
            judge = Judge(client, timeout_s=6.0)
            for name, problems in problems_of(options).items():
                gate = asyncio.Semaphore(AT_ONCE)

                async def limited(problem: Problem, gate: asyncio.Semaphore = gate) -> Outcome:
                    async with gate:
                        return await outcome(problem, judge, programs[problem.problem_id], options)

                waiting = [asyncio.ensure_future(limited(problem)) for problem in problems]
                outcomes = [await each for each in track(waiting, name, console=console)]
                wrong = sum(len(each.wrong) for each in outcomes)
                left = sum(not caught for each in outcomes for caught in each.wrong.values())
                failed = sum(len(each.failed) for each in outcomes)
                with_tests = [each for each in outcomes if each.found.tests]
                row = (name, len(outcomes), len(with_tests), sum(len(each.found.tests) for each in with_tests))
                row += (wrong, left, f"{1 - left / max(wrong, 1):.1%}", sum(each.right for each in outcomes), failed)
                table.add_row(
                    *map(str, row), f"{sum(each.seconds for each in outcomes) / AT_ONCE / max(len(outcomes), 1):.2f}"
                )
                for each in outcomes:
                    for text in each.failed:
                        console.print(
                            f"[red]{each.problem.problem_id}[/red]: a right program fails: {text}", markup=True
                        )
                if options.verbose:
                    for each in outcomes:
                        lost = [code for code, caught in each.wrong.items() if not caught]
                        if lost:
                            console.print(
                                each.problem.problem_id,
                                len(lost),
                                each.found.reason,
                                len(each.found.tests),
                                each.found.inputs,
                                markup=False,
                            )
                status |= failed > 0
    console.print(table)
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--humaneval", type=Path)
    parser.add_argument("--mbpp", type=Path)
    parser.add_argument("--rows", nargs="*", default=[], metavar="DATASET")
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--most", type=int, default=16)
    parser.add_argument("--mutants", type=int, default=60)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
