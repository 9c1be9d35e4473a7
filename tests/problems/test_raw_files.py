import bz2
import csv
import gzip
import hashlib
import io
import json
import lzma
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coderl_tasks.errors import DataError
from coderl_tasks.problems.raw_files import (
    MAX_CELL_CHARS,
    MAX_ROW_BYTES,
    RawFile,
    RawRow,
    Segment,
    Unread,
    index_file,
    read_segment,
    whole_file,
)
from coderl_tasks.problems.sources import RowSource, open_source


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
            held = [
                sys.getrefcount(row) + sys.getrefcount(row.values)
                for row in source.read(whole_file(file), MAX_ROW_BYTES, None)
            ]
            alone = RawRow("s", 0, json.loads("{}"))
            assert held == [sys.getrefcount(alone) + sys.getrefcount(alone.values)] * len(rows)


def compressed(name: str, content: bytes) -> bytes:
    """`content` in the compression of `name`, in two pieces, as tools that append leave it."""
    packs: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".bz2": bz2.compress,
        ".xz": lzma.compress,
        ".zst": lambda part: pa.compress(part, codec="zstd", asbytes=True),
    }
    pack = packs.get(Path(name).suffix)
    return content if pack is None else pack(content[:50]) + pack(content[50:])


ROWS = [{"statement": f'Print "{number}", or é;\nthen end.', "tests": "[1]"} for number in range(30)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS)


def separated(by: str) -> str:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=by)
    writer.writerows([ROWS[0], *(row.values() for row in ROWS)])
    return "\ufeff" + text.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((f"a.jsonl{suffix}", LINES) for suffix in ("", ".gz", ".bz2", ".xz", ".zst")),
        ("a.json", LINES),
        ("a.json", json.dumps(ROWS)),
        ("a.json.gz", json.dumps(ROWS, indent=1)),
        ("a.json", json.dumps({"version": 1, "data": ROWS})),
        ("a.csv", separated(",")),
        ("a.csv.zst", separated(";")),
        ("a.tsv", separated("\t")),
    ],
)
def test_files_as_people_have_them_are_the_same_rows(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_bytes(compressed(name, content.encode()))
    (source,) = open_source(str(tmp_path / name), None, "train")
    (file,) = source.files
    assert source.split == "a"
    index = index_file(file, segment_bytes=len(content) // 3)
    assert read(index.segments) == read([whole_file(file)]) == list(enumerate(ROWS))
    assert (index.rows, index.numbers) == (30, 30)
    assert index.sha256 == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zst"])
def test_a_compressed_file_that_ends_early_is_no_shorter_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a.jsonl.{suffix}"
    path.write_bytes(compressed(path.name, LINES.encode())[:-20])
    with pytest.raises(DataError, match=r"a\.jsonl"):
        index_file(RawFile(path, path.name, "lines"))


def test_a_row_of_csv_whose_cells_have_moved_is_misread(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("prompt,ground_truth\nOne, two?,three\n\nFour?,five\n")
    (_, misread), (number, good) = read([whole_file(RawFile(path, "a.csv", "csv"))])
    assert isinstance(misread, Unread)
    assert "3 cells under a header of 2" in misread.detail
    assert (number, good) == (2, {"prompt": "Four?", "ground_truth": "five"})


def test_a_json_document_with_a_statement_is_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    problem = {"statement": "Add.", "examples": [{"input": "1 2", "output": "3"}], "tests": "[1]"}
    for indent in (None, 1):
        path.write_text(json.dumps(problem, indent=indent))
        assert read([whole_file(RawFile(path, "a.json", "json"))]) == [(0, problem)]


def test_a_json_document_may_be_as_large_as_a_row(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps(ROWS))
    with pytest.raises(DataError, match=r"write it as JSON lines"):
        read([whole_file(RawFile(path, "a.json", "json"))], max_row_bytes=1000)


def test_rows_that_are_too_large_are_not_read(tmp_path: Path) -> None:
    rows = [{"problem": "a"}, {"problem": "b" * 3_000_000}, {"problem": "c"}]
    file = lines_file(tmp_path / "a.jsonl", [json.dumps(row) + "\n" for row in rows])
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    for each in (file, RawFile(tmp_path / "a.parquet", "a.parquet", "parquet")):
        first, second, third = read([whole_file(each)], max_row_bytes=1_000_000)
        assert (first, third) == ((0, rows[0]), (2, rows[2]))
        assert second[1] == Unread("row_too_large", "3 MiB")
    assert index_file(file).segments[0].block > 3_000_000


def test_a_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n{"n": 2}\r\n')
    file = RawFile(tmp_path / "a.jsonl", "a.jsonl", "lines")
    assert read([whole_file(file)]) == [(0, {"n": 1}), (1, {"n": 2})]


def test_a_damaged_parquet_file_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_text("no table")
    with pytest.raises(DataError, match=r"a\.parquet"):
        index_file(RawFile(tmp_path / "a.parquet", "a.parquet", "parquet"))


def test_hostile_parquet_costs_its_rows_or_is_refused_in_one_line(tmp_path: Path) -> None:
    no_text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    tables = {
        "not_utf8": pa.table({"statement": pa.concat_arrays([pa.array(["a"]), no_text])}),
        "no_date": pa.table({"statement": ["a", "b"], "day": pa.array([1, 2**30], pa.date32())}),
    }
    for name, table in tables.items():
        path = tmp_path / f"{name}.parquet"
        pq.write_table(table, path)
        (_, first), (_, second) = read([whole_file(RawFile(path, name, "parquet"))])
        assert first["statement"] == "a"
        assert isinstance(second, Unread) and second.reason == "row_misread"
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["statement", "statement"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    with pytest.raises(DataError, match="several columns have the name 'statement'"):
        read([whole_file(RawFile(tmp_path / "twice.parquet", "", "parquet"))])


def test_a_dictionary_does_not_multiply_what_a_batch_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coderl_tasks.problems.raw_files.SMALL_GROUP_BYTES", 3_000_000)
    pq.write_table(pa.table({"statement": ["a" * 2_000_000] * 40}), tmp_path / "a.parquet")
    before = pa.total_allocated_bytes()
    most = 0
    for _ in read_segment(whole_file(RawFile(tmp_path / "a.parquet", "", "parquet")), "s"):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < 20_000_000


def test_a_csv_of_bombs_is_refused(tmp_path: Path) -> None:
    for name, content, says in (
        ("cell", b'a,b\n"' + b"x" * (MAX_CELL_CHARS + 1), "field larger than field limit"),
        ("head", b"," * 2**20, "several columns have the name ''"),
    ):
        path = tmp_path / f"{name}.csv.zst"
        path.write_bytes(pa.compress(content, codec="zstd", asbytes=True))
        with pytest.raises(DataError, match=says):
            read([whole_file(RawFile(path, name, "csv"))])
