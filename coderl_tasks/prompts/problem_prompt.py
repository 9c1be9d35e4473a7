"""From a problem to prompt tokens: the one place where profiling, training and evaluation get their prompts."""

import json

from coderl_tasks.problems.problem import Problem
from coderl_tasks.prompts.question import LCB_SYSTEM_MESSAGE_GENERIC, question_text
from coderl_tasks.prompts.renderers import Message, Renderer


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
