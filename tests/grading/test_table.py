"""`grade_files`: parquet in, parquet out, and one clear error for what does not fit."""

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from aiohttp import web

from coderl_tasks.cli import main
from coderl_tasks.errors import ConfigError, DataError, InfraError
from coderl_tasks.grading.table import GRADES_SCHEMA, grade_files
from coderl_tasks.problems import load_problems
from coderl_tasks.problems.problem import problems_frame
from tests.conftest import Serve
from tests.grading import stock_sandbox
from tests.grading.faulty_servers import FaultyServer
from tests.grading.programs import ADD, SUM, TOTAL

RIGHT, WRONG = SUM + "print(a + b)", "print(0)"


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.parquet"
    problems_frame([ADD, TOTAL]).write_parquet(path)
    return path


def completions(folder: Path, **columns: list[Any]) -> Path:
    path = folder / "completions.parquet"
    pl.DataFrame(columns).write_parquet(path)
    return path


def test_code_is_graded_row_by_row(problems: Path, tmp_path: Path, embedded_url: str) -> None:
    given = completions(
        tmp_path,
        problem_id=["p-stdin", "p-call", "p-stdin", "p-stdin", "p-stdin"],
        code=[WRONG, "def total(xs): return sum(xs)", RIGHT, None, RIGHT],
    )
    out = tmp_path / "out.parquet"
    grade_files(problems, given, out, [embedded_url])
    grades = pl.read_parquet(out)
    assert dict(grades.schema) == GRADES_SCHEMA
    assert grades["row"].to_list() == [0, 1, 2, 3, 4]
    assert grades["verdict"].to_list() == ["wrong_answer", "passed", "passed", "format_error", "passed"]
    assert grades["first_failed"].to_list() == [0, None, None, None, None]
    assert grades["tests_total"].to_list() == [3, 2, 3, 3, 3]


def test_completions_of_raw_problems(tmp_path: Path, embedded_url: str) -> None:
    tests = json.dumps([{"input": "2 3\n", "output": "5\n"}])
    raw = tmp_path / "raw.parquet"
    pl.DataFrame({"problem": ["Add."], "tests": [tests], "problem_id": ["mine"]}).write_parquet(raw)
    texts = [f"```python\n{RIGHT}\n```", RIGHT, None]
    given = completions(tmp_path, problem_id=["mine"] * 3, completion=texts)
    grades = grade_files(raw, given, tmp_path / "out.parquet", [embedded_url])
    assert grades["verdict"].to_list() == ["passed", "format_error", "format_error"]


