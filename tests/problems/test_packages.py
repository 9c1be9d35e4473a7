"""Problem packages of Kattis and the ICPC, as they lie on disk."""

import json
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.problems.loading import load_problems
from coderl_tasks.problems.packages import package_folders, package_row
from coderl_tasks.problems.sources import open_source

VALIDATORS = "output_validators"
VALIDATOR = "import sys\nsys.exit(42 if sys.stdin.read().strip() in ('1', 'one') else 43)\n"


def package(folder: Path, files: dict[str, str] | None = None, **about: Any) -> Path:
    """A package in `folder`, of the legacy format, with `files` more."""
    usual = {
        "problem.yaml": json.dumps({"name": {"en": "One"}, **about}),
        "data/sample/1.in": "a\n",
        "data/sample/1.ans": "1\n",
        "data/secret/2.in": "b\n",
        "data/secret/2.ans": "1\n",
        "data/secret/group/3.in": "c\n",
        "data/secret/group/3.ans": "1\n",
        "problem_statement/problem.en.tex": "\\problemname{One}\nPrint $1$.",
        "submissions/accepted/a.py": "print(1)",
        "submissions/accepted/a.cpp": "int main() {}",
        "submissions/wrong_answer/b.py": "print(2)",
        "submissions/time_limit_exceeded/c.py": "print(1)",
        "submissions/run_time_error/d.py": "1 / 0",
    }
    for name, text in {**usual, **(files or {})}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CODERL_HOME", str(tmp_path / "home"))


def test_a_folder_of_packages_is_a_data_set(tmp_path: Path) -> None:
    package(tmp_path / "set" / "one", validation="custom", validator_flags="x y",
            files={"output_validators/validate.py": VALIDATOR})  # fmt: skip
    package(tmp_path / "set" / "two", limits={"time_limit": 2.5})
    package(tmp_path / "set" / "three", validation="custom interactive")
    loaded = load_problems(str(tmp_path / "set"), role="train")
    one, two = loaded.problems
    assert [one.problem_id, two.problem_id] == ["one", "two"] and one.split == "set"
    assert [test.input for test in one.tests] == ["a\n", "b\n", "c\n"]
    assert one.solutions == ("print(1)",) and one.wrong_solutions == ("print(2)", "1 / 0")
    assert one.statement.startswith("One\n\n\\problemname{One}") and one.statement.endswith("Sample Output 1\n1")
    checker = json.loads(one.checker)
    assert checker["source"] == VALIDATOR and (checker["protocol"], checker["flags"]) == ("kattis", ["x", "y"])
    assert two.time_limit_s == 2.5 and json.loads(two.checker)["protocol"] == "check"
    (dropped,) = loaded.dropped.iter_rows(named=True)
    assert dropped["reason"] == "unusable_package" and dropped["detail"].startswith("three: it is interactive")


def test_a_package_alone_is_one_too_and_is_read_again_when_it_changes(tmp_path: Path) -> None:
    folder = package(tmp_path / "one")
    assert package_folders(folder) == [folder]
    (source,) = open_source(str(folder), None, "train")
    assert open_source(str(folder), None, "test")[0].files == source.files
    package(folder, {"data/secret/4.in": "d\n", "data/secret/4.ans": "1\n"})
    (problem,) = load_problems(str(folder), role="train").problems
    assert len(problem.tests) == 4


def test_other_folders_of_data_hold_no_tests(tmp_path: Path) -> None:
    row = package_row(
        package(tmp_path / "sample" / "one", {"data/invalid_input/x.in": "x", "data/valid_output/y.in": "y"})
    )
    assert len(row["tests"]) == 3


def test_the_format_of_2023_has_other_names(tmp_path: Path) -> None:
    files = {
        "output_validator/validate.cpp": "#include <iostream>\nint main() {}",
        "output_validator/helper.h": "// help",
        "statement/problem.en.md": "Print 1.",
        "data/secret/test_group.yaml": "output_validator_args: [a, b]",
    }
    row = package_row(package(tmp_path / "one", files, problem_format_version="2023-07-draft", type="pass-fail"))
    assert row["checker"]["language"] == "cpp" and row["checker"]["files"] == {"helper.h": "// help"}
    assert row["checker"]["flags"] == ["a", "b"]


