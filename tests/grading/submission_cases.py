"""The known submissions put together: a problem, a program, and the verdict it must get."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from coderl_tasks.grading import Verdict
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.raw_row import problem_from_row
from tests.grading.submissions import CALL_PROBLEMS, CALL_STYLES, OTHER_STYLES, RIGHT_STYLES, STDIN_PROBLEMS, Bundled

ROOT = Path(__file__).resolve().parents[2]
TIME_LIMIT_S = 0.1  # of those that are to break it

LONG = "endless recursion in a class"
"""Ends by itself, but each level of `repr` looks through all others: 5 to 20 seconds of CPU, by the caches."""

Submission = tuple[str, Problem, str, Verdict]


def bundled_problem(bundled: Bundled) -> Problem:
    line = (ROOT / "data" / "mini" / f"{bundled.file}.jsonl").read_text().splitlines()[bundled.line - 1]
    split = bundled.file.rpartition("-")[0]
    problem = problem_from_row(json.loads(line), split=split, source_row=bundled.line - 1)
    assert isinstance(problem, Problem)
    return problem


def submission(name: str, problem: Problem, code: str, verdict: str) -> Submission:
    if verdict == Verdict.TIME_LIMIT:
        problem = replace(problem, time_limit_s=TIME_LIMIT_S)
    return name, problem, code, Verdict(verdict)


def stdin_submissions() -> Iterator[Submission]:
    problems = [(bundled, bundled_problem(bundled)) for bundled in STDIN_PROBLEMS]
    styles = {name: (code, "passed") for name, code in RIGHT_STYLES.items()} | OTHER_STYLES
    for index, (name, (code, verdict)) in enumerate(styles.items()):
        two = problems[index % 4], problems[(index // 4 + index + 1) % 4]
        for bundled, problem in two[: 1 if name == LONG else 2]:
            head = f"def numbers(data): return {bundled.parsed}\ndef answer(a): return {bundled.right}\n"
            head += f"def WRONG(a): return {bundled.wrong}\n"
            yield submission(f"{bundled.file}: {name}", problem, head + code, verdict)


def call_submissions() -> Iterator[Submission]:
    for bundled in CALL_PROBLEMS:
        problem = bundled_problem(bundled)
        name, _, arguments = bundled.parsed.rstrip(")").partition("(")
        parts = {
            "signature": bundled.parsed,
            "self_signature": f"{name}(self, {arguments})",
            "name": name,
            "arguments": arguments,
            "right": bundled.right,
            "wrong": bundled.wrong,
        }
        for style, (code, verdict) in CALL_STYLES.items():
            yield submission(f"{name}: {style}", problem, code.format(**parts), verdict)