def test_the_failed_test_is_shown(problems: Path, tmp_path: Path, embedded_url: str) -> None:
    tried = {
        "p-stdin": [WRONG, SUM + "print(1 / 0)", "print('x' * 5000)", "print(", RIGHT],
        "p-call": ["def total(xs): return [len(xs), 'é']", "def total(xs): return {1}"],
    }
    given = completions(
        tmp_path,
        problem_id=[problem_id for problem_id, codes in tried.items() for _ in codes],
        code=[code for codes in tried.values() for code in codes],
    )
    grades = grade_files(problems, given, tmp_path / "out.parquet", [embedded_url])
    shown = grades.select("failed_input", "failed_expected", "failed_output", "error").rows()
    division = "ZeroDivisionError: division by zero (line 2)"
    assert shown[0] == ("2 3\n", "5\n", "0\n", None)
    assert shown[1] == ("2 3\n", "5\n", "", division)
    assert shown[2] == ("2 3\n", "5\n", f"{'x' * 1000}... (5,001 bytes)", None)
    assert shown[3][:3] == ("2 3\n", "5\n", None) and shown[3][3].startswith("SyntaxError")
    assert shown[4] == (None, None, None, None)
    assert shown[5] == ("[[1, 2, 3]]", "6", r'[3, "\u00e9"]', None)
    assert shown[6] == ("[[1, 2, 3]]", "6", None, None)
    assert grades["reason"].to_list()[:2] == ["test 0: line 1, token 1: expected 5, got 0", f"test 0: {division}"]
    assert grades["reason"][4] is None


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_a_disk_that_takes_no_more_is_one_line(
    suffix: str,
    problems: Path,
    tmp_path: Path,
    embedded_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = completions(tmp_path, problem_id=["p-stdin"] * 50, code=[f"print({row})" for row in range(50)])
    out = tmp_path / f"out.{suffix}"
    monkeypatch.setenv("SANDBOX_URL", embedded_url)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is imported meanwhile would be cut off there
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        ended = main(["grade", f"--problems={problems}", f"--completions={given}", f"--out={out}"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    said = capsys.readouterr().err
    last = said.strip().rpartition("\n")[2]
    assert (ended, last.startswith("coderl grade: File too large: "), str(out) in last) == (1, True, True)
    assert "Traceback" not in said
    assert sorted(tmp_path.iterdir()) == sorted([problems, given])


def raw_problems(folder: Path, rows: list[dict[str, Any]]) -> Path:
    path = folder / "raw.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def echo(answer: str) -> dict[str, Any]:
    return {"statement": f"Print {answer}.", "tests": [{"input": "", "output": answer}]}


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_rows_without_an_id_are_named_by_their_number(suffix: str, tmp_path: Path, embedded_url: str) -> None:
    raw = raw_problems(tmp_path, [echo("a"), {"statement": "?"}, echo("b"), echo("a")])
    given = tmp_path / "completions.jsonl"
    lines: list[dict[str, object]] = [
        {"source_row": row, "completion": f"```\nprint('{text}')\n```"} for row, text in ((0, "a"), (2, "a"), (3, "a"))
    ]
    lines.append({"problem_id": None, "source_row": 2, "completion": "\ud800 no code"})
    given.write_text("\n".join(json.dumps(line) for line in lines))
    out = tmp_path / f"out.{suffix}"
    grade_files(raw, given, out, [embedded_url])
    read: dict[str, Callable[[Path], pl.DataFrame]] = {
        "csv": pl.read_csv,
        "jsonl": pl.read_ndjson,
        "parquet": pl.read_parquet,
    }
    grades = read[suffix](out)
    assert grades.columns == list(GRADES_SCHEMA)
    assert grades["verdict"].to_list() == ["passed", "wrong_answer", "passed", "format_error"]
    assert grades["source_row"].to_list() == [0, 2, 0, 2]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (['{"source_row": 1, "code": "x"}'], "source_row 1 of the problems gives no problem .none in tests"),
        (['{"source_row": 9, "code": "x"}'], "source_row 9 .*there is no such row"),
        (['{"source_row": "0", "code": "x"}'], "source_row .* is not a whole number in row 0"),
        (['{"source_row": 0, "code": "x"}', "x"], "line 2: not a JSON object"),
        (
            ['{"source_row": 0, "code": "x"}', '{"source_row": 0, "completion": "x"}'],
            "line 2: code in some lines and not",
        ),
        (['{"source_row": 0, "code": 1}'], "code of the completions is not text in row 0"),
        (['{"problem_id": true, "code": "x"}'], "neither text nor a whole number in row 0"),
        (['{"problem_id": "\\ud800", "code": "x"}'], "are not among the problems'"),
        (['{"source_row": 0}'], "line 1: neither code nor completion; there are: source_row"),
        (['{"source_row": 3, "code": "x"}'], "source_row 3 is in several splits .raw, other.: add a column split"),
    ],
)
def test_lines_that_do_not_fit_are_told(lines: list[str], says: str, tmp_path: Path) -> None:
    raw = raw_problems(tmp_path, [echo("a"), {"statement": "?"}, echo("b"), echo("c"), echo("d")])
    table = load_problems(str(raw), role="test").problems
    moved = [replace(problem, split="other", source_row=3) if problem.source_row == 4 else problem for problem in table]
    if "several" in says:
        raw = tmp_path / "problems.parquet"
        problems_frame(moved).write_parquet(raw)
    given = tmp_path / "completions.jsonl"
    given.write_text("\n".join(lines))
    with pytest.raises(DataError, match=says):
        grade_files(raw, given, tmp_path / "out.parquet", ["http://127.0.0.1:1"])


def test_no_completions(problems: Path, tmp_path: Path, embedded_url: str) -> None:
    given = tmp_path / "none.parquet"
    pl.DataFrame(schema={"problem_id": pl.String, "code": pl.String}).write_parquet(given)
    assert grade_files(problems, given, tmp_path / "out.parquet", [embedded_url]).height == 0


def test_what_does_not_fit_is_told_in_one_line(problems: Path, tmp_path: Path) -> None:
    out, urls = tmp_path / "out.parquet", ["http://127.0.0.1:1"]
    good = completions(tmp_path, problem_id=["p-stdin"], code=[WRONG])
    text = tmp_path / "text.parquet"
    text.write_text("not parquet")
    with pytest.raises(DataError, match=r"need the columns problem_id .* there are: problem_id, split"):
        grade_files(problems, problems, out, urls)
    with pytest.raises(DataError, match="cannot be read"):
        grade_files(problems, text, out, urls)
    with pytest.raises(DataError, match=r"nowhere\.parquet"):
        grade_files(problems, tmp_path / "nowhere.parquet", out, urls)
    with pytest.raises(DataError):
        grade_files(text, good, out, urls)
    with pytest.raises(ConfigError, match="--out"):
        grade_files(problems, good, tmp_path / "no" / "folder.parquet", urls)
    with pytest.raises(ConfigError, match=r"verdicts.xlsx: its name has to end in one of .parquet"):
        grade_files(problems, good, tmp_path / "verdicts.xlsx", urls)
    with pytest.raises(DataError, match=r"1 problem ids .* \(p-stdin, \.\.\.\): other"):
        grade_files(problems, completions(tmp_path, problem_id=["other"], code=[WRONG]), out, urls)
    with pytest.raises(DataError, match="not text"):
        grade_files(problems, completions(tmp_path, problem_id=["p-stdin"], code=[1]), out, urls)
    with pytest.raises(DataError, match="neither text nor a whole number"):
        grade_files(problems, completions(tmp_path, problem_id=[["p-stdin"]], code=[WRONG]), out, urls)
    with pytest.raises(DataError, match=r"1 completions have no problem_id and no source_row, the first is row 1"):
        grade_files(problems, completions(tmp_path, problem_id=["p-stdin", None], code=[WRONG] * 2), out, urls)
    with pytest.raises(DataError, match=r"nowhere\.parquet: no such file"):
        grade_files(tmp_path / "nowhere.parquet", good, out, urls)
    for timeout_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match="timeout"):
            grade_files(problems, good, out, urls, timeout_s)
    assert not out.exists()


