"""One row to one problem: statement, starter code, tests, solutions, time limit and identity.

The columns are those of DeepCoder, APPS and verl, and of TRL with open-r1's code data sets. A row that can be read in
two ways is dropped: a statement or a test that is not what its author meant makes rewards wrong. Of rows of well-known
data sets that cannot be read as they are, KNOWN_ROWS says what they are and what to do with them.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from itertools import chain
from typing import Any

from coderl_tasks.problems.assertion_tests import is_test_code, signatures
from coderl_tasks.problems.benchmark_rows import with_usual_columns
from coderl_tasks.problems.comparators import DEFAULT, comparator
from coderl_tasks.problems.output_checker import Checker, checker_of
from coderl_tasks.problems.problem import PROBLEM_SCHEMA, PROGRAMS, REQUIRED, Problem, RowDropped, Test
from coderl_tasks.problems.raw_files import STATEMENT_COLUMNS, json_or_text
from coderl_tasks.problems.raw_tests import TestSet, as_mapping, decode_json, parse_tests

MAX_TIME_LIMIT_S = 60.0
SHOWN_CHARS = 60
MAX_ID_CHARS = 1000
ID_HEX_DIGITS = 16
TEST_COLUMNS = ("tests", "reward_model.ground_truth", "ground_truth", "verification_info.test_cases", "input_output")
SOLUTION_COLUMNS = ("solutions", "solution", "gold_standard_solution")
DATE_COLUMNS = ("date", "contest_date")
METADATA_COLUMNS = ("metadata", "extra_info", "verification_info")
_TIME = re.compile(r"\s*(\d{1,6}(?:\.\d{1,6})?)\s*(ms|milliseconds?|s|sec|secs|seconds?)?\.?\s*")
PYTHON_NAMES = ("python", "python3", "py")
OTHER_LANGUAGES = (
    "c", "c++", "c#", "cpp", "csharp", "go", "golang", "haskell", "java", "javascript", "js", "julia", "kotlin", "lua",
    "node", "nodejs", "ocaml", "pascal", "perl", "php", "r", "ruby", "rust", "scala", "sql", "swift", "ts",
    "typescript",
)  # fmt: skip
ANSWERS = (
    "the truth is an answer, not tests: name the columns prompt and ground_truth, and judge them by a function of your "
    "own (--environment=custom)"
)
CHATS = "nothing in them can be checked: training needs tests, or a prompt with a ground_truth (--environment=custom)"

KNOWN_ROWS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("SWE-bench rows", ("repo", "base_commit"), "patches of repositories cannot be graded, only programs"),
    ("BigCodeBench rows", ("complete_prompt", "test"), "tests that patch what a program calls cannot be run"),
    ("APPS rows without their tests", ("question", "starter_code", "difficulty"), "take its column input_output along"),
    (
        "CodeContests rows", ("description", "private_tests"),
        "copy description to statement, and the input and output lists of public_tests, private_tests and "
        'generated_tests into "tests": {"inputs": [...], "outputs": [...]}',
    ),
    (
        "open-r1/codeforces rows", ("description", "official_tests"),
        "join description, input_format and output_format to statement, and copy official_tests to tests (take those "
        "with official_tests_complete, and without generated_checker)",
    ),
    ("LiveCodeBench rows without their private tests", ("question_content", "public_test_cases"), "take them along"),
    ("preference pairs", ("chosen", "rejected"), CHATS),
    ("chats", ("messages",), CHATS),
    ("chats", ("conversations",), CHATS),
    ("instructions", ("instruction", "output"), CHATS),
    ("questions with answers", ("question", "answer"), ANSWERS),
    ("questions with answers", ("problem", "answer"), ANSWERS),
    ("questions with answers", ("problem", "solution"), ANSWERS),
    ("prompts for a reward of your own", ("prompt", "ground_truth"), "--environment=custom"),
    ("verl rows with answers", ("prompt", "reward_model"), ANSWERS),
)  # fmt: skip
"""What rows with these columns are, most telling first, and what to do."""


def problem_from_row(row: Any, *, split: str, source_row: int) -> Problem:
    """The problem in one raw row, with all its tests. Raises RowDropped: row_not_object, no_statement,
    ambiguous_prompt, not_python, no_tests, ambiguous_tests, unknown_comparator, bad_checker, unusable_package,
    not_utf8, id_too_long, bad_evalplus_inputs, bad_private_tests, or a reason of `parse_tests`."""
    row = _object(row)
    if row.get("package_fault"):
        raise RowDropped("unusable_package", str(row["package_fault"]))
    row = with_usual_columns(row)  # rows of well-known benchmarks call their columns otherwise
    if (statement := statement_of(row)) is None:
        raise _no_statement(row)
    # These columns may be JSON text. Decode them once: they may hold the tests, up to 200 MB.
    json_columns = [name for name in (*METADATA_COLUMNS, "reward_model") if name in row]
    row = {**row, **{name: as_mapping(row[name]) for name in json_columns}}
    _require_python(row)
    test_set = _tests_of(row)
    starter_code = row["starter_code"] if isinstance(row.get("starter_code"), str) else ""
    solutions = next(filter(None, (_solutions(row.get(name)) for name in SOLUTION_COLUMNS)), ())
    wrong_solutions = _solutions(row.get("wrong_solutions"))
    texts = [statement, starter_code, test_set.entry_point, str(row.get("problem_id")), *solutions, *wrong_solutions]
    require_utf8(chain(texts, *((test.input, test.expected) for test in test_set.tests)))
    # Assertions call functions by name, which the statement may not say: the prompt shows them as starter code.
    if test_set.kind == "assert" and not starter_code.strip():
        starter_code = signatures([test.expected for test in test_set.tests], solutions)
    programs = {"solutions": solutions, "wrong_solutions": wrong_solutions}
    return _problem(row, test_set, statement, starter_code, split=split, source_row=source_row, **programs)


def _require_python(row: Mapping[str, Any]) -> None:
    """Raises RowDropped (not_python) if a row says that its programs are in another programming language."""
    for place in ("verification_info", "", "metadata", "extra_info"):
        language = (row.get(place, {}) if place else row).get("language")
        word = language.strip().lower() if isinstance(language, str) else "python"
        # In all but the first it may also be the statement's (such as "en"), so only known names count.
        if word in OTHER_LANGUAGES or (place == "verification_info" and word not in PYTHON_NAMES):
            raise RowDropped("not_python", f"{place}{'.' if place else ''}language is {language}")


def answer_problem(row: Any, text_column: str, truth_column: str, *, split: str, source_row: int) -> Problem:
    """The problem whose prompt and ground truth are in these two columns. Its id is the row's `problem_id`, else a hash
    of both. A ground truth other than text becomes JSON text. Raises RowDropped: row_not_object, no_prompt,
    no_ground_truth, not_utf8, id_too_long."""
    row = _object(row)
    text, truth = row.get(text_column), row.get(truth_column)
    columns = ", ".join(map(str, row)) or "none"
    other_format = "these have tests: --environment=code" if row.get("tests") else dataset_hint(row)
    if other_format is not None and "--environment=" in other_format:
        columns += f"; {other_format}"
    if not isinstance(text, str) or not text.strip():
        raise RowDropped("no_prompt", f"no text in {text_column}; columns: {columns}")
    if truth is None:
        raise RowDropped("no_ground_truth", f"nothing in {truth_column}; columns: {columns}")
    if not isinstance(truth, str):
        try:
            truth = json.dumps(truth, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:  # a column of dates, decimals or bytes
            raise RowDropped("no_ground_truth", f"{truth_column} is neither text nor JSON: {error}") from None
    require_utf8([text, truth])
    test_set = TestSet("answer", "", (Test("", truth),))
    return _problem(row, test_set, text, "", split=split, source_row=source_row, solutions=())


def _problem(row: Mapping[str, Any], test_set: TestSet, statement: str, starter_code: str, **about: Any) -> Problem:
    """The problem with these tests. Its id is the row's `problem_id`, else a hash of what is asked and the tests."""
    name, checker, time_limit_s = DEFAULT, "", None
    if test_set.kind != "answer":  # an answer is not run
        name = next((str(name) for name in _said(row, "comparator") if name is not None and name != ""), DEFAULT)
        try:
            comparator(name)
        except ValueError as error:
            raise RowDropped("unknown_comparator", str(error)) from None
        if (found := next(filter(None, map(checker_of, _said(row, "checker"))), None)) is not None:
            checker = found.to_text()
            if test_set.kind != "stdin":
                raise RowDropped("bad_checker", "a checker sees what a program prints: these tests call a function")
        time_limit_s = _time_limit_s(row)
    by = f"{name} {checker}" if checker else name
    own_id = row.get("problem_id")
    if isinstance(own_id, int) and not isinstance(own_id, bool):
        own_id = str(own_id)
    if isinstance(own_id, str) and own_id.strip():
        if len(own_id) > MAX_ID_CHARS:
            raise RowDropped("id_too_long", f"problem_id has {len(own_id)} characters, at most {MAX_ID_CHARS}")
        problem_id = own_id.strip()
    else:
        problem_id = content_id(statement, starter_code, test_set, by)
    n = len(test_set.tests)
    return Problem(
        problem_id=problem_id, statement=statement, starter_code=starter_code, tests_total=n, tests_original=n,
        time_limit_s=time_limit_s, comparator=name, checker=checker, **test_set._asdict(), **about,
    )  # fmt: skip


