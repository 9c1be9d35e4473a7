"""Rows of EvalPlus and LiveCodeBench, in the columns that they publish."""

import ast
import base64
import json
import pickle
import re
import zlib
from typing import Any

import pytest

from coderl_tasks.problems import RowDropped, problem_from_row

HUMAN_EVAL_PLUS: dict[str, Any] = {
    "task_id": "HumanEval/900",
    "prompt": 'from typing import List\n\n\ndef mean(xs: List[float]) -> float:\n    """ Mean of a list.\n    """\n',
    "entry_point": "mean",
    "canonical_solution": "    return sum(xs) / len(xs)\n",
    "test": "def check(candidate):\n    assert candidate([1.0]) == 1.0\n",
    "contract": "\n    assert len(xs) > 0\n",
    "base_input": [[[1.0]], [[1.0, 2.0]]],
    "plus_input": [[[0.5, 0.25]], [[1e300, 1e300]], [[3.0]], [[4.0]], [[float("inf")]]],
    "atol": 0,
}


def mbpp_plus(number: int, entry_point: str, solution: str, *inputs: Any, atol: float = 0) -> dict[str, Any]:
    prompt = f'"""\nWrite a function {entry_point}.\nassert {entry_point}() == 1\n"""\n'
    named = {"task_id": f"Mbpp/{number}", "prompt": prompt, "entry_point": entry_point, "canonical_solution": solution}
    return {**named, "contract": "", "base_input": [inputs[0]], "plus_input": list(inputs[1:]), "atol": atol}


def packed(script: str) -> Any:
    """(reference, inputs) of a test of an EvalPlus row."""
    found = re.search(r'b64decode\("([^"]+)"\)', script)
    assert found is not None
    text = base64.b64decode(found[1]).decode().replace("inf", "1e999")  # a literal for ast
    return ast.literal_eval(text.replace("set()", "{'empty'}"))


def test_inputs_of_evalplus_become_tests_of_a_few_calls() -> None:
    problem = problem_from_row(HUMAN_EVAL_PLUS, split="humaneval_plus", source_row=0)
    assert (problem.kind, problem.entry_point, problem.problem_id) == ("assert", "mean", "HumanEval/900")
    assert problem.statement == "Mean of a list."
    assert problem.starter_code.endswith("def mean(xs: List[float]) -> float:\n    ")
    assert problem.solutions == (HUMAN_EVAL_PLUS["prompt"] + HUMAN_EVAL_PLUS["canonical_solution"],)
    inputs = [packed(test.expected)[1] for test in problem.tests]
    assert inputs == [
        HUMAN_EVAL_PLUS["base_input"],
        HUMAN_EVAL_PLUS["plus_input"][:4],
        [[[float("inf")]]],
    ]


@pytest.mark.parametrize(
    ("task", "given", "wanted"),
    [
        (2, [[1, 2], [3]], [(1, 2), (3,)]),
        (63, [[[1, 2], [3, 4]]], [[(1, 2), (3, 4)]]),
        (75, [[[1, 2]], 3], [[(1, 2)], 3]),
        (106, [[1], [2, 3]], [[1], (2, 3)]),
        (124, ["0.0", "1j"], [0.0, 1j]),
        (250, [[1, 2], 3], [(1, 2), 3]),
        (252, ["1+2j"], [1 + 2j]),
        (259, [[[1, 2]], [[3, 4]]], [((1, 2),), ((3, 4),)]),
        (278, [[1, [2, 3]]], [(1, (2, 3))]),
        (307, [[1, 2], 3, 4], [(1, 2), 3, 4]),
        (580, [[1, [2, [3]]]], [(1, (2, (3,)))]),
        (722, [{"a": [1, 2]}, 3], [{"a": (1, 2)}, 3]),
        (750, [[[1]], [2]], [[[1]], (2,)]),
        (1, [[1, [2]]], [[1, [2]]]),
    ],
)
def test_inputs_of_mbpp_plus_have_the_types_that_json_lacks(task: int, given: list[Any], wanted: list[Any]) -> None:
    row = mbpp_plus(task, "f", "def f(*args):\n    return 1\n", given)
    problem = problem_from_row(row, split="mbpp_plus", source_row=0)
    assert packed(problem.tests[0].expected)[1] == [wanted]
    assert problem.statement == row["prompt"]


