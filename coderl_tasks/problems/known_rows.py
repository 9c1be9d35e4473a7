"""Rows of well-known data sets that are not read as they are: what they are, and what to do with them."""

from collections.abc import Mapping
from typing import Any

ASSERTIONS = (
    "tests that are assert statements cannot be run yet: write each as the arguments and the value of a call, "
    '"tests": {"fn_name": "f", "inputs": [[1, 2]], "outputs": [3]}'
)
ANSWERS = (
    "the truth is an answer, not tests: name the columns prompt and ground_truth, and judge them by a function of your "
    "own (--environment=custom)"
)
CHATS = "nothing in them can be checked: training needs tests, or a prompt with a ground_truth (--environment=custom)"

KNOWN_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("SWE-bench rows", ("repo", "base_commit"), "patches of repositories cannot be graded, only programs"),
    ("MBPP rows", ("test_list",), ASSERTIONS),
    ("EvalPlus rows", ("base_input", "plus_input"), ASSERTIONS),
    ("BigCodeBench rows", ("complete_prompt", "test"), "tests that are unittest classes cannot be run"),
    ("HumanEval or LeetCode rows", ("test", "entry_point"), ASSERTIONS),
    ("KodCode rows", ("question", "test"), ASSERTIONS),
    ("AceCode rows", ("question", "test_cases"), ASSERTIONS),
    ("APPS rows without their tests", ("question", "starter_code", "difficulty"), "take its column input_output along"),
    (
        "CodeContests rows",
        ("description", "private_tests"),
        "copy description to statement, and the input and output lists of public_tests, private_tests and "
        'generated_tests into "tests": {"inputs": [...], "outputs": [...]}',
    ),
    (
        "open-r1/codeforces rows",
        ("description", "official_tests"),
        "join description, input_format and output_format to statement, and copy official_tests to tests (take those "
        "with official_tests_complete, and without generated_checker)",
    ),
    (
        "LiveCodeBench rows",
        ("question_content", "public_test_cases"),
        "copy question_content to question and public_test_cases to tests; the private ones are pickled: DeepCoder has "
        "them decoded, in its split lcbv5",
    ),
    ("preference pairs", ("chosen", "rejected"), CHATS),
    ("chats", ("messages",), CHATS),
    ("chats", ("conversations",), CHATS),
    ("instructions", ("instruction", "output"), CHATS),
    ("questions with answers", ("question", "answer"), ANSWERS),
    ("questions with answers", ("problem", "answer"), ANSWERS),
    ("questions with answers", ("problem", "solution"), ANSWERS),
    ("prompts for a reward of your own", ("prompt", "ground_truth"), "--environment=custom"),
    ("verl rows with answers", ("prompt", "reward_model"), ANSWERS),
)
"""What rows with these columns are, most telling first, and what to do."""


def known_rows(row: Mapping[str, Any]) -> str | None:
    """What `row` looks like and what to do with such rows, one line; None where it looks like nothing known."""
    answer = row.get("answer")
    if isinstance(row.get("question"), str) and isinstance(answer, str) and "####" in answer:
        return "these look like gsm8k rows: --environment=gsm8k"
    for name, columns, advice in KNOWN_ROWS:
        if all(row.get(column) is not None for column in columns):
            return f"these look like {name}: {advice}"
    return None


def holds_assertions(row: Mapping[str, Any]) -> bool:
    """Whether the column `test` of `row` holds assertions (HumanEval, LeetCode): its other tests are examples."""
    test = row.get("test")
    return isinstance(test, str) and "assert" in test
