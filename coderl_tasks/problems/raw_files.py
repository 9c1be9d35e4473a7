"""Raw rows out of parquet and JSON-lines files, in memory that does not grow with a file.

1. A file is read in segments: runs of parquet row groups, or of lines, of about the same size. A segment can be read by
   itself, so several processes share a file, and what is made of a file does not depend on how many they are.
2. Rows of 200 MB exist, several in one row group: pages are read one at a time, and rows one by one where the row group
   is large. Writers may put all values of a row group into one dictionary page, and reading holds that twice, to the
   group's end: the rows of a large group go through a temporary file, so that nothing is made of them meanwhile.
3. A row larger than the caller's limit is skipped unread; an `Oversized` takes its place.
"""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coderl_tasks.errors import DataError
from coderl_tasks.paths import file_sha256

if TYPE_CHECKING:
    import pyarrow as pa

Format = Literal["parquet", "lines"]
SUFFIXES: dict[str, Format] = {".parquet": "parquet", ".jsonl": "lines", ".ndjson": "lines", ".json": "lines"}
SEGMENT_BYTES = 64 * 2**20
SMALL_GROUP_BYTES = 64 * 2**20
"""Row groups up to this size are read several rows at a time."""
ROWS_PER_BATCH = 32
CHUNK_BYTES = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Oversized:
    """In place of a row of `size` bytes that was too large to be read."""

    size: int


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as it was read. `values` is a mapping, the line's text where that is not a JSON object, or `Oversized`.

    `size` is about how many bytes were read for it.
    """

    split: str
    source_row: int
    values: Any
    size: int = 0


@dataclass(frozen=True, slots=True)
class RawFile:
    """A file of raw rows. `name` is what a manifest calls it: its path within its source."""

    path: Path
    name: str
    format: Format


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one file: of row groups or bytes `start` to `stop`, the first being number `first_row` of its split.

    `rows` counts them, `size` their bytes, uncompressed; `block` is the most of these that have to be held at once: the
    largest row group, or the longest line.
    """

    file: RawFile
    start: int
    stop: int
    first_row: int
    rows: int
    size: int
    block: int = 0

    def shifted(self, rows: int) -> "Segment":
        """The same rows, numbered `rows` higher."""
        return replace(self, first_row=self.first_row + rows)


@dataclass(frozen=True, slots=True)
class FileIndex:
    """What one pass over a file tells: its hash, and its segments, numbered from row 0.

    `numbers` is one more than the number of its last row: blank lines count, and are no rows.
    """

    sha256: str
    segments: tuple[Segment, ...]
    numbers: int

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self.segments)


def index_file(file: RawFile, segment_bytes: int = SEGMENT_BYTES) -> FileIndex:
    """Hash `file` and cut it into segments of at least `segment_bytes`, the last excepted. Raises DataError."""
    return _index_parquet(file, segment_bytes) if file.format == "parquet" else _index_lines(file, segment_bytes)


def whole_file(file: RawFile, first_row: int = 0) -> Segment:
    """All rows of `file` as one segment, not counted. Raises DataError."""
    if file.format == "lines":
        return Segment(file, 0, file.path.stat().st_size, first_row, 0, 0)
    import pyarrow.parquet as pq

    with _readable(file), pq.ParquetFile(file.path) as parquet:
        return Segment(file, 0, parquet.num_row_groups, first_row, parquet.metadata.num_rows, 0)


def read_segment(
    segment: Segment, split: str, *, max_row_bytes: int | None = None, scratch: Path | None = None
) -> Iterator[RawRow]:
    """The rows of `segment`, as rows of `split`. Only the caller holds a row.

    `scratch` is the folder of temporary files, the system's where None. Raises DataError if the file cannot be read.
    """
    if segment.file.format == "parquet":
        return _parquet_rows(segment, split, max_row_bytes, scratch)
    return _line_rows(segment, split, max_row_bytes)


def unreadable(what: str, error: Exception) -> DataError:
    """The error for a source that cannot be read, in one line."""
    lines = str(error).strip().splitlines()
    reason = lines[0] if lines else type(error).__name__
    return DataError(
        f"Cannot read the data set {what}: {reason} "
        "(dataset= takes a hub name, a local data set folder such as data/mini, a .parquet or a .jsonl file)"
    )


class _readable:
    """Turns what reading `file` raises into DataError."""

    def __init__(self, file: RawFile) -> None:
        self._file = file

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        import pyarrow as pa

        if isinstance(error, pa.ArrowException | OSError):
            raise unreadable(str(self._file.path), error) from error


def _index_parquet(file: RawFile, segment_bytes: int) -> FileIndex:
    import pyarrow.parquet as pq

    segments: list[Segment] = []
    with _readable(file):
        sha256 = file_sha256(file.path)
        metadata = pq.read_metadata(file.path)
    number = first_row = first_group = rows = size = block = 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        size += metadata.row_group(group).total_byte_size
        block = max(block, metadata.row_group(group).total_byte_size)
        number += metadata.row_group(group).num_rows
        # Whole row groups only: parquet cannot be read from inside one.
        if size >= segment_bytes or group == metadata.num_row_groups - 1:
            segments.append(Segment(file, first_group, group + 1, first_row, rows, size, block))
            first_group, first_row, rows, size, block = group + 1, number, 0, 0, 0
    return FileIndex(sha256, tuple(segments), number)