def _said(row: Mapping[str, Any], *names: str) -> Iterator[Any]:
    """What a row says under these names: in its columns, then in its metadata."""
    for place in chain([row], (as_mapping(row.get(name)) for name in METADATA_COLUMNS)):
        yield from map(place.get, names)


def stored_problem(values: Any, kinds: Sequence[str]) -> Problem | None:
    """The problem in a row of PROBLEM_SCHEMA, a pool's, which is checked; None if the row has another form.
    Raises RowDropped: other_environment if it is not of one of `kinds`, or damaged_problem."""
    if not isinstance(values, Mapping) or not values.keys() >= REQUIRED:
        return None
    values = _OPTIONAL_VALUES | dict(values)
    if values["kind"] is not None and values["kind"] not in kinds:
        raise RowDropped("other_environment", f"a problem of kind {values['kind']}, from another environment")
    # These, solutions and wrong_solutions (PROGRAMS) are null if the data set has none. Any other null is damage.
    nullable = {"time_limit_s", "tests_generated", *PROGRAMS}
    missing = [name for name in PROBLEM_SCHEMA if name not in nullable and values[name] is None]
    if missing or not values["tests"]:
        raise RowDropped("damaged_problem", f"no {', '.join(missing) or 'tests'}")
    # Anyone may have written the file, so its values are checked like those of a raw row.
    wrong = [name for name, is_right in _PROBLEM_VALUES.items() if not is_right(values[name])]
    if values["kind"] == "call" and not str(values["entry_point"]).isidentifier():
        wrong.append("entry_point")
    # At least one test is the data set's own.
    if not wrong and (values["tests_generated"] or 0) >= len(values["tests"]):
        wrong.append("tests_generated")
    if wrong:
        raise RowDropped("damaged_problem", f"no values that a problem may have in {', '.join(wrong)}")
    return Problem.from_row(values)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_read(value: Any, read: Callable[[str], Any]) -> bool:
    with suppress(ValueError, TypeError, RecursionError):
        return isinstance(value, str) and read(value) is not None
    return False


