"""Checkers: trusted programs that decide whether an output is right, where several are.

    check      a Python function check(input, output, expected) -> bool | float; 1 and more is right
    kattis     an output validator: argv input, answer, feedback folder; output on stdin; exit status 42 or 43
    testlib    a checker as Codeforces has them: argv input, output, answer; exit status 0 or 1, 2, 7, 8

In Python or C++. A row's `checker` is its source text, or {"source", and where they do not tell themselves "language",
"protocol", "flags", "files"}; `files` are texts by their names, testlib.h or a module of the checker's own.
"""

import ast
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from coderl_tasks.problems.assertions import NOT_PYTHON
from coderl_tasks.problems.problem import RowDropped

Protocol = Literal["check", "kattis", "testlib"]
Language = Literal["python", "cpp"]
_LANGUAGES: dict[str, Language] = {
    "python": "python", "python3": "python", "py": "python", "cpp": "cpp", "c++": "cpp", "cxx": "cpp", "cc": "cpp",
}  # fmt: skip
CPP_SUFFIXES = (".cc", ".cpp", ".cxx", ".c++", ".c")
MAIN_FILES: dict[Language, str] = {"python": "checker.py", "cpp": "checker.cpp"}
_NAMES = ("source", "language", "protocol", "flags", "files")


@dataclass(frozen=True, slots=True)
class Checker:
    """A checker's program and how it is spoken to. `files` are beside it, by name."""

    source: str
    language: Language
    protocol: Protocol
    flags: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """The checker as a pool's column has it."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "Checker":
        """Raises ValueError for a text that `to_text` does not write."""
        values = json.loads(text)
        if not isinstance(values, dict) or values.keys() != set(_NAMES):
            raise ValueError("no checker")
        checker = cls(**{**values, "flags": tuple(values["flags"]) if isinstance(values["flags"], list) else ("",)})
        texts = (checker.source, *checker.flags)
        if (
            checker.language not in get_args(Language)
            or checker.protocol not in get_args(Protocol)
            or not all(isinstance(text, str) for text in texts)
            or not isinstance(checker.files, dict)
            or not all(_is_file(*item) for item in checker.files.items())
        ):
            raise ValueError("no checker")
        return checker


def checker_of(value: Any) -> Checker | None:
    """The checker in a row's column; None where it is blank. Raises RowDropped: bad_checker."""
    if isinstance(value, str):
        if not value.strip():
            return None
        try:
            decoded = json.loads(value)
        except (ValueError, RecursionError):
            decoded = None
        value = decoded if isinstance(decoded, Mapping) else {"source": value}
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("source"), str) or not value["source"].strip():
        raise RowDropped("bad_checker", 'a checker is a source text, or {"source": text, ...}')
    source, files = value["source"], value.get("files") or {}
    try:
        json.dumps(dict(value), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise RowDropped("bad_checker", f"it holds what no file can: {error}") from None
    if not isinstance(files, Mapping) or not all(_is_file(name, text) for name, text in files.items()):
        raise RowDropped("bad_checker", "its files are texts by their names, which have no folder")
    flags = value.get("flags") or value.get("validator_flags") or ()
    if not isinstance(flags, str | list | tuple):
        raise RowDropped("bad_checker", "its flags are neither text nor a list")
    flags = tuple(flags.split()) if isinstance(flags, str) else tuple(map(str, flags))
    language = _language(value.get("language"), source)
    checker = Checker(source, language, _protocol(value.get("protocol"), source, language), flags, dict(files))
    if language == "python":
        try:
            tree = ast.parse(source)
        except NOT_PYTHON as error:
            raise RowDropped("bad_checker", f"it is no Python: {error}") from None
        if checker.protocol == "check" and not _defines_check(tree):
            raise RowDropped("bad_checker", "it defines no function check(input, output, expected)")
    return checker


def _is_file(name: Any, text: Any) -> bool:
    return (
        isinstance(name, str) and isinstance(text, str) and name not in ("", ".", "..") and not {"/", "\0"} & set(name)
    )


def _language(named: Any, source: str) -> Language:
    if named:
        if (language := _LANGUAGES.get(str(named).strip().lower())) is None:
            raise RowDropped("bad_checker", f"a checker in {named}; read are python and cpp")
        return language
    return "cpp" if "#include" in source else "python"


def _protocol(named: Any, source: str, language: Language) -> Protocol:
    if named:
        for protocol in get_args(Protocol):
            if protocol == str(named).strip().lower():
                return protocol
        raise RowDropped("bad_checker", f"the protocol {named}; there are {', '.join(get_args(Protocol))}")
    if language == "cpp":
        return "testlib" if "testlib.h" in source else "kattis"
    try:
        return "check" if _defines_check(ast.parse(source)) else "kattis"
    except NOT_PYTHON:
        return "check"


def _defines_check(tree: ast.Module) -> bool:
    return any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body)
