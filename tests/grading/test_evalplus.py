"""Programs on EvalPlus's rows get its verdicts; what is expected comes from the reference, in the judge alone."""

from typing import Any

import pytest

from coderl_tasks.grading import Judge, Verdict
from coderl_tasks.problems import Problem, problem_from_row
from tests.problems.test_benchmark_rows import HUMAN_EVAL_PLUS, mbpp_plus

PASSED, WRONG, ERROR = Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR


def problem(row: dict[str, Any]) -> Problem:
    return problem_from_row(row, split="", source_row=0)


def human_eval_plus(entry_point: str, solution: str, *inputs: list[Any], atol: float = 0) -> dict[str, Any]:
    row = {**HUMAN_EVAL_PLUS, "entry_point": entry_point, "canonical_solution": solution, "atol": atol}
    prompt = f'def {entry_point}(*args):\n    """ Something. """\n'
    return {**row, "prompt": prompt, "base_input": [inputs[0]], "plus_input": list(inputs[1:])}


MEAN = problem(HUMAN_EVAL_PLUS)
CASES = [
    ("right", MEAN, "def mean(xs):\n    return sum(xs) / len(xs)", PASSED),
    ("another way", MEAN, "def mean(xs):\n    xs.sort()\n    return sum(x / len(xs) for x in xs)", PASSED),
    ("wrong on an input of EvalPlus alone", MEAN, "def mean(xs):\n    return max(1.0, sum(xs) / len(xs))", WRONG),
    ("close enough for floats", MEAN, "def mean(xs):\n    return sum(xs) / len(xs) + 5e-7", PASSED),
    ("not close enough", MEAN, "def mean(xs):\n    return sum(xs) / len(xs) + 5e-5", WRONG),
    ("a number of another type", MEAN, "def mean(xs):\n    return str(sum(xs) / len(xs))", WRONG),
    ("crashes", MEAN, "def mean(xs):\n    return xs[5]", ERROR),
    ("equal to all", MEAN, "class E:\n    def __eq__(self, o): return True\ndef mean(xs):\n    return E()", WRONG),
    (
        "atol of the row",
        problem(human_eval_plus("f", "    return 10.0\n", [1], [2], atol=0.5)),
        "def f(x):\n    return 10.4",
        PASSED,
    ),
    (
        "beyond atol of the row",
        problem(human_eval_plus("f", "    return 10.0\n", [1], [2], atol=0.5)),
        "def f(x):\n    return 10.6",
        WRONG,
    ),
    (
        "integers are exact without atol",
        problem(human_eval_plus("f", "    return 10**9\n", [1])),
        "def f(x):\n    return 10**9 + 1",
        WRONG,
    ),
    (
        "lists of floats",
        problem(human_eval_plus("f", "    return [0.1, 0.2]\n", [1])),
        "def f(x):\n    return [0.1 + 1e-9, 0.2]",
        PASSED,
    ),
    (
        "another length",
        problem(human_eval_plus("f", "    return [0.1, 0.2]\n", [1])),
        "def f(x):\n    return [0.1]",
        WRONG,
    ),
    (
        "find_zero: any zero will do",
        problem(human_eval_plus("find_zero", "    return 1.0\n", [[-1, 0, 1]], [[-4, 0, 1]], atol=1e-4)),
        "def find_zero(xs):\n    return -(-xs[0]) ** 0.5",
        PASSED,
    ),
    (
        "find_zero: what is no zero",
        problem(human_eval_plus("find_zero", "    return 1.0\n", [[-1, 0, 1]], [[-4, 0, 1]], atol=1e-4)),
        "def find_zero(xs):\n    return 1.0",
        WRONG,
    ),
    (
        "sets of values",
        problem(mbpp_plus(2, "similar_elements", "def similar_elements(a, b):\n    return (1, 2)\n", [[1], [2]])),
        "def similar_elements(a, b):\n    return [2, 1, 1]",
        PASSED,
    ),
    (
        "a result or none",
        problem(mbpp_plus(434, "text_match_three", "def text_match_three(x):\n    return 'Found'\n", ["x"])),
        "def text_match_three(x):\n    return 7",
        PASSED,
    ),
    (
        "no result where there is one",
        problem(mbpp_plus(434, "text_match_three", "def text_match_three(x):\n    return 'Found'\n", ["x"])),
        "def text_match_three(x):\n    return None",
        WRONG,
    ),
    (
        "sum_div: 0 is right too",
        problem(mbpp_plus(295, "sum_div", "def sum_div(n):\n    return 5\n", [4])),
        "def sum_div(n):\n    return 0",
        PASSED,
    ),
    (
        "digits of different lengths",
        problem(mbpp_plus(558, "digit_distance_nums", "def digit_distance_nums(a, b):\n    return -1\n", [1, 20])),
        "def digit_distance_nums(a, b):\n    return 3",
        PASSED,
    ),
    (
        "the height of a pyramid",
        problem(mbpp_plus(581, "surface_Area", "def surface_Area(b, s):\n    return 33\n", [3, 4])),
        "def surface_Area(b, h):\n    return round(b * b + 2 * b * ((b / 2) ** 2 + h * h) ** 0.5)",
        PASSED,
    ),
    (
        "tuples where the task has tuples",
        problem(mbpp_plus(250, "count_X", "def count_X(t, x):\n    return t.count(x)\n", [[1, 1], 1])),
        "def count_X(t, x):\n    return t.count(x) if isinstance(t, tuple) else -1",
        PASSED,
    ),
]


@pytest.mark.parametrize(("task", "code", "verdict"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
async def test_programs_get_evalplus_verdicts(
    embedded_judge: Judge, task: Problem, code: str, verdict: Verdict
) -> None:
    grade = await embedded_judge.grade(task, code)
    assert grade.verdict is verdict, grade.reason


async def test_the_base_inputs_come_first(embedded_judge: Judge) -> None:
    grade = await embedded_judge.grade(MEAN, "def mean(xs):\n    return max(1.0, sum(xs) / len(xs))")
    assert (grade.first_failed, grade.tests_passed) == (1, 1)


async def test_a_reference_that_fails_is_no_verdict(embedded_judge: Judge) -> None:
    row = human_eval_plus("f", "    return args[7]\n", [1])
    grade = await embedded_judge.grade(problem(row), "def f(x):\n    return 1")
    assert grade.verdict is Verdict.CHECKER_ERROR
    assert "the reference fails: IndexError" in grade.reason


async def test_the_program_is_told_calls_and_no_results(embedded_judge: Judge) -> None:
    secret = "a text that only the reference knows"
    row = human_eval_plus("f", f"    return {secret!r} + str(args)\n", ["first"], ["second"])
    rehearsed = await embedded_judge.programs.rehearsed(problem(row))
    asked = "".join(test.input for test in rehearsed.tests)
    assert '"first"' in asked and '"second"' in asked
    assert secret not in asked


async def test_inputs_may_hold_any_text(embedded_judge: Judge) -> None:
    row = human_eval_plus("f", "    return args[0][::-1]\n", ["mock the sys.stdout $name"], ["\"'''\n\\"], ["\ud800"])
    grade = await embedded_judge.grade(problem(row), "def f(x):\n    return x[::-1]")
    assert grade.verdict is PASSED, grade.reason
