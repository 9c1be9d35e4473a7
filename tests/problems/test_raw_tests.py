import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.problems import RowDropped, Test
from coderl_tasks.problems.raw_tests import normalize_tests, parse_tests


def calls(*pairs: tuple[list[Any], Any]) -> tuple[Test, ...]:
    return tuple(Test(json.dumps(arguments), json.dumps(value)) for arguments, value in pairs)


STDIN = (Test("1 2\n", "3\n"), Test("4 5\n", "9\n"))
ADD = calls(([1, 2], 3), ([4, 5], 9))

STDIN_SHAPES = {
    "taco": {"inputs": ["1 2\n", "4 5\n"], "outputs": ["3\n", "9\n"]},
    "taco, null fn_name": {"inputs": ["1 2\n", "4 5\n"], "outputs": ["3\n", "9\n"], "fn_name": None},
    "lcbv5": [
        {"input": "1 2\n", "output": "3\n", "testtype": "stdin"},
        {"input": "4 5\n", "output": "9\n", "testtype": "stdin"},
    ],
    "primeintellect": [
        {"type": "stdin_stdout", "input": "1 2\n", "output": "3\n"},
        {"type": "stdin_stdout", "input": "4 5\n", "output": "9\n"},
    ],
    "codeforces": [{"input": "1 2\n", "output": "3\n"}, {"input": "4 5\n", "output": "9\n"}],
}
CALL_SHAPES = {
    "taco native": ({"inputs": [[1, 2], [4, 5]], "outputs": [3, 9], "fn_name": "add"}, {}),
    "taco wrapped": ({"inputs": [[1, 2], [4, 5]], "outputs": [[3], [9]], "fn_name": "add"}, {}),
    "taco text": ({"inputs": ["[1, 2]", "[4, 5]"], "outputs": ["3", "9"], "fn_name": "add"}, {}),
    "taco lines": ({"inputs": ["1\n2", "4\n5"], "outputs": ["3", "9"], "fn_name": "add"}, {}),
    "lcbv5": (
        [
            {"input": "1\n2", "output": "3", "testtype": "functional"},
            {"input": "4\n5\n", "output": "9", "testtype": "functional"},
        ],
        {"func_name": "add"},
    ),
    "primeintellect native": (
        [
            {"type": "function_call", "fn_name": "add", "input": [1, 2], "output": 3},
            {"type": "function_call", "fn_name": "add", "input": [4, 5], "output": 9},
        ],
        {},
    ),
    "primeintellect text": (
        [
            {"type": "function_call", "input": "[1, 2]", "output": "3"},
            {"type": "function_call", "input": "[4, 5]", "output": "9"},
        ],
        {"fn_name": "add"},
    ),
}


@pytest.mark.parametrize("raw", STDIN_SHAPES.values(), ids=STDIN_SHAPES)
@pytest.mark.parametrize("encode", [lambda raw: raw, json.dumps, lambda raw: json.dumps(json.dumps(raw))])
def test_stdin_shapes(raw: Any, encode: Callable[[Any], Any]) -> None:
    test_set = parse_tests(encode(raw), {"func_name": None})
    assert (test_set.kind, test_set.entry_point, test_set.tests) == ("stdin", "", STDIN)


@pytest.mark.parametrize(("raw", "metadata"), CALL_SHAPES.values(), ids=CALL_SHAPES)
@pytest.mark.parametrize("encode", [lambda raw: raw, json.dumps])
def test_call_shapes(raw: Any, metadata: Any, encode: Callable[[Any], Any]) -> None:
    test_set = parse_tests(encode(raw), encode(metadata))
    assert (test_set.kind, test_set.entry_point, test_set.tests) == ("call", "add", ADD)


@pytest.mark.parametrize("raw", [*STDIN_SHAPES.values(), *(raw for raw, _ in CALL_SHAPES.values())])
def test_normalize_tests_says_all_and_is_idempotent(raw: Any) -> None:
    once = normalize_tests(raw, {"func_name": "add"} if raw not in STDIN_SHAPES.values() else None)
    assert all(test.keys() == {"input", "output", "testtype", "metadata"} for test in once)
    assert normalize_tests(once) == once
    assert normalize_tests(json.dumps(once), "{}") == once


def call_outputs(outputs: list[Any], inputs: list[Any] | None = None) -> list[Any]:
    inputs = inputs or [[1]] * len(outputs)
    return [json.loads(t.expected) for t in parse_tests({"inputs": inputs, "outputs": outputs, "fn_name": "f"}).tests]


def test_outputs_beside_native_inputs() -> None:
    assert call_outputs(["abc", "12"]) == ["abc", "12"], "strings that are not all JSON are the strings returned"
    assert call_outputs(["321", "45"]) == ["321", "45"], "digits too, or reversing '123' could not be asked for"
    assert call_outputs(["[1, 2]", "[]"]) == [[1, 2], []], "JSON that is not numbers is decoded"
    assert call_outputs(["true", "false"]) == [True, False]
    assert call_outputs([[1, 2], [3]]) == [[1, 2], [3]], "lists of several lengths are the lists returned"
    assert call_outputs([[[1, 2]], [[3]]]) == [[1, 2], [3]], "one-element lists throughout are a wrapping"


