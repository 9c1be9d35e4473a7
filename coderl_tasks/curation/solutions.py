"""Checks problems with their own reference solutions, resumably, and drops those whose solutions fail.

1. A problem is good if one of its first few distinct solutions passes all its tests, in every run. Each is run twice:
   one that passes only sometimes, or whose answers differ, is flaky and says nothing of the tests. (The driver seeds
   `random`, so flaky solutions get their randomness elsewhere.)
2. A slow reference is not a wrong one. After a time limit it is run again with a multiple of the limit: `slow` passes
   then, `too_slow` does not end even then, and nothing is known.
3. If several answers are right, comparing with one expected output is unfair. A problem is a suspect if its statement
   says so, or if a second solution passes at least half of the tests and disagrees on the others.
4. Tests and checkers may fail by themselves, with every program: `tests_fail`. The detail names the known-wrong
   programs that pass.
5. With an `inference_seed`, a problem that names no comparator may get one, and is checked under it.
6. Only `own_solution_fails`, `flaky_solution` and `tests_fail` are dropped. Ungraded problems are tried again. If the
   sandbox grades nothing at all, that is an InfraError; a problem that alone cannot be graded stays in as `undecided`.
"""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from coderl_tasks.curation.inferred_comparators import infer_comparator
from coderl_tasks.curation.phrases import multi_answer_phrase
from coderl_tasks.curation.recorded_checks import Row, graded, recorded_checks
from coderl_tasks.errors import InfraError
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.judge_programs import CheckerFault
from coderl_tasks.grading.scoring import Grade, Verdict, extract_code
from coderl_tasks.problems.comparators import DEFAULT, UNORDERED
from coderl_tasks.problems.problem import Drop, Problem
from coderl_tasks.problems.profile_columns import SOLUTION_SCHEMA
from coderl_tasks.rollouts.rounds import Progress

RUNS = 2  # of each solution, if it ends in time
TIME_FACTOR = 5.0  # times the time limit, for a solution that does not end within it
PLAUSIBLE_SHARE = 0.5
_FENCE_LINE = re.compile(r"^[ \t]*(```|~~~)", re.MULTILINE)


class Status(StrEnum):
    """What the check says of a problem."""

    GOOD = "good"
    SLOW = "slow"
    TOO_SLOW = "too_slow"
    NO_SOLUTION = "no_solution"
    UNDECIDED = "undecided"
    FAILS = "own_solution_fails"
    FLAKY = "flaky_solution"
    TESTS_FAIL = "tests_fail"


PASSING = (Status.GOOD, Status.SLOW)
DROPPED_FOR = (Status.FAILS, Status.FLAKY, Status.TESTS_FAIL)
_SAID = {
    Status.GOOD: "passes",
    Status.SLOW: "passes, but not within the time limit",
    # What it answered is left out: a random answer would make each record another.
    Status.FLAKY: "answers differently from run to run",
}


@dataclass(frozen=True, slots=True)
class SolutionCheck:
    """One row of SOLUTION_SCHEMA."""

    problem_id: str
    split: str
    status: Status
    detail: str = ""
    n_solutions: int = 0
    n_tried: int = 0
    suspicion: str | None = None
    inferred_comparator: str | None = None
    comparator_from: str | None = None

    def to_row(self) -> dict[str, Any]:
        row = asdict(self) | {"status": self.status.value, "multi_answer_suspect": self.suspicion is not None}
        return {name: row[name] for name in SOLUTION_SCHEMA}


