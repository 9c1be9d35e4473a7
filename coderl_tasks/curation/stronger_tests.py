"""strengthen=N: up to N generated tests per problem, which fail wrong programs that the given tests pass.

1. Inputs come from `new_inputs`, by the problem's given ones. An input counts only if all references (of which no two
   have the same syntax) answer it and agree under the problem's comparator; a single one must agree with itself in two
   runs. An answer of a kind that the given tests do not have, such as a fraction among integers, shows that the input
   is not meant.
2. The profile's completions that pass the given tests and mutants of the references run on these inputs. `choose` takes
   tests that fail programs which too few tests fail, and tests of kinds of inputs that no test has. Only a wrong answer
   or a runtime error counts: a slow program may be right.
3. At the end all references must pass the kept tests: those that one fails are dropped.

Problems are left alone whose right answers no reference can give: those with a checker, and those suspected of several
right answers. Generated tests decide rewards and never evaluations (`Problem.given`).
"""

import ast
import asyncio
import json
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import polars as pl

from coderl_tasks.curation.chosen_tests import (
    Answer,
    Goal,
    choose,
    features,
    is_meant,
    kind_of_text,
    kind_of_value,
    kinds_of_inputs,
    quick_answers,
)
from coderl_tasks.curation.inferred_comparators import shape
from coderl_tasks.curation.input_formats import InputFormat, infer_format
from coderl_tasks.curation.mutants import mutants
from coderl_tasks.curation.new_inputs import Record, new_inputs
from coderl_tasks.curation.profile import rates
from coderl_tasks.curation.recorded_checks import Row, graded, recorded_checks
from coderl_tasks.curation.solutions import program_of, suspicion
from coderl_tasks.curation.treatment import treatment_of
from coderl_tasks.grading.judge import Judge
from coderl_tasks.grading.priority import count_catches
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.assertion_tests import NOT_PYTHON, entry_point_of, with_given_code
from coderl_tasks.problems.comparators import TOLERANCE, comparator, parse_value
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.problems.profile_columns import STRENGTH_SCHEMA
from coderl_tasks.problems.samples import samples
from coderl_tasks.rollouts.rounds import Progress

INPUTS = 400  # tried per problem
REFERENCES = 3
MUTANTS = 48
LIMIT_S, PATIENT_S = 0.5, 4.0  # CPU time per test, which a mutant without end costs; and where references are slow
SLOW_S = 0.1  # CPU time per test from which on a reference is slow
MOST_GIVEN = 20_000  # characters of a given input that others are made from
MOST_BYTES = 64 << 10  # of a generated input or output
_LONGEST_EXAMPLE = 2000  # characters of a call in a statement
_RESTARTS = 16  # of a reference, after inputs that it does not answer
_CATCHING_VERDICTS = (Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR)


@dataclass(frozen=True, slots=True)
class Strengthened:
    """The generated tests of a problem; why there are none, if its inputs or references allow none (`reason`); on how
    many `inputs` the references agree; how many programs that passed the given tests (`survivors`) are `caught`; and of
    the completions the first generated test that each fails."""

    tests: tuple[Test, ...] = ()
    reason: str = ""
    inputs: int = 0
    survivors: int = 0
    caught: int = 0
    first_failed: Mapping[str, int] = field(default_factory=dict)


async def strengthen_problems(
    problems: Sequence[Problem],
    judge: Judge,
    completions: pl.DataFrame,
    most: int,
    seed: int,
    *,
    folder: Path | None = None,
    on_progress: Progress | None = None,
) -> pl.DataFrame:
    """Generates up to `most` tests per problem that catch wrong programs which its given tests let through; returns
    STRENGTH_SCHEMA, one row per problem, in order. `completions` has a row (problem_id, code) for each completion that
    passes the given tests. `folder` records each problem as it ends, so a second call with the same arguments runs only
    what is missing. Raises InfraError if the sandbox is down."""
    by_problem = completions.group_by("problem_id", maintain_order=True)
    codes = {str(key[0]): part["code"].to_list() for key, part in by_problem}

    async def strengthened(problem: Problem) -> Row:
        passing = codes.get(problem.problem_id, [])
        found = await strengthen(problem, judge, passing, most, seed)
        # Per completion the first of the new tests that it fails, None if it passes all.
        row = {"problem_id": problem.problem_id, "split": problem.split, "reason": found.reason or None}
        counts = {"inputs": found.inputs, "survivors": found.survivors, "caught": found.caught}
        tests = [{"input": test.input, "expected": test.expected} for test in found.tests]
        return row | counts | {"tests": tests, "first_failed": [found.first_failed.get(code) for code in passing]}

    completions_hash = sha256(json.dumps(codes, sort_keys=True).encode()).hexdigest()
    request = {"strengthen": most, "seed": seed, "completions": completions_hash}  # what decides the rows
    undecided = {"reason": "the sandbox could not run its programs", "tests": [], "first_failed": []}
    how = (judge, request, STRENGTH_SCHEMA, lambda problem: undecided)
    return await recorded_checks(problems, strengthened, *how, folder=folder, on_progress=on_progress)


