"""Assertion tests: test code that calls the function under test, as MBPP, HumanEval and pytest files have it.

A test is a source text, run as `grading/payload/assertions.py` does: names that it does not define are the program's.
"""

import ast
import builtins
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from coderl_tasks.problems.problem import RowDropped

NOT_PYTHON = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What `ast.parse` raises for a text that is no Python, or too much of it."""
_STATES_SOMETHING = re.compile(r"^\s*assert\b|\bassert\w+\(|\braises\(", re.MULTILINE)
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SETUP = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Assert)
_FUTURE = re.compile(r"^from __future__ import .*$", re.MULTILINE)
_IS_TEST = re.compile(r"^(?:assert\b|def (?:test|check)|class \w*Test|class \w+\(.*TestCase)", re.MULTILINE)
_CHECK = "check"  # HumanEval's function of all assertions


def with_assertions(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """`row` with the columns of MBPP or HumanEval under the names that other rows have; any other row as it is."""
    if isinstance(tests := row.get("test_list"), list) and _are_texts(tests):
        return {**row, **_of_mbpp(row, tests)}
    test, entry_point = row.get("test"), row.get("entry_point")
    if isinstance(test, str) and _STATES_SOMETHING.search(test) and row.get("tests") is None:
        if isinstance(entry_point, str) and isinstance(row.get("prompt"), str) and f"def {_CHECK}(" in test:
            return {**row, **_of_human_eval(row, test, entry_point)}
        return {**row, "tests": test, "input_output": None}  # LeetCode's: examples for people
    cases = row.get("test_cases")
    if isinstance(cases, list) and cases and _are_texts(cases) and row.get("tests") is None:
        return {**row, "tests": cases}
    return row


def _are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _of_mbpp(row: Mapping[str, Any], tests: list[str]) -> dict[str, Any]:
    """MBPP's own columns, and those of its sanitized version (`prompt`, `test_imports`)."""
    code = _unix_lines(row["code"]) if isinstance(row.get("code"), str) else ""
    parts = (_imports_over_builtins(code, tests), row.get("test_setup_code"), *_texts(row.get("test_imports")))
    setup = "\n".join(_unix_lines(text) for text in parts if isinstance(text, str) and text.strip())
    challenges = _texts(row.get("challenge_test_list"))
    scripts = ["\n".join(filter(None, (setup, _unix_lines(test)))) for test in (*tests, *challenges)]
    columns = {"tests": scripts, "question": row.get("question") or row.get("text") or row.get("prompt")}
    columns |= _task_id(row)
    if code:
        columns["solutions"] = [code]
    return columns


def _texts(value: Any) -> list[str]:
    return [text for text in value if isinstance(text, str)] if isinstance(value, list) else []


def _task_id(row: Mapping[str, Any]) -> dict[str, Any]:
    """The identity that both give their problems, unless the row has one of ours."""
    task_id = row.get("task_id")
    return {"problem_id": task_id} if row.get("problem_id") is None and task_id is not None else {}


def _imports_over_builtins(code: str, tests: list[str]) -> str:
    """Imports for tests whose function has a builtin's name, which would else be the builtin."""
    try:
        defined = {node.name for node in ast.parse(code).body if isinstance(node, _DEFINITIONS)}
    except NOT_PYTHON:
        return ""
    words = set(re.findall(r"\w+", " ".join(tests)))
    return "\n".join(f"from solution import {name}" for name in sorted(defined & words & set(dir(builtins))))


def _of_human_eval(row: Mapping[str, Any], test: str, entry_point: str) -> dict[str, Any]:
    # What stands above the function in the prompt is given: the test's own copy of it decides.
    before, _ = _beginning(_unix_lines(row["prompt"]), entry_point)
    script = "\n".join(filter(None, (before, test.strip("\n"), f"\n{_CHECK}({entry_point})")))
    return {**prompt_columns(row, entry_point), "tests": [script], "input_output": None}


def prompt_columns(row: Mapping[str, Any], entry_point: str) -> dict[str, Any]:
    """All but the tests of a row of HumanEval's columns: the prompt is the program's beginning, with a docstring that
    states the problem."""
    prompt = _unix_lines(row["prompt"])
    before, function = _beginning(prompt, entry_point)
    columns = _task_id(row)
    if function is None:  # LeetCode's prompt is what programs find there; the statement is in another column
        texts = (row.get(name) for name in ("problem_description", "query", "question"))
        statement = next((text for text in texts if isinstance(text, str) and text.strip()), prompt)
    else:
        statement = (ast.get_docstring(function) or prompt).strip()
        columns["starter_code"] = "\n\n".join(filter(None, (before, _signature(function))))
    columns["question"] = statement
    body = row.get("canonical_solution")
    if isinstance(body, str):
        columns["solutions"] = [prompt + body]
    return columns


def _beginning(prompt: str, entry_point: str) -> tuple[str, ast.FunctionDef | None]:
    """What stands above the function that a prompt ends in, and that function; all of it and None if there is none."""
    try:
        tree = ast.parse(prompt)
    except NOT_PYTHON:
        return "", None
    last = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == entry_point), None)
    if last is None:
        return prompt, None
    return ast.unparse(ast.Module(tree.body[: tree.body.index(last)], [])), last