def test_drafts_of_the_newer_format_have_the_older_folder(tmp_path: Path) -> None:
    files = {f"{VALIDATORS}/validate.py": VALIDATOR}
    row = package_row(package(tmp_path / "one", files, problem_format_version="2023-07-draft"))
    assert row["checker"]["source"] == VALIDATOR


def test_a_validator_has_the_files_of_its_folder(tmp_path: Path) -> None:
    files = {f"{VALIDATORS}/v/{name}": "// x" for name in ("validate.cc", "validate.h", "table.inc")}
    folder = package(tmp_path / "one", files, validation="custom")
    (folder / VALIDATORS / "v" / "a.out").write_bytes(b"\xff")
    assert package_row(folder)["checker"]["files"] == {"validate.h": "// x", "table.inc": "// x"}


def test_flags_are_those_of_the_nearest_group(tmp_path: Path) -> None:
    files = {
        "data/testdata.yaml": "output_validator_flags: a",
        "data/secret/testdata.yaml": "output_validator_flags: {name: v, flags: b c}",
        "data/secret/group/testdata.yaml": "accept_score: 2",
        "data/secret/2.yaml": "description: a test",
        f"{VALIDATORS}/v.py": VALIDATOR,
    }
    row = package_row(package(tmp_path / "one", files, validation="custom", validator_flags="general"))
    assert row["checker"]["flags"] == ["general", "b", "c"]
    # The sample would be judged with other flags.
    assert [test["input"] for test in row["tests"]] == ["b\n", "c\n"] and "Sample Input 1\na" in row["question"]


def test_constants_stand_for_their_values(tmp_path: Path) -> None:
    files = {
        "output_validator/validate.py": "LIMIT = {{n}}  # {{other}}\n",
        "problem_statement/problem.en.tex": "At most \\constant{n.tex}.",
        "submissions/accepted/a.py": "print({{n.value}})",
    }
    about = {"problem_format_version": "2025-09", "constants": {"n": {"value": 5, "tex": "five"}}}
    row = package_row(package(tmp_path / "one", files, **about))
    assert row["checker"]["source"] == "LIMIT = 5  # {{other}}\n" and "At most five." in row["question"]
    assert row["solutions"] == ["print(5)"]


def test_a_sample_is_shown_as_its_package_says(tmp_path: Path) -> None:
    row = package_row(package(tmp_path / "one", {"data/sample/1.out": "one\n", "data/sample/1.in.statement": "A\n"}))
    assert row["question"].endswith("Sample Input 1\nA\n\nSample Output 1\none")
    assert row["tests"][0] == {"input": "a\n", "output": "1\n"}


def test_programs_in_python_2_are_left_out(tmp_path: Path) -> None:
    programs = {
        "b.py": "print 1",
        "c.py": "#!/usr/bin/env python2\nprint(1)",
        "d.py": "raw_input()\nprint(1)",
        "e.py": "try: input = raw_input\nexcept NameError: pass\nprint(1)",
        "f.py2": "print(1)",
    }
    files = {f"submissions/accepted/{name}": program for name, program in programs.items()}
    row = package_row(package(tmp_path / "one", files))
    assert row["solutions"] == ["print(1)", programs["e.py"]]


def test_a_link_that_leads_nowhere_is_a_fault_of_its_package_alone(tmp_path: Path) -> None:
    (package(tmp_path / "set" / "one") / "data" / "secret" / "3.in").symlink_to("/nowhere")
    (package(tmp_path / "set" / "two") / "attachments").symlink_to("/nowhere")
    package(tmp_path / "set" / "one", {"data/secret/3.ans": "1"})
    loaded = load_problems(str(tmp_path / "set"), role="train")
    assert [problem.problem_id for problem in loaded.problems] == ["two"]
    assert loaded.dropped["detail"].item().endswith("3.in is a link that leads nowhere")


def test_a_test_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = package(tmp_path / "one")
    (folder / "data" / "secret" / "2.in").write_bytes(b"\xff\n")
    assert package_row(folder)["package_fault"] == "one: 2.in is not UTF-8"


