"""Rows whose ground truth is an answer, not tests of a program: a text to prompt with, and what its reward is told.

The problem has `kind` answer and one test without input, whose `expected` is the ground truth.
"""

import json
from collections.abc import Mapping
from typing import Any

from coderl_tasks.problems.drops import RowDropped
from coderl_tasks.problems.known_rows import known_rows
from coderl_tasks.problems.loading import RowReader
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.problems.raw_row import content_id, row_id
from coderl_tasks.problems.raw_tests import TestSet


def answer_problem(row: Any, text_column: str, truth_column: str, *, split: str, source_row: int) -> Problem:
    """The problem in a row with these two columns; its id is its own `problem_id`, else a hash of both.

    A ground truth that is no text is taken as its JSON. Raises RowDropped: row_not_object, no_prompt, no_ground_truth,
    not_utf8.
    """
    if not isinstance(row, Mapping):
        raise RowDropped("row_not_object", f"not a JSON object: {row}")
    text, truth = row.get(text_column), row.get(truth_column)
    columns = ", ".join(map(str, row)) or "none"
    other = "these have tests: --environment=code" if row.get("tests") else known_rows(row)
    if other is not None and "--environment=" in other:
        columns += f"; {other}"
    if not isinstance(text, str) or not text.strip():
        raise RowDropped("no_prompt", f"no text in {text_column}; columns: {columns}")
    if truth is None:
        raise RowDropped("no_ground_truth", f"nothing in {truth_column}; columns: {columns}")
    if not isinstance(truth, str):
        truth = json.dumps(truth, ensure_ascii=False)
    try:
        for part in (text, truth):
            part.encode()
    except UnicodeEncodeError as error:
        raise RowDropped("not_utf8", str(error)) from None
    tests = (Test("", truth),)
    return Problem(
        problem_id=row_id(row.get("problem_id")) or content_id(text, "", TestSet("answer", "", tests)),
        split=split,
        statement=text,
        starter_code="",
        kind="answer",
        entry_point="",
        tests=tests,
        tests_total=1,
        tests_original=1,
        time_limit_s=None,
        solutions=(),
        source_row=source_row,
    )


def _prompt_row(row: Any, *, split: str, source_row: int) -> Problem:
    return answer_problem(row, "prompt", "ground_truth", split=split, source_row=source_row)


def _question_row(row: Any, *, split: str, source_row: int) -> Problem:
    problem = answer_problem(row, "question", "answer", split=split, source_row=source_row)
    if "####" not in problem.tests[0].expected:
        raise RowDropped("no_ground_truth", "no #### before the final number in answer")
    return problem


QUESTION_ROWS = RowReader(_question_row, ("answer",))
PROMPT_ROWS = RowReader(_prompt_row, ("answer",))
