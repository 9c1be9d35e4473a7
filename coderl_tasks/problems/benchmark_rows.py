"""Rows of well-known benchmarks, with the columns that other rows have: MBPP's and HumanEval's assertions as they are,
and with rules of their own:

EvalPlus (HumanEval+ and MBPP+; Liu et al. 2023, arXiv:2305.01210). A row has inputs and a reference, but no outputs.
Each test here calls the program on a few inputs, runs the reference on them in the judge's own process, and compares as
`evalplus.eval.unsafe_execute` (0.3.1):

1. equal, or by the task's own rule: a set of the values, a formula, or whether there is a result at all;
2. else within `atol` and 1e-7 of the expected value, for values of one type and length; `atol` 0 is 1e-6 where floats
   are expected. EvalPlus keeps the 1e-6 for the inputs that follow; here it is of one input.

A reference that fails is a fault of the test. `contract` says which inputs are valid, and these are.

LiveCodeBench (Jain et al. 2024, arXiv:2403.07974). Public tests are JSON, private ones JSON, or base64 of zlib of a
pickled JSON text. Anyone may have written a file, so the pickle is read as a list of operations, of which those for one
text are admitted, and nothing is ever unpickled.
"""

import ast
import base64
import builtins
import json
import pickletools
import re
import zlib
from collections.abc import Callable, Mapping
from string import Template
from typing import Any

from coderl_tasks.problems.assertion_tests import (
    DEFINITIONS,
    NOT_PYTHON,
    STATES_SOMETHING,
    are_texts,
    signature,
    unix_lines,
)
from coderl_tasks.problems.problem import RowDropped
from coderl_tasks.problems.raw_files import MAX_ROW_BYTES
from coderl_tasks.problems.raw_tests import decode_json