_OPTIONAL_VALUES: dict[str, Any] = {"comparator": DEFAULT, "checker": "", "wrong_solutions": (), "tests_generated": 0}
_PROBLEM_VALUES: dict[str, Callable[[Any], bool]] = {
    "problem_id": lambda value: isinstance(value, str) and len(value) <= MAX_ID_CHARS,
    **dict.fromkeys(("split", "statement", "starter_code", "kind", "entry_point"), _is_text),
    **dict.fromkeys(("tests_total", "tests_original", "source_row"), lambda value: isinstance(value, int)),
    "time_limit_s": lambda value: value is None or (isinstance(value, float) and 0 < value <= MAX_TIME_LIMIT_S),
    **dict.fromkeys(
        PROGRAMS, lambda value: value is None or (isinstance(value, list | tuple) and all(map(_is_text, value)))
    ),
    "tests": lambda tests: (
        isinstance(tests, list)
        and all(
            isinstance(test, Mapping) and _is_text(test.get("input")) and _is_text(test.get("expected"))
            for test in tests
        )
    ),
    "tests_generated": lambda value: value is None or (isinstance(value, int) and value >= 0),
    "comparator": lambda value: _is_read(value, comparator),
    "checker": lambda value: value == "" or _is_read(value, Checker.from_text),
}


