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
from dataclasses import asdict, field
from typing import Any, Literal, get_args

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from coderl_tasks.problems.assertion_tests import NOT_PYTHON
from coderl_tasks.problems.problem import RowDropped
from coderl_tasks.problems.raw_files import json_or_text

Protocol = Literal["check", "kattis", "testlib"]
Language = Literal["python", "cpp"]
_LANGUAGES: dict[str, Language] = {
    "python": "python", "python3": "python", "py": "python", "cpp": "cpp", "c++": "cpp", "cxx": "cpp", "cc": "cpp",
}  # fmt: skip
CPP_SUFFIXES = (".cc", ".cpp", ".cxx", ".c++", ".c")
_PROTOCOLS: dict[str, Protocol] = {name: name for name in get_args(Protocol)}
MAIN_FILES: dict[Language, str] = {"python": "checker.py", "cpp": "checker.cpp"}


@dataclass(frozen=True, slots=True, config=ConfigDict(strict=True, extra="forbid"))
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
        """Raises ValueError for a text that is none of `to_text`; without flags or files it has none."""
        try:
            checker = _CHECKER.validate_json(text)
        except ValidationError as error:
            raise ValueError(f"no checker: {error.errors()[0]['msg']}") from None
        if not all(map(_is_file_name, checker.files)):
            raise ValueError("no checker: a file's name has a folder")
        return checker


_CHECKER = TypeAdapter(Checker)


def checker_of(value: Any) -> Checker | None:
    """The checker in a row's column: its source, JSON of a mapping with that and more, or the mapping; None where it is
    blank. Raises RowDropped: bad_checker."""
    if isinstance(value, str):
        decoded = json_or_text(value)
        value = decoded if isinstance(decoded, Mapping) else {"source": value} if value.strip() else None
    if value is None:
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("source"), str) or not value["source"].strip():
        raise RowDropped("bad_checker", 'a checker is a source text, or {"source": text, ...}')
    source, files = value["source"], value.get("files") or {}
    try:  # it is stored as JSON in UTF-8
        json.dumps(dict(value), ensure_ascii=False).encode()
    except (TypeError, ValueError) as error:
        raise RowDropped("bad_checker", f"it holds what no file can: {error}") from None
    if not isinstance(files, Mapping) or not all(
        isinstance(name, str) and isinstance(text, str) and _is_file_name(name) for name, text in files.items()
    ):
        raise RowDropped("bad_checker", "its files are texts by their names, which have no folder")
    flags = value.get("flags") or value.get("validator_flags") or ()
    if not isinstance(flags, str | list | tuple):
        raise RowDropped("bad_checker", "its flags are neither text nor a list")
    flags = tuple(flags.split()) if isinstance(flags, str) else tuple(map(str, flags))
    # If the row does not say the language or the protocol, the source tells: only C++ has #include, testlib is a C++
    # library, and `check` a function that we call. A validator of the Kattis format is any other program.
    usual_language = "cpp" if "#include" in source else "python"
    language = _LANGUAGES.get(str(value.get("language") or usual_language).strip().lower())
    if language is None:
        raise RowDropped("bad_checker", f"a checker in {value['language']}; read are python and cpp")
    defines_check = False
    if language == "python":
        try:
            body = ast.parse(source).body
        except NOT_PYTHON as error:
            raise RowDropped("bad_checker", f"it is no Python: {error}") from None
        defines_check = any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in body)
    uses_testlib = language == "cpp" and "testlib.h" in source
    usual_protocol = "testlib" if uses_testlib else "check" if defines_check else "kattis"
    protocol = _PROTOCOLS.get(str(value.get("protocol") or usual_protocol).strip().lower())
    if protocol is None:
        raise RowDropped("bad_checker", f"the protocol {value['protocol']}; there are {', '.join(_PROTOCOLS)}")
    if language == "python" and protocol == "check" and not defines_check:
        raise RowDropped("bad_checker", "it defines no function check(input, output, expected)")
    return Checker(source, language, protocol, flags, dict(files))


def _is_file_name(name: str) -> bool:
    return name not in ("", ".", "..") and not {"/", "\0"} & set(name)