def test_what_is_there_is_not_lost(problems: Path, tmp_path: Path) -> None:
    urls, given = ["http://127.0.0.1:1"], completions(tmp_path, problem_id=["p-stdin"], code=[WRONG])
    linked = tmp_path / "linked.parquet"
    linked.hardlink_to(given)
    before = problems.read_bytes(), given.read_bytes()
    for out in (problems, given, linked, tmp_path / "." / "problems.parquet"):
        with pytest.raises(ConfigError, match="one of the files to read"):
            grade_files(problems, given, out, urls)
    assert (problems.read_bytes(), given.read_bytes()) == before


def test_a_place_that_cannot_be_written_is_known_before_anything_runs(problems: Path, tmp_path: Path) -> None:
    given = completions(tmp_path, problem_id=["p-stdin"], code=[WRONG])
    with pytest.raises(ConfigError, match="cannot be written"):
        grade_files(problems, given, Path("/proc/out.parquet"), ["http://127.0.0.1:1"])


def test_rows_that_give_no_problem_are_counted(
    tmp_path: Path, embedded_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    add = json.dumps([{"input": "2 3\n", "output": "5\n"}])
    raw = tmp_path / "raw.parquet"
    rows = {"problem": ["Add."] * 4, "tests": [add, "{", "[]", add], "problem_id": ["a", "b", "c", "a"]}
    pl.DataFrame(rows).write_parquet(raw)
    said = r"raw.parquet: 3 of 4 rows give no problem \(no_tests 1, same_identity 1, tests_not_json 1\)"
    grades = grade_files(
        raw, completions(tmp_path, problem_id=["a"], code=[RIGHT]), tmp_path / "out.parquet", [embedded_url]
    )
    assert grades["verdict"].to_list() == ["passed"]
    assert re.search(said, capsys.readouterr().err)
    with pytest.raises(DataError, match=said):
        grade_files(
            raw, completions(tmp_path, problem_id=["b"], code=[RIGHT]), tmp_path / "out.parquet", [embedded_url]
        )
    pl.DataFrame(rows).with_columns(tests=pl.lit("{")).write_parquet(raw)
    with pytest.raises(DataError, match=r"4 of 4 rows give no problem"):
        grade_files(raw, completions(tmp_path, problem_id=["b"], code=[RIGHT]), tmp_path / "x.parquet", [embedded_url])


def test_an_id_of_two_problems_is_refused(tmp_path: Path) -> None:
    raw = tmp_path / "raw.parquet"
    tests = [json.dumps([{"input": "2 3\n", "output": answer}]) for answer in ("5\n", "6\n")]
    pl.DataFrame({"problem": ["Add.", "Add."], "tests": tests, "problem_id": ["a", "a"]}).write_parquet(raw)
    with pytest.raises(DataError, match="problem id a stands for different tests"):
        grade_files(raw, completions(tmp_path, problem_id=["a"], code=[RIGHT]), tmp_path / "x.parquet", ["http://x"])


ADD_CALL = "class Solution:\n    def add(self, a, b): return a + b"
RAW_SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "taco": ({"tests": {"inputs": ["2 3\n"], "outputs": ["5\n"]}}, RIGHT),
    "taco lines": ({"tests": {"inputs": [["2 3"]], "outputs": [["5"]]}}, RIGHT),
    "taco call": ({"tests": {"inputs": [[2, 3]], "outputs": [[5]], "fn_name": "add"}}, ADD_CALL),
    "taco call as text": ({"tests": {"inputs": ["[2, 3]"], "outputs": ["5"], "fn_name": "add"}}, ADD_CALL),
    "lcbv5": ({"tests": [{"input": "2 3\n", "output": "5\n", "testtype": "stdin"}]}, RIGHT),
    "lcbv5 call": (
        {
            "tests": [{"input": "2\n3", "output": "5", "testtype": "functional"}],
            "metadata": json.dumps({"func_name": "add"}),
            "starter_code": "class Solution:\n    def add(self, a, b):\n        ",
        },
        ADD_CALL,
    ),
    "primeintellect": ({"tests": [{"type": "stdin_stdout", "input": "2 3\n", "output": "5\n"}]}, RIGHT),
    "primeintellect call": (
        {"tests": [{"type": "function_call", "input": "2\n3", "output": "5", "fn_name": "add"}]},
        ADD_CALL,
    ),
    "primeintellect call, native": (
        {"tests": [{"type": "function_call", "input": [2, 3], "output": [5], "fn_name": "add"}]},
        ADD_CALL,
    ),
    "codeforces": ({"tests": [{"input": "2 3\n", "output": "5\n"}]}, RIGHT),
}


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_raw_rows_of_every_shape(suffix: str, tmp_path: Path, embedded_url: str) -> None:
    rows = [
        {"problem_id": name, "problem": "Add.", "metadata": None, "starter_code": None}
        | row
        | {"tests": json.dumps(row["tests"])}
        for name, (row, _) in RAW_SHAPES.items()
    ]
    raw = tmp_path / f"raw.{suffix}"
    if suffix == "parquet":
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(raw)
    else:
        raw.write_text("".join(json.dumps(row) + "\n" for row in rows))
    right = [program for _, program in RAW_SHAPES.values()]
    given = completions(
        tmp_path,
        problem_id=[*RAW_SHAPES, *RAW_SHAPES],
        code=[*right, *(program.replace("a + b", "a - b") for program in right)],
    )
    grades = grade_files(raw, given, tmp_path / "out.parquet", [embedded_url])
    shapes = len(RAW_SHAPES)
    assert grades["problem_id"].to_list() == [*RAW_SHAPES, *RAW_SHAPES]
    assert grades["verdict"].to_list() == ["passed"] * shapes + ["wrong_answer"] * shapes