def require_utf8(texts: Iterable[str]) -> None:
    """Raise RowDropped for a lone surrogate, which no file can hold."""
    try:
        for text in texts:
            # Encoding is the only way to find one; text that is known to be ASCII, often 200 MB of it, is spared.
            if not text.isascii():
                text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RowDropped("not_utf8", str(error)) from None


def _object(row: Any) -> Mapping[str, Any]:
    """`row` if it is a JSON object. Raises RowDropped: row_not_object, which says what it is instead."""
    if isinstance(row, Mapping):
        return row
    why = "not a JSON object"
    if isinstance(row, str):
        try:
            if isinstance(json.loads(row), list):
                why = "a JSON array, where a line holds one JSON object"
        except (ValueError, RecursionError) as error:
            reason = f"{error.msg} at character {error.pos}" if isinstance(error, json.JSONDecodeError) else error
            why = f"broken JSON ({reason})"
    raise RowDropped("row_not_object", why if row is None else f"{why}: {row}")


def statement_of(row: Mapping[str, Any]) -> str | None:
    """The first non-blank text of STATEMENT_COLUMNS, else the user's message of the first that holds a chat (verl,
    TRL); None if there is none. The system's message is left out, since prompts get one of their own."""
    values = [row.get(name) for name in STATEMENT_COLUMNS]
    texts = chain(values, map(_user_message, values))
    return next((text for text in texts if isinstance(text, str) and text.strip()), None)


def _user_message(value: Any) -> str | None:
    """The text of the only user message in a list of chat messages that has no others than the system's."""
    messages = [as_mapping(message) for message in value] if isinstance(value, list) else []
    asked = [message.get("content") for message in messages if message.get("role") == "user"]
    if len(asked) != 1 or any(message.get("role") not in ("system", "user") for message in messages):
        return None
    (content,) = asked
    if isinstance(content, list) and len(content) == 1:  # content in parts, of which one that is text can be read
        part = as_mapping(content[0])
        content = part.get("text") if part.get("type") == "text" else None
    return content if isinstance(content, str) else None


def _no_statement(row: Mapping[str, Any]) -> RowDropped:
    for name in STATEMENT_COLUMNS:
        if isinstance(row.get(name), list) and row[name]:
            roles = [str(as_mapping(message).get("role")) for message in row[name]]
            wanted = "one message of the user, as text, and at most the system's beside it"
            return RowDropped("ambiguous_prompt", f"{name} needs {wanted}; its roles: {', '.join(roles)}")
    return RowDropped("no_statement", dataset_hint(row) or _none_in(STATEMENT_COLUMNS, row, "no text in"))


def _none_in(columns: Sequence[str], row: Mapping[str, Any], what: str) -> str:
    blank = [name for name, value in row.items() if value is None or (isinstance(value, str) and not value.strip())]
    found = ", ".join(f"{name} (blank)" if name in blank else str(name) for name in row) or "none"
    return f"{what} {', '.join(columns)}; columns: {found}"


def dataset_hint(row: Mapping[str, Any]) -> str | None:
    """What `row` looks like and what to do with such rows, one line; None where it looks like nothing known."""
    answer = row.get("answer")
    if isinstance(row.get("question"), str) and isinstance(answer, str) and "####" in answer:
        return "these look like gsm8k rows: --environment=gsm8k"
    for name, columns, advice in KNOWN_ROWS:
        if all(row.get(column) is not None for column in columns):
            return f"these look like {name}: {advice}"
    return None