@pytest.mark.parametrize(
    ("flags", "right", "wrong"),
    [
        ("", ["1.5 Yes", "1.5\nyes\n"], ["1.50 yes", "1.5"]),
        ("case_sensitive", ["1.5  Yes"], ["1.5 yes"]),
        ("case_sensitive space_change_sensitive", ["1.5 Yes"], ["1.5  Yes", "1.5 yes"]),
        ("space_change_sensitive", ["1.5 YES"], ["1.5\tyes"]),
        (
            "float_tolerance 1e-2",
            ["1.51 yes", "1.49 YES", "15e-1 yes"],
            ["1.6 yes", "nan yes", "1.5 no", "\u0661.5 yes"],
        ),
        ("float_absolute_tolerance 0.1 case_sensitive", ["1.59 Yes"], ["1.7 Yes", "1.5 yes"]),
        ("float_relative_tolerance 0.1", ["1.64 yes"], ["1.66 yes"]),
    ],
)
def test_the_default_validator_has_its_flags(tmp_path: Path, flags: str, right: list[str], wrong: list[str]) -> None:
    row = package_row(package(tmp_path / "one", validator_flags=flags))

    def passes(output: str) -> bool:
        names: dict[str, Any] = {}
        exec(row["checker"]["source"], names)
        return bool(names["check"]("", output, "1.5 Yes"))

    assert all(map(passes, right)) and not any(map(passes, wrong))


@pytest.mark.parametrize(
    ("files", "about", "says"),
    [
        ({}, {"type": "interactive"}, "it is interactive"),
        ({}, {"type": ["pass-fail", "multi-pass"]}, "it is multi-pass"),
        ({}, {"type": "scoring"}, "scoring problem"),
        ({}, {"validation": "custom score"}, "scoring problem"),
        ({}, {"grading": {"objective": "max"}}, "scoring problem"),
        ({}, {"validation": "custom"}, "no folder output_validators"),
        ({"output_validators/v.java": "x"}, {"validation": "custom"}, "neither Python nor C"),
        ({f"{VALIDATORS}/build": "x", f"{VALIDATORS}/v.py": "x"}, {"validation": "custom"}, "a script of its own"),
        ({f"{VALIDATORS}/a/v.py": "x", f"{VALIDATORS}/b/v.py": "x"}, {"validation": "custom"}, "2 validators: a, b"),
        ({f"{VALIDATORS}/a.py": "x", f"{VALIDATORS}/b.cpp": "x"}, {"validation": "custom"}, "validators: a.py, b.cpp"),
        ({f"{VALIDATORS}/a/a.py": "x", f"{VALIDATORS}/a/b.cpp": "x"}, {"validation": "custom"}, "neither Python nor C"),
        ({"data/secret/9.in": "x"}, {}, "9.in has no 9.ans"),
        ({"data/secret/group/testdata.yaml": "output_validator_flags: a"}, {}, "flags of the validator of their own"),
        ({"data/secret/2.args": "x"}, {}, "2.in: a test with arguments"),
        ({"data/secret/2.yaml": "args: [x]"}, {}, "2.in: a test with arguments"),
        ({"data/secret/2.yaml": "output_validator_args: [x]"}, {}, "flags of the validator of their own"),
        ({"include/python3/lib.py": "x"}, {}, "include/python3: its programs are given files"),
        ({}, {"validator_flags": "float_tolerance nan"}, "no number: nan"),
        ({}, {"validator_flags": "float_tolerance"}, "float_tolerance has no number"),
        ({}, {"validator_flags": "tolerance 1e-6"}, "tolerance is none of the default validator's"),
        ({"problem_statement/problem.en.tex": " "}, {}, "no statement"),
        ({"problem.yaml": "a: ["}, {}, "no YAML"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_by_name(
    tmp_path: Path, files: dict[str, str], about: dict[str, Any], says: str
) -> None:
    row = package_row(package(tmp_path / "name", files, **about))
    assert row["package_fault"].startswith("name: ") and says in row["package_fault"]