def test_ids_that_are_numbers_and_completions_that_are_all_null(tmp_path: Path, embedded_url: str) -> None:
    raw = tmp_path / "raw.parquet"
    tests = json.dumps([{"input": "2 3\n", "output": "5\n"}])
    pl.DataFrame({"problem": ["Add."], "tests": [tests], "problem_id": [7]}).write_parquet(raw)
    given = completions(tmp_path, problem_id=[7, 7], completion=[None, None])
    grades = grade_files(raw, given, tmp_path / "out.parquet", [embedded_url])
    assert grades["verdict"].to_list() == ["format_error"] * 2


def test_an_interrupted_run_leaves_the_old_output(problems: Path, tmp_path: Path, serve: Serve) -> None:
    asked = threading.Event()

    async def run_code(_: web.Request) -> web.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    app = web.Application()
    app.router.add_post("/run_code", run_code)
    out = tmp_path / "out.parquet"
    out.write_bytes(b"old")
    given = completions(tmp_path, problem_id=["p-stdin"], code=[RIGHT])
    arguments = ["--problems", problems, "--completions", given, "--out", out]
    process = subprocess.Popen(
        [sys.executable, "-m", "coderl_tasks.cli", "grade", *map(str, arguments)],
        env={**os.environ, "SANDBOX_URL": serve(app)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert asked.wait(60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130
    assert said.endswith("coderl grade: interrupted\n") and "Traceback" not in said
    assert out.read_bytes() == b"old"
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["completions.parquet", "out.parquet", "problems.parquet"]


def test_the_environment_says_how_many_requests_are_under_way(
    problems: Path,
    tmp_path: Path,
    serve: Serve,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = FaultyServer(stock_sandbox.run_code)
    monkeypatch.setenv("SANDBOX_URL", serve(server.app()))
    monkeypatch.setenv("SANDBOX_MAX_CONCURRENCY", "2")
    given = completions(tmp_path, problem_id=["p-stdin"] * 8, code=[f"{RIGHT}  # {n}" for n in range(8)])
    out = tmp_path / "out.parquet"
    assert main(["grade", f"--problems={problems}", f"--completions={given}", f"--out={out}"]) == 0
    assert capsys.readouterr().out == f"8 completions graded (8 passed): {out}\n"
    assert pl.read_parquet(out)["verdict"].to_list() == ["passed"] * 8
    assert server.most_at_once == 2


def test_an_outage_is_written_and_raised(problems: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.parquet"
    given = completions(tmp_path, problem_id=["p-stdin"] * 2, code=[WRONG, None])
    said = r"^1 of 2 rows of .* are infra_error .*http://127.0.0.1:1: .*Check SANDBOX_URL.* run the same command again$"
    with pytest.raises(InfraError, match=said):
        grade_files(problems, given, out, ["http://127.0.0.1:1"])
    assert pl.read_parquet(out)["verdict"].to_list() == ["infra_error", "format_error"]


def test_completions_of_human_eval_go_on_where_its_prompt_ends(tmp_path: Path, embedded_url: str) -> None:
    row = {
        "task_id": "HumanEval/0",
        "prompt": 'def add(a: int, b: int):\n    """ The sum. """\n',
        "test": "def check(candidate):\n    assert candidate(1, 2) == 3",
        "entry_point": "add",
    }
    given = tmp_path / "samples.jsonl"
    texts = [
        "    return a + b\n",
        "    return a - b\n",
        "```python\ndef add(a, b):\n    return a + b\n```",
        "no program",
    ]
    given.write_text("".join(json.dumps({"task_id": "HumanEval/0", "completion": text}) + "\n" for text in texts))
    grades = grade_files(raw_problems(tmp_path, [row]), given, tmp_path / "out.parquet", [embedded_url])
    assert grades["verdict"].to_list() == ["passed", "wrong_answer", "passed", "format_error"]