async def check_solutions(
    problems: Sequence[Problem],
    judge: Judge,
    max_solutions: int = 3,
    *,
    inference_seed: int | None = None,
    folder: Path | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Checks that each problem's own solutions (at most `max_solutions`) pass its tests; returns SOLUTION_SCHEMA, one
    row per problem, in order. With an `inference_seed`, comparators are inferred (see `inferred_comparators`); it seeds
    the mutants that must fail under them. `folder` records each check as it ends, so a second call with the same
    arguments and time limit of the judge runs only the missing ones. Raises InfraError if the sandbox is down."""

    async def check(problem: Problem) -> Row:
        return (await check_problem(problem, judge, max_solutions, inference_seed)).to_row()

    def undecided(problem: Problem) -> Row:
        about = (problem.problem_id, problem.split, Status.UNDECIDED, "the sandbox could not run its solutions")
        return SolutionCheck(*about, n_solutions=len(problem.solutions), suspicion=suspicion(problem)).to_row()

    # What decides the rows, recorded beside them: rows of another request are deleted.
    request = {"max_solutions": max_solutions, "runs": RUNS, "time_factor": TIME_FACTOR, "infer": inference_seed}
    return await recorded_checks(
        problems, check, judge, request, SOLUTION_SCHEMA, undecided, folder=folder, on_progress=on_progress
    )


def inferred_comparators(checks: pl.DataFrame) -> dict[str, str]:
    """The inferred comparators by problem id. `checks` is of SOLUTION_SCHEMA."""
    return dict(checks.select("problem_id", "inferred_comparator").drop_nulls().iter_rows())


def split_by_solutions(
    problems: Iterable[Problem], checks: pl.DataFrame, *, drop_suspects: bool = False
) -> tuple[list[Problem], list[Drop]]:
    """The problems that stay, and the drops of those whose own solutions fail. `checks` is of SOLUTION_SCHEMA. With
    `drop_suspects` also of those that seem to have several right answers."""
    found = {row["problem_id"]: row for row in checks.iter_rows(named=True)}
    kept, drops = [], []
    for problem in problems:
        row = found.get(problem.problem_id)
        if row is not None and row["status"] in DROPPED_FOR:
            drops.append(Drop.of(problem, "solution", row["status"], row["detail"]))
        elif row is not None and drop_suspects and row["multi_answer_suspect"]:
            drops.append(Drop.of(problem, "solution", "several_answers", row["suspicion"]))
        else:
            kept.append(problem)
    return kept, drops


async def check_problem(
    problem: Problem, judge: Judge, max_solutions: int, inference_seed: int | None = None
) -> SolutionCheck:
    """Runs at most `max_solutions` of a problem's own solutions on its tests, and its known-wrong ones, and says what
    that shows. With an `inference_seed`, a problem with the default comparator may get another one; the result is then
    that of a second check, under it. Raises InfraError if the sandbox fails."""
    codes = list(dict.fromkeys(program_of(solution) for solution in problem.solutions))
    patient = replace(problem, time_limit_s=TIME_FACTOR * (problem.time_limit_s or judge.timeout_s))
    check, tried = await _check_as_it_is(problem, patient, codes, judge, max_solutions)
    has_default = problem.comparator == DEFAULT and not problem.checker and problem.kind in ("stdin", "call")
    if inference_seed is None or not has_default:
        return check
    # A solution answers otherwise than the tests expect, or than in another run: several answers may be right.
    disagree = any(finding.grade.verdict is Verdict.WRONG_ANSWER or finding.status is Status.FLAKY for finding in tried)
    asked = replace(patient, wrong_solutions=tuple(map(program_of, problem.wrong_solutions)))
    inference = await infer_comparator(asked, codes[:max_solutions], judge, inference_seed, disagree=disagree)
    if inference is None:
        return check
    if not inference.comparator:  # the evidence conflicts
        return replace(check, suspicion="; ".join(filter(None, (check.suspicion, f"undecided: {inference.reason}"))))
    under = await check_problem(replace(problem, comparator=inference.comparator), judge, max_solutions)
    if under.status not in PASSING:  # flaky, say
        return replace(check, suspicion=f"undecided: under {inference.comparator}, {under.detail}")
    return replace(under, suspicion=None, inferred_comparator=inference.comparator, comparator_from=inference.reason)


async def _check_as_it_is(
    problem: Problem, patient: Problem, codes: Sequence[str], judge: Judge, max_solutions: int
) -> tuple[SolutionCheck, list["_Finding"]]:
    """Checks a problem under the comparator that it has, and returns also what each solution tried showed. `codes` are
    the programs of its solutions; `patient` is the problem with a long time limit."""
    if problem.kind == "assert":
        try:
            await judge.programs.rehearsed(problem)  # raises if the tests fail with every program
        except CheckerFault as fault:
            return SolutionCheck(problem.problem_id, problem.split, Status.TESTS_FAIL, str(fault), len(codes)), []
    tried: list[_Finding] = []
    for code in codes[:max_solutions]:
        if len(tried) > 1 and any(finding.status in PASSING for finding in tried):
            break  # one passes, and a second one has been compared with it
        tried.append(await _classify(problem, patient, code, judge))
        if tried[-1].status is Status.TESTS_FAIL:  # they fail with the other programs too
            break
    grades = await asyncio.gather(*(graded(judge, patient, program_of(wrong)) for wrong in problem.wrong_solutions))
    passing = [str(number) for number, grade in enumerate(grades, 1) if grade.passed]
    # Only a detail: it shows that the tests are weak, not that the problem's own solutions fail.
    passing_wrong = f"known-wrong program {', '.join(passing)} of {len(grades)} passes" if passing else ""
    disagreement = await _disagreement(patient, judge, tried)
    status, detail = _status(tried)
    detail, why_suspect = "; ".join(filter(None, (detail, passing_wrong))), suspicion(problem, disagreement)
    return SolutionCheck(problem.problem_id, problem.split, status, detail, len(codes), len(tried), why_suspect), tried


def suspicion(problem: Problem, disagreement: str = "") -> str | None:
    """Why several answers may be right: what the statement says, and how solutions disagree. None if nothing does."""
    if problem.checker or problem.kind == "assert" or problem.comparator in UNORDERED:  # then that decides
        return None
    phrase = multi_answer_phrase(problem.statement)
    return "; ".join(filter(None, (f'the statement says "{phrase}"' if phrase else "", disagreement))) or None


class _Finding(NamedTuple):
    """What the runs of one solution say, with the grade that says it."""

    code: str
    status: Status
    grade: Grade


async def _classify(problem: Problem, patient: Problem, code: str, judge: Judge) -> _Finding:
    """Runs a reference solution RUNS times. `patient` is `problem` with a long time limit."""
    first = await graded(judge, problem, code)
    slow = first.verdict is Verdict.TIME_LIMIT
    if slow:  # which does not mean wrong: once more, with more time
        first = await graded(judge, patient, code)
        if first.verdict is Verdict.TIME_LIMIT:
            return _Finding(code, Status.TOO_SLOW, first)
    if first.verdict is Verdict.CHECKER_ERROR:
        return _Finding(code, Status.TESTS_FAIL, first)
    for _ in range(RUNS - 1):
        # Always with the long limit: a program that barely keeps the short one would look flaky on a busy machine.
        # `run_all` sends as many tests per request as possible; without it a small request comes first, which saves the
        # rest if a test fails. A program that has just passed all of them hardly will.
        again = await graded(judge, patient, code, run_all=first.passed)
        if not again.gradable:  # a checker that fails only sometimes: as if it had not been run
            raise InfraError(again.reason)
        # Compare reasons only for wrong answers: those name the answer, but a crash's may name a memory address.
        other_answer = first.verdict is Verdict.WRONG_ANSWER and first.reason != again.reason
        if first.verdict is not again.verdict or other_answer:
            return _Finding(code, Status.FLAKY, first)
    if_passed = Status.SLOW if slow else Status.GOOD
    return _Finding(code, if_passed if first.passed else Status.FAILS, first)


async def _disagreement(problem: Problem, judge: Judge, tried: Sequence[_Finding]) -> str:
    """How a plausible solution differs from one that passes; empty if none does."""
    good = next((number for number, finding in enumerate(tried, 1) if finding.status in PASSING), None)
    if good is None:
        return ""
    for number, finding in enumerate(tried, 1):
        if finding.status is not Status.FAILS or finding.grade.verdict is not Verdict.WRONG_ANSWER:
            continue
        # The first grade ended at the first failure; on how many tests the two differ only a run of all tells.
        whole = await graded(judge, problem, finding.code, run_all=True)
        if not whole.gradable:
            raise InfraError(whole.reason)
        if whole.tests_passed >= PLAUSIBLE_SHARE * whole.tests_total:
            differing = whole.tests_total - whole.tests_passed
            return f"solutions {good} and {number} disagree on {differing} of {whole.tests_total} tests"
    return ""


def _status(tried: Sequence[_Finding]) -> tuple[Status, str]:
    """The problem's status and its detail: the best that a solution says."""
    for status in (Status.TESTS_FAIL, Status.GOOD, Status.SLOW, Status.TOO_SLOW, Status.FLAKY, Status.FAILS):
        for number, finding in enumerate(tried, 1):
            if finding.status is status:
                said = _SAID.get(status, f"{finding.grade.verdict.value}, {finding.grade.reason}")
                return status, f"solution {number} of {len(tried)} tried: {said}"
    return Status.NO_SOLUTION, ""


async def faulty_tests(problems: Sequence[Problem], judge: Judge) -> dict[str, str]:
    """Of problems with assertions or a checker, those whose tests fail with every program, by id, with the reason. A
    checker is tried with the first of the problem's own solutions. Raises InfraError if the sandbox is down."""

    async def fault(problem: Problem) -> str | None:
        try:
            if problem.kind == "assert":
                await judge.programs.rehearsed(problem)
            elif problem.checker and problem.solutions:
                grade = await graded(judge, problem, program_of(problem.solutions[0]))
                if grade.verdict is Verdict.CHECKER_ERROR:
                    return grade.reason.removeprefix(f"problem {problem.problem_id}: ")
        except CheckerFault as error:
            return str(error)
        return None

    faults = zip(problems, await asyncio.gather(*map(fault, problems)), strict=True)
    return {problem.problem_id: found for problem, found in faults if found is not None}


def program_of(solution: str) -> str:
    """The program of a reference solution, which may be fenced; backticks in a comment of a bare one are no fence."""
    return (extract_code(solution) if _FENCE_LINE.search(solution) else None) or solution
