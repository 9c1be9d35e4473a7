"""Problem packages as Kattis and the ICPC define them, of a folder as it lies on disk: one row per package.

    NAME/problem.yaml, data/sample|secret/**/*.in with .ans, problem_statement/ or statement/, output_validators/ or
    output_validator/, submissions/accepted|wrong_answer|run_time_error/

Read are the legacy format and that of 2023-07. Accepted Python submissions are reference solutions. Wrong and crashing
ones are known-wrong programs, not those that exceed the time limit: their answers may be right. An interactive or a
scoring package is refused, by name and with the reason.
"""

import configparser
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from coderl_tasks.errors import DataError
from coderl_tasks.paths import coderl_home, private_folder, put
from coderl_tasks.problems.checkers import CPP_SUFFIXES

DESCRIPTION = "problem.yaml"
_DEEPEST = 3  # folders between the one that is named and a package
_STATEMENTS = ("problem_statement", "statement")
_STATEMENT_NAMES = ("problem.en.md", "problem.en.tex", "problem.md", "problem.tex", "problem.en.typ")
_VALIDATORS = ("output_validator", "output_validators")
_PYTHON = (".py", ".py3")
_HEADERS = (".h", ".hpp", ".hh")
_WRONG = ("wrong_answer", "run_time_error", "rejected")
_OWN_SETTINGS = (".yaml", ".args", ".files")  # of a test, beside its .in
_FORMAT = 2  # of the rows that are made of packages


def package_folders(folder: Path) -> list[Path]:
    """The packages in `folder`, itself or at most _DEEPEST levels below, sorted by name."""
    found = [folder] if (folder / DESCRIPTION).is_file() else []
    for depth in range(1, _DEEPEST + 1):
        if found:
            break
        found = sorted(file.parent for file in folder.glob("/".join(["*"] * depth) + f"/{DESCRIPTION}"))
    return found