def _index_lines(file: RawFile, segment_bytes: int) -> FileIndex:
    segments: list[Segment] = []
    digest = hashlib.sha256()
    line = last = first_row = start = position = rows = length = longest = 0
    blank = True
    with _readable(file), file.path.open("rb") as handle:
        # In pieces: a line may be hundreds of megabytes, and is only hashed and measured here.
        while piece := handle.readline(CHUNK_BYTES):
            digest.update(piece)
            position += len(piece)
            length += len(piece)
            longest = max(longest, length)
            blank = blank and not piece.strip()
            if not piece.endswith(b"\n"):
                continue
            length = 0
            if not blank:
                rows, last = rows + 1, line + 1
            # A blank line is no row, but it has a number: `source_row` is the line's place in the file.
            line, blank = line + 1, True
            # Only where a line ends: whoever reads a segment sees nothing of its neighbours.
            if position - start >= segment_bytes:
                segments.append(Segment(file, start, position, first_row, rows, position - start, longest))
                start, first_row, rows, longest = position, line, 0, 0
    if not blank:
        rows, last = rows + 1, line + 1
    if position > start:
        segments.append(Segment(file, start, position, first_row, rows, position - start, longest))
    return FileIndex(digest.hexdigest(), tuple(segments), last)


def _parquet_rows(segment: Segment, split: str, max_row_bytes: int | None, scratch: Path | None) -> Iterator[RawRow]:
    import pyarrow.parquet as pq

    number = segment.first_row
    # With a buffer size pages are read as they are needed, instead of whole column chunks.
    with _readable(segment.file), pq.ParquetFile(segment.file.path, pre_buffer=False, buffer_size=CHUNK_BYTES) as file:
        for group in range(segment.start, segment.stop):
            small = file.metadata.row_group(group).total_byte_size <= SMALL_GROUP_BYTES
            # In a large group each row may have 200 MB, and a batch is held as a whole.
            rows_per_batch = ROWS_PER_BATCH if small else 1
            batches = file.iter_batches(batch_size=rows_per_batch, row_groups=[group], use_threads=False)
            for batch in batches if small else _by_way_of_a_file(batches, file.schema_arrow, scratch):
                # Sizes are taken in Arrow, before a row becomes Python objects: one over the limit never does.
                sizes = [batch.slice(index, 1).nbytes for index in range(batch.num_rows)]
                rows = [
                    Oversized(size)
                    if max_row_bytes is not None and size > max_row_bytes
                    else batch.slice(index, 1).to_pylist()[0]
                    for index, size in enumerate(sizes)
                ]
                # From here on only `rows` holds them, and a row leaves it before its taker gets it: what the taker
                # lets go of is free while the next row is made.
                del batch
                while rows:
                    yield RawRow(split, number, rows.pop(0), sizes.pop(0))
                    number += 1


def _by_way_of_a_file(
    batches: "Iterator[pa.RecordBatch]", schema: "pa.Schema", folder: Path | None
) -> "Iterator[pa.RecordBatch]":
    """The same batches, when the last of them has been read and what reading them held is free again."""
    import pyarrow as pa

    with tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                # Else the loop's variable would hold this batch while the next is read.
                del batch
        file.seek(0)
        yield from pa.ipc.open_stream(file)


def _line_rows(segment: Segment, split: str, max_row_bytes: int | None) -> Iterator[RawRow]:
    number = segment.first_row
    with _readable(segment.file), segment.file.path.open("rb") as handle:
        handle.seek(segment.start)
        while handle.tell() < segment.stop:
            # In a list, and popped: a variable of this frame would hold the row as long as its taker works on it.
            rows = _rows_of_line(handle, split, number, max_row_bytes)
            while rows:
                yield rows.pop()
            number += 1


def _rows_of_line(handle: Any, split: str, number: int, max_row_bytes: int | None) -> list[RawRow]:
    """The row of the next line; none of a blank one."""
    size, text = _next_line(handle, max_row_bytes)
    if text is None:
        return [RawRow(split, number, Oversized(size), size)]
    return [RawRow(split, number, _line_values(text), size)] if text.strip() else []


def _next_line(handle: Any, max_row_bytes: int | None) -> tuple[int, str | None]:
    """The next line's size and its text; None for the text of one that is too long."""
    # One byte over the limit is enough to tell that a line is too long.
    line = handle.readline(-1 if max_row_bytes is None else max_row_bytes + 1)
    size = len(line)
    if max_row_bytes is not None and size > max_row_bytes:
        # The rest is read past in pieces, for its size and to reach the next line.
        while not line.endswith(b"\n") and (line := handle.readline(CHUNK_BYTES)):
            size += len(line)
        return size, None
    # Bytes that are not UTF-8 cost their row (not_utf8, in `problem_from_row`), not the file.
    return size, line.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")


def _line_values(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
