"""Problem packages as Kattis and the ICPC define them, of a folder as it lies on disk: one row per package.

    NAME/problem.yaml, data/sample|secret/**/*.in with .ans, problem_statement/ or statement/, output_validators/ or
    output_validator/, submissions/accepted|wrong_answer|run_time_error/

Read are the legacy format and those of 2023-07 and 2025-09. Accepted Python 3 submissions are reference solutions.
Wrong and crashing ones are known-wrong programs, not those that exceed the time limit: their answers may be right. An
interactive or a scoring package is refused, by name and with the reason.
"""

import ast
import configparser
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from coderl_tasks.errors import DataError
from coderl_tasks.paths import coderl_home, private_folder, put
from coderl_tasks.problems.assertion_tests import NOT_PYTHON
from coderl_tasks.problems.output_checker import CPP_SUFFIXES

DESCRIPTION = "problem.yaml"
_DEEPEST = 3  # folders between the one that is named and a package
_STATEMENTS = ("problem_statement", "statement")
_STATEMENT_NAMES = ("problem.en.md", "problem.en.tex", "problem.md", "problem.tex", "problem.en.typ")
_PYTHON = (".py", ".py3")
_MAIN_STEMS = ("__main__", "main", "validate", "validator", "output_validator")
_CONSTANT = re.compile(r"\{\{(\w+)(?:\.(\w+))?\}\}|\\constant\{(\w+)(?:\.(\w+))?\}")
_FLAGS = ("output_validator_flags", "output_validator_args")
_OTHER_TYPES = {
    "interactive": "it is interactive: its program talks to a judge while it runs",
    "multi-pass": "it is multi-pass: its program runs several times, on what it printed before",
    "submit-answer": "it asks for answers, not for a program",
    **dict.fromkeys(("scoring", "score"), "it is a scoring problem: its answers have points, not a verdict"),
}
_FORMAT = 3  # of the rows that are made of packages


def package_folders(folder: Path) -> list[Path]:
    """The packages in `folder`, itself or at most _DEEPEST levels below, sorted by name."""
    for depth in range(_DEEPEST + 1):
        pattern = "/".join([*["*"] * depth, DESCRIPTION])
        if found := sorted(file.parent for file in folder.glob(pattern) if file.is_file()):
            return found
    return []


