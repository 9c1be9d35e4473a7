"""Assertion tests: source texts that call the function under test, as MBPP, HumanEval and pytest files have them. They
are run as `grading/payload/assertions.py` does: names that they do not define are the program's."""

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
STATES_SOMETHING = re.compile(r"^\s*assert\b|\bassert\w+\(|\braises\(", re.MULTILINE)
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_SETUP = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Assert)
_CONSTANT = (ast.Constant, ast.Tuple, ast.UnaryOp, ast.unaryop, ast.BinOp, ast.operator, ast.expr_context)
_CONSTANT += (ast.Name, ast.Attribute, ast.JoinedStr, ast.FormattedValue)
_FUTURE = re.compile(r"^from __future__ import\b(?:[ \t]*\([^)]*\).*|(?:\\\r?\n|.)*)", re.MULTILINE)
_LIBRARY_CLASSES = {"Counter", "OrderedDict", "defaultdict", "deque", "Decimal", "Fraction"}
"""Classes that tests use without an import (USUAL_NAMES of grading/payload/assertions.py)."""
_IS_TEST = re.compile(r"^(?:assert\b|def (?:test|check)|class \w*Test|class \w+\(.*TestCase)", re.MULTILINE)


def unix_lines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def are_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def scripts_of(value: Any) -> list[str] | None:
    """The assertion tests in a test cell: a text of them, a list of such texts, or TACO's `assert_case`; None if it
    holds none. A text of assert statements is a test per statement, each with the assignments and imports above it; one
    test where an assert may depend on what an earlier one did."""
    if isinstance(value, Mapping):
        cases = value.get("assert_case")
        cases = [cases] if isinstance(cases, str) else cases
        if not isinstance(cases, list) or not are_texts(cases) or not any(map(str.strip, cases)):
            return None
        if value.get("inputs"):
            raise RowDropped("mixed_test_kinds", "both inputs and assert_case")
        return [unix_lines(case) for case in cases if case.strip()]
    if isinstance(value, str):
        return _split(unix_lines(value)) if STATES_SOMETHING.search(value) else None
    if isinstance(value, list) and value and are_texts(value) and any(map(STATES_SOMETHING.search, value)):
        return [unix_lines(text) for text in value]
    return None


def _split(text: str) -> list[str]:
    try:
        body = ast.parse(text).body
    except NOT_PYTHON:
        return [text]  # `entry_point_of` says what is wrong
    # Only where nothing but assignments and imports stands between: a loop, say, may assert something too.
    is_plain = all(isinstance(node, _SETUP) for node in body)
    if not body or not isinstance(body[-1], ast.Assert) or not is_plain or _has_state(body):
        return [text]
    setup: list[ast.stmt] = []
    scripts = []
    for node in body:
        if isinstance(node, ast.Assert):
            scripts.append(ast.unparse(ast.Module([*setup, node], [])))
        else:
            setup.append(node)
    return scripts


def _has_state(body: list[ast.stmt]) -> bool:
    """Whether a statement reads a value that an earlier assert may have changed: `assert stack.push(1) is None` does so
    to `stack`, and by an alias to others. Constants cannot change, and a name that is assigned anew has a new value."""
    values: set[str] = set()  # names of values that may change
    doubtful: set[str] = set()  # those of which an assert may have changed the value
    for node in body:
        names = [part for part in ast.walk(node) if isinstance(part, ast.Name)]
        read = {name.id for name in names if isinstance(name.ctx, ast.Load) or isinstance(node, ast.AugAssign)}
        if read & doubtful:
            return True
        if isinstance(node, ast.Assert) and read & values:
            doubtful |= values
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            parts = [part for target in targets for part in ast.walk(target) if isinstance(part, ast.Name)]
            assigned = {part.id for part in parts if isinstance(part.ctx, ast.Store)}
            doubtful -= assigned
            if node.value is not None and (read & values or not _is_constant(node.value)):
                values |= assigned
            elif not isinstance(node, ast.AugAssign):
                values -= assigned
    return False


def _is_constant(value: ast.expr) -> bool:
    """Whether no assert changes this value. LeetCode's `Solution()` counts as one: its methods are functions."""
    match value:
        case ast.Call(func=ast.Name(id="Solution"), args=arguments):
            return not arguments
    return all(isinstance(part, _CONSTANT) for part in ast.walk(value))


def is_test_code(value: Any) -> bool:
    """Whether a text is tests by its own outline, not a program that checks something in its middle."""
    return isinstance(value, str) and _IS_TEST.search(unix_lines(value)) is not None


def count_assertions(script: str) -> int:
    """How many assertions a test makes, as far as its text tells; at least one."""
    return max(1, len(STATES_SOMETHING.findall(script)))


def entry_point_of(scripts: Iterable[str]) -> str:
    """The name that tests call first of those that they do not define. Raises RowDropped: bad_assertion for a text that
    is no Python or asserts nothing, no_entry_point."""
    found = ""
    for number, script in enumerate(scripts):
        try:
            tree = ast.parse(script)
        except NOT_PYTHON as error:
            raise RowDropped("bad_assertion", f"test {number} is no Python: {error}") from None
        if not STATES_SOMETHING.search(script):
            raise RowDropped("bad_assertion", f"test {number} asserts nothing: {script}")
        found = found or next(_program_names(tree), "")
    if not found:
        raise RowDropped("no_entry_point", "the tests call nothing that they do not define themselves")
    return found


