"""Atomic files and JSON lines: whole or not at all, and damage is recognised."""

import errno
import os
import resource
import stat
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coderl_tasks.journal.atomic import (
    DamagedFileError,
    append_row,
    read_json,
    read_parquet,
    read_rows,
    remove_leftovers,
    repair,
    set_aside,
    write_bytes,
    write_json,
    write_parquet,
    write_rows,
)
from coderl_tasks.policy.rollout import SAMPLED_SCHEMA

same_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)


def test_round_trips(tmp_path: Path, group: pl.DataFrame) -> None:
    write_json(tmp_path / "a.json", {"a": [1, 2.5, None, "ü"]})
    assert read_json(tmp_path / "a.json") == {"a": [1, 2.5, None, "ü"]}
    write_parquet(tmp_path / "a.parquet", group)
    assert read_parquet(tmp_path / "a.parquet", SAMPLED_SCHEMA).equals(group)
    first = (tmp_path / "a.parquet").read_bytes()
    write_parquet(tmp_path / "a.parquet", group)
    assert (tmp_path / "a.parquet").read_bytes() == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.parquet"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json(path, {"a": float("nan")})
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        write_bytes(tmp_path / "folder", b"data")
    assert read_json(path) == {"a": 1}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "folder"]


def test_a_write_that_the_system_refuses_names_its_file(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        for path, write in (
            (tmp_path / "a", lambda path: write_bytes(path, b"x" * 100)),
            (tmp_path / "b", lambda path: append_row(path, {"text": "x" * 100})),
            (tmp_path / "c", lambda path: write_parquet(path, pl.DataFrame({"text": ["x" * 100]}))),
        ):
            with pytest.raises(OSError) as caught:
                write(path)
            assert (caught.value.filename, caught.value.errno) == (str(path), errno.EFBIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_leftovers_are_removed(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / ".sampled.parquet.17-abcd.tmp").write_bytes(b"half")
    (tmp_path / "keep.tmp").write_bytes(b"")
    assert remove_leftovers(tmp_path) == 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["keep.tmp"]


@same_folder
@given(st.data())
def test_truncated_parquet_is_recognised(tmp_path: Path, group: pl.DataFrame, data: st.DataObject) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, group)
    whole = path.read_bytes()
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(DamagedFileError, match=r"a\.parquet is damaged"):
        read_parquet(path)


def test_wrong_columns_are_recognised(tmp_path: Path, group: pl.DataFrame) -> None:
    path = tmp_path / "a.parquet"
    write_parquet(path, group.drop("logprobs"))
    with pytest.raises(DamagedFileError, match="logprobs"):
        read_parquet(path, SAMPLED_SCHEMA)
    write_parquet(path, group.with_columns(pl.col("step").cast(pl.String)))
    with pytest.raises(DamagedFileError, match="step"):
        read_parquet(path, SAMPLED_SCHEMA)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
def test_damaged_json_is_recognised_and_set_aside(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "commit.json"
    for number in (1, 2):
        path.write_bytes(content)
        with pytest.raises(DamagedFileError):
            read_json(path)
        assert set_aside(path).name == f"commit.json.damaged-{number}"
        assert not path.exists()


def test_missing_files_are_not_damaged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none.json")
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "none.parquet")
    assert read_rows(tmp_path / "none.jsonl") == []


ROWS: list[dict[str, Any]] = [
    {"step": 0, "loss": 0.5},
    {"step": 1, "text": "line\nbreak, ü"},
    {"step": 2, "loss": None},
]


@same_folder
@given(cut=st.integers(0, 200))
def test_a_torn_last_line_is_left_out_and_repaired(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, ROWS)
    whole = path.read_bytes()
    path.write_bytes(whole[: max(0, len(whole) - cut)])
    kept = read_rows(path)
    assert kept == ROWS[: len(kept)]
    append_row(path, {"step": 9})
    assert read_rows(path) == [*kept, {"step": 9}]
    assert path.read_bytes().endswith(b"\n")
    assert not repair(path)


def test_a_last_line_of_garbage_counts_as_torn(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 0}\n\x00\x00\x00\n')
    assert read_rows(path) == [{"step": 0}]
    assert repair(path)
    assert path.read_bytes() == b'{"step": 0}\n'


def test_damage_before_the_last_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step": 0}\n{"ste\n{"step": 2}\n')
    with pytest.raises(DamagedFileError, match="line 2"):
        read_rows(path)


def test_files_are_readable_by_the_group(tmp_path: Path) -> None:
    """As an ordinary file would be: the umask decides, not a private temporary file."""
    write_json(tmp_path / "a.json", {})
    (tmp_path / "b.json").write_text("{}")
    modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a.json", "b.json")}
    assert len(modes) == 1


def test_what_a_directory_of_others_may_hold_is_named_and_neither_waited_for_nor_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for read in (read_json, read_rows, read_parquet):
        with pytest.raises(DamagedFileError, match="no regular file"):
            read(tmp_path / "pipe")
    (tmp_path / "deep").write_text('{"a":' + "[" * 100_000 + "\n{}\n")
    for read in (read_json, read_rows):
        with pytest.raises(DamagedFileError, match="not JSON"):
            read(tmp_path / "deep")
    (tmp_path / "profile").write_text("mine\n")
    (tmp_path / "metrics.jsonl").symlink_to(tmp_path / "profile")
    with pytest.raises(DamagedFileError, match="a link to"):
        append_row(tmp_path / "metrics.jsonl", {"step": 1})
    assert (tmp_path / "profile").read_text() == "mine\n"