def rows_file(folder: Path) -> Path | None:
    """A file of JSON lines, a row per package in `folder`, made once in CODERL_HOME; None if there is none."""
    packages = package_folders(folder)
    if not packages:
        return None
    digest = hashlib.sha256(str(_FORMAT).encode())
    try:
        for package in packages:
            for file in sorted(package.rglob("*")):
                state = file.stat() if file.exists() else file.lstat()
                digest.update(f"{file}\0{state.st_size}\0{state.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
        target = private_folder(coderl_home() / "packages") / f"{digest.hexdigest()[:32]}.jsonl"
        if not target.is_file():
            lines = [json.dumps(package_row(package), ensure_ascii=False) + "\n" for package in packages]
            put(target, "".join(lines).encode("utf-8", "surrogatepass"))
    except OSError as error:
        raise DataError(f"{folder}: a package cannot be read: {error}") from error
    return target


def package_row(package: Path) -> dict[str, Any]:
    """A package as a raw row. One that cannot be used has `package_fault`, which says why."""
    row: dict[str, Any] = {"problem_id": package.name, "question": package.name, "split": package.parent.name}
    try:
        return row | _read(package)
    except _Refused as refused:
        return row | {"package_fault": f"{package.name}: {refused}"}
    except FileNotFoundError as error:
        return row | {"package_fault": f"{package.name}: {error.filename} is a link that leads nowhere"}


class _Refused(Exception):
    """Why a package cannot be used."""


def _read(package: Path) -> dict[str, Any]:
    """The columns of a raw row that a package gives. Raises _Refused for one that cannot be a problem here."""
    description = _mapping(package / DESCRIPTION)
    _refuse_other_types(package, description)
    data = package / "data"
    settings_files = [*data.glob("**/testdata.yaml"), *data.glob("**/test_group.yaml")]
    group_settings = {file.parent: _mapping(file) for file in settings_files}
    tests: list[tuple[tuple[str, ...], dict[str, str]]] = []  # the validator's flags, and the columns of a raw row
    secret_flags: set[tuple[str, ...]] = set()
    shown: list[tuple[str, str]] = []  # input and output of each sample, for the statement
    for source in sorted(file for part in ("sample", "secret") for file in (data / part).glob("**/*.in")):
        answer = source.with_suffix(".ans")
        if not answer.is_file():
            raise _Refused(f"{source.relative_to(package)} has no {answer.name}")
        test = {"input": _exact_text(source), "output": _exact_text(answer)}
        flags = _flags_of(source, group_settings)
        tests.append((flags, test))
        if data / "sample" in source.parents:
            # Texts for the statement come first: an .ans may be no output, but what the validator needs.
            input_text = _first_text(source, ".in.statement", ".in")
            shown.append((input_text, _first_text(source, ".ans.statement", ".out", ".ans")))
        else:
            secret_flags.add(flags)
    if not tests:
        raise _Refused("data/ has no *.in with its .ans")
    all_flags = secret_flags or {flags for flags, _ in tests}
    if len(all_flags) > 1:  # a problem has one checker
        raise _Refused("its groups of tests have flags of the validator of their own")
    (test_flags,) = all_flags
    general_flags = _words(description.get("validator_flags", description.get("output_validator_args")))
    limit = _time_limit(package, description)
    return {
        "question": _statement(package, description, shown),
        # A sample with other flags is only shown.
        "tests": [test for flags, test in tests if flags == test_flags],
        "solutions": list(_programs(package, description, ("accepted",))),
        "wrong_solutions": list(_programs(package, description, ("wrong_answer", "run_time_error", "rejected"))),
        "checker": _checker(package, description, (*general_flags, *test_flags)),
        **({} if limit is None else {"time_limit_s": limit}),
    }


def _refuse_other_types(package: Path, description: Mapping[str, Any]) -> None:
    types = description.get("type", "pass-fail")
    words = {str(word) for word in (types if isinstance(types, list) else str(types).split())}
    words |= set(str(description.get("validation", "")).split())
    for word, why in _OTHER_TYPES.items():
        if word in words:
            raise _Refused(why)
    for name in sorted(file.name for file in package.glob("include/*")):
        if name == "default" or name.startswith("py"):
            raise _Refused(f"include/{name}: its programs are given files that a statement does not show")
    grading = description.get("grading")
    if isinstance(grading, Mapping) and (grading.get("objective") or grading.get("show_test_data_groups")):
        raise _Refused(_OTHER_TYPES["scoring"])


def _checker(package: Path, description: Mapping[str, Any], flags: tuple[str, ...]) -> dict[str, Any]:
    """What decides a test: the package's own validator, or the default one with its flags."""
    # Drafts of the newer format still had the older folder, so the name of either is enough.
    folders = [package / name for name in ("output_validator", "output_validators")]
    folder = next(filter(Path.is_dir, folders), None)
    is_custom = str(description.get("validation", "")).startswith("custom")
    is_legacy = str(description.get("problem_format_version", "legacy")).startswith("legacy")
    if folder is not None and (is_custom or not is_legacy):
        return _own_validator(folder, description, flags)
    if is_custom:
        raise _Refused("its own validator is missing: there is no folder output_validators")
    return _default_validator(flags)


def _flags_of(source: Path, groups: Mapping[Path, dict[str, Any]]) -> tuple[str, ...]:
    """The flags of the output validator for a test: its own, or those of the nearest group that has any. Raises
    _Refused for a test that gives the program more than an input."""
    own = source.with_suffix(".yaml")
    settings = [_mapping(own)] if own.is_file() else []
    settings += [groups[folder] for folder in source.parents if folder in groups]
    own_input = [source.with_suffix(ending) for ending in (".args", ".files")]
    if any(one.get("args") for one in settings) or any(map(Path.exists, own_input)):
        raise _Refused(f"{source.name}: a test with arguments or files of its own")
    return next((_words(one[name]) for one in settings for name in _FLAGS if one.get(name) is not None), ())


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):  # a validator's name with its flags
        value = value.get("flags")
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())