def test_sets_of_mbpp_plus() -> None:
    row = mbpp_plus(115, "f", "def f(x):\n    return 1\n", [[[1, 2], []]])
    script = problem_from_row(row, split="", source_row=0).tests[0].expected
    assert packed(script)[1] == [[[{1, 2}, {}]]]


@pytest.mark.parametrize("change", [{"base_input": 3}, {"plus_input": "[1"}, {"atol": "x"}, {"entry_point": "a b"}])
def test_inputs_that_cannot_be_read_drop_the_row(change: dict[str, Any]) -> None:
    with pytest.raises(RowDropped, match="bad_evalplus_inputs"):
        problem_from_row({**HUMAN_EVAL_PLUS, **change}, split="", source_row=0)


def private(value: Any, protocol: int = 4) -> str:
    return base64.b64encode(zlib.compress(pickle.dumps(value, protocol))).decode()


def livecodebench(private_test_cases: str, **others: Any) -> dict[str, Any]:
    return {
        "question_title": "Echo",
        "question_content": "Print the number.",
        "platform": "atcoder",
        "question_id": "abc300_a",
        "contest_id": "abc300",
        "contest_date": "2024-08-03T00:00:00",
        "starter_code": "",
        "difficulty": "easy",
        "public_test_cases": json.dumps([{"input": "1\n", "output": "1\n", "testtype": "stdin"}]),
        "private_test_cases": private_test_cases,
        "metadata": "{}",
        **others,
    }


PRIVATE = json.dumps([{"input": "22\n", "output": "22\n", "testtype": "stdin"}])


@pytest.mark.parametrize("tests", [*(private(PRIVATE, protocol) for protocol in range(6)), PRIVATE])
def test_rows_of_livecodebench(tests: str) -> None:
    problem = problem_from_row(livecodebench(tests), split="livecodebench", source_row=0)
    assert (problem.kind, problem.problem_id, problem.statement) == ("stdin", "abc300_a", "Print the number.")
    assert [test.input for test in problem.tests] == ["1\n", "22\n"]


def test_functions_of_livecodebench() -> None:
    tests = [{"input": "[1, 2]\n3", "output": "6", "testtype": "functional"}]
    row = livecodebench(
        private(json.dumps(tests)),
        public_test_cases=json.dumps(tests),
        starter_code="class Solution:\n    def total(self, xs: List[int], y: int) -> int:\n        ",
        metadata='{"func_name": "total"}',
    )
    problem = problem_from_row(row, split="livecodebench", source_row=0)
    assert (problem.kind, problem.entry_point) == ("call", "total")
    assert [(test.input, test.expected) for test in problem.tests] == [("[[1, 2], 3]", "6")] * 2


HOSTILE = {
    "a call": b"cos\nsystem\n(S'touch /tmp/harm'\ntR.",
    "a global alone": pickle.dumps(json.dumps),
    "bytes": pickle.dumps(b"[]"),
    "a list of texts": pickle.dumps(["[]"]),
    "two texts": pickle.dumps(("a", "b")),
    "a huge bytearray": b"\x80\x05\x96" + (1 << 40).to_bytes(8, "little") + b".",
    "no pickle": b"[]",
    "nothing": b"",
    "a text that is cut off": pickle.dumps("[]")[:-3],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_no_pickle_but_of_one_text_is_read(name: str) -> None:
    tests = base64.b64encode(zlib.compress(HOSTILE[name])).decode()
    with pytest.raises(RowDropped, match="bad_private_tests"):
        problem_from_row(livecodebench(tests), split="", source_row=0)


@pytest.mark.parametrize("tests", ["%%%", base64.b64encode(b"no zlib").decode(), ""])
def test_what_is_not_packed_is_refused(tests: str) -> None:
    with pytest.raises(RowDropped, match=r"bad_private_tests|no_tests"):
        problem_from_row(livecodebench(tests), split="", source_row=0)


def test_rows_without_private_tests_are_named() -> None:
    with pytest.raises(RowDropped, match="LiveCodeBench rows without their private tests"):
        problem_from_row({**livecodebench(PRIVATE), "private_test_cases": None}, split="", source_row=0)
