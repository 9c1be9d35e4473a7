"""Audits problems: how far a reward can be trusted that says "passes all tests".

    contradictory_tests   tests with one input expect answers that exclude each other
    samples_failed        the reference answers a sample of the statement in another way
    several_answers       several answers seem to be right, and nothing accepts all of them
    weak                  programs with a small mistake pass all tests
    own_solution_fails, tests_fail, flaky_solution, too_slow, slow   what `curation.solutions` says of the references
    samples_missing       a sample of the statement is not among the tests
    duplicate_tests       tests repeat an earlier one
    undecided             the sandbox could not run what it takes: no finding, and no fault of the problem

With the first four a reward can be wrong. A mutant that survives may be a right program. What obviously does the same
is not counted, nor is code that no test can reach; a problem is called weak if at least WEAK_SHARE of the other mutants
survive, LEAST_SURVIVORS or more.
"""

import asyncio
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from difflib import unified_diff
from hashlib import sha256
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.curation.inferred_comparators import MUTANT_LIMIT_S
from coderl_tasks.curation.mutants import is_same_program, live_code, mutants
from coderl_tasks.curation.recorded_checks import Row, graded, recorded_checks
from coderl_tasks.curation.solutions import Status, check_problem, program_of
from coderl_tasks.filtering.rows import agree, same_inputs
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.scoring import Verdict, shortened
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.comparators import DEFAULT
from coderl_tasks.problems.problem import Drop, Kind, Problem
from coderl_tasks.problems.profile_columns import AUDIT_SCHEMA, FINDINGS, UNDECIDED, WRONG_REWARDS
from coderl_tasks.problems.samples import Sample, asserted, given_in_tests, samples
from coderl_tasks.rollouts.rounds import Progress

MUTANTS = 24
WEAK_SHARE, LEAST_SURVIVORS = 0.25, 3
SHOWN = 3  # surviving mutants, and of other evidence the first ones
MAX_SOLUTIONS = 3
_FAULTY_REFERENCE = (Status.FAILS, Status.TESTS_FAIL, Status.FLAKY, Status.TOO_SLOW, Status.SLOW)
_DECIMALS = re.compile(r"\d\.(\d+)")


