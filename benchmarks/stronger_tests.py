"""strengthen: how many wrong programs that thinned tests pass are caught by the generated tests, and at what cost.

    python benchmarks/stronger_tests.py --humaneval test.jsonl --mbpp mbpp/ --rows data/mini data/intro
                                        [--keep 2] [--most 4 8] [--slips 30] [--mutants 15] [--rewrites 3]
                                        [--programs programs.jsonl] [--skip N] [--limit N] [--planted FILE] [--verbose]

Each problem keeps `--keep` of its tests, drawn by the seed (of HumanEval's check function its first assertions). Wrong
programs fail the full tests, by an answer or an error; false passes are those that pass the tests kept. They come from
the reference by `slips`, whose operators strengthening does not know, and by `mutants`, whose operators it searches
with, drawn by another seed. `--programs` adds programs of a policy: lines of problem_id and code. Strengthening is
given every second of them that passes the tests kept, as it is given the completions of a profile.

Right programs are the references, rewritten ones (`rewrites`) and the policy's, as far as they pass the full tests.
Those that a generated test fails are printed. `--planted` names a file that the programs are written to, or read from
if it exists. Exit code 1 if a right program fails.
"""

import argparse
import ast
import asyncio
import json
import random
import sys
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TypeVar

from assertions import read
from planted_programs import rewrites, slips
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
LIMIT_S = 1.0  # CPU time per test: a slow program is neither wrong nor right
InT = TypeVar("InT")
OutT = TypeVar("OutT")