def _tests_of(row: Mapping[str, Any]) -> TestSet:
    """The tests of a raw row, in any of TEST_COLUMNS. Raises RowDropped: no_tests, ambiguous_tests, or a parser's."""
    metadata = [row.get(name) for name in METADATA_COLUMNS]
    test_sets: dict[str, TestSet] = {}
    given: list[tuple[str, Any]] = []
    for name in TEST_COLUMNS:
        column, _, key = name.partition(".")
        value = row.get(column, {}).get(key) if key else row.get(column)
        given += [(name, value)] if value else []
        if name != "tests":  # in the others only a list, an object or test code counts: other text may be an answer
            with suppress(RowDropped):
                value = decode_json(value)
            if not isinstance(value, list | Mapping) and not is_test_code(value):
                continue
        try:
            test_sets[name] = parse_tests(value, *metadata)
        except RowDropped as drop:
            if drop.reason != "no_tests":  # an empty column is no fault: another may hold the tests
                raise RowDropped(drop.reason, drop.detail if name == "tests" else f"{name}: {drop.detail}") from None
    if not test_sets:
        cells = [f"{name}, which is {str(value)[:SHOWN_CHARS]!r}" for name, value in given]
        reasons = [f"no tests are in {' and '.join(cells)}" if cells else None, dataset_hint(row)]
        raise RowDropped("no_tests", "; ".join(filter(None, reasons)) or _none_in(TEST_COLUMNS, row, "none in"))
    first, *others = test_sets  # names, in order of precedence
    for other in others:
        if test_sets[other] != test_sets[first]:
            raise RowDropped("ambiguous_tests", f"{first} and {other} hold different tests")
    return test_sets[first]


def content_id(statement: str, starter_code: str, test_set: TestSet, name: str = DEFAULT) -> str:
    """A problem's identity: a hash of what is asked, all its tests, and its comparator if that is not the default; the
    same on every machine and in every split."""
    # The hash of json.dumps([statement, starter_code, kind, entry_point, [[input, expected], ...]]), test by test: the
    # whole text of a row of 200 MB would be held several times over.
    head = json.dumps([statement, starter_code, test_set.kind, test_set.entry_point])
    digest = hashlib.sha256(f"{head[:-1]}, [".encode())
    for number, test in enumerate(test_set.tests):
        digest.update(b", " if number else b"")
        digest.update(json.dumps([test.input, test.expected]).encode())
    digest.update(b"]]" if name == DEFAULT else f"]] {name}".encode())
    return digest.hexdigest()[:ID_HEX_DIGITS]


def _solutions(value: Any) -> tuple[str, ...]:
    """Reference solutions: a list of programs, a JSON list of them as text, or one program as text."""
    if isinstance(value, str):
        decoded = json_or_text(value)
        value = decoded if isinstance(decoded, list) else [value]
    if not isinstance(value, list | tuple):
        return ()
    return tuple(solution for solution in value if isinstance(solution, str) and solution.strip())


def _time_limit_s(row: Mapping[str, Any]) -> float | None:
    """Seconds a test may take, where the row or its `metadata` says so: a number, "2 seconds", "500 ms", {"seconds"}. A
    limit over MAX_TIME_LIMIT_S is cut to it; without a unit it is ignored, as it may be of milliseconds."""
    sources = (row, as_mapping(row.get("metadata")))
    found = (_seconds(source.get(key)) for source in sources for key in ("time_limit_s", "time_limit"))
    return next((seconds for seconds in found if seconds is not None and 0 < seconds <= MAX_TIME_LIMIT_S), None)


def _seconds(value: Any) -> float | None:
    if isinstance(value, Mapping):
        whole, nanos = value.get("seconds"), value.get("nanos") or 0
        parts = [_seconds(part) if isinstance(part, int | float) else None for part in (whole, nanos)]
        return None if parts[0] is None or parts[1] is None else min(parts[0] + parts[1] / 1e9, MAX_TIME_LIMIT_S)
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e12 else None  # JSON has integers that are no float
    if isinstance(value, str) and (match := _TIME.fullmatch(value.lower())):
        seconds = float(match[1]) / (1000.0 if (match[2] or "").startswith("m") else 1.0)
        return min(seconds, MAX_TIME_LIMIT_S) if match[2] else seconds
    return None


def row_date(values: Any) -> date | None:
    """The day that a raw row says its problem is of; None if it says none that can be read."""
    found = _said(values, *DATE_COLUMNS) if isinstance(values, Mapping) else ()
    day = next((value for value in found if isinstance(value, date | str)), None)
    if isinstance(day, date):  # a datetime is one too
        return date(day.year, day.month, day.day)
    try:
        return None if day is None else date.fromisoformat(day.strip()[: len("YYYY-MM-DD")])
    except ValueError:
        return None
