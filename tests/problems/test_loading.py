import json
from datetime import date
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import DataError
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.problems import sources
from coderl_tasks.problems.loading import CODE_ROWS, Dates, load_problems, load_rows, parse_row
from coderl_tasks.problems.problem import DROPPED_SCHEMA, RowDropped, problems_frame
from coderl_tasks.problems.raw_files import RawRow
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.problems.sources import find_source, is_file

OLYMPIAD = PROJECT_ROOT.parent / "shared" / "data" / "olympiad-2024.parquet"


def row(statement: str, answer: str = "1\n") -> dict:
    return {"problem": statement, "tests": json.dumps([{"input": "1\n", "output": answer}])}


def write_lines(path: Path, lines: list) -> Path:
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))
    return path


def test_a_pool_is_read_as_data_by_its_folder_and_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the other tables that lie there: dropped.parquet has rows without a statement."""
    monkeypatch.setattr(sources, "POOLS", tmp_path)
    pool = tmp_path / "mine"
    pool.mkdir()
    problems = load_problems(str(write_lines(tmp_path / "rows.jsonl", [row("A"), row("B")])), role="train").problems
    problems_frame(problems).write_parquet(pool / "pool.parquet")
    pl.DataFrame(schema=DROPPED_SCHEMA).write_parquet(pool / "dropped.parquet")
    assert [find_source(str(pool)), find_source("mine")] == [pool, pool]  # not finished
    (pool / "manifest.json").write_text("{}")
    for source in (str(pool), "mine"):
        assert (
            load_problems(source, role="test").problems
            == load_problems(str(pool / "pool.parquet"), role="test").problems
        )
        assert is_file(source)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set folder: taco and lcbv5 to train on, lcbv5 to test on."""
    import datasets.config

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    home = tmp_path / "set"
    home.mkdir()
    (home / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: lcbv5\n  data_files:\n"
        "  - {split: train, path: a.jsonl}\n  - {split: test, path: b.jsonl}\n"
        "- config_name: taco\n  data_files:\n  - {split: train, path: c.jsonl}\n"
        "---\n"
    )
    write_lines(home / "a.jsonl", [row("A1"), row("A2"), row("A3"), row(" ")])
    write_lines(home / "b.jsonl", [row("B1")])
    write_lines(home / "c.jsonl", [row("C1"), row("A2"), row("C3")])
    return home


def test_a_data_set_folder_by_role(folder: Path) -> None:
    result = load_problems(str(folder), role="train")
    assert result.read == 7
    assert [(p.split, p.source_row, p.statement) for p in result.problems] == [
        ("taco", 0, "C1"),
        ("taco", 1, "A2"),
        ("taco", 2, "C3"),
        ("lcbv5", 0, "A1"),
        ("lcbv5", 2, "A3"),
    ]
    assert result.dropped_by_reason() == {"no_statement": 1, "same_identity": 1}
    assert result.dropped.schema == DROPPED_SCHEMA
    duplicate = result.dropped.filter(pl.col("stage") == "dedup").row(0, named=True)
    assert (duplicate["split"], duplicate["source_row"]) == ("lcbv5", 1)
    assert duplicate["problem_id"] == result.problems[1].problem_id
    assert [p.statement for p in load_problems(str(folder), ["lcbv5"], role="test").problems] == ["B1"]


def test_a_limit_counts_rows_and_takes_from_all_splits(folder: Path) -> None:
    rows = list(load_rows(str(folder), role="train", limit=3))
    assert [(r.split, r.source_row) for r in rows] == [("taco", 0), ("lcbv5", 0), ("taco", 1)]
    assert len(list(load_rows(str(folder), role="train", limit=99))) == 7
    assert len(list(load_rows(str(folder), role="train", limit=-1))) == 7
    assert list(load_rows(str(folder), role="train", limit=0)) == []


def test_a_split_that_is_not_there(folder: Path) -> None:
    with pytest.raises(DataError, match="codeforces; there are"):
        load_problems(str(folder), ["codeforces"], role="test")
    with pytest.raises(DataError):
        load_problems(str(folder), ["taco"], role="test")


def test_the_bundled_data_set() -> None:
    train = load_problems("data/mini", role="train", max_tests=15)
    test = load_problems("data/mini", role="test")
    for result, least in ((train, 600), (test, 400)):
        assert len(result.problems) >= least
        assert result.dropped.is_empty()
        assert {p.kind for p in result.problems} == {"stdin", "call"}
    assert {p.split for p in train.problems} == {"primeintellect", "taco", "lcbv5"}
    assert {p.split for p in test.problems} == {"codeforces", "lcbv5"}
    assert max(p.tests_total for p in train.problems) == 15
    assert not {p.problem_id for p in train.problems} & {p.problem_id for p in test.problems}


