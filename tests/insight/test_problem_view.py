"""`coderl show`: from a problem to the tests that its completions failed."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.cli import main
from coderl_tasks.errors import ConfigError
from coderl_tasks.grading.scoring import shortened
from coderl_tasks.insight.problem_view import failed_test, view_problem
from coderl_tasks.insight.query import query
from coderl_tasks.insight.record import load_run
from coderl_tasks.journal.run_directory import RunDirectory
from coderl_tasks.paths import POOL_FILE, file_sha256
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems.problem import Kind, Problem, Test, problems_frame
from tests.insight.recorded_runs import byte_tokens, rollout, write_run

ESCAPES = "\x1b]0;owned\x07\u202e"


def problem(problem_id: str, kind: Kind = "stdin", expected: str = "3 2 0\n") -> Problem:
    tests = (Test("1\n2\n", expected),) * 12
    return Problem(problem_id, "taco", f"Print what {problem_id} says.", "", kind, "f", tests, 12, 12, None, (), 0)


def wrong(output: str | None, **changed: Any) -> dict[str, Any]:
    return (
        rollout("taco-1", "wrong_answer", random.Random(0), first_failed=3, failed_output=output, reason=None) | changed
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two steps with the problem alpha-1, one of them with alpha-2; its programs print escape sequences."""
    problems_frame([problem("alpha-1"), problem("alpha-2"), problem("beta")]).write_parquet(tmp_path / POOL_FILE)
    config = {"model_name": "no/such-model", "pool": str(tmp_path / POOL_FILE), "dataset": str(tmp_path / "gone.jsonl")}
    draw = random.Random(1)
    with RunDirectory.open(tmp_path / "run", config) as directory:
        for step in range(2):
            rows = [
                rollout("alpha-1", "passed" if sample == step else "wrong_answer", draw, step=step, sample_index=sample)
                for sample in range(3)
            ]
            rows += [rollout("alpha-2", "runtime_error", draw, step=step, group_index=1, first_failed=0)] * (step == 0)
            for row in rows:
                failed = row["verdict"] != "passed"
                row["failed_output"] = f"3 2{ESCAPES}\n" if failed else None
                row["reason"] = f"test 0: ValueError: {ESCAPES}" if row["verdict"] == "runtime_error" else None
            directory.step(step).write("scored", pl.DataFrame(rows, schema=ROLLOUT_SCHEMA))
        row = rollout("beta", "wrong_answer", draw, failed_output="1\n", reason=None)
        summary = {"n": 1, "pass_at_1": 0.0, "ci_low": 0.0, "ci_high": 1.0, "by_split": {}}
        directory.evaluation("baseline").write(pl.DataFrame([row], schema=ROLLOUT_SCHEMA), summary)
    return tmp_path / "run"