def rows_file(folder: Path) -> Path | None:
    """A file of JSON lines, a row for each package in `folder`; None if there is none. Made once of the same files, in
    CODERL_HOME. Raises DataError where a file cannot be read."""
    packages = package_folders(folder)
    if not packages:
        return None
    digest = hashlib.sha256(str(_FORMAT).encode())
    try:
        for package in packages:
            for file in sorted(package.rglob("*")):
                about = file.stat()
                digest.update(f"{file}\0{about.st_size}\0{about.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
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


class _Refused(Exception):
    """Why a package cannot be used."""


def _read(package: Path) -> dict[str, Any]:
    about = _mapping(package / DESCRIPTION)
    _refuse_other_types(package, about)
    tests: list[dict[str, str]] = []
    samples: list[dict[str, str]] = []
    data = package / "data"
    for source in sorted(file for part in ("sample", "secret") for file in (data / part).glob("**/*.in")):
        if other := next((source.with_suffix(end) for end in _OWN_SETTINGS if source.with_suffix(end).exists()), None):
            raise _Refused(f"{other.relative_to(package)}: a test with arguments, files or flags of its own")
        answer = source.with_suffix(".ans")
        if not answer.is_file():
            raise _Refused(f"{source.relative_to(package)} has no {answer.name}")
        test = {"input": _text(source), "output": _text(answer)}
        is_sample = data / "sample" in source.parents
        (samples if is_sample else tests).append(test)
    if not samples and not tests:
        raise _Refused("data/ has no *.in with its .ans")
    row: dict[str, Any] = {
        "question": _statement(package, about, samples),
        "tests": [*samples, *tests],
        "solutions": list(_programs(package, ("accepted",))),
        "wrong_solutions": list(_programs(package, _WRONG)),
        **_decision(package, about),
    }
    if (limit := _time_limit(package, about)) is not None:
        row["time_limit_s"] = limit
    return row


def _refuse_other_types(package: Path, about: Mapping[str, Any]) -> None:
    types = about.get("type", "pass-fail")
    words = {str(word) for word in (types if isinstance(types, list) else str(types).split())}
    words |= set(str(about.get("validation", "")).split())
    for word, why in (
        ("interactive", "it is interactive: its program talks to a judge while it runs"),
        ("multi-pass", "it is multi-pass: its program runs several times, on what it printed before"),
        ("submit-answer", "it asks for answers, not for a program"),
        ("scoring", "it is a scoring problem: its answers have points, not a verdict"),
        ("score", "it is a scoring problem: its answers have points, not a verdict"),
    ):
        if word in words:
            raise _Refused(why)
    grading = about.get("grading")
    if isinstance(grading, Mapping) and (grading.get("objective") or grading.get("show_test_data_groups")):
        raise _Refused("it is a scoring problem: its answers have points, not a verdict")


def _decision(package: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a test: the package's own validator, or the default one with its flags."""
    folder = next((package / name for name in _VALIDATORS if (package / name).is_dir()), None)
    version = str(about.get("problem_format_version", "legacy"))
    is_legacy = version.startswith("legacy")
    if folder is not None and is_legacy != (folder.name == "output_validators"):
        raise _Refused(f"the format {version} has no folder {folder.name}")
    flags = _flags(package, about)
    if folder is not None and (not is_legacy or str(about.get("validation", "")).startswith("custom")):
        return {"checker": _validator(folder, flags)}
    if str(about.get("validation", "")).startswith("custom"):
        raise _Refused("its own validator is missing: there is no folder output_validators")
    return _default_validator(flags)


def _flags(package: Path, about: Mapping[str, Any]) -> tuple[str, ...]:
    """The flags of the output validator. Raises _Refused where groups of tests have different ones."""
    found: dict[tuple[str, ...], None] = {}
    in_groups = False
    general = about.get("validator_flags", about.get("output_validator_args"))
    for name in ("testdata.yaml", "test_group.yaml"):
        for file in sorted((package / "data").glob(f"**/{name}")):
            values = _mapping(file)
            own = values.get("output_validator_flags", values.get("output_validator_args"))
            if own is not None and "sample" not in file.relative_to(package).parts:
                found.setdefault(_words(own))
            if file.parent.name not in ("data", "secret"):
                in_groups |= own is not None
    if len(found) > 1 or in_groups:
        raise _Refused("its groups of tests have flags of the validator of their own")
    return (*_words(general), *next(iter(found), ()))


def _words(value: Any) -> tuple[str, ...]:
    if value is None:
        return ()
    return tuple(map(str, value)) if isinstance(value, list) else tuple(str(value).split())


def _validator(folder: Path, flags: tuple[str, ...]) -> dict[str, Any]:
    """The program in a folder of validators: its files, or those of its only folder."""
    entries = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith((".", "__"))]
    folders = [entry for entry in entries if entry.is_dir()]
    if folders and not any(entry.suffix in (*_PYTHON, *CPP_SUFFIXES) for entry in entries):
        if len(folders) > 1:
            raise _Refused(f"{folder.name} has {len(folders)} validators: {', '.join(entry.name for entry in folders)}")
        (folder,) = folders
        entries = sorted(folder.iterdir())
    files = {file.name: file for file in entries if file.is_file()}
    if "build" in files or "run" in files:
        raise _Refused("its validator is built by a script of its own")
    for language, suffixes, usual in (
        ("cpp", CPP_SUFFIXES, ("main", "validate", "validator")),
        ("python", _PYTHON, ("main", "__main__", "validate", "validator", "output_validator")),
    ):
        sources = [name for name in files if Path(name).suffix in suffixes]
        if not sources:
            continue
        main = next((name for stem in usual for name in sources if Path(name).stem == stem), sources[0])
        if language == "python" and len(sources) > 1 and Path(main).stem not in usual:
            raise _Refused(f"which of {', '.join(sources)} is the validator's main file is not said")
        others = {name: _text(files[name]) for name in files if name != main and _is_part(name, suffixes)}
        found = {"source": _text(files[main]), "language": language, "files": others}
        return {**found, "protocol": "kattis", "flags": list(flags)}
    raise _Refused(f"its validator is neither Python nor C++: {', '.join(files) or 'no files'}")


def _is_part(name: str, suffixes: tuple[str, ...]) -> bool:
    return Path(name).suffix in (*suffixes, *_HEADERS)


def _default_validator(flags: tuple[str, ...]) -> dict[str, Any]:
    """The default validator with these flags. It compares words as texts, unlike our comparators: 1.50 is not 1.5."""
    words = list(flags)
    case_sensitive = "case_sensitive" in words
    space_sensitive = "space_change_sensitive" in words
    tolerances: dict[str, float] = {}
    for name, value in pairwise([*words, ""]):
        if name in ("float_tolerance", "float_relative_tolerance", "float_absolute_tolerance"):
            try:
                tolerances[name] = float(value)
            except ValueError:
                tolerances[name] = math.nan
            if not 0 <= tolerances[name] < math.inf:
                raise _Refused(f"its flag {name} has no number: {value}")
    both = tolerances.get("float_tolerance", 0.0)
    settings = {
        "relative": tolerances.get("float_relative_tolerance", both),
        "absolute": tolerances.get("float_absolute_tolerance", both),
        "has_tolerance": bool(tolerances),
        "case_sensitive": case_sensitive,
        "space_sensitive": space_sensitive,
    }
    source = "\n".join(f"{name.upper()} = {value!r}" for name, value in settings.items()) + _DEFAULT_VALIDATOR
    return {"checker": {"source": source, "language": "python", "protocol": "check"}}


_DEFAULT_VALIDATOR = """
import re

SPACES, NUMBER = re.compile(r"[ \\t\\r\\n\\v\\f]+"), re.compile(r"[+-]?(\\d+\\.?\\d*|\\.\\d+)([eE][+-]?\\d+)?")


def check(input, output, expected):
    if SPACE_SENSITIVE:
        left, right = (SPACES.findall(text) for text in (expected, output))
        if left != right:
            return False
    left, right = (SPACES.split(text.strip(" \\t\\r\\n\\v\\f")) for text in (expected, output))
    return len(left) == len(right) and all(map(same, left, right))


def same(wanted, found):
    if wanted == found or (not CASE_SENSITIVE and wanted.lower() == found.lower()):
        return True
    if not HAS_TOLERANCE or not (NUMBER.fullmatch(wanted) and NUMBER.fullmatch(found)):
        return False
    wanted, found = float(wanted), float(found)
    difference = abs(wanted - found)
    return difference <= ABSOLUTE or difference <= RELATIVE * abs(wanted)
"""


def _statement(package: Path, about: Mapping[str, Any], samples: list[dict[str, str]]) -> str:
    """The statement as it is written, in English where there are several, with the samples, which it leaves out."""
    places = [package / folder / name for folder in _STATEMENTS for name in _STATEMENT_NAMES]
    files = [place for place in places if place.is_file()]
    files += [file for folder in _STATEMENTS for file in sorted((package / folder).glob("problem.*")) if file.is_file()]
    text = next((_text(file).strip() for file in files if file.suffix in (".md", ".tex", ".typ")), "")
    if not text:
        raise _Refused("it has no statement as text (problem_statement/problem.en.tex or .md)")
    name = about.get("name")
    name = next(iter(name.values()), "") if isinstance(name, Mapping) else name
    parts = [f"{name}\n" if name else "", text, ""]
    for number, sample in enumerate(samples, 1):
        parts += [f"Sample Input {number}", sample["input"].rstrip("\n"), ""]
        parts += [f"Sample Output {number}", sample["output"].rstrip("\n"), ""]
    return "\n".join(parts).strip()


def _programs(package: Path, verdicts: tuple[str, ...]) -> Iterator[str]:
    """The Python submissions of one file with one of these verdicts, sorted by name."""
    for verdict in verdicts:
        for entry in sorted((package / "submissions" / verdict).glob("*")):
            file = entry
            if entry.is_dir():  # a program of several files is none that can be graded
                inside = [one for one in entry.iterdir() if one.suffix in _PYTHON]
                file = inside[0] if len(inside) == 1 else entry
            if file.is_file() and file.suffix in _PYTHON:
                yield _text(file)


def _time_limit(package: Path, about: Mapping[str, Any]) -> float | None:
    limits = about.get("limits")
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


def _text(file: Path) -> str:
    return file.read_bytes().decode("utf-8", "replace")