INPUTS_PER_TEST = 4  # of EvalPlus's: few, so that slow references stay far from the limit of a judge program
_CHECK = "check"  # HumanEval's function of all assertions
_EVALPLUS_TEXTS = ("prompt", "canonical_solution", "entry_point")
_EVALPLUS_INPUTS = ("base_input", "plus_input")
_LIVECODEBENCH = ("question_content", "public_test_cases", "private_test_cases")
_TEXT_OPERATIONS = ("UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
_AROUND_IT = ("PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "STOP")
_Convert = Callable[[Any], Any]


def with_usual_columns(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """`row` with the columns that other rows have; one of none of these benchmarks as it is. Raises RowDropped:
    bad_evalplus_inputs, bad_private_tests, tests_not_json."""
    return _with_livecodebench(_with_assertions(_with_evalplus(row)))


def _with_assertions(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """`row` with the columns of MBPP or HumanEval under the names that other rows have; any other row as it is."""
    if isinstance(tests := row.get("test_list"), list) and tests and are_texts(tests):
        code = unix_lines(row["code"]) if isinstance(row.get("code"), str) else ""
        given = _texts([row.get("test_setup_code")]) + _texts(row.get("test_imports"))  # the latter: MBPP sanitized
        setup = [text for text in (_imports_over_builtins(code, tests), *map(unix_lines, given)) if text.strip()]
        tests = [unix_lines(test) for test in (*tests, *_texts(row.get("challenge_test_list")))]
        scripts = ["\n".join(part for part in (*setup, test) if part) for test in tests]
        question = row.get("question") or row.get("text") or row.get("prompt")
        solutions = {"solutions": [code]} if code else {}
        return {**row, "tests": scripts, "question": question, **_task_id(row), **solutions}
    if row.get("tests") is not None:
        return row
    test, entry_point, cases = row.get("test"), row.get("entry_point"), row.get("test_cases")
    if isinstance(test, str) and STATES_SOMETHING.search(test):
        columns: dict[str, Any] = {"tests": test}
        if isinstance(entry_point, str) and isinstance(row.get("prompt"), str) and f"def {_CHECK}(" in test:
            given, columns = _prompt_columns(row, entry_point)
            # What stands above the function in the prompt is given: the test's own copy of it decides.
            columns["tests"] = ["\n".join(filter(None, (given, test.strip("\n"), f"\n{_CHECK}({entry_point})")))]
        return {**row, **columns, "input_output": None}  # LeetCode's: examples for people
    return {**row, "tests": cases} if isinstance(cases, list) and cases and are_texts(cases) else row


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _task_id(row: Mapping[str, Any]) -> dict[str, Any]:
    """The identity that both give their problems, unless the row has one of ours."""
    task_id = row.get("task_id")
    return {"problem_id": task_id} if row.get("problem_id") is None and task_id is not None else {}


def _imports_over_builtins(code: str, tests: list[str]) -> str:
    """Imports for tests whose function has a builtin's name, which would else be the builtin."""
    try:
        defined = {node.name for node in ast.parse(code).body if isinstance(node, DEFINITIONS)}
    except NOT_PYTHON:
        return ""
    words = set(re.findall(r"\w+", " ".join(tests)))
    return "\n".join(f"from solution import {name}" for name in sorted(defined & words & set(dir(builtins))))


def _prompt_columns(row: Mapping[str, Any], entry_point: str) -> tuple[str, dict[str, Any]]:
    """What stands above the function that a prompt of HumanEval's ends in, and all columns but the tests."""
    prompt, columns = unix_lines(row["prompt"]), _task_id(row)
    try:
        given, body = prompt, ast.parse(prompt).body
    except NOT_PYTHON:
        given, body = "", []
    function = next((node for node in body if isinstance(node, ast.FunctionDef) and node.name == entry_point), None)
    if function is None:  # LeetCode's prompt is what programs find there; the statement is in another column
        statements = _texts([row.get(name) for name in ("problem_description", "query", "question")])
        columns["question"] = next((text for text in statements if text.strip()), prompt)
    else:
        given = ast.unparse(ast.Module(body[: body.index(function)], []))
        columns["question"] = (ast.get_docstring(function) or prompt).strip()
        columns["starter_code"] = "\n\n".join(filter(None, (given, signature(function))))
    if isinstance(solution := row.get("canonical_solution"), str):
        columns["solutions"] = [prompt + solution]
    return given, columns


def _with_evalplus(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of HumanEval+ or MBPP+ with assertion tests, each _SCRIPT, which runs the program and the reference on some
    of the inputs; any other row as it is. Raises RowDropped: bad_evalplus_inputs."""
    has_texts = all(isinstance(row.get(column), str) for column in _EVALPLUS_TEXTS)
    if not has_texts or any(row.get(column) is None for column in _EVALPLUS_INPUTS):
        return row
    entry_point, task_id, atol = row["entry_point"], str(row.get("task_id")), row.get("atol") or 0
    if not isinstance(atol, int | float) or not entry_point.isidentifier():
        raise RowDropped("bad_evalplus_inputs", f"atol {atol} of the function {entry_point}")
    reference = row["prompt"] + row["canonical_solution"]
    is_mbpp = task_id.startswith("Mbpp/")
    # How to compare, as an expression: some functions have one of their own. None: by equality, or within `atol`.
    rule = (_MBPP_RULES if is_mbpp else _HUMAN_EVAL_RULES).get(entry_point, "None")
    # Of some functions only whether they return anything counts: for the reference this is True or False.
    expected = "value is not None" if is_mbpp and entry_point in _ONLY_HAS_RESULT else "value"
    same_in_all = {"name": entry_point, "atol": repr(atol), "rule": rule, "expected": expected}
    scripts = []
    for column in _EVALPLUS_INPUTS:
        inputs = _inputs(row[column], column, task_id)
        for start in range(0, len(inputs), INPUTS_PER_TEST):
            batch = inputs[start : start + INPUTS_PER_TEST]
            # In base64: tests with words such as `mock` or `sys.stdout` are refused, and an input may contain them.
            packed = base64.b64encode(repr((reference, batch)).encode("utf-8", "surrogatepass")).decode()
            title = f"{column} {start} to {start + len(batch) - 1}"
            scripts.append(Template(_SCRIPT).substitute(same_in_all, packed=packed, where=title))
    _, columns = _prompt_columns(row, entry_point)  # statement, starter code, solution and id
    return {**row, **columns, "tests": scripts, "input_output": None}  # no other tests beside these


def _inputs(value: Any, name: str, task_id: str) -> list[Any]:
    """The argument lists in a column, with the types that JSON does not have."""
    try:
        decoded = json.loads(value) if isinstance(value, str) else value
        if decoded is None or decoded == {}:  # as some write that there are none
            return []
        if not isinstance(decoded, list) or not all(isinstance(arguments, list) for arguments in decoded):
            raise ValueError("not a list of argument lists")
        number = task_id.removeprefix("Mbpp/")
        convert = _CONVERSIONS.get(int(number)) if number != task_id and number.isdecimal() else None
        return decoded if convert is None else [list(convert(arguments)) for arguments in decoded]
    except (ValueError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise RowDropped("bad_evalplus_inputs", f"{name} of {task_id}: {error}") from None


def _with_livecodebench(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of LiveCodeBench with the usual columns; any other row as it is."""
    if any(row.get(name) is None for name in _LIVECODEBENCH):
        return row
    public, private = decode_json(row["public_test_cases"]), row["private_test_cases"]
    packed = isinstance(private, str) and not private.lstrip().startswith("[")
    private = decode_json(_unpacked(private) if packed else private)
    if not isinstance(public, list) or not isinstance(private, list):
        raise RowDropped("bad_private_tests", "the test cases are no lists")
    columns: dict[str, Any] = {"question": row["question_content"], "tests": [*public, *private]}
    return {**row, **columns, "problem_id": row.get("problem_id") or row.get("question_id")}


def _unpacked(packed: str) -> str:
    """The text in base64 of zlib of a pickle. Raises RowDropped for another pickle, or more than a row may hold."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(packed, validate=True), MAX_ROW_BYTES)
        if unpacking.unconsumed_tail:
            raise ValueError(f"more than {MAX_ROW_BYTES / 2**20:.0f} MiB")
        texts = []
        for operation, value, _ in pickletools.genops(data):
            if operation.name in _TEXT_OPERATIONS:
                texts.append(value)
            elif operation.name not in _AROUND_IT:
                raise ValueError(f"a pickle with the operation {operation.name}, which a text does not need")
        if len(texts) != 1 or not isinstance(texts[0], str):
            raise ValueError(f"a pickle of {len(texts)} texts")
        return texts[0]
    except (ValueError, zlib.error) as error:  # of base64 too
        raise RowDropped("bad_private_tests", f"private_test_cases is no packed text: {error}") from None


def _each(convert: _Convert) -> _Convert:
    return lambda arguments: [convert(argument) for argument in arguments]


def _first(convert: _Convert) -> _Convert:
    return lambda arguments: [convert(arguments[0]), *arguments[1:]]


def _rows(value: Any) -> list[Any]:
    return [tuple(item) for item in value]


def _nested(value: Any) -> Any:
    return tuple(map(_nested, value)) if isinstance(value, list) else value


_BY_CONVERSION: tuple[tuple[_Convert, tuple[int, ...]], ...] = (
    (
        _each(tuple),
        (2, 116, 132, 143, 222, 261, 273, 394, 399, 421, 424, 429, 470, 560, 579, 596, 616, 630, 726, 740, 744, 809),
    ),
    (_each(_rows), (63, 64, 70, 94, 120, 237, 272, 299, 400, 409, 417, 438, 473, 614, 780)),
    (_each(lambda value: tuple(_rows(value))), (259, 401, 445)),
    (_each(_nested), (580, 615, 791)),
    (_first(_rows), (75, 413, 444, 753)),
    (_first(tuple), (250, 307, 405, 446, 617, 720, 763, 808)),
    (lambda arguments: [arguments[0], tuple(arguments[1])], (106, 750)),
    (_first(lambda value: [set(item) if isinstance(item, list) and item else {} for item in value]), (115,)),
    (lambda arguments: [float(arguments[0]), complex(arguments[1])], (124,)),
    (_first(complex), (252,)),
    (_first(lambda value: tuple(tuple(item) if isinstance(item, list) else item for item in value)), (278,)),
    (_first(lambda value: {key: tuple(item) for key, item in value.items()}), (722,)),
)
"""MBPP+'s inputs as its tasks want them, by task: `evalplus.data.mbpp.mbpp_deserialize_inputs`."""
_CONVERSIONS = {task: convert for convert, tasks in _BY_CONVERSION for task in tasks}

_SETS = (
    "similar_elements", "find_char_long", "common_in_nested_lists", "extract_singly", "larg_nnum",
    "intersection_array", "find_dissimilar", "Diff",
)  # fmt: skip
_ONLY_HAS_RESULT = ("check_str", "text_match_three", "text_starta_endb")
_MBPP_RULES = {
    **dict.fromkeys(_SETS, "set(value) == set(expected) or None"),
    **dict.fromkeys(
        _ONLY_HAS_RESULT, "value == expected if isinstance(value, bool) else expected == (value is not None)"
    ),
    "are_equivalent": "True",
    "sum_div": "value == expected or value == 0 or None",
    "surface_Area": "value == expected or abs(value - pyramid_surface(*arguments)) <= ATOL or None",
    "digit_distance_nums": "value == expected or value == digit_distance(*arguments) or None",
}
_HUMAN_EVAL_RULES = {"find_zero": "abs(polynomial(*arguments, value)) <= ATOL"}
"""Of tasks with a rule of their own, by function; None: equality and the tolerance decide."""

_SCRIPT = """# $where
import base64
import copy
import math

from solution import $name as program

ATOL = $atol


def pyramid_surface(base, height):
    return round(base**2 + 4 * (base * math.sqrt((base / 2) ** 2 + height**2)) / 2)


def digit_distance(one, other):
    width = max(len(str(one)), len(str(other)))
    return sum(abs(int(a) - int(b)) for a, b in zip(str(one).zfill(width), str(other).zfill(width)))


def polynomial(coefficients, x):
    return sum([coefficient * math.pow(x, i) for i, coefficient in enumerate(coefficients)])


def are_floats(value):
    several = isinstance(value, (list, tuple)) and len(value) > 0
    return all(isinstance(item, float) for item in value) if several else isinstance(value, float)


def is_close(value, expected, atol):
    if isinstance(expected, (list, tuple)):
        same = isinstance(value, (list, tuple)) and len(value) == len(expected)
        return same and all(is_close(a, b, atol) for a, b in zip(value, expected))
    if not isinstance(value, (int, float, complex)) or not isinstance(expected, (int, float, complex)):
        return False
    return value == expected or (abs(expected) < math.inf and abs(value - expected) <= atol + 1e-7 * abs(expected))


def is_right(value, expected, arguments):
    try:
        decided = $rule
        if decided is not None:
            return bool(decided)
        if value == expected:
            return True
        atol = 1e-6 if ATOL == 0 and are_floats(expected) else ATOL
        return atol != 0 and type(value) == type(expected) and is_close(value, expected, atol)
    except (ArithmeticError, AttributeError, TypeError, ValueError, LookupError):
        return False


def expected_values():
    try:
        names = {}
        exec(PROGRAM, names)
        return [$expected for value in [names["$name"](*copy.deepcopy(arguments)) for arguments in INPUTS]]
    except Exception as error:
        raise SystemExit(f"the reference fails: {type(error).__name__}: {error}")


PROGRAM, INPUTS = eval(base64.b64decode("$packed").decode("utf-8", "surrogatepass"), {"inf": math.inf, "nan": math.nan})
values = [program(*copy.deepcopy(arguments)) for arguments in INPUTS]
for arguments, value, expected in zip(INPUTS, values, expected_values()):
    assert is_right(value, expected, arguments), f"$name{tuple(arguments)!r:.200}: expected {expected!r:.200}"
"""
