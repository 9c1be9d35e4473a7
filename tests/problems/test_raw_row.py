import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.problems.problem import Problem, RowDropped, Test, problems_frame, problems_from_frame, trim_tests
from coderl_tasks.problems.raw_row import SOLUTION_COLUMNS, STATEMENT_COLUMNS, problem_from_row

TESTS = [{"input": "1\n", "output": "1\n"}, {"input": "22\n", "output": "2\n"}]
ROW = {"problem": "Count the digits.", "tests": json.dumps(TESTS)}


def make(**changes: Any) -> Problem:
    return problem_from_row(ROW | changes, split="codeforces", source_row=4)


def test_a_whole_row() -> None:
    problem = make(solutions=["print(len(input()))"], starter_code=None, metadata='{"time_limit": "2 seconds"}')
    assert problem == Problem(
        problem_id=problem.problem_id,
        split="codeforces",
        statement="Count the digits.",
        starter_code="",
        kind="stdin",
        entry_point="",
        tests=(Test("1\n", "1\n"), Test("22\n", "2\n")),
        tests_total=2,
        tests_original=2,
        time_limit_s=2.0,
        solutions=("print(len(input()))",),
        source_row=4,
    )
    assert problems_from_frame(problems_frame([problem])) == [problem]


def test_identity_is_of_the_content() -> None:
    other_place = problem_from_row(ROW | {"solutions": ["x"]}, split="taco", source_row=9)
    assert make().problem_id == other_place.problem_id == "28eaefbe965a5c0d"
    assert make().problem_id != make(problem="Count the letters.").problem_id
    assert make().problem_id != make(tests=TESTS[:1]).problem_id
    assert make(problem_id="cf-12A").problem_id == "cf-12A"
    assert make(problem_id=12).problem_id == "12"


@pytest.mark.parametrize(
    ("limit", "seconds"),
    [
        (2, 2.0),
        (1.5, 1.5),
        ("3", 3.0),
        ("2.5 seconds", 2.5),
        ("500 ms", 0.5),
        ("1 second.", 1.0),
        ("100 seconds", 60.0),
        ("100000 ms", 60.0),
        ("100", None),
        ({"seconds": 2, "nanos": 500_000_000}, 2.5),
        ({"seconds": 100}, 60.0),
        (None, None),
        ("soon", None),
        (0, None),
        (-1, None),
        (1e9, None),
        (True, None),
        (float("nan"), None),
    ],
)
def test_time_limits(limit: Any, seconds: float | None) -> None:
    assert make(time_limit=limit).time_limit_s == seconds
    assert make(metadata={"time_limit": limit}).time_limit_s == seconds


def test_a_row_may_name_a_comparator_which_is_a_part_of_what_is_asked() -> None:
    plain, unordered = make(), make(comparator="lines_any_order")
    assert (plain.comparator, unordered.comparator) == ("tokens", "lines_any_order")
    assert plain.problem_id == make(comparator="tokens").problem_id == make(comparator="").problem_id
    assert plain.problem_id != unordered.problem_id
    assert make(metadata={"comparator": "float:1e-4"}).comparator == "float:1e-4"
    assert Problem.from_row(unordered.to_row()) == unordered
    for name in ("sorted", 1e-6, {"float": 1e-6}):
        with pytest.raises(RowDropped, match=r"unknown_comparator: .*there are tokens, exact, ") as dropped:
            make(comparator=name)
        assert dropped.value.reason == "unknown_comparator"


@pytest.mark.parametrize(
    ("value", "solutions"),
    [
        (["a", "", None, "b"], ("a", "b")),
        ('["a", "b"]', ("a", "b")),
        ("print(1)", ("print(1)",)),
        ("3", ("3",)),
        (None, ()),
        (7, ()),
    ],
)
def test_solutions(value: int | list[str | None] | str | None, solutions: tuple[str, ...]) -> None:
    assert make(solutions=value).solutions == solutions


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("text", "row_not_object"),
        (None, "row_not_object"),
        ({"tests": TESTS}, "no_statement"),
        ({"problem": "  ", "tests": TESTS}, "no_statement"),
        ({"problem": "p"}, "no_tests"),
        ({"problem": "p\ud800", "tests": TESTS}, "not_utf8"),
        ({"problem": "p", "tests": [{"input": "\udcff", "output": ""}]}, "not_utf8"),
    ],
)
def test_rows_that_cannot_be_used(row: Any, reason: str) -> None:
    with pytest.raises(RowDropped) as caught:
        problem_from_row(row, split="taco", source_row=0)
    assert caught.value.reason == reason