@dataclass(frozen=True, slots=True)
class Planted:
    """The programs of one problem: `wrong` counts by source those that fail the full tests, `false_passes` those of
    them that pass the tests kept. `false_passes` and `right` map a program to its source. `profiled` pass the tests
    kept."""

    problem_id: str
    wrong: dict[str, int]
    false_passes: dict[str, str]
    right: dict[str, str]
    profiled: list[str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the programs of one problem: the first generated test that each false pass fails, and the right
    programs that fail one, with the reason."""

    planted: Planted
    found: Strengthened
    seconds: float
    failed_at: dict[str, int | None]
    right_failed: dict[str, str]


def thinned(problem: Problem, keep: int, seed: int) -> Problem:
    """`problem` with some of its tests only, drawn by `seed`, or, of a single script of assertions, its first ones."""
    problem = problem.whole()
    if problem.kind != "assert" or len(problem.tests) > 1:
        numbers = range(len(problem.tests))
        drawn = sorted(random.Random(f"{seed}/{problem.problem_id}").sample(numbers, min(keep, len(numbers))))
        return replace(problem, tests=tuple(problem.tests[number] for number in drawn), tests_total=len(drawn))
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


async def plant(problem: Problem, judge: Judge, programs: Sequence[str], options: argparse.Namespace) -> Planted:
    reference = program_of(problem.solutions[0])
    sources = dict.fromkeys(map(program_of, problem.solutions), "references")
    made = {
        "policy": programs,
        "rewrites": rewrites(reference, options.seed, options.rewrites),
        "slips": slips(reference, options.seed, options.slips),
        "mutants": mutants(reference, options.seed, options.mutants),
    }
    for source, codes in made.items():
        sources = dict.fromkeys(codes, source) | sources
    quick = replace(problem, time_limit_s=LIMIT_S)
    thin = thinned(quick, options.keep, options.seed)
    grades = dict(zip(sources, await asyncio.gather(*(judge.grade(quick, code) for code in sources)), strict=True))
    right = {code: sources[code] for code, grade in grades.items() if grade.passed}
    wrong = [
        code
        for code, grade in grades.items()
        if grade.gradable and not grade.passed and grade.verdict not in ("time_limit", "memory_limit")
    ]
    at_first = await asyncio.gather(*(judge.grade(thin, code) for code in wrong))
    false_passes = {code: sources[code] for code, grade in zip(wrong, at_first, strict=True) if grade.passed}
    # Slips and mutants that pass the full tests are rightly right, or show that these are weak: nothing can tell.
    right = {code: source for code, source in right.items() if source not in ("slips", "mutants")}
    profiled = [code for code in programs[::2] if code in right or code in false_passes]
    counts = Counter(sources[code] for code in wrong)
    return Planted(problem.problem_id, dict(counts), false_passes, right, list(dict.fromkeys(profiled)))


async def outcome(problem: Problem, planted: Planted, judge: Judge, options: argparse.Namespace) -> Outcome:
    thin = thinned(problem, options.keep, options.seed)
    began = time.monotonic()
    found = await strengthen(thin, judge, planted.profiled, max(options.most), seed=7)
    seconds = time.monotonic() - began
    if not found.tests:
        return Outcome(planted, found, seconds, dict.fromkeys(planted.false_passes), {})
    stronger = replace(thin, time_limit_s=LIMIT_S, tests=found.tests, tests_total=len(found.tests))
    codes = [*planted.false_passes, *planted.right]
    grades = await asyncio.gather(*(judge.grade(stronger, code) for code in codes))
    failed = {code: grade for code, grade in zip(codes, grades, strict=True) if not grade.passed}
    failed_at = {code: failed[code].first_failed if code in failed else None for code in planted.false_passes}
    reasons = {code: failed[code].reason for code in planted.right if code in failed}
    return Outcome(planted, found, seconds, failed_at, reasons)


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
    return {
        name: [each for each in problems if each.solutions][options.skip : options.limit]
        for name, problems in sets.items()
    }


async def in_parallel(
    name: str, items: Iterable[InT], work: Callable[[InT], Awaitable[OutT]], console: Console
) -> list[OutT]:
    gate = asyncio.Semaphore(AT_ONCE)

    async def limited(item: InT) -> OutT:
        async with gate:
            return await work(item)

    waiting = [asyncio.ensure_future(limited(item)) for item in items]
    return [await each for each in track(waiting, name, console=console)]


def programs_table(outcomes: dict[str, list[Outcome]], options: argparse.Namespace) -> Table:
    """False passes by set and source, before and with the first N generated tests of each problem."""
    table = Table(title=f"wrong programs: {options.keep} tests kept per problem")
    for column in ("set", "source", "wrong", "false passes", *(f"left at N={most}" for most in options.most), "factor"):
        table.add_column(column, justify="left" if column in ("set", "source") else "right")
    for name, each in outcomes.items():
        wrong: Counter[str] = Counter()
        places: dict[str, list[int | None]] = defaultdict(list)
        for one in each:
            wrong.update(one.planted.wrong)
            for code, source in one.planted.false_passes.items():
                places[source].append(one.failed_at[code])
        for source in [*sorted(places), "all"]:
            at = places[source] if source != "all" else [place for some in places.values() for place in some]
            left = [sum(place is None or place >= most for place in at) for most in options.most]
            total = wrong[source] if source != "all" else wrong.total()
            row = (name, source, f"{total:,}", f"{len(at):,}", *(f"{n:,} ({n / max(len(at), 1):.1%})" for n in left))
            table.add_row(*row, f"{len(at) / max(left[-1], 1):.1f}")
    return table


def problems_table(outcomes: dict[str, list[Outcome]], options: argparse.Namespace) -> Table:
    """Problems, tests, right programs that fail one, and the time of strengthening."""
    table = Table(title=f"generated tests: at most {max(options.most)} per problem")
    sources = ("references", "rewrites", "policy")
    for column in ("set", "problems", "with tests", "tests", *sources, "right that fail", "s/problem"):
        table.add_column(column, justify="left" if column == "set" else "right")
    for name, each in outcomes.items():
        right = Counter(source for one in each for source in one.planted.right.values())
        tests = [len(one.found.tests) for one in each if one.found.tests]
        failed = sum(len(one.right_failed) for one in each)
        row = [name, len(each), len(tests), sum(tests), *(right[source] for source in sources), failed]
        seconds = sum(one.seconds for one in each) / AT_ONCE / max(len(each), 1)
        table.add_row(*map(str, row), f"{seconds:.2f}")
    return table


async def run(options: argparse.Namespace) -> int:
    programs: dict[str, list[str]] = defaultdict(list)
    for line in options.programs.read_text().splitlines() if options.programs else ():
        row = json.loads(line)
        programs[row["problem_id"]].append(row["code"])
    known = {}
    if options.planted and options.planted.exists():
        known = {row["problem_id"]: Planted(**row) for row in map(json.loads, options.planted.open())}
    console = Console(width=140)
    outcomes: dict[str, list[Outcome]] = {}
    with embedded_sandbox() as server:
        async with SandboxClient([server.address]) as client:
            judge = Judge(client, timeout_s=6.0)
            for name, problems in problems_of(options).items():

                async def planted(problem: Problem) -> Planted:
                    found = known.get(problem.problem_id)
                    return found or await plant(problem, judge, programs[problem.problem_id], options)

                async def strengthened(pair: tuple[Problem, Planted]) -> Outcome:
                    return await outcome(*pair, judge, options)

                plants = await in_parallel(f"{name}: programs", problems, planted, console)
                known.update((each.problem_id, each) for each in plants)
                pairs = list(zip(problems, plants, strict=True))
                outcomes[name] = await in_parallel(name, pairs, strengthened, console)
                if options.planted:
                    rows = (json.dumps(asdict(each)) for each in known.values())
                    options.planted.write_text("".join(f"{row}\n" for row in rows))
    everything = [each for some in outcomes.values() for each in some]
    for each in everything:
        for code, reason in each.right_failed.items():
            console.print(f"{each.planted.problem_id}: a right program fails: {reason}\n{code}", markup=False)
        left = [code for code, place in each.failed_at.items() if place is None]
        if options.verbose and left:
            about = (each.planted.problem_id, len(left), each.found.reason, len(each.found.tests), each.found.inputs)
            console.print(*about, markup=False)
    console.print(programs_table(outcomes, options), problems_table(outcomes, options))
    return int(any(each.right_failed for each in everything))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--humaneval", type=Path)
    parser.add_argument("--mbpp", type=Path)
    parser.add_argument("--rows", nargs="*", default=[], metavar="DATASET")
    parser.add_argument("--programs", type=Path)
    parser.add_argument("--planted", type=Path)
    parser.add_argument("--keep", type=int, default=2)
    parser.add_argument("--most", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--slips", type=int, default=30)
    parser.add_argument("--mutants", type=int, default=15)
    parser.add_argument("--rewrites", type=int, default=3)
    parser.add_argument("--skip", type=int, default=0, help="problems of each set that are left out, the first ones")
    parser.add_argument("--limit", type=int, help="the last problem of each set")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true")
    warnings.simplefilter("ignore", SyntaxWarning)  # of slips such as 1[2:]
    return asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