def _unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def scripts_of(value: Any) -> list[str] | None:
    """The assertion tests in a test cell: a text of them, a list of such texts, or TACO's `assert_case`; None if it
    holds none. A text of assert statements is a test per statement, each with what stands above it."""
    if isinstance(value, Mapping):
        cases = value.get("assert_case")
        cases = [cases] if isinstance(cases, str) else cases
        if not isinstance(cases, list) or not _are_texts(cases) or not any(map(str.strip, cases)):
            return None
        if value.get("inputs"):
            raise RowDropped("mixed_test_kinds", "both inputs and assert_case")
        return [_unix_lines(case) for case in cases if case.strip()]
    if isinstance(value, str):
        return list(_split(_unix_lines(value))) if _STATES_SOMETHING.search(value) else None
    if isinstance(value, list) and value and _are_texts(value) and any(map(_STATES_SOMETHING.search, value)):
        return [_unix_lines(text) for text in value]
    return None


def _split(text: str) -> Iterator[str]:
    try:
        tree = ast.parse(text)
    except NOT_PYTHON:
        yield text  # `entry_point_of` says what is wrong
        return
    # Only where nothing but assignments and imports stands between: a loop, say, may assert something too.
    plain = all(isinstance(node, _SETUP) for node in tree.body)
    if not plain or not tree.body or not isinstance(tree.body[-1], ast.Assert):
        yield text
        return
    setup: list[ast.stmt] = []
    for node in tree.body:
        if isinstance(node, ast.Assert):
            yield ast.unparse(ast.Module([*setup, node], []))
        else:
            setup.append(node)


def is_test_code(value: Any) -> bool:
    """Whether a text is tests by its own outline: assertions, or functions and classes of tests; not a program that
    checks something in its middle."""
    return isinstance(value, str) and _IS_TEST.search(_unix_lines(value)) is not None


def count_assertions(script: str) -> int:
    """How many assertions a test makes, as far as its text tells; at least one."""
    return max(1, len(_STATES_SOMETHING.findall(script)))


def entry_point_of(scripts: Iterable[str]) -> str:
    """The name that tests call first of those that they do not define. Raises RowDropped: bad_assertion for a text that
    is no Python or asserts nothing, no_entry_point."""
    found = ""
    for number, script in enumerate(scripts):
        try:
            tree = ast.parse(script)
        except NOT_PYTHON as error:
            raise RowDropped("bad_assertion", f"test {number} is no Python: {error}") from None
        if not _STATES_SOMETHING.search(script):
            raise RowDropped("bad_assertion", f"test {number} asserts nothing: {script}")
        found = found or next(_program_names(tree), "")
    if not found:
        raise RowDropped("no_entry_point", "the tests call nothing that they do not define themselves")
    return found


def _program_names(tree: ast.Module) -> Iterator[str]:
    """The names that a test takes from the program, in the order of its text; imported ones first."""
    defined = set(dir(builtins)) | {"pytest", "unittest"}
    loaded = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "solution":
            yield from (alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Import | ast.ImportFrom):
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, _DEFINITIONS):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                loaded.append(node)
            else:
                defined.add(node.id)
    modules = {
        node.value.id for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    modules &= set(sys.stdlib_module_names)
    loaded.sort(key=lambda node: (node.lineno, node.col_offset))
    yield from dict.fromkeys(node.id for node in loaded if node.id not in defined | modules)


def signatures(scripts: Iterable[str], solutions: Iterable[str]) -> str:
    """Starter code for a problem that has none: of what its tests take from the program, the definitions that its first
    readable reference solution has, without their bodies; without a reference, the function that they call."""
    scripts = list(scripts)
    names = dict.fromkeys(name for script in scripts for name in _program_names(ast.parse(script)))
    for solution in solutions:
        try:
            tree = ast.parse(solution)
        except NOT_PYTHON:
            continue
        found = [node for node in tree.body if isinstance(node, _DEFINITIONS) and node.name in names]
        if found:
            return "\n\n".join(map(_signature, found))
    name = entry_point_of(scripts)
    calls = (node for node in ast.walk(ast.parse(scripts[0])) if isinstance(node, ast.Call))
    of_name = next((call for call in calls if isinstance(call.func, ast.Name) and call.func.id == name), None)
    is_plain = of_name is not None and not any(isinstance(argument, ast.Starred) for argument in of_name.args)
    positional = [f"arg{n + 1}" for n in range(len(of_name.args))] if of_name is not None and is_plain else ["*args"]
    keywords = [keyword.arg for keyword in of_name.keywords if keyword.arg] if of_name is not None else []
    return f"def {name}({', '.join([*positional, *keywords])}):\n    "


def _signature(node: ast.stmt) -> str:
    """A definition without its body; a class with its methods' signatures."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.unparse(ast.FunctionDef(node.name, node.args, [ast.Pass()], [], node.returns, lineno=0))
        return f"{text.rpartition('pass')[0]}"
    assert isinstance(node, ast.ClassDef)
    methods = [
        ast.FunctionDef(part.name, part.args, [ast.Expr(ast.Constant(...))], [], part.returns, lineno=0)
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    body: list[ast.stmt] = [*methods] or [ast.Expr(ast.Constant(...))]
    return ast.unparse(ast.fix_missing_locations(ast.ClassDef(node.name, node.bases, node.keywords, body, [])))


def with_given_code(starter_code: str, code: str) -> str:
    """A program with what its starter code gives in full, above the definition that this leaves open: helper functions
    and imports, which the program may define anew."""
    given = _given_code(starter_code)
    if not given:
        return code
    last = max((match.end() for match in _FUTURE.finditer(code)), default=0)  # these have to come first
    return f"{code[:last]}\n{given}\n\n{code[last:]}"


@lru_cache(maxsize=256)
def _given_code(starter_code: str) -> str:
    try:
        tree = ast.parse(starter_code + "pass\n")
    except NOT_PYTHON:
        return ""
    given = tree.body[:-1]
    return ast.unparse(ast.Module(given, [])) if any(isinstance(node, _DEFINITIONS) for node in given) else ""
