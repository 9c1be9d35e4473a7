"""From a problem to prompt tokens: LiveCodeBench's question, word for word.

The one place where profiling, training and evaluation get their prompts: policies are trained and compared on exactly
this one. Source of the wording: LiveCodeBench, lcb_runner/prompts/code_generation.py (arXiv:2403.07974).
"""

import json
from collections.abc import Mapping
from typing import Any

from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.raw_row import statement_of
from coderl_tasks.prompts.renderers import Message, Renderer

LCB_SYSTEM_MESSAGE_GENERIC = (
    "You are an expert Python programmer. You will be given a question (problem specification) and will generate "
    "a correct Python program that matches the specification and passes all tests."
)
FORMAT_WITH_STARTER_CODE = (
    "You will use the following starter code to write the solution to the problem and enclose your code within "
    "delimiters."
)
FORMAT_WITHOUT_STARTER_CODE = (
    "Read the inputs from stdin solve the problem and write the answer to stdout (do not directly test on the "
    "sample inputs). Enclose your code within delimiters as follows. Ensure that when the python program runs, it "
    "reads the inputs, runs the algorithm and writes output to STDOUT."
)


def question_text(statement: str, starter_code: str | None = None) -> str:
    """The user message for one problem: question, format with a fence, answer line. Blank starter code is none."""
    has_starter = starter_code is not None and starter_code.strip() != ""
    rule = FORMAT_WITH_STARTER_CODE if has_starter else FORMAT_WITHOUT_STARTER_CODE
    fenced = starter_code if has_starter else "# YOUR CODE HERE"
    return (
        f"### Question:\n{statement}\n\n"
        f"### Format: {rule}\n```python\n{fenced}\n```\n\n"
        "### Answer: (use the provided format with backticks)\n\n"
    )


def fetch_live_code_bench_system_prompt(prompt: str, starter_code: str | None = None) -> str:
    """The whole prompt as one text, system message first, for callers that send a single message.

    `problem_messages` sends the same two parts as a system and a user message.
    """
    return f"{LCB_SYSTEM_MESSAGE_GENERIC}\n\n{question_text(prompt, starter_code)}"


def build_question(example: Mapping[str, Any]) -> str | None:
    """The one-text prompt of a raw row, or None if it has no question.

    The statement is the one that `statement_of` finds; `starter_code` is optional.
    """
    statement = statement_of(example)
    if statement is None:
        return None
    starter_code = example.get("starter_code")
    return fetch_live_code_bench_system_prompt(statement, starter_code if isinstance(starter_code, str) else None)


def problem_messages(problem: Problem) -> list[Message]:
    """LiveCodeBench's system and user message for `problem`."""
    return [
        {"role": "system", "content": LCB_SYSTEM_MESSAGE_GENERIC},
        {"role": "user", "content": question_text(problem.statement, effective_starter_code(problem))},
    ]


def problem_prompt(problem: Problem, renderer: Renderer) -> list[int]:
    """The prompt of `problem` as tokens, ready for sampling."""
    return renderer.prompt_tokens(problem_messages(problem))


def effective_starter_code(problem: Problem) -> str:
    """The problem's starter code, or for a `call` problem without one a bare signature.

    A policy that is not told the function's name and number of arguments could never pass such a problem: the format
    rule without starter code asks for a program that reads stdin. Without tests the
    signature takes any number of arguments.
    """
    if problem.kind != "call" or problem.starter_code.strip():
        return problem.starter_code
    parameters = "*args"
    if problem.tests:
        arguments = json.loads(problem.tests[0].input)
        parameters = ", ".join(f"arg{i + 1}" for i in range(len(arguments)))
    return f"def {problem.entry_point}({parameters}):\n    "