def test_a_completion_is_shown_turn_by_turn(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "steps/000001/scored.parquet"
    rows = pl.read_parquet(file).to_dicts()
    turn = {"environment_text": "", "environment_tokens": [], "kept": 0, "is_split": False, "n_tokens": 1}
    turn |= {"text": f"print(1){ESCAPES}", "stop_reason": "stop", "check": "wrong_answer"}
    second = turn | {"environment_text": "Example 1 fails.", "text": rows[0]["completion"], "check": None}
    rows[0]["turns"] = [turn, second]
    pl.DataFrame(rows, schema=ROLLOUT_SCHEMA).write_parquet(file)
    assert main(["show", str(run), "alpha-1", "--step", "1"]) == 0
    said = capsys.readouterr().out
    first, reply, last = (said.index(f"  {words}") for words in ("answer 1", "reply", "answer 2"))
    assert first < reply < last and "Example 1 fails." in said[reply:last]
    assert r"print(1)\x1b]0;owned" in said[first:reply] and "\x1b" not in said
    (answers,) = query(run, name="turns").rows()
    assert answers[:3] == (2, 1, 0 if rows[0]["verdict"] != "passed" else 1)


def test_a_problem_is_shown_with_its_failing_tests(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run), "alpha-1"]) == 0
    said = capsys.readouterr().out
    for words in (
        "Print what alpha-1 says.",
        "Completions of step 1: 1 of 3 passed",
        "print(sum(values))",
        "expected    3 2 0",
        r"got         3 2\x1b]0;owned\x07\u202e",
        r"difference  line 1, token 2: expected 2, got 2\x1b]0;owned",
    ):
        assert words in said, words
    assert "\x1b" not in said and "\u202e" not in said and "\x07" not in said
    formats = [line.split()[7] for line in said.splitlines() if " of 12 " in line]
    assert formats == ["ok"] * 3
    rates = [line.split() for line in said.splitlines() if line.startswith("step ")]
    assert [row[:4] for row in rates] == [["step", "0", "3", "1"], ["step", "1", "3", "1"]]

    assert main(["show", str(run), "alpha-1", "--step", "0", "--json"]) == 0
    view = json.loads(capsys.readouterr().out)
    assert view["place"]["step"] == 0 and [row["verdict"] == "passed" for row in view["completions"]] == [
        True,
        False,
        False,
    ]
    failed = view["completions"][1]["failed_test"]
    assert failed["input"] == "1\n2\n" and failed["expected"] == "3 2 0\n" and failed["got"] == f"3 2{ESCAPES}\n"
    assert failed["difference"].startswith("line 1, token 2: expected 2")

    assert main(["show", str(run), "alpha-2"]) == 0
    assert r"error       ValueError: \x1b]0;owned" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("wanted", "problem_id"),
    [("beta", "beta"), ("be", "beta"), ("what  ALPHA-2 says", "alpha-2"), ("alpha-1", "alpha-1")],
)
def test_a_problem_is_named_by_id_beginning_or_words(run: Path, wanted: str, problem_id: str) -> None:
    assert view_problem(run, wanted).problem_id == problem_id


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["alpha"], "'alpha' names 2 problems of the run: alpha-1; alpha-2"),
        (["Print what"], "names 3 problems of the run: alpha-1 Print what alpha-1 says.; alpha-2"),
        (["alpha-7"], "no problem that the run has sampled has the id 'alpha-7'"),
        (["alpha-7"], "did you mean alpha-"),
        (["alpha-2", "--step", "1"], "problem alpha-2 is not in step 1; it is in: step 0"),
        (["alpha-2", "--eval", "baseline"], "is not in evaluation baseline; it is in: step 0"),
        (["what", "--eval", "final"], "the run has no evaluation 'final' of its own; it has: baseline"),
        (["--step", "1"], "--step and --eval need a problem"),
    ],
)
def test_a_wrong_name_says_what_there_is(
    run: Path, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(run), *words]) == 2
    captured = capsys.readouterr()
    assert says in captured.err and captured.err.count("\n") == 1 and not captured.out