def _own_validator(folder: Path, description: Mapping[str, Any], flags: tuple[str, ...]) -> dict[str, Any]:
    """The validator in `folder` as a checker, with the constants of `description`, the package's problem.yaml. Raises
    _Refused if there is not exactly one program, in Python or C++, that needs no build script."""
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith((".", "__pycache__"))]
    top = [entry for entry in entries if entry.suffix in (*_PYTHON, *CPP_SUFFIXES)]
    folders = [entry for entry in entries if entry.is_dir()]
    programs = [entry.name for entry in entries if entry in top or entry in folders]
    # The folder of the legacy format, output_validators, has a validator per entry; that of newer ones,
    # output_validator, is a single program, whose sources are parts of it.
    if len(programs) > 1 and (folder.name == "output_validators" or not top):
        raise _Refused(f"{folder.name} has {len(programs)} validators: {', '.join(programs)}")
    if folders and not top:
        entries = sorted(folders[0].iterdir())
    files = {file.name: file for file in entries if file.is_file()}
    if "build" in files or "run" in files:
        raise _Refused("its validator is built by a script of its own")
    cpp = [name for name in files if Path(name).suffix in CPP_SUFFIXES]
    python = [name for name in files if Path(name).suffix in _PYTHON]
    language, sources = ("cpp", cpp) if cpp else ("python", python)
    if not sources or (cpp and python):
        raise _Refused(f"its validator is neither Python nor C++: {', '.join(files) or 'no files'}")
    mains = [name for stem in _MAIN_STEMS for name in sources if Path(name).stem == stem]
    # All C++ files are compiled into one program, so any may be first; Python runs one file, which imports the others.
    if not mains and language == "python" and len(sources) > 1:
        raise _Refused(f"which of {', '.join(sources)} is the validator's main file is not said")
    main = (mains or sources)[0]
    texts = {}
    for name, file in files.items():
        with suppress(UnicodeDecodeError):  # a binary file is neither a source nor a header, so it is left out
            texts[name] = _with_constants(file.read_bytes().decode(), description)
    if (source := texts.pop(main, None)) is None:
        raise _Refused(f"{main} is not UTF-8")
    return {"source": source, "language": language, "files": texts, "protocol": "kattis", "flags": list(flags)}


def _with_constants(text: str, description: Mapping[str, Any]) -> str:
    """A text of a package, {{name}} and {{name.variant}} replaced by what its `constants` say."""
    constants = description.get("constants")

    def value(match: re.Match[str]) -> str:
        name, variant = match[1] or match[3], match[2] or match[4] or "value"
        found = constants.get(name) if isinstance(constants, Mapping) else None
        if not isinstance(found, Mapping):
            found = {} if found is None else {"value": found}
        return str(found.get(variant, match[0]))

    return _CONSTANT.sub(value, text)


def _default_validator(flags: tuple[str, ...]) -> dict[str, Any]:
    """The format's default validator with these flags, as a function for the protocol "check". Without a tolerance it
    compares words as texts, unlike our comparators: 1.50 is not 1.5. Raises _Refused for an unusable flag."""
    tolerances: dict[str, float] = {}
    following = iter(flags)
    for name in following:
        if name in ("float_tolerance", "float_relative_tolerance", "float_absolute_tolerance"):
            value = next(following, "")  # a flag and its number are two words
            tolerances[name] = math.nan  # which the range below refuses
            with suppress(ValueError):
                tolerances[name] = float(value)
            if not 0 <= tolerances[name] < math.inf:
                raise _Refused(f"its flag {name} has no number: {value}")
        elif name not in ("case_sensitive", "space_change_sensitive"):
            raise _Refused(f"its flag {name} is none of the default validator's")
    both = tolerances.get("float_tolerance", 0.0)  # the flag that sets both tolerances
    settings = {
        "relative": tolerances.get("float_relative_tolerance", both),
        "absolute": tolerances.get("float_absolute_tolerance", both),
        "has_tolerance": bool(tolerances),
        "case_sensitive": "case_sensitive" in flags, "space_sensitive": "space_change_sensitive" in flags,
    }  # fmt: skip
    source = "\n".join(f"{name.upper()} = {value!r}" for name, value in settings.items()) + _DEFAULT_VALIDATOR
    return {"source": source, "language": "python", "protocol": "check"}


