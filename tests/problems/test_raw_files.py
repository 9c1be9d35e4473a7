import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coderl_tasks.errors import DataError
from coderl_tasks.problems.raw_files import Oversized, RawFile, RawRow, Segment, index_file, read_segment, whole_file
from coderl_tasks.problems.sources import RowSource


def lines_file(path: Path, lines: list[str]) -> RawFile:
    path.write_text("".join(lines))
    return RawFile(path, path.name, "lines")


def read(segments: Iterable[Segment], **options: Any) -> list[tuple[int, Any]]:
    return [(row.source_row, row.values) for part in segments for row in read_segment(part, "s", **options)]


@pytest.mark.parametrize("segment_bytes", [1, 30, 10**6])
def test_segments_of_lines_are_the_whole_file(tmp_path: Path, segment_bytes: int) -> None:
    rows = [{"problem": "x" * (number % 7), "n": number} for number in range(40)]
    lines = [json.dumps(row) + "\n" for row in rows]
    lines[3:3] = ["\n", "  \n"]
    file = lines_file(tmp_path / "a.jsonl", [*lines[:-1], lines[-1].rstrip("\n")])
    index = index_file(file, segment_bytes)
    whole = read([whole_file(file)])
    assert [values for _, values in whole] == rows
    assert [number for number, _ in whole] == [0, 1, 2, *range(5, 42)]
    assert read(index.segments) == whole
    assert (index.rows, index.numbers, index.size) == (40, 42, file.path.stat().st_size)
    assert len(index.segments) == {1: 42, 30: 28, 10**6: 1}[segment_bytes] or segment_bytes == 30


@pytest.mark.parametrize("segment_bytes", [1, 10**6])
def test_segments_of_parquet_are_the_whole_file(tmp_path: Path, segment_bytes: int) -> None:
    rows = [{"problem": f"p{number}", "tests": "t" * number} for number in range(100)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=9)
    file = RawFile(tmp_path / "a.parquet", "a.parquet", "parquet")
    index = index_file(file, segment_bytes)
    assert len(index.segments) == (12 if segment_bytes == 1 else 1)
    assert read(index.segments) == read([whole_file(file)]) == list(enumerate(rows))
    assert (index.rows, index.numbers) == (100, 100)
    assert all(segment.block <= segment.size for segment in index.segments)


def test_large_row_groups_are_read_row_by_row_by_way_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderl_tasks.problems.raw_files.SMALL_GROUP_BYTES", 10)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    rows = [{"problem": f"p{number}", "tests": {"inputs": [number, None], "outputs": ["é"]}} for number in range(9)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet", row_group_size=4)
    assert read([whole_file(RawFile(tmp_path / "a.parquet", "a", "parquet"))], scratch=scratch) == list(enumerate(rows))
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("small", [10, 10**6])
def test_a_row_is_held_by_its_taker_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int) -> None:
    monkeypatch.setattr("coderl_tasks.problems.raw_files.SMALL_GROUP_BYTES", small)
    rows = [{"problem": f"p{number}", "split": "ab"[number % 2]} for number in range(4)]
    lines = lines_file(tmp_path / "a.jsonl", [json.dumps(row) + "\n" for row in rows])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for file in (lines, RawFile(tmp_path / "a.parquet", "a.parquet", "parquet")):
        for source in (RowSource("s", (file,)), RowSource("s", (file,), named_by_row=True)):
            held = [sys.getrefcount(row) + sys.getrefcount(row.values) for row in source.read(whole_file(file))]
            alone = RawRow("s", 0, json.loads("{}"))
            assert held == [sys.getrefcount(alone) + sys.getrefcount(alone.values)] * len(rows)


def test_rows_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    rows = [{"problem": "a"}, {"problem": "b" * 3_000_000}, {"problem": "c"}]
    file = lines_file(tmp_path / "a.jsonl", [json.dumps(row) + "\n" for row in rows])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for each in (file, RawFile(tmp_path / "a.parquet", "a.parquet", "parquet")):
        first, second, third = read([whole_file(each)], max_row_bytes=1_000_000)
        assert (first, third) == ((0, rows[0]), (2, rows[2]))
        assert isinstance(second[1], Oversized) and second[1].size > 3_000_000
    assert index_file(file).segments[0].block > 3_000_000


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n{"n": 2}\r\n')
    file = RawFile(tmp_path / "a.jsonl", "a.jsonl", "lines")
    assert read([whole_file(file)]) == [(0, {"n": 1}), (1, {"n": 2})]


def test_a_damaged_parquet_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no table")
    with pytest.raises(DataError, match=r"a\.parquet"):
        index_file(RawFile(tmp_path / "a.parquet", "a.parquet", "parquet"))
