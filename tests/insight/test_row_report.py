"""`coderl validate` on files as a user writes them."""

import io
import json
import random
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.cli import main
from coderl_tasks.insight.row_report import MOST_LINES, ROWS_SCHEMA

TESTS = [{"input": f"{number}\n", "output": f"{2 * number}\n"} for number in range(5)]
GOOD = {"statement": "Print the double.", "tests": TESTS}


def write(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_a_line_per_row_and_counts_by_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = {
        "prompt": "Double.",
        "tests": {"inputs": [[n] for n in range(6)], "outputs": list(range(6)), "fn_name": "f"},
    }
    file = write(
        tmp_path / "mine.jsonl", [GOOD, {"text": "\x1b[31m", "tests": TESTS}, GOOD | {"tests": TESTS[:1]}, call]
    )
    assert main(["validate", file]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "row 0  kept: stdin, 5 tests",
        "row 1  dropped, parse/no_statement: no text in question, prompt, problem, statement, problem_statement; "
        "columns: text, tests",
        "row 2  dropped, sanity/too_few_tests: 1 different test, at least 5",
        "row 3  kept: call of f, 6 tests",
        "4 rows, numbered from 0: 2 kept, 2 dropped (1 parse/no_statement, 1 sanity/too_few_tests)",
        "of 1 rows with too few tests, min_tests=1 would keep 1 (fewer tests: more wrong programs pass)",
    ]
    few = [GOOD | {"statement": f"Print {count}.", "tests": TESTS[:count]} for count in (1, 2, 2, 3)]
    assert main(["validate", write(tmp_path / "few.jsonl", few), "--min-tests=4"]) == 1
    assert "min_tests=3 would keep 1, 2 would keep 3, 1 would keep 4" in capsys.readouterr().out
    assert main(["validate", write(tmp_path / "one.jsonl", few[:1]), "--min-tests=1"]) == 0


def test_rows_of_other_environments_say_what_they_lack(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        {"question": "6 x 7?", "answer": "#### 42"},
        {"question": "6 x 7?", "answer": "42"},
        {"question": "6 x 8?", "answer": "#### 48\nin all"},
    ]
    assert main(["validate", write(tmp_path / "words.jsonl", words), "--environment=gsm8k"]) == 1
    # Alike, with one answer: curate keeps both, as prompts of one kind are, and so does this.
    alike = [{"prompt": f"Which month comes {count} months after May?", "ground_truth": "July"} for count in (2, 14)]
    prompts = [*alike, {"prompt": "Which?"}, {"text": "", "ground_truth": 1}]
    assert main(["validate", write(tmp_path / "mine.jsonl", prompts), "--environment", "custom"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "row 0  kept",
        "rows 1 to 2  dropped, parse/no_ground_truth: no #### before the final number in answer",
        "3 rows, numbered from 0: 1 kept, 2 dropped (2 parse/no_ground_truth)",
        "row 0  kept",
        "row 1  kept",
        "row 2  dropped, parse/no_ground_truth: nothing in ground_truth; columns: prompt",
        "row 3  dropped, parse/no_prompt: no text in prompt; columns: text, ground_truth",
        "4 rows, numbered from 0: 2 kept, 2 dropped (1 parse/no_ground_truth, 1 parse/no_prompt)",
    ]
    assert main(["validate", str(tmp_path / "mine.jsonl"), "--environment=custom", "--min-tests=2"]) == 2
    assert "--min-tests is of --environment=code" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nowhere.jsonl", None, "no such file"),
        ("empty.jsonl", "", "has no rows"),
        ("text.parquet", "text", "Cannot read"),
        ("notes.txt", "text", "does not end as those that are read: .parquet, .jsonl, .json, .csv"),
        ("broken.json", "[\n{},", "broken JSON"),
        ("two.json", '{"train": [], "test": []}', "several arrays of rows (train, test)"),
        ("quote.csv", 'prompt,ground_truth\n"not closed,x\n', "unexpected end of data"),
        ("twice.csv", "tests,tests\n", "several columns have the name 'tests'"),
        ("plain.jsonl.gz", "{}", "Cannot read"),
    ],
)
def test_a_bad_file_is_one_line_and_exit_2(
    name: str, content: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    assert main(["validate", str(tmp_path / name)]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and says in captured.err


def test_any_rows_are_kept_or_dropped_with_a_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(0)
    values: list[Any] = [
        None,
        "",
        "text",
        7,
        [],
        {},
        [{"role": "user", "content": "p"}],
        TESTS,
        json.dumps(TESTS),
        [[1]],
        "\ud800",
    ]
    values += [{"ground_truth": TESTS}, {"test_cases": TESTS, "language": "go"}, {"inputs": ["1"], "outputs": ["1"]}]
    names = ["statement", "prompt", "problem", "tests", "reward_model", "verification_info", "ground_truth", "solution"]
    rows: list[Any] = [
        {name: rng.choice(values) for name in rng.sample(names, rng.randint(0, 8))} for _ in range(2 * MOST_LINES)
    ]
    file = write(tmp_path / "any.jsonl", [*rows, 3, "x"])
    assert main(["validate", file, "--format=csv"]) == 1
    told = pl.read_csv(io.StringIO(capsys.readouterr().out), schema_overrides=ROWS_SCHEMA)
    assert told["source_row"].to_list() == list(range(len(rows) + 2))
    kept, dropped = told.filter("kept"), told.filter(~pl.col("kept"))
    assert not kept.is_empty() and not kept["problem_id"].has_nulls() and kept["reason"].null_count() == kept.height
    assert not dropped["reason"].has_nulls() and not dropped["detail"].has_nulls()
    assert main(["validate", file, "--format=json"]) == 1
    assert len(json.loads(capsys.readouterr().out)) == told.height
    assert main(["validate", file]) == 1
    *lines, more, counts, hint = capsys.readouterr().out.splitlines()
    assert hint.startswith("of ")
    assert len(lines) == MOST_LINES and all("dropped" in line for line in lines)
    places = [re.match(r"rows? (\d+)(?: to (\d+))?", line) for line in lines]
    said = sum(int(place[2] or place[1]) - int(place[1]) + 1 for place in places if place)
    assert more == f"... and {told.height - said} more rows (--format csv prints all)"
    assert counts.startswith(f"{told.height} rows, numbered from 0: {kept.height} kept, {dropped.height} dropped (")