_DEFAULT_VALIDATOR = """
import re

SPACES, NUMBER = re.compile(r"[ \\t\\r\\n\\v\\f]+"), re.compile(r"[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?")


def check(input, output, expected):
    if SPACE_SENSITIVE:
        left, right = (SPACES.findall(text) for text in (expected, output))
        if left != right:
            return False
    left, right = (SPACES.split(text.strip(" \\t\\r\\n\\v\\f")) for text in (expected, output))
    return len(left) == len(right) and all(map(same, left, right))


def same(wanted, found):
    if wanted == found or (not CASE_SENSITIVE and wanted.encode().lower() == found.encode().lower()):
        return True
    if not HAS_TOLERANCE or not (NUMBER.fullmatch(wanted) and NUMBER.fullmatch(found)):
        return False
    wanted, found = float(wanted), float(found)
    difference = abs(wanted - found)
    return difference <= ABSOLUTE or difference <= RELATIVE * abs(wanted)
"""


def _first_text(source: Path, *endings: str) -> str:
    """The text of the first file that there is with the name of `source` and one of these endings."""
    return next(_text(file) for ending in endings if (file := source.with_suffix(ending)).is_file()).rstrip("\n")


def _statement(package: Path, description: Mapping[str, Any], samples: list[tuple[str, str]]) -> str:
    """The statement as it is written, in English where there are several, with the samples, which it leaves out."""
    places = [package / folder / name for folder in _STATEMENTS for name in _STATEMENT_NAMES]
    files = [place for place in places if place.is_file()]
    files += [file for folder in _STATEMENTS for file in sorted((package / folder).glob("problem.*")) if file.is_file()]
    text = next((_text(file).strip() for file in files if file.suffix in (".md", ".tex", ".typ")), "")
    if not text:
        raise _Refused("it has no statement as text (problem_statement/problem.en.tex or .md)")
    name = description.get("name")
    name = name.get("en", next(iter(name.values()), "")) if isinstance(name, Mapping) else name
    parts = [f"{name}\n" if name else "", _with_constants(text, description), ""]
    for number, (given, printed) in enumerate(samples, 1):
        parts += [f"Sample Input {number}", given, "", f"Sample Output {number}", printed, ""]
    return "\n".join(parts).strip()


def _programs(package: Path, description: Mapping[str, Any], verdicts: tuple[str, ...]) -> Iterator[str]:
    """The Python submissions of one file with one of these verdicts, sorted by name."""
    for verdict in verdicts:
        for file in sorted((package / "submissions" / verdict).glob("*")):
            # A program of several files is none that can be graded.
            sources = [one for one in (file.iterdir() if file.is_dir() else [file]) if one.suffix in _PYTHON]
            if len(sources) == 1 and sources[0].is_file() and _is_python_3(text := _text(sources[0])):
                yield _with_constants(text, description)


def _is_python_3(text: str) -> bool:
    """Whether a program is not one of Python 2, which has the same suffix: by its first line, or by what it says."""
    try:
        names = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]
    except NOT_PYTHON:
        return False
    loaded = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    says_2 = (loaded - made) & {"raw_input", "xrange"} and "NameError" not in text
    return not says_2 and not re.match(r"#!.*python2", text)


def _time_limit(package: Path, description: Mapping[str, Any]) -> float | None:
    limits = description.get("limits")
    values: list[Any] = [limits.get("time_limit")] if isinstance(limits, Mapping) else []
    if (ini := package / "domjudge-problem.ini").is_file():
        parser = configparser.ConfigParser()
        with suppress(configparser.Error):
            parser.read_string("[problem]\n" + _text(ini))
            values.append(parser.get("problem", "timelimit", fallback="").strip("'\" "))
    if (file := package / ".timelimit").is_file():
        values.append(_text(file).strip())
    for value in values:
        with suppress(TypeError, ValueError):
            return float(value)
    return None


def _mapping(file: Path) -> dict[str, Any]:
    import yaml  # for packages alone

    try:
        value = yaml.safe_load(_text(file))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise _Refused(f"{file.name} is no YAML: {' '.join(str(error).split())[:200]}") from None
    return value if isinstance(value, dict) else {}


def _exact_text(file: Path) -> str:
    try:
        return file.read_bytes().decode()
    except UnicodeDecodeError:
        raise _Refused(f"{file.name} is not UTF-8") from None


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")