def generated_tests(table: pl.DataFrame) -> dict[str, list[Test]]:
    """The generated tests by problem id, of problems that have any. `table` is of STRENGTH_SCHEMA."""
    rows = table.select("problem_id", "tests").iter_rows()
    return {problem_id: [Test(**test) for test in tests] for problem_id, tests in rows if tests}


def strengthened_in_words(table: pl.DataFrame) -> str:
    """One line on the generated tests. `table` is of STRENGTH_SCHEMA."""
    with_tests = table.filter(pl.col("tests").list.len() > 0)
    n_tests, failing = with_tests["tests"].list.len().sum(), table["first_failed"].list.explode().count()
    programs = f"{table['caught'].sum():,} of {table['survivors'].sum():,} programs that passed the given ones"
    parts = [f"{n_tests:,} tests generated for {len(with_tests):,} of {len(table):,} problems", f"they fail {programs}"]
    passing = table["first_failed"].list.len().sum()
    parts += [f"{failing:,} of the profile's {passing:,} passing completions"] if passing else []
    reasons = table["reason"].drop_nulls().str.split(":").list.first().value_counts(sort=True)
    parts += [f"not tried: {', '.join(f'{n} {reason}' for reason, n in reasons.iter_rows())}"] if len(reasons) else []
    return "; ".join(parts)


def counted_again(profile: pl.DataFrame, table: pl.DataFrame) -> pl.DataFrame:
    """`profile` (SHARD_SCHEMA) with the generated tests of `table` (STRENGTH_SCHEMA): completions that these fail are
    not correct any more, and the tests' own runs and catches follow those of the given ones."""
    found = {row["problem_id"]: row for row in table.iter_rows(named=True) if row["tests"]}
    rows = []
    for row in profile.iter_rows(named=True):
        if (more := found.get(row["problem_id"])) is not None and row["n_samples"]:
            runs, catches = count_catches(len(more["tests"]), more["first_failed"])
            row |= rates(row["n_correct"] - sum(catches), row["n_samples"])
            row |= {"test_runs": [*row["test_runs"], *runs], "test_catches": [*row["test_catches"], *catches]}
        rows.append(row)
    return pl.DataFrame(rows, schema=profile.schema)


