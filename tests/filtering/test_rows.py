import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.filtering.parts import part_row
from coderl_tasks.filtering.rows import RowRules, filter_problem, parse, sanity
from coderl_tasks.filtering.signature import signature_of
from coderl_tasks.problems.problem import Drop, Problem, Test
from coderl_tasks.problems.raw_files import RawRow, Unread
from tests.filtering.made_problems import make_problem, make_row

SIX = {str(number): str(number) for number in range(6)}


def outcome(row: RawRow, rules: RowRules | None) -> Problem | Drop:
    parsed = parse(row)
    return parsed if isinstance(parsed, Drop) else filter_problem(parsed, rules)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (make_problem("s", SIX), None),
        (make_problem("s" * 101, SIX), "statement_too_long"),
        (make_problem("s", dict(list(SIX.items())[:4])), "too_few_tests"),
        (make_problem("s", {}, tests=(Test("1", "1"),) * 9), "too_few_tests"),
        (make_problem("s", dict.fromkeys(SIX, " \n")), "no_expected_output"),
        (make_problem("s", SIX | {"0 ": "1"}), "contradictory_tests"),
        (make_problem("s", SIX | {"0 ": "0 \n"}), None),
        (make_problem("s", {**SIX, "7": "0.50", "7 ": "0.5"}), None),
        (make_problem("s", {**SIX, "7": '""', "8": '""'}, kind="call"), None),
        (make_problem("s", {**SIX, "[7]": "[1, 2]", "[7] ": "[1,2]"}, kind="call"), None),
        (make_problem("s", {**SIX, "[7]": "[1, 2]", "[7] ": "[1, 3]"}, kind="call"), "contradictory_tests"),
    ],
)
def test_sanity(problem: Problem, reason: str | None) -> None:
    fault = sanity(problem, RowRules(max_statement_chars=100))
    assert (fault[0] if fault else None) == reason


def test_trimming_is_recorded_and_comes_after_the_checks() -> None:
    filtered = outcome(RawRow("taco", 3, make_row("A sum.", count=9)), RowRules(max_tests=2, min_tests=9))
    assert isinstance(filtered, Problem)
    assert (len(filtered.tests), filtered.tests_total, filtered.tests_original) == (2, 2, 9)


def test_a_row_that_was_too_large_to_read() -> None:
    drop = parse(RawRow("taco", 3, Unread("row_too_large", "3072 MiB")))
    assert isinstance(drop, Drop)
    assert (drop.stage, drop.reason, drop.detail, drop.source_row) == ("sanity", "row_too_large", "3072 MiB", 3)


def test_evaluation_problems_are_only_parsed() -> None:
    filtered = outcome(RawRow("codeforces", 0, make_row("A sum.", count=2)), None)
    assert isinstance(filtered, Problem)
    assert (len(filtered.tests), filtered.tests_original) == (1, 2)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)
test_keys = st.sampled_from(["input", "output", "type", "testtype", "fn_name", "metadata", "inputs", "outputs"])
test_values = values | st.sampled_from(["stdin", "functional", "stdin_stdout", "function_call", "f", "[1]", "1\n2"])
raw_tests = st.dictionaries(test_keys, test_values) | st.lists(st.dictionaries(test_keys, test_values), max_size=4)
some_tests = raw_tests | raw_tests.map(lambda tests: json.dumps(tests)) | values
row_keys = (
    "problem",
    "question",
    "prompt",
    "tests",
    "metadata",
    "starter_code",
    "solutions",
    "problem_id",
    "time_limit",
)
rows = st.fixed_dictionaries(
    {}, optional={name: some_tests if name == "tests" else values | st.text(min_size=1) for name in row_keys}
)


@given(rows | values)
def test_any_row_becomes_a_problem_or_a_drop_with_a_reason(row: Any) -> None:
    rules = RowRules(min_tests=1, max_tests=2, max_statement_chars=20)
    filtered = outcome(RawRow("taco", 0, row), rules)
    if isinstance(filtered, Drop):
        assert filtered.stage in ("parse", "sanity")
        assert filtered.reason
        assert filtered.detail.isprintable()
    else:
        part_row(filtered, signature_of(filtered))