IN_OUT = {"inputs": ["1\n", "22\n"], "outputs": ["1\n", "2\n"]}
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Count the digits."}]
CALLS = [{"type": "function_call", "fn_name": "f", "input": "[1, 2]", "output": "3"}]
OTHER_COLUMNS = {
    "the pool's name": {"statement": "Count the digits.", "tests": TESTS},
    "open-r1": {
        "problem_statement": "Count the digits.",
        "verification_info": {"language": "python", "test_cases": TESTS},
    },
    "open-r1 as text": {
        "problem": "Count the digits.",
        "verification_info": json.dumps({"test_cases": json.dumps(IN_OUT)}),
    },
    "TRL, text": {"prompt": "Count the digits.", "ground_truth": json.dumps(TESTS)},
    "TRL, chat": {"prompt": CHAT[1:], "tests": IN_OUT, "solution": "print(len(input()))"},
    "APPS": {"question": "Count the digits.", "input_output": json.dumps(IN_OUT)},
    "verl": {
        "data_source": "taco",
        "prompt": CHAT,
        "ability": "code",
        "reward_model": {"style": "rule", "ground_truth": json.dumps(IN_OUT)},
        "extra_info": {"index": 0, "split": "train"},
    },
    "an answer beside the tests": ROW | {"ground_truth": "2"},
    "the same tests twice": ROW | {"ground_truth": IN_OUT},
    "text before chat": ROW | {"prompt": CHAT, "problem": "Count the digits."},
    "content in one part": ROW
    | {"problem": [{"role": "user", "content": [{"type": "text", "text": "Count the digits."}]}]},
}


@pytest.mark.parametrize("row", OTHER_COLUMNS.values(), ids=OTHER_COLUMNS)
def test_columns_that_other_trainers_use(row: dict[str, Any]) -> None:
    problem = problem_from_row(row, split="codeforces", source_row=4)
    assert problem.problem_id == make().problem_id


@pytest.mark.parametrize("place", ["metadata", "extra_info", "verification_info"])
def test_a_function_is_named_beside_the_tests(place: str) -> None:
    row = {"prompt": "Add.", "ground_truth": {"inputs": ["1\n2"], "outputs": ["3"]}, place: {"fn_name": "add"}}
    problem = problem_from_row(row, split="s", source_row=0)
    assert (problem.kind, problem.entry_point, problem.tests) == ("call", "add", (Test("[1, 2]", "3"),))


def test_a_reference_in_the_singular() -> None:
    fenced = "```python\nprint(len(input()))\n```"
    assert make(gold_standard_solution=fenced).solutions == (fenced,)
    assert make(solution="a", solutions=["b"]).solutions == ("b",)


@pytest.mark.parametrize(
    ("row", "reason", "detail"),
    [
        ({"text": "p", "tests": TESTS}, "no_statement", "question, prompt, .* columns: text, tests"),
        ({"problem": " ", "tests": TESTS}, "no_statement", r"columns: problem \(blank\), tests"),
        ({"prompt": "p", "cases": TESTS}, "no_tests", "none in tests, reward_model.* columns: prompt, cases"),
        (
            {"prompt": "p", "ground_truth": "42"},
            "no_tests",
            "^no tests are in ground_truth, which is '42'; .*--environment=custom",
        ),
        (
            {"prompt": "p", "reward_model": {"ground_truth": "[]"}},
            "no_tests",
            r"reward_model.ground_truth, which is '\[\]'",
        ),
        ({"prompt": [CHAT[1]] * 2, "tests": TESTS}, "ambiguous_prompt", "roles: user, user"),
        ({"prompt": [*CHAT, {"role": "assistant", "content": "2"}]}, "ambiguous_prompt", "system, user, assistant"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "ambiguous_prompt", "prompt needs one"),
        (ROW | {"ground_truth": CALLS}, "ambiguous_tests", "tests and ground_truth hold different tests"),
        (
            ROW | {"reward_model": {"ground_truth": ["42"]}},
            "unknown_test_shape",
            "reward_model.ground_truth: .* is a str",
        ),
        ({"prompt": "p", "tests": [{"stdin": ""}]}, "unknown_test_shape", "needs input and output .* keys: stdin"),
        ({"prompt": "p", "ground_truth": IN_OUT | {"assert_case": ["assert f()"]}}, "mixed_test_kinds", "assert_case"),
        (ROW | {"verification_info": {"language": "cpp"}}, "not_python", "language is cpp"),
        (ROW | {"language": "C++"}, "not_python", r"^language is C\+\+"),
        (ROW | {"extra_info": {"language": "java"}}, "not_python", "extra_info.language is java"),
        (
            ROW | {"tests": CALLS[0] | {"fn_name": None}, "metadata": {"fn_name": "f"}, "extra_info": {"fn_name": "g"}},
            "several_entry_points",
            "f, g",
        ),
    ],
)
def test_what_is_found_and_what_is_missing_is_told(row: dict[str, Any], reason: str, detail: str) -> None:
    with pytest.raises(RowDropped) as caught:
        problem_from_row(row, split="s", source_row=0)
    assert caught.value.reason == reason
    assert re.search(detail, caught.value.detail), caught.value.detail


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6) | st.binary(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
MESSAGE = st.fixed_dictionaries(
    {}, optional={"role": st.sampled_from(["user", "system", "assistant", None]), "content": ANYTHING}
)
PROMPT = ANYTHING | st.lists(MESSAGE | ANYTHING, max_size=3) | st.just(CHAT)
SOME_TESTS = st.sampled_from([TESTS, IN_OUT, CALLS, json.dumps(IN_OUT), None]) | ANYTHING
NAMED = {"fn_name": st.sampled_from(["f", None, 3]), "language": st.sampled_from(["python", "go", 1])}
NESTED = {
    "reward_model": st.fixed_dictionaries({}, optional={"style": ANYTHING, "ground_truth": SOME_TESTS}),
    "verification_info": st.fixed_dictionaries({}, optional={"test_cases": SOME_TESTS, **NAMED}),
    "extra_info": st.fixed_dictionaries({}, optional=NAMED),
}
ANY_ROW = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(STATEMENT_COLUMNS, PROMPT),
        **dict.fromkeys(("tests", "ground_truth", "input_output"), SOME_TESTS),
        **{name: values | values.map(str) | ANYTHING for name, values in NESTED.items()},
        **dict.fromkeys(("starter_code", "metadata", *SOLUTION_COLUMNS, "problem_id", "time_limit"), ANYTHING),
    },
)