async def strengthen(problem: Problem, judge: Judge, completions: Sequence[str], most: int, seed: int) -> Strengthened:
    """Generates at most `most` further tests for `problem` that catch wrong programs which its given tests let through:
    mutants of its references, or some of the `completions`, which pass the given tests. Raises InfraError if the
    sandbox fails."""
    problem = problem.whole()  # its tests may still be on the disk
    if reason := _reason_to_skip(problem):
        return Strengthened(reason=reason)
    maker = await asyncio.to_thread(_test_maker, problem)
    if maker is None or not maker.records:
        return Strengthened(reason="the inputs are too large, or their format is not understood")
    references, are_slow = await _references(problem, judge)
    if not references:
        return Strengthened(reason="no reference passes the given tests")
    # A short time limit: mutants may never end.
    limit_s = min(PATIENT_S if are_slow else LIMIT_S, problem.time_limit_s or judge.timeout_s)
    limited = replace(problem, time_limit_s=limit_s)
    own_seed = seed_for(seed, "strengthen", problem.problem_id)
    treatment = treatment_of(references)
    records = await asyncio.to_thread(new_inputs, maker.records, problem.statement, own_seed, INPUTS, treatment)
    witnesses = references if len(references) > 1 else 2 * references  # a single one has to agree with itself
    tests = await _agreed_tests(limited, maker, records, witnesses, judge)
    if not tests:
        return Strengthened(reason="the references agree on no new input")
    wrong = [code for reference in references for code in mutants(reference, own_seed, MUTANTS // len(references))]
    known = {shape(reference) for reference in references}
    programs = [code for code in dict.fromkeys([*completions, *wrong]) if shape(code) not in known]
    goals = await _goals_to_catch(limited, maker, tests, programs, references[0], judge)
    # Programs that no given test catches: completions by definition, and mutants that a new test catches (`goals`) and
    # no given one does (`times` is 0, until `choose` raises it).
    survivors = [code for code in programs if code in completions or (code in goals and not goals[code].times)]
    given = [features(maker.parse(text), "") for text in maker.given(problem)]
    kinds = kinds_of_inputs(given, [features(maker.parse(test.input), test.expected) for test in tests])
    chosen = [tests[number].input for number in choose([*kinds, *goals.values()], most)]
    kept = await _verified(limited, maker, chosen, witnesses, judge)
    if not kept.tests:
        return Strengthened(inputs=len(tests), survivors=len(survivors))
    # Count what the new tests really catch: the choice rested on quick runs, all inputs in one process.
    grades = await asyncio.gather(*(graded(judge, kept, code) for code in survivors))
    caught = {
        code: grade.first_failed
        for code, grade in zip(survivors, grades, strict=True)
        if grade.verdict in _CATCHING_VERDICTS and grade.first_failed is not None
    }
    first_failed = {code: number for code, number in caught.items() if code in completions}
    return Strengthened(
        tests=tuple(kept.tests),
        inputs=len(tests),
        survivors=len(survivors),
        caught=len(caught),
        first_failed=first_failed,
    )


def _reason_to_skip(problem: Problem) -> str:
    """Why a reference cannot say what a new test should expect; "" if it can."""
    if problem.checker or problem.comparator == "exact":
        return "a checker decides" if problem.checker else "the comparator is exact"
    why = suspicion(problem)
    return f"several answers may be right: {why}" if why else ""


async def _references(problem: Problem, judge: Judge) -> tuple[list[str], bool]:
    """The independent reference solutions that pass the given tests, and whether one of them is slow."""
    codes = list({shape(code): code for code in map(program_of, problem.solutions)}.values())[:REFERENCES]
    grades = await asyncio.gather(*(graded(judge, problem, code) for code in codes))
    passing = {code: grade for code, grade in zip(codes, grades, strict=True) if grade.passed}
    return list(passing), any(grade.run_seconds > SLOW_S * len(problem.tests) for grade in passing.values())


async def _agreed_tests(
    problem: Problem, maker: "_TestMaker", records: Sequence[Record], witnesses: Sequence[str], judge: Judge
) -> list[Test]:
    """The tests of the inputs on which the witnesses agree, as far as one process per witness tells."""
    longest = max([1 << 10, *(2 * len(test.input) for test in problem.tests)])
    old = maker.given(problem)
    inputs = [*old, *(each for each in maker.inputs(records) if len(each) <= min(longest, MOST_BYTES))]
    answers = await asyncio.gather(*(maker.quick_answers(problem, code, inputs, judge) for code in witnesses))
    kinds = {maker.kind(answer) for answer in answers[0][: len(old)] if answer is not None and not answer.error}
    tests = []
    for given, (first, *others) in list(zip(inputs, zip(*answers, strict=True), strict=True))[len(old) :]:
        if first is None or first.error or not is_meant(first, maker.kind(first), kinds, problem.statement):
            continue
        if all(maker.same(problem, first, other) for other in others) and (test := maker.test(given, first.text)):
            tests.append(replace(test, input=given))
    return tests


async def _goals_to_catch(
    problem: Problem, maker: "_TestMaker", tests: Sequence[Test], programs: Sequence[str], reference: str, judge: Judge
) -> dict[str, Goal]:
    """The goal to catch each program that answers anything: which of `tests` catch it, and how many given ones do."""
    n_given = len(maker.given(problem))
    inputs = [*maker.given(problem), *(test.input for test in tests)]
    codes = [reference, *programs]
    wanted, *found = await asyncio.gather(*(maker.quick_answers(problem, code, inputs, judge) for code in codes))
    goals = {}
    for code, own in zip(programs, found, strict=True):
        pairs = enumerate(zip(wanted, own, strict=True))
        failed = [n for n, (right, other) in pairs if right and other and not maker.same(problem, right, other)]
        if any(answer is not None for answer in own):
            goals[code] = Goal({n - n_given for n in failed if n >= n_given}, sum(n < n_given for n in failed))
    return goals


async def _verified(
    problem: Problem, maker: "_TestMaker", inputs: Sequence[str], witnesses: Sequence[str], judge: Judge
) -> Problem:
    """`problem` with generated tests in place of its own: of those `inputs` that all `witnesses` answer alike, now in a
    process per input. Tests that a witness then fails when it is graded are dropped."""
    answers = await asyncio.gather(*(maker.answers(problem, code, inputs, judge) for code in witnesses))
    tests = []
    for given, (first, *others) in zip(inputs, zip(*answers, strict=True), strict=True):
        if first is None or None in others or len(first) > MOST_BYTES:
            continue
        if all(maker.agree(problem, first, other) for other in others) and (test := maker.test(given, first)):
            tests.append(test)
    kept = replace(problem, tests=tuple(tests), tests_total=len(tests))
    for code in dict.fromkeys(witnesses):
        while kept.tests and not (grade := await graded(judge, kept, code)).passed:
            # Drop the test that it fails. If no test is named, the tests fail with every program: drop all.
            to_drop = tests if grade.first_failed is None else [kept.tests[grade.first_failed]]
            left = tuple(test for test in kept.tests if test not in to_drop)
            kept = replace(kept, tests=left, tests_total=len(left))
    return kept


@dataclass(frozen=True, slots=True)
class _TestMaker:
    """How inputs become records of values and back, and answers become tests: here of a problem of calls, whose inputs
    are JSON arrays of arguments, in the subclasses of other kinds."""

    records: Sequence[Record]
    name: str  # of the function that is called; empty for a program that reads its input

    def inputs(self, records: Sequence[Record]) -> list[str]:
        """The different inputs that new records make."""
        return list(dict.fromkeys(map(json.dumps, records)))

    def parse(self, text: str) -> list[Record]:
        """The records of an input."""
        return [parse_value(text)]

    def given(self, problem: Problem) -> list[str]:
        """The inputs of the given tests."""
        return [test.input for test in problem.tests if len(test.input) <= MOST_GIVEN]

    def test(self, given: str, answer: str) -> Test | None:
        """The test that expects this answer; None if no test can."""
        return Test(given, answer)

    def agree(self, problem: Problem, one: str, other: str) -> bool:
        return comparator(problem.comparator).accepts(problem.kind, one, other)

    async def answers(self, problem: Problem, code: str, inputs: Sequence[str], judge: Judge) -> list[str | None]:
        """What a program answers to inputs; None where it does not end well, or was not tried."""
        found: list[str | None] = []
        for _ in range(_RESTARTS):
            if not (rest := inputs[len(found) :]):
                break
            asked = replace(problem, tests=tuple(Test(each, "") for each in rest), tests_total=len(rest))
            found += [*await judge.outputs(asked, code), None]  # None for the answer that ended the list, if one did
        return [*found, *[None] * len(inputs)][: len(inputs)]

    async def quick_answers(
        self, problem: Problem, code: str, inputs: Sequence[str], judge: Judge
    ) -> list[Answer | None]:
        """As `answers`, but from one process."""
        limit_s = problem.time_limit_s or judge.timeout_s
        return await quick_answers(problem, code, inputs, judge, limit_s, self.name)

    def value(self, text: str) -> Any:
        """The value that an answer is."""
        return parse_value(text)

    def kind(self, answer: Answer) -> str:
        """What kind of answer it is, as `is_meant` compares them."""
        try:
            return kind_of_value(self.value(answer.text))
        except NOT_PYTHON:  # too long an answer
            return "long"

    def same(self, problem: Problem, one: Answer | None, other: Answer | None) -> bool:
        """Whether two answers agree and neither is an error."""
        if one is None or other is None or one.error or other.error:
            return False
        with suppress(*NOT_PYTHON, TypeError):
            return one.text == other.text or self.agree(problem, one.text, other.text)
        return False


@dataclass(frozen=True, slots=True)
class _TextTestMaker(_TestMaker):
    """A problem of standard input."""

    format: InputFormat

    def inputs(self, records: Sequence[Record]) -> list[str]:
        # One to three cases in turn, so that a program that answers one only is caught.
        sizes, rest, texts = cycle((1, 2, 3) if self.format.has_cases else (1,)), iter(records), dict[str, None]()
        while part := list(islice(rest, next(sizes))):
            texts[self.format.render(part)] = None
        return list(texts)

    def parse(self, text: str) -> list[Record]:
        return self.format.parse(text) or []

    def kind(self, answer: Answer) -> str:
        return kind_of_text(answer.text)

    def test(self, given: str, answer: str) -> Test | None:
        return Test(given, answer) if answer.strip() else None


@dataclass(frozen=True, slots=True)
class _AssertionTestMaker(_TestMaker):
    """A problem of assertions on a function's values. Inputs are tuples of arguments as Python writes them."""

    imports: str  # that the given tests need
    is_truth: bool  # the given tests only ask whether a value is true

    def inputs(self, records: Sequence[Record]) -> list[str]:
        return list(dict.fromkeys(repr(tuple(record)) for record in records))

    def parse(self, text: str) -> list[Record]:
        return [list(ast.literal_eval(text))]

    def given(self, problem: Problem) -> list[str]:
        return self.inputs(self.records)  # with the statement's examples

    async def quick_answers(
        self, problem: Problem, code: str, inputs: Sequence[str], judge: Judge
    ) -> list[Answer | None]:
        code = with_given_code(problem.starter_code, code)
        found = await _TestMaker.quick_answers(self, problem, code, inputs, judge)
        return [each and (each if each.error or _is_literal(each.text) else Answer("", "no literal")) for each in found]

    async def answers(self, problem: Problem, code: str, inputs: Sequence[str], judge: Judge) -> list[str | None]:
        # As a program that reads the arguments: values of Python that JSON lacks, such as tuples, come back whole.
        code = with_given_code(problem.starter_code, code) + _PRINTING.format(name=self.name)
        printed = await _TestMaker.answers(self, replace(problem, kind="stdin"), code, inputs, judge)
        return [None if text is None or not _is_literal(text) else text.strip() for text in printed]

    def value(self, text: str) -> Any:
        return ast.literal_eval(text)

    def agree(self, problem: Problem, one: str, other: str) -> bool:
        value, found = self.value(one), self.value(other)
        if isinstance(value, float) and isinstance(found, int | float):
            return math.isclose(value, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return bool(value == found)

    def test(self, given: str, answer: str) -> Test | None:
        value, call = ast.literal_eval(answer), f"{self.name}({', '.join(map(repr, ast.literal_eval(given)))})"
        if self.is_truth:
            stated = call if value else f"not {call}"
        elif isinstance(value, float):
            stated = f"abs({call} - {value!r}) <= {TOLERANCE} * max(1.0, abs({value!r}))"
        elif _has_decimals(value):  # another right program may differ in the last digit
            if not isinstance(value, list | tuple) or not all(isinstance(each, int | float) for each in value):
                return None
            close = (
                f"all(abs(one - other) <= {TOLERANCE} * max(1.0, abs(other)) for one, other in zip(found, {answer}))"
            )
            return Test("", f"{self.imports}found = {call}\nassert len(found) == {len(value)} and {close}")
        else:
            stated = f"{call} is None" if value is None else f"{call} == {answer}"
        return Test("", f"{self.imports}assert {stated}")


_PRINTING = """

if __name__ == "__main__":
    import ast as _ast, sys as _sys
    try:
        print(repr({name}(*_ast.literal_eval(_sys.stdin.read()))))
    except Exception as _error:
        print("raises", type(_error).__name__)
"""


def _has_decimals(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_has_decimals, [*value, *value.values()]))
    if isinstance(value, list | tuple | set | frozenset):
        return any(map(_has_decimals, value))
    return isinstance(value, float | complex)


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text.strip())
    except NOT_PYTHON:
        return False
    return True


def _test_maker(problem: Problem) -> _TestMaker | None:
    """How new inputs of a problem are written; None if its given ones are not understood."""
    inputs = [test.input for test in problem.tests if len(test.input) <= MOST_GIVEN]
    if not inputs:
        return None
    if problem.kind == "stdin":
        inputs = list(dict.fromkeys([*inputs, *(sample.test.input for sample in samples(problem))]))
        found = infer_format(inputs, problem.statement)
        if found is None:
            return None
        cases = [found.parse(text) for text in inputs]
        return _TextTestMaker([record for records in cases for record in records or ()], "", found)
    if problem.kind == "call":
        records = [parse_value(text) for text in inputs]
        records = _of_one_length([*records, *_examples(problem, problem.entry_point)])
        return _TestMaker(records, problem.entry_point)
    return _assertions(problem)


def _examples(problem: Problem, name: str) -> list[Record]:
    """The arguments with which a statement calls the function `name`, written as `name([1, 2])` or as
    `Input: a = [1, 2], b = 3`, or, if the function has one parameter, as `a = [1, 2]`."""
    statement = problem.statement
    parameters = re.search(rf"def {re.escape(name)}\((\w+)(?::[^,()]*)?\)", problem.starter_code)
    assigned = re.findall(rf"\b{parameters[1]}\s*=\s*(\[[^=\n]*\])", statement) if parameters else []
    # Texts that begin with a call; what comes after it is cut off below.
    calls = [statement[match.start() :] for match in re.finditer(rf"\b{re.escape(name)}\(", statement)] if name else []
    calls += [f"{name}({value})" for value in assigned]
    calls += [f"{name}({line})" for line in re.findall(r"^\**Input:?\**:?\s*(\w+\s*=.*)$", statement, re.MULTILINE)]
    found = [_arguments_of_first_call(text) for text in calls]
    return [arguments for arguments in found if arguments is not None]


def _arguments_of_first_call(text: str) -> list[Any] | None:
    """The literal arguments of the call with which `text` begins; None if there is none, or not only of literals."""
    for match in re.finditer(r"\)", text[:_LONGEST_EXAMPLE]):
        # Text up to a bracket within an argument does not parse: the first that does ends with the call's own bracket.
        with suppress(*NOT_PYTHON):
            call = ast.parse(text[: match.end()].strip(), mode="eval").body
            if not isinstance(call, ast.Call):
                return None
            return [ast.literal_eval(each) for each in [*call.args, *(one.value for one in call.keywords)]]
    return None


def _of_one_length(records: Sequence[Record]) -> list[Record]:
    """The different records that have as many values as the first."""
    return list({repr(record): record for record in records if len(record) == len(records[0])}.values())


def _assertions(problem: Problem) -> _TestMaker | None:
    """As `_test_maker`, for a problem of assertion tests: with the arguments with which the tests and the statement
    call its function, as far as these are literals; None if there are none."""
    scripts = [test.expected for test in problem.tests]  # an assertion test is a script
    name = problem.entry_point or entry_point_of(scripts)
    asserts = [node for script in scripts for node in ast.walk(ast.parse(script)) if isinstance(node, ast.Assert)]
    calls = [call for node in asserts for call in ast.walk(node.test) if isinstance(call, ast.Call)]
    records: list[Record] = []
    for call in calls:
        # HumanEval's tests call the function by the name `candidate`.
        if ast.unparse(call.func) in (name, "candidate") and not call.keywords:
            with suppress(*NOT_PYTHON):  # not literals: left out
                records.append([ast.literal_eval(argument) for argument in call.args])
    records = _of_one_length([*records, *_examples(problem, name)])
    if not name or not records or not records[0]:
        return None
    imports = {line for script in scripts for line in script.splitlines() if line.startswith("from solution import")}
    # Only `assert f(x)` and `assert not f(x)`: new tests then ask for truth too, not for a value.
    conditions = [node.test.operand if isinstance(node.test, ast.UnaryOp) else node.test for node in asserts]
    is_truth = all(isinstance(condition, ast.Call) for condition in conditions)
    return _AssertionTestMaker(records, name, "".join(f"{line}\n" for line in sorted(imports)), is_truth=is_truth)