@pytest.mark.skipif(not OLYMPIAD.exists(), reason="the olympiad problems are not on this machine")
def test_real_problems_normalise() -> None:
    result = load_problems(str(OLYMPIAD), role="train", max_tests=15)
    assert (result.read, len(result.problems)) == (21, 21)
    assert {(p.split, p.kind) for p in result.problems} == {("olympiad-2024", "stdin")}
    assert sum(p.tests_original for p in result.problems) == 311
    assert all(p.tests_total <= 15 for p in result.problems)


def test_a_jsonl_file_with_damaged_lines(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "mine.jsonl", [row("A"), "{broken\n", "\n", "[1]\n", row("B") | {"split": "other"}])
    path.write_bytes(path.read_bytes() + b'{"problem": "\xff", "tests": [{"input": "", "output": ""}]}\n')
    result = load_problems(str(path), role="train")
    assert [(p.split, p.source_row, p.statement) for p in result.problems] == [("mine", 0, "A"), ("other", 4, "B")]
    assert result.read == 5
    assert result.dropped_by_reason() == {"row_not_object": 2, "not_utf8": 1}
    assert [p.statement for p in load_problems(str(path), ["other"], role="train").problems] == ["B"]


def test_a_row_that_cannot_be_read_needs_no_date(tmp_path: Path) -> None:
    old, new = (row(day) | {"date": day} for day in ("2024-12-31", "2025-01-01"))
    path = write_lines(tmp_path / "mine.jsonl", [old, "{broken\n", new])
    result = load_problems(str(path), role="test", dates=Dates(date(2025, 1, 1), None))
    assert [p.statement for p in result.problems] == ["2025-01-01"]
    assert (result.read, result.dropped_by_reason()) == (2, {"row_not_object": 1})
    with pytest.raises(DataError, match="row 1 of mine has no date"):
        write_lines(path, [old, row("A")])
        load_problems(str(path), role="test", dates=Dates(date(2025, 1, 1), None))


def test_a_raw_parquet_file_keeps_own_ids(tmp_path: Path) -> None:
    path = tmp_path / "raw.parquet"
    pl.DataFrame([row("A") | {"problem_id": "a"}, row("B") | {"problem_id": "b"}]).write_parquet(path)
    assert [p.problem_id for p in load_problems(str(path), role="test").problems] == ["a", "b"]


def test_normalised_problems_come_back_as_they_are(tmp_path: Path, folder: Path) -> None:
    problems = load_problems(str(folder), role="train").problems
    path = tmp_path / "pool.parquet"
    problems_frame(problems).with_columns(pass_rate=pl.lit(0.5)).write_parquet(path)
    assert load_problems(str(path), role="train").problems == problems
    assert [p.split for p in load_problems(str(path), ["lcbv5"], role="train").problems] == ["lcbv5"] * 2


def test_a_damaged_normalised_row_is_dropped(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "pool.parquet"
    frame = problems_frame(load_problems(str(folder), role="train").problems)
    frame = frame.with_columns(statement=pl.when(pl.int_range(pl.len()) == 1).then(None).otherwise("statement"))
    frame.write_parquet(path)
    result = load_problems(str(path), role="train")
    assert (result.read, len(result.problems)) == (5, 4)
    assert result.dropped_by_reason() == {"damaged_problem": 1}


@pytest.mark.parametrize("name", ["broken.parquet", "notes.txt", "missing.parquet", "nothing-here/at-all"])
def test_unreadable_sources_are_data_errors(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    for existing in ("broken.parquet", "notes.txt"):
        (tmp_path / existing).write_text("not a table")
    with pytest.raises(DataError, match="parquet"):
        load_problems(str(tmp_path / name) if "." in name else name, role="train")


@pytest.mark.parametrize(
    "damage",
    [
        {"statement": 1},
        {"tests": "abc"},
        {"tests": [1]},
        {"tests": [{"input": None, "expected": "2"}]},
        {"time_limit_s": 1e18},
        {"kind": "call", "entry_point": "__import__('os').system('x')"},
        {"source_row": "x"},
        {"problem_id": "i" * 10_000},
        {"solutions": [1]},
    ],
)
def test_a_row_of_a_pool_of_others_is_checked_as_other_rows_are(damage: dict[str, Any]) -> None:
    good = problem_from_row(
        {"statement": "s", "tests": [{"input": "1", "output": "1"}]}, split="a", source_row=0
    ).to_row()
    assert parse_row(RawRow("a", 0, good), CODE_ROWS).statement == "s"
    with pytest.raises(RowDropped, match="damaged_problem"):
        parse_row(RawRow("a", 0, good | damage), CODE_ROWS)
