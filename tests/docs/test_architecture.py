"""docs/architecture.md and docs/contributing.md name files and functions that exist, and imports point down the list
of directories."""

import re

import pytest

from coderl_tasks.paths import PROJECT_ROOT

ARCHITECTURE = (PROJECT_ROOT / "docs" / "architecture.md").read_text()
TEXT = ARCHITECTURE + (PROJECT_ROOT / "docs" / "contributing.md").read_text()
FILES = sorted(set(re.findall(r"`((?:\w+/)*\w+\.py)`", TEXT)))
NAMED = [
    (file, name)
    for place in re.findall(r"`[\w/]+\.py`: (?:`\w+`(?:, )?)+", TEXT)
    for file, names in [place.split(": ")]
    for name in re.findall(r"\w+", names)
]


def source(file: str) -> str:
    """The text of a file that is named from the project's root or from coderl_tasks/ or flows/."""
    found = [path for root in ("", "coderl_tasks", "flows") if (path := PROJECT_ROOT / root / file).is_file()]
    assert len(found) == 1, file
    return found[0].read_text()


@pytest.mark.parametrize("file", FILES)
def test_the_files_are_there(file: str) -> None:
    assert source(file)


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_the_functions_are_there(file: str, name: str) -> None:
    assert re.search(rf"(def|class) {name}\b", source(file.strip("`")))


def rooms() -> dict[str, int]:
    """The line of the table of directories that each directory or file of coderl_tasks/ is in, and flows/."""
    table = ARCHITECTURE.split("## The directories")[1].split("\n## ")[0]
    lines = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    found = [(path, number) for number, line in enumerate(lines) for path in re.findall(r"`([\w/.]+)`", line)]
    return {path.rstrip("/").removeprefix("coderl_tasks/").removesuffix(".py"): number for path, number in found}


def test_imports_point_down() -> None:
    lines, seen = rooms(), set()
    upward = []
    for file in (*PROJECT_ROOT.glob("coderl_tasks/**/*.py"), *PROJECT_ROOT.glob("flows/*.py")):
        parts = file.relative_to(PROJECT_ROOT).with_suffix("").parts
        room = parts[0] if parts[0] == "flows" else parts[1]
        seen.add(room)
        text = file.read_text().split('if __name__ == "__main__":')[0]  # flows/train.py is a command too
        for names in re.findall(r"^ *from (?:coderl_tasks\.(\w+)|(flows))", text, re.MULTILINE):
            other = "".join(names)
            if room != "__init__" and lines[other] < lines[room]:
                upward.append((str(file), other))
    assert upward == []
    assert seen - {"__init__"} == lines.keys()


def test_one_function_scans_the_files_of_a_run() -> None:
    # polars takes brackets in a name for a pattern, and a newer schema for an error; pools are read below journal/.
    files = (*PROJECT_ROOT.glob("coderl_tasks/**/*.py"), *PROJECT_ROOT.glob("flows/*.py"))
    callers = {file.name for file in files if "pl.scan_parquet(" in file.read_text()}
    assert callers == {"atomic.py", "problem.py"}


def test_something_is_named() -> None:
    assert len(FILES) > 30 and len(NAMED) > 25