async def audit_problems(
    problems: Sequence[Problem],
    judge: Judge,
    *,
    seed: int = 0,
    most: int = MUTANTS,
    checks: Iterable[Mapping[str, Any]] = (),
    folder: Path | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Audits how far each problem's tests can be trusted, with at most `most` mutants of its reference (from `seed`);
    returns AUDIT_SCHEMA, one row per problem, in order. `checks` are rows of SOLUTION_SCHEMA: references on which they
    have decided are not run again. `folder` records each row as it ends, so a second call with the same arguments runs
    only what is missing. Raises InfraError if the sandbox is down."""
    decided = {row["problem_id"]: dict(row) for row in checks if row["status"] != UNDECIDED}
    # Of these problems alone: the hash below must not depend on other rows.
    known = {each.problem_id: decided[each.problem_id] for each in problems if each.problem_id in decided}

    async def audited(problem: Problem) -> Row:
        check = known.get(problem.problem_id) or (await check_problem(problem, judge, MAX_SOLUTIONS)).to_row()
        in_memory = problem.whole()  # tests may be read from disk at each access
        return await _audit(in_memory, judge, seed, most, check)

    checks_hash = sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    request = {"audit": [most, WEAK_SHARE, LEAST_SURVIVORS], "seed": seed, "checks": checks_hash}  # what decides rows
    # The row of a problem that the sandbox failed on while it was up for others.
    undecided = {"audit": [UNDECIDED], "reference": UNDECIDED, "evidence": ["the sandbox could not run its programs"]}
    how = (judge, request, AUDIT_SCHEMA, lambda problem: undecided)
    return await recorded_checks(problems, audited, *how, folder=folder, on_progress=on_progress)


def split_by_audit(
    problems: Iterable[Problem], audits: pl.DataFrame, keep: Sequence[str] = ()
) -> tuple[list[Problem], list[Drop]]:
    """The problems that stay, and the drops of those with a finding that makes rewards wrong, but for those of `keep`.
    `audits` is of AUDIT_SCHEMA."""
    found = {row["problem_id"]: row for row in audits.iter_rows(named=True)}
    kept, drops = [], []
    for problem in problems:
        row = found.get(problem.problem_id, {"audit": [], "evidence": []})
        findings = zip(row["audit"], row["evidence"], strict=True)
        wrong = {name: text for name, text in findings if name in WRONG_REWARDS and name not in keep}
        if wrong:
            drops.append(Drop.of(problem, "audit", next(iter(wrong)), "; ".join(wrong.values())))
        else:
            kept.append(problem)
    return kept, drops


async def _audit(problem: Problem, judge: Judge, seed: int, most: int, check: Row) -> Row:
    """The row of AUDIT_SCHEMA of one problem, without the statement. `check` is what its solutions showed
    (SOLUTION_SCHEMA). Raises InfraError if the sandbox could not run a program."""
    statement_samples = samples(problem)
    contradictory, duplicate = _repeated_tests(problem)
    test_inputs = given_in_tests(problem)  # None if these cannot be compared with samples
    missing = [each for each in statement_samples if test_inputs is not None and each.given not in test_inputs]
    row: Row = {
        "problem_id": problem.problem_id,
        "split": problem.split,
        "reference": check["status"],
        "several_answers": check["suspicion"],
        "contradictory_tests": len(contradictory),
        "duplicate_tests": len(duplicate),
        "samples": len(statement_samples),
        "samples_missing": None if test_inputs is None else len(missing),
        "survivors": [],
    }
    evidence = {  # in words by name of a finding, empty if there is none
        "several_answers": check["suspicion"],
        "contradictory_tests": _in_words("tests {} and {} have one input and different answers", contradictory),
        "samples_missing": "; ".join(f"{_sample_in_words(each)} is no test" for each in missing[:SHOWN]),
        "duplicate_tests": _in_words("test {1} repeats test {0}", duplicate),
    }
    if check["status"] in _FAULTY_REFERENCE:
        evidence[check["status"]] = check["detail"]
    passing = None if check["status"] == Status.FLAKY else await _passing_reference(problem, judge)
    if passing is not None:
        with_limit, reference = passing  # `problem` with the time limit under which the reference passes
        # If several answers may be right, a reference may differ from a sample and be right.
        decides_alone = not check["suspicion"] and not problem.checker
        failed = await _failed_samples(with_limit, reference, judge, statement_samples) if decides_alone else []
        row["samples_failed"], evidence["samples_failed"] = len(failed), "; ".join(failed[:SHOWN])
        drawn = mutants(reference, seed_for(seed, "mutants", problem.problem_id), most)
        evidence["weak"] = await _surviving_mutants(with_limit, reference, judge, drawn, row)
    row["audit"] = [name for name in FINDINGS if evidence.get(name)]
    row["evidence"] = [evidence[name] for name in row["audit"]]
    return row


async def _surviving_mutants(problem: Problem, reference: str, judge: Judge, drawn: Sequence[str], row: Row) -> str:
    """Grades the `drawn` mutants of the reference and records in `row` how many survive (pass all tests). Returns the
    evidence that the tests are weak, in words; "" if they are not."""
    drawn = [code for code in drawn if not is_same_program(code, reference)]
    grades = await asyncio.gather(*(graded(judge, problem, code) for code in drawn))
    # A checker may fail with a mutant's answer, which then is neither right nor wrong.
    n_mutants = sum(grade.gradable for grade in grades)
    survivors = [code for code, grade in zip(drawn, grades, strict=True) if grade.passed]
    row["mutants"], row["mutants_survive"] = n_mutants, len(survivors)
    diffs = [
        unified_diff(reference.splitlines(), code.splitlines(), "reference", "mutant", lineterm="")
        for code in survivors[:SHOWN]
    ]
    row["survivors"] = [shortened("\n".join(lines)) for lines in diffs]
    # Some survivors are right programs after all: a few of them, or a small share, prove nothing.
    is_weak = len(survivors) >= LEAST_SURVIVORS and len(survivors) >= WEAK_SHARE * n_mutants
    return f"{len(survivors)} of {n_mutants} mutants pass all tests ({len(problem.tests)})" if is_weak else ""


async def _passing_reference(problem: Problem, judge: Judge) -> tuple[Problem, str] | None:
    """The problem with a time limit for mutants, and the first of the references that passes, without code that no test
    reaches; None if none does: slow ones have no mutants, each of which may take as long."""
    own_limit = problem.time_limit_s or judge.timeout_s
    for code in list(dict.fromkeys(map(program_of, problem.solutions)))[:MAX_SOLUTIONS]:
        live = live_code(code, "" if problem.kind == "stdin" else problem.entry_point)
        for limit_s in dict.fromkeys((min(own_limit, MUTANT_LIMIT_S), own_limit)):
            limited = replace(problem, time_limit_s=limit_s)
            for program in dict.fromkeys((live, code)):
                grade = await graded(judge, limited, program)
                if grade.passed:
                    return limited, program
            if grade.verdict is not Verdict.TIME_LIMIT:
                break
    return None


async def _failed_samples(problem: Problem, reference: str, judge: Judge, shown: Sequence[Sample]) -> list[str]:
    """Which samples the reference answers wrongly, in words. A crash or time-out does not count: it may be none."""
    failed = []
    for sample in shown:
        if not sample.is_exact:
            continue
        kind: Kind = "stdin" if problem.kind == "stdin" else "call"
        digits = [len(found[1]) for found in _DECIMALS.finditer(sample.test.expected)]
        rounded = f"float:{10.0 ** -min(digits):g}" if digits and problem.comparator == DEFAULT else problem.comparator
        asked = replace(problem, kind=kind, tests=(sample.test,), tests_total=1, comparator=rounded)
        grade = await graded(judge, asked, reference)
        if grade.verdict is Verdict.WRONG_ANSWER:
            failed.append(f"{_sample_in_words(sample)}: {grade.reason.partition(': ')[2]}")
    return failed


def _repeated_tests(problem: Problem) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """The pairs of tests (by number, the earlier first) with one input whose answers exclude each other, and those
    whose answers agree, so that the later test repeats the earlier one."""
    if problem.kind == "assert":
        # An assertion test has no input: its script, which is in `expected`, holds the call and the value.
        scripts = replace(problem, tests=tuple(replace(test, input=test.expected) for test in problem.tests))
        asserts = [asserted(test.expected, problem.entry_point) for test in problem.tests]  # (call, value), or None
        contradictory = []
        for number, later in enumerate(asserts):
            for first, earlier in enumerate(asserts[:number]):
                if earlier and later and earlier[0] == later[0] and earlier[1] != later[1]:
                    contradictory.append((first, number))
        return contradictory, list(same_inputs(scripts))
    contradictory, duplicate = [], []
    for first, number in same_inputs(problem):
        one, other = problem.tests[first].expected, problem.tests[number].expected
        if one == other or agree(problem, one, other):
            duplicate.append((first, number))
        elif not problem.checker:  # a checker may accept both answers
            contradictory.append((first, number))
    return contradictory, duplicate


def _in_words(form: str, pairs: Sequence[tuple[int, int]]) -> str:
    more = f"; and {len(pairs) - SHOWN} more" if len(pairs) > SHOWN else ""
    return "; ".join(form.format(*pair) for pair in pairs[:SHOWN]) + more


def _sample_in_words(sample: Sample) -> str:
    text = " ".join(sample.test.input.split())
    return f"the sample {text if len(text) <= 80 else text[:79] + '…'}"
