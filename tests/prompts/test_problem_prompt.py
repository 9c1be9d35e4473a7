import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.prompts import (
    build_question,
    fetch_live_code_bench_system_prompt,
    get_renderer,
    problem_messages,
    problem_prompt,
)
from coderl_tasks.prompts.renderers import effective_starter_code


def problem(**changes: Any) -> Problem:
    values: dict[str, Any] = {
        "problem_id": "p",
        "split": "taco",
        "statement": "Add two numbers.",
        "starter_code": "",
        "kind": "stdin",
        "entry_point": "",
        "tests": (Test("1 2\n", "3\n"),),
        "tests_total": 1,
        "tests_original": 1,
        "time_limit_s": None,
        "solutions": (),
        "source_row": 0,
    }
    return Problem(**(values | changes))


def test_without_starter_code() -> None:
    text = fetch_live_code_bench_system_prompt("Add.")
    assert text == (
        "You are an expert Python programmer. You will be given a question (problem specification) and will generate "
        "a correct Python program that matches the specification and passes all tests.\n\n"
        "### Question:\nAdd.\n\n"
        "### Format: Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test "
        "on the sample inputs). Enclose your code within delimiters as follows. Ensure that when the python program "
        "runs, it reads the inputs, runs the algorithm and writes output to STDOUT.\n"
        "```python\n# YOUR CODE HERE\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


def test_with_starter_code() -> None:
    text = fetch_live_code_bench_system_prompt("Add.", "class Solution:\n    def add(self, a, b):")
    assert text.endswith(
        "### Format: You will use the following starter code to write the solution to the problem and enclose your "
        "code within delimiters.\n```python\nclass Solution:\n    def add(self, a, b):\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


@pytest.mark.parametrize("key", ["question", "prompt", "problem"])
def test_build_question_takes_the_statement_from_any_of_three_keys(key: str) -> None:
    assert build_question({key: "Add."}) == fetch_live_code_bench_system_prompt("Add.")
    starter = "def add(a, b):"
    assert build_question({key: "Add.", "starter_code": starter}) == fetch_live_code_bench_system_prompt(
        "Add.", starter
    )


@pytest.mark.parametrize("example", [{}, {"problem": ""}, {"problem": " \n"}, {"question": None}, {"prompt": 3}])
def test_build_question_is_none_without_a_question(
    example: dict[str, Any],
) -> None:
    assert build_question(example) is None


def test_blank_starter_code_counts_as_none() -> None:
    assert build_question({"problem": "Add.", "starter_code": " \n"}) == fetch_live_code_bench_system_prompt("Add.")


def test_the_two_messages_hold_the_one_text() -> None:
    system, user = problem_messages(problem())
    assert f"{system['content']}\n\n{user['content']}" == fetch_live_code_bench_system_prompt("Add two numbers.")


def test_call_problems_without_starter_code_name_their_function() -> None:
    call = problem(kind="call", entry_point="add", tests=(Test(json.dumps([1, 2]), "3"),))
    assert effective_starter_code(call) == "def add(arg1, arg2):\n    "
    assert "def add(arg1, arg2):" in problem_messages(call)[1]["content"]
    assert effective_starter_code(problem(kind="call", entry_point="f", tests=())) == "def f(*args):\n    "
    assert effective_starter_code(problem(kind="call", entry_point="f", starter_code="def f(n):")) == "def f(n):"


def test_problem_prompt_is_the_rendered_messages(tokenizer: PreTrainedTokenizerFast) -> None:
    renderer = get_renderer("qwen3_instruct", tokenizer)
    tokens = problem_prompt(problem(), renderer)
    assert tokens == renderer.prompt_tokens(problem_messages(problem()))
    text = str(tokenizer.decode(tokens, skip_special_tokens=False))
    assert text.startswith("<|im_start|>system\nYou are an expert") and text.endswith("<|im_start|>assistant\n")