def with_import(scripts: list[str], entry_point: str) -> list[str]:
    """`scripts` with an import of their entry point if it has the name of a library class: where a class Fraction is to
    be written, they would test the library's. They are left as they are if they use anything else of the program."""
    if entry_point not in _LIBRARY_CLASSES:
        return scripts
    found = []
    for script in scripts:
        tree = ast.parse(script)
        imports = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and node.module == "solution")
        ]
        imported = {alias.name for node in imports for alias in node.names}
        if "solution" in imported or not {entry_point}.issuperset(_program_names(tree)):
            return scripts
        is_bare = entry_point not in imported
        found.append(_with_above(f"from solution import {entry_point}", script).lstrip("\n") if is_bare else script)
    return found


def _program_names(tree: ast.Module) -> Iterator[str]:
    """Yields the names that an assertion test takes from the program under test: those that it imports from `solution`
    (by the program's name, not the test's `as`), then, in the order of its text, those that it reads and neither
    defines, imports nor has as builtins. Names of library classes, which tests may use by themselves, come last."""
    defined = set(dir(builtins)) | {"pytest", "unittest"}
    loaded = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            if isinstance(node, ast.ImportFrom) and node.module == "solution":
                yield from (alias.name for alias in node.names if alias.name != "*")
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        elif isinstance(node, (*DEFINITIONS, ast.ExceptHandler)):
            defined.add(node.name or "")
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Load):
                loaded.append(node)
            else:
                defined.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # `math.inf`, perhaps not imported
            defined |= {node.value.id} & sys.stdlib_module_names
    loaded.sort(key=lambda node: (node.lineno, node.col_offset))
    names = dict.fromkeys(node.id for node in loaded if node.id not in defined)
    yield from sorted(names, key=lambda name: name in {*_LIBRARY_CLASSES, "np"})


def signatures(scripts: Iterable[str], solutions: Iterable[str]) -> str:
    """Starter code for a problem that has none, from its assertion tests `scripts`: the signatures of the functions and
    classes that the tests use, from the first reference solution that parses and defines any of them; without one, the
    signature that the first call implies: arg1, arg2, ..., or `*args` if their number is not known."""
    scripts = list(scripts)
    names = dict.fromkeys(name for script in scripts for name in _program_names(ast.parse(script)))
    for solution in solutions:
        try:
            tree = ast.parse(solution)
        except NOT_PYTHON:
            continue
        found = [node for node in tree.body if isinstance(node, DEFINITIONS) and node.name in names]
        if found:
            return "\n\n".join(map(signature, found))
    name, nodes = entry_point_of(scripts), list(ast.walk(ast.parse(scripts[0])))
    imported = [alias for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names]
    own_names = {name, *(alias.asname for alias in imported if alias.name == name)}
    calls = (node for node in nodes if isinstance(node, ast.Call))
    call = next((call for call in calls if isinstance(call.func, ast.Name) and call.func.id in own_names), None)
    if call is None:
        return f"def {name}(*args):\n    "
    has_star = any(isinstance(argument, ast.Starred) for argument in call.args)
    parameters = ["*args"] if has_star else [f"arg{number}" for number in range(1, len(call.args) + 1)]
    parameters += [keyword.arg for keyword in call.keywords if keyword.arg]
    return f"def {name}({', '.join(parameters)}):\n    "


def signature(node: ast.stmt) -> str:
    """A definition without its body; a class with its methods' signatures."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.unparse(ast.FunctionDef(node.name, node.args, [ast.Pass()], [], node.returns, lineno=0))
        return text.rpartition("pass")[0]
    assert isinstance(node, ast.ClassDef)
    dots = ast.Expr(ast.Constant(...))
    methods: list[ast.stmt] = [
        ast.FunctionDef(part.name, part.args, [dots], [], part.returns, lineno=0)
        for part in node.body
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    body = methods or [dots]
    return ast.unparse(ast.fix_missing_locations(ast.ClassDef(node.name, node.bases, node.keywords, body, [])))


def with_given_code(starter_code: str, code: str) -> str:
    """A program below what its starter code gives in full: functions and imports above the definition left open."""
    given = _given_code(starter_code)
    return _with_above(given, code) if given else code


def _with_above(text: str, code: str) -> str:
    last = max((match.end() for match in _FUTURE.finditer(code)), default=0)  # these have to come first
    return f"{code[:last]}\n{text}\n\n{code[last:]}"


@lru_cache(maxsize=256)
def _given_code(starter_code: str) -> str:
    try:
        tree = ast.parse(starter_code + "pass\n")
    except NOT_PYTHON:
        return ""
    given = tree.body[:-1]
    return ast.unparse(ast.Module(given, [])) if any(isinstance(node, DEFINITIONS) for node in given) else ""
