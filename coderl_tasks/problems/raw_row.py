"""One raw row to one problem: statement, starter code, tests, solutions, time limit and identity."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from coderl_tasks.problems.drops import RowDropped
from coderl_tasks.problems.problem import Problem
from coderl_tasks.problems.raw_tests import TestSet, as_mapping, parse_tests

MAX_TIME_LIMIT_S = 60.0
ID_HEX_DIGITS = 16


def problem_from_row(row: Any, *, split: str, source_row: int) -> Problem:
    """The problem in one raw row, with all its tests.

    Raises RowDropped: row_not_object, no_statement, not_utf8, or a reason of `parse_tests`.
    """
    if not isinstance(row, Mapping):
        raise RowDropped("row_not_object", str(row))
    statement = statement_of(row)
    if statement is None:
        raise RowDropped("no_statement")
    test_set = parse_tests(row.get("tests"), row.get("metadata"))
    starter_code = row.get("starter_code")
    starter_code = starter_code if isinstance(starter_code, str) else ""
    solutions = _solutions(row.get("solutions"))
    own_id = row.get("problem_id")
    texts = [statement, starter_code, test_set.entry_point, str(own_id), *solutions, *_texts(test_set)]
    try:
        for text in texts:
            if not text.isascii():
                text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowDropped("not_utf8", str(error)) from None
    return Problem(
        problem_id=_own_id(own_id) or content_id(statement, starter_code, test_set),
        split=split,
        statement=statement,
        starter_code=starter_code,
        kind=test_set.kind,
        entry_point=test_set.entry_point,
        tests=test_set.tests,
        tests_total=len(test_set.tests),
        tests_original=len(test_set.tests),
        time_limit_s=_time_limit_s(row),
        solutions=solutions,
        source_row=source_row,
    )


def statement_of(row: Mapping[str, Any]) -> str | None:
    """The first non-blank string of `question`, `prompt`, `problem`; None if there is none."""
    values = (row.get(key) for key in ("question", "prompt", "problem"))
    return next((value for value in values if isinstance(value, str) and value.strip()), None)


def content_id(statement: str, starter_code: str, test_set: TestSet) -> str:
    """A problem's identity: a hash of what is asked and all its tests, the same on every machine and in every split."""
    # The hash of json.dumps([statement, starter_code, kind, entry_point, [[input, expected], ...]]), test by test: the
    # whole text of a row of 200 MB would be held several times over.
    head = json.dumps([statement, starter_code, test_set.kind, test_set.entry_point])
    digest = hashlib.sha256(f"{head[:-1]}, [".encode())
    for number, test in enumerate(test_set.tests):
        digest.update(b", " if number else b"")
        digest.update(json.dumps([test.input, test.expected]).encode())
    digest.update(b"]]")
    return digest.hexdigest()[:ID_HEX_DIGITS]


def _own_id(value: Any) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value.strip() if isinstance(value, str) and value.strip() else None


def _texts(test_set: TestSet) -> Iterator[str]:
    for test in test_set.tests:
        yield test.input
        yield test.expected


def _solutions(value: Any) -> tuple[str, ...]:
    """Reference solutions: a list of programs, a JSON list of them as text, or one program as text."""
    if isinstance(value, str):
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            decoded = value
        value = decoded if isinstance(decoded, list) else [value]
    if not isinstance(value, list | tuple):
        return ()
    return tuple(solution for solution in value if isinstance(solution, str) and solution.strip())


def _time_limit_s(row: Mapping[str, Any]) -> float | None:
    """Seconds a test may take, where the row or its metadata says so: a number, "2 seconds", "500 ms", {"seconds"}."""
    metadata = as_mapping(row.get("metadata"))
    for source in (row, metadata):
        for key in ("time_limit_s", "time_limit"):
            seconds = _seconds(source.get(key))
            if seconds is not None and 0 < seconds <= MAX_TIME_LIMIT_S:
                return seconds
    return None


def _seconds(value: Any) -> float | None:
    if isinstance(value, Mapping):
        whole, nanos = value.get("seconds"), value.get("nanos") or 0
        if isinstance(whole, int | float) and isinstance(nanos, int | float):
            return float(whole) + float(nanos) / 1e9
        return None
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str):
        match = re.fullmatch(
            r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|milliseconds?|s|sec|secs|seconds?)?\.?\s*", value.lower()
        )
        if match:
            return float(match[1]) / (1000.0 if (match[2] or "").startswith("m") else 1.0)
    return None