def test_what_is_gone_is_said_and_the_rest_is_shown(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The data set of the evaluation is not there, and later the pool."""
    assert main(["show", str(run), "beta"]) == 0
    said = capsys.readouterr().out
    assert "Inputs and expected outputs are not shown:" in said and "gone.jsonl" in said.replace("\n", "")  # wrapped
    assert "Completions of evaluation baseline" in said and "got         1" in said
    (run.parent / POOL_FILE).unlink()
    view = view_problem(run, "alpha-1")
    assert view.missing is not None and "which is not there, and no hash of its content" in view.missing
    assert view.completions[0]["failed_test"]["got"] is not None
    assert load_run(run).config["pool"] in view.missing


def test_a_pool_is_known_by_its_content_where_pools_are(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pools = tmp_path / "pools"
    monkeypatch.setattr("coderl_tasks.insight.record.POOLS", pools)
    for name, content in {"other": "another pool", "moved": None}.items():
        (pools / name).mkdir(parents=True)
        file = pools / name / POOL_FILE
        file.write_text(content) if content else (run.parent / POOL_FILE).rename(file)
    config = load_run(run).config | {"pool_sha256": file_sha256(pools / "moved" / POOL_FILE)}
    (run / "config.json").write_text(json.dumps(config))
    assert view_problem(run, "alpha-1").completions[0]["failed_test"]["expected"] == "3 2 0\n"
    shutil.rmtree(pools / "moved")
    missing = view_problem(run, "alpha-1").missing
    assert missing is not None and missing.startswith(f"the run recorded its pool as {config['pool']}, which is not")
    assert "no pool with the same content is among the pools of" in missing


def test_a_held_out_problem_is_found_by_its_statement_and_not_by_its_prompt(tmp_path: Path) -> None:
    """Which is read from the prompt, and once it is at hand from the data set."""
    run = write_run(tmp_path / "run", steps=1, test_size=1)
    file, config = run / "evals/final/rollouts.parquet", run / "config.json"
    settings = json.loads(config.read_text()) | {"dataset": str(tmp_path / "gone.jsonl")}  # the hub is not asked
    config.write_text(json.dumps(settings))
    tokens = pl.lit(byte_tokens("You are an expert.\n### Question:\nAdd them up.\n\n### Format: Read the inputs."))
    rows = pl.read_parquet(file).with_columns(problem_id=pl.lit("gamma"), prompt_tokens=tokens)
    rows.cast({"prompt_tokens": ROLLOUT_SCHEMA["prompt_tokens"]}).write_parquet(file)
    assert view_problem(run, "add them UP").statement == "Add them up."
    with pytest.raises(ConfigError, match="no problem that the run has sampled"):
        view_problem(run, "expert")
    problems_frame([problem("gamma")]).write_parquet(tmp_path / "tests.parquet")
    config.write_text(json.dumps(settings | {"evaluation_dataset": f"{tmp_path}/tests.parquet"}))
    assert view_problem(run, "what gamma says").problem_id == "gamma"


def test_without_a_problem_the_hardest_are_listed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(run), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["problem_id"], row["completions"]) for row in rows] == [("alpha-2", 1), ("alpha-1", 6)]
    assert rows[0]["statement"] == "Print what alpha-2 says."


@pytest.mark.parametrize("full", [False, True])
def test_long_texts_are_cut_unless_all_is_asked_for(run: Path, full: bool, capsys: pytest.CaptureFixture[str]) -> None:
    long = problem("alpha-1", expected="\n".join(f"{n}" for n in range(500)))
    problems_frame([long]).write_parquet(run.parent / POOL_FILE)
    assert main(["show", str(run), "alpha-1", *["--full"] * full]) == 0
    said = capsys.readouterr().out
    assert ("              499\n" in said) is full
    assert ("[cut: --full shows 1,889 characters]" in said) is not full


LINES = "".join(f"{n}\n" for n in range(1000))


@pytest.mark.parametrize(
    ("kind", "expected", "output", "difference"),
    [
        ("stdin", "1 2\n", "1 3\n", "line 1, token 2: expected 2, got 3"),
        ("stdin", LINES, LINES.replace("\n7\n", "\nx\n"), "line 8, token 1: expected 7, got x"),
        ("stdin", LINES, LINES.replace("\n900\n", "\nx\n"), "after the first 997 characters, which are kept"),
        (
            "stdin",
            LINES.replace("\n", " "),
            LINES.replace("\n", " ").replace(" 900 ", " x "),
            "after the first 997 characters, which are kept",
        ),
        ("stdin", "1\n", LINES, "line 1, token 1: expected 1, got 0"),
        ("stdin", "1\n2\n", "1\n", "number of lines: expected 2, got 1"),
        ("stdin", "0\n1 2\n", "0\n1\n", "line 2, number of tokens: expected 2, got 1"),
        ("stdin", "1\n", " \n", "number of lines: expected 1, got 0"),
        ("call", "[1, 2]", "[1, 3]", "value[1]: expected 2, got 3"),
        ("call", "[1, 2]", None, "no JSON value"),
        ("call", "[1, 2]", "[" * 1000, None),
        ("answer", "so #### 5", "6", None),
    ],
)
def test_the_difference_is_found_in_what_was_kept(
    kind: Kind, expected: str, output: str | None, difference: str | None
) -> None:
    row = wrong(None if output is None else shortened(output))
    found = failed_test(row, problem("taco-1", kind, expected))
    assert found is not None and found["index"] == 3 and found["expected"] == expected
    assert found["difference"] == difference


def test_a_problem_with_other_tests_is_not_taken_for_the_one_that_was_run() -> None:
    found = failed_test(wrong("1\n", tests_total=11), problem("taco-1"))
    assert found is not None and found["got"] == "1\n" and found["expected"] is None and found["difference"] is None
    assert failed_test(wrong(None, first_failed=None), problem("taco-1")) is None