def test_outputs_beside_text_inputs() -> None:
    assert call_outputs(["321", "45"], ["[1]", "[2]"]) == [321, 45]
    assert call_outputs(["abc", "45"], ["[1]", "[2]"]) == ["abc", "45"]


def test_livecodebench_lists_are_not_unwrapped() -> None:
    raw = [{"input": "[1]", "output": "[1]", "testtype": "functional"}]
    assert parse_tests(raw, {"func_name": "f"}).tests == calls(([[1]], [1]))


def test_one_argument_that_is_not_a_list() -> None:
    raw = {"inputs": [5, {"a": 1}], "outputs": [1, 2], "fn_name": "f"}
    assert parse_tests(raw).tests == calls(([5], 1), ([{"a": 1}], 2))


def test_stdin_values_that_are_not_strings() -> None:
    raw = {"inputs": [5, ["1", "2 3"], [[1, 2], [3.5]]], "outputs": [1, ["a"], "x"]}
    assert parse_tests(raw).tests == (Test("5", "1"), Test("1\n2 3", "a"), Test("1 2\n3.5", "x"))


def test_lines_that_bring_their_own_end() -> None:
    raw = {"inputs": [["2\n", "1 2\n"], ["1\r\n", "\n", 2]], "outputs": [["1\n", "2\n"], ["3\n"]]}
    assert parse_tests(raw).tests == (Test("2\n1 2\n", "1\n2\n"), Test("1\n\n2", "3\n"))


DROPS: dict[str, list[Any]] = {
    "no_tests": [None, "", "[]", [], {"inputs": [], "outputs": []}, "null"],
    "tests_not_json": ["{", "[1,", "\x00", "[" * 100_000],
    "unknown_test_shape": [5, "7", [1], [None], [{"input": "1"}], {"a": 1}, {"inputs": "1", "outputs": "2"}],
    "unequal_inputs_outputs": [{"inputs": ["1"], "outputs": []}],
    "unknown_test_type": [
        [{"input": "1", "output": "1", "type": "interactive"}],
        [{"input": "1", "output": "1", "type": ["stdin"]}],
    ],
    "mixed_test_kinds": [
        [
            {"input": "1", "output": "1", "testtype": "stdin"},
            {"input": "1", "output": "1", "testtype": "functional"},
        ],
        [{"input": "1 2", "output": "3"}, {"input": "1\n2", "output": "3", "fn_name": "add"}],
    ],
    "several_entry_points": [
        [
            {"input": [1], "output": 1, "type": "function_call", "fn_name": "f"},
            {"input": [1], "output": 1, "type": "function_call", "fn_name": "g"},
        ]
    ],
    "no_entry_point": [[{"input": "1", "output": "1", "testtype": "functional"}]],
    "bad_entry_point": [{"inputs": [[1]], "outputs": [1], "fn_name": "import os; f"}],
    "stdin_value_not_text": [
        {"inputs": [None], "outputs": ["1"]},
        {"inputs": ["1"], "outputs": [True]},
        {"inputs": [{}], "outputs": ["1"]},
    ],
    "call_input_not_json": [{"inputs": ["abc"], "outputs": ["1"], "fn_name": "f"}],
    "test_value_not_json": [{"inputs": [[b"1"]], "outputs": [1], "fn_name": "f"}],
}


@pytest.mark.parametrize(("reason", "raw"), [(reason, raw) for reason, raws in DROPS.items() for raw in raws])
def test_what_cannot_be_read_is_dropped_with_its_reason(reason: str, raw: Any) -> None:
    with pytest.raises(RowDropped) as caught:
        parse_tests(raw)
    assert caught.value.reason == reason


def test_functional_outputs_must_be_json() -> None:
    raw = [{"input": "1", "output": "abc", "testtype": "functional"}]
    with pytest.raises(RowDropped, match="call_output_not_json"):
        parse_tests(raw, {"func_name": "f"})


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TEST_LIKE = st.fixed_dictionaries(
    {},
    optional={
        "input": JSON_VALUES,
        "output": JSON_VALUES,
        "testtype": st.sampled_from(["stdin", "functional", "other", None]),
        "type": st.sampled_from(["stdin_stdout", "function_call", None]),
        "fn_name": st.sampled_from(["f", "", None, 3]),
    },
)
TACO_LIKE = st.fixed_dictionaries(
    {"inputs": st.lists(JSON_VALUES, max_size=3), "outputs": st.lists(JSON_VALUES, max_size=3)},
    optional={"fn_name": st.sampled_from(["f", None, 3])},
)
RAW = JSON_VALUES | TEST_LIKE | st.lists(TEST_LIKE, max_size=3) | TACO_LIKE


@given(raw=RAW | RAW.map(json.dumps), metadata=JSON_VALUES | st.just({"func_name": "f"}) | st.text(max_size=9))
def test_anything_is_tests_or_a_drop(raw: Any, metadata: Any) -> None:
    try:
        test_set = parse_tests(raw, metadata)
    except RowDropped as drop:
        assert drop.reason
        return
    assert test_set.tests
    for test in test_set.tests:
        assert isinstance(test.input, str) and isinstance(test.expected, str)
        if test_set.kind == "call":
            assert isinstance(json.loads(test.input), list)
            json.loads(test.expected)