@given(ANY_ROW)
def test_any_row_is_a_storable_problem_or_a_drop_that_says_why(row: Any) -> None:
    try:
        problem = problem_from_row(row, split="taco", source_row=0)
    except RowDropped as drop:
        assert drop.reason.isidentifier() and drop.detail and drop.detail.isprintable()
        return
    assert problems_from_frame(problems_frame([problem])) == [problem]


def with_inputs(*inputs: str) -> Problem:
    return make(tests=[{"input": text, "output": text} for text in inputs])


def test_trimming_keeps_the_longest_inputs_in_order() -> None:
    problem = with_inputs("a", "ccc", "bb", "dddd", "ee")
    trimmed = trim_tests(problem, 3)
    assert [test.input for test in trimmed.tests] == ["ccc", "bb", "dddd"]
    assert (trimmed.tests_total, trimmed.tests_original) == (3, 5)
    assert trimmed.problem_id == problem.problem_id
    assert trim_tests(problem, -1) is problem
    assert trim_tests(problem, 5) is problem


@pytest.mark.parametrize("max_tests", [0, -2])
def test_trimming_refuses_nonsense(max_tests: int) -> None:
    with pytest.raises(ValueError):
        trim_tests(with_inputs("a"), max_tests)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('{"statement": "s"', r"^broken JSON \(.* at character \d+\): \{"),
        ("[1, 2]", "^a JSON array, where a line holds one JSON object"),
        ("5", "^not a JSON object: 5"),
        (None, "^not a JSON object$"),
    ],
)
def test_it_is_said_why_a_line_is_no_row(line: Any, why: str) -> None:
    with pytest.raises(RowDropped) as dropped:
        problem_from_row(line, split="s", source_row=0)
    assert dropped.value.reason == "row_not_object"
    assert re.search(why, dropped.value.detail)


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"question": "q", "answer": "6 #### 7"}, "gsm8k rows: --environment=gsm8k"),
        ({"problem": "q", "answer": "7"}, "the truth is an answer, .*--environment=custom"),
        ({"repo": "r", "base_commit": "c", "problem_statement": "p"}, "SWE-bench"),
        ({"messages": [{"role": "user", "content": "c"}]}, "chats: nothing in them can be checked"),
        ({"description": "d", "private_tests": {"input": []}}, "CodeContests rows: copy description to statement"),
    ],
)
def test_rows_of_well_known_data_sets_are_recognised(row: dict[str, Any], says: str) -> None:
    with pytest.raises(RowDropped) as caught:
        problem_from_row(row, split="s", source_row=0)
    assert re.search(says, caught.value.detail), caught.value.detail


def test_numbers_and_ids_beyond_measure_are_no_traceback() -> None:
    for limit in (10**400, {"seconds": 10**400}, {"seconds": 1, "nanos": 10**400}, float("nan"), float("inf")):
        assert problem_from_row(ROW | {"time_limit": limit}, split="s", source_row=0).time_limit_s is None
    with pytest.raises(RowDropped, match="id_too_long"):
        problem_from_row(ROW | {"problem_id": "../" * 1000}, split="s", source_row=0)
