"""Raw rows out of files, in memory that does not grow with a file: parquet, JSON lines, CSV; and JSON documents.

1. A file is read in segments: runs of parquet row groups, or of lines, of about the same size. A segment can be read by
   itself, so several processes share a file, and what is made of a file does not depend on how many they are.
2. Rows of 200 MB exist, several in one row group: pages are read one at a time, and rows one by one where the row group
   is large. Writers may put all values of a row group into one dictionary page, and reading holds that twice, to the
   group's end: the rows of a large group go through a temporary file, so that nothing is made of them meanwhile.
3. A row larger than the caller's limit is skipped; an `Unread` takes its place.
4. Compressed text and CSV have no place in their middle where reading could begin: they are one segment. A JSON
   document (an array of rows, or an object with one) is held as a whole, so it may not be larger than a row.
"""

import csv
import hashlib
import io
import json
import lzma
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Literal, cast

import pyarrow as pa
import pyarrow.parquet as pq

from coderl_tasks.errors import DataError
from coderl_tasks.paths import file_sha256
from coderl_tasks.untrusted_text import printable

Format = Literal["parquet", "lines", "json", "csv"]
SUFFIXES: dict[str, Format] = {
    ".parquet": "parquet", ".jsonl": "lines", ".ndjson": "lines", ".json": "json", ".csv": "csv", ".tsv": "csv",
}  # fmt: skip
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
READ = ".parquet, .jsonl, .json, .csv or .tsv (all but parquet also with .gz, .zst, .bz2 or .xz after it)"
MAX_CELL_CHARS = 64 * 2**20  # the reader of CSV holds eight bytes for each
STATEMENT_COLUMNS = ("question", "prompt", "problem", "statement", "problem_statement")
"""In order of precedence; the first three came first, so that rows that have one of them keep their identity."""
ARRAYS_OF_ROWS = ("data", "rows", "problems", "examples", "train", "validation", "test")
"""Where the object of a JSON document may have its rows."""
MAX_ROW_BYTES = 512 * 2**20
SEGMENT_BYTES = 64 * 2**20
SMALL_GROUP_BYTES = 64 * 2**20  # row groups up to this size are read several rows at a time
ROWS_PER_BATCH = 32
CHUNK_BYTES = 2**20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Unread:
    """In place of the values of a row that could not be read: `reason` and `detail` of the row's RowDropped."""

    reason: str  # row_too_large or row_misread
    detail: str


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row of about `size` bytes. `values` is a mapping, `Unread`, or text that is no JSON object."""

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

    @property
    def compression(self) -> str | None:
        return COMPRESSIONS.get(self.path.suffix.lower())


def format_of(path: Path) -> Format | None:
    """The format that the file's name says; None for a name that no format has."""
    suffix = path.suffix.lower()
    if suffix not in COMPRESSIONS:
        return SUFFIXES.get(suffix)
    inner = SUFFIXES.get(Path(path.stem).suffix.lower())
    return None if inner == "parquet" else inner


@dataclass(frozen=True, slots=True)
class Segment:
    """`rows` rows in row groups or bytes `start` to `stop` of a file, the first being number `first_row` of its split.
    `size` is their uncompressed bytes; `block` is the bytes of the largest row group or longest line, held at once."""

    file: RawFile
    start: int
    stop: int
    first_row: int
    rows: int
    size: int
    block: int = 0


@dataclass(frozen=True, slots=True)
class FileIndex:
    """A file's hash, its segments, and its last row's number plus one (blank lines are numbered, too)."""

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
    if file.format == "parquet":
        return _index_parquet(file, segment_bytes)
    if file.format == "lines":
        return _index_lines(file, segment_bytes if file.compression is None else sys.maxsize)
    segment = whole_file(file)
    sizes = [row.size for row in read_segment(segment, "")]
    block = sum(sizes) if file.format == "json" else max(sizes, default=0)
    with _readable(file):
        sha256 = file_sha256(file.path)
    return FileIndex(sha256, (replace(segment, rows=len(sizes), size=sum(sizes), block=block),), len(sizes))


def whole_file(file: RawFile, first_row: int = 0) -> Segment:
    """All rows of `file` as one segment, not counted. Raises DataError."""
    if file.format != "parquet":
        return Segment(file, 0, sys.maxsize, first_row, 0, 0)
    with _readable(file), pq.ParquetFile(file.path) as parquet:
        return Segment(file, 0, parquet.num_row_groups, first_row, parquet.metadata.num_rows, 0)


def read_segment(
    segment: Segment, split: str, *, max_row_bytes: int = MAX_ROW_BYTES, scratch: Path | None = None
) -> Iterator[RawRow]:
    """The rows of `segment`, as rows of `split`. Only the caller holds a row. `scratch` is the folder of temporary
    files, the system's where None. Raises DataError if the file cannot be read."""
    if segment.file.format == "parquet":
        return _parquet_rows(segment, split, max_row_bytes, scratch)
    read = {"csv": _csv_rows, "json": _json_rows, "lines": _line_rows}[segment.file.format]
    return read(segment, split, max_row_bytes)


def unreadable(what: str, error: Exception) -> DataError:
    """The error for a source that cannot be read, in one line."""
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return DataError(
        f"Cannot read the data set {what}: {reason} "
        f"(dataset= takes a hub name, a local data set folder such as data/mini, or a file: {READ})"
    )


@contextmanager
def _readable(file: RawFile) -> Iterator[None]:
    """Turns what reading `file` raises into DataError."""
    try:
        yield
    except (pa.ArrowException, OSError, EOFError, lzma.LZMAError, csv.Error) as error:
        raise unreadable(str(file.path), error) from error


def _index_parquet(file: RawFile, segment_bytes: int) -> FileIndex:
    segments: list[Segment] = []
    with _readable(file):
        sha256 = file_sha256(file.path)
        metadata = pq.read_metadata(file.path)
    first_row = first_group = rows = size = block = 0
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        rows, size, block = rows + about.num_rows, size + about.total_byte_size, max(block, about.total_byte_size)
        # Whole row groups only: parquet cannot be read from inside one.
        if size >= segment_bytes or group == metadata.num_row_groups - 1:
            segments.append(Segment(file, first_group, group + 1, first_row, rows, size, block))
            first_group, first_row, rows, size, block = group + 1, first_row + rows, 0, 0, 0
    return FileIndex(sha256, tuple(segments), first_row)


def _opened(file: RawFile) -> IO[bytes]:
    """The bytes of `file`, decompressed."""
    if file.compression is None:
        return file.path.open("rb")
    if file.compression == "xz":
        return lzma.open(file.path)
    return cast("IO[bytes]", io.BufferedReader(pa.input_stream(str(file.path), compression=file.compression)))


def _index_lines(file: RawFile, segment_bytes: int) -> FileIndex:
    """Hashes a file that has a JSON object per line, and cuts it into segments of whole lines, of at least
    `segment_bytes` but for the last, to be read in parallel. A row has the number of its line, from 0: a blank line
    uses up a number, but is no row."""
    segments: list[Segment] = []
    digest = hashlib.sha256()
    numbers = 0  # how many line numbers the rows use: the last row's, plus one
    position = start = 0  # byte offsets: behind the lines read so far, and of the open segment's first line
    first_line = rows = longest_line = 0  # the open segment's: first line number, number of rows, bytes

    def segment_since_last_cut() -> Segment:
        size = position - start
        # `block` is what a reader holds at once: a line.
        return Segment(file, start, position, first_row=first_line, rows=rows, size=size, block=longest_line)

    with _readable(file), _opened(file) as handle:
        for line_number, (line_bytes, is_blank) in enumerate(_hashed_lines(handle, digest)):
            position += line_bytes
            longest_line = max(longest_line, line_bytes)
            if not is_blank:
                rows, numbers = rows + 1, line_number + 1
            # Cut only at a line end, so that a segment can be read without its neighbours.
            if position - start >= segment_bytes:
                segments.append(segment_since_last_cut())
                start, first_line, rows, longest_line = position, line_number + 1, 0, 0
    if position > start:
        segments.append(segment_since_last_cut())
    # Of the file as it is stored: `digest` is of the decompressed bytes.
    sha256 = digest.hexdigest() if file.compression is None else file_sha256(file.path)
    return FileIndex(sha256, tuple(segments), numbers=numbers)


def _hashed_lines(handle: IO[bytes], digest: "hashlib._Hash") -> Iterator[tuple[int, bool]]:
    """Adds a file's bytes to `digest`, and yields for each line its size in bytes and whether it is blank."""
    size, is_blank = 0, True
    # Read in pieces: a line may be hundreds of megabytes.
    while piece := handle.readline(CHUNK_BYTES):
        digest.update(piece)
        size += len(piece)
        is_blank = is_blank and not piece.strip()
        if piece.endswith(b"\n"):
            yield size, is_blank
            size, is_blank = 0, True
    if size:  # a last line without a line feed
        yield size, is_blank


def _parquet_rows(segment: Segment, split: str, max_row_bytes: int, scratch: Path | None) -> Iterator[RawRow]:
    """The rows of some row groups. Large ones go by way of a file in `scratch`, which frees what reading them holds."""
    number = segment.first_row
    # With a buffer size, pages are read as needed instead of whole column chunks.
    with _readable(segment.file), pq.ParquetFile(segment.file.path, pre_buffer=False, buffer_size=CHUNK_BYTES) as file:
        _require_distinct_names(segment.file, file.schema_arrow.names)
        for group in range(segment.start, segment.stop):
            group_bytes = file.metadata.row_group(group).total_byte_size
            is_small = group_bytes <= SMALL_GROUP_BYTES
            # A batch is held whole, so batches of a large group are small. Each row may be as large as the whole group:
            # the group's size counts a dictionary once, and every row may repeat it.
            rows_per_batch = min(max(SMALL_GROUP_BYTES // max(group_bytes, 1), 1), ROWS_PER_BATCH)
            batches = file.iter_batches(batch_size=rows_per_batch, row_groups=[group], use_threads=False)
            for batch in batches if is_small else _by_way_of_a_file(batches, file.schema_arrow, scratch):
                # Measured in Arrow, so that a row over the limit never becomes Python objects.
                sizes = [batch.slice(index, 1).nbytes for index in range(batch.num_rows)]
                rows = [
                    _too_large(size) if size > max_row_bytes else _row_values(batch.slice(index, 1))
                    for index, size in enumerate(sizes)
                ]
                # Now only `rows` holds the values. Each row is removed before it is yielded, so the caller can free it.
                del batch
                while rows:
                    yield RawRow(split, number, rows.pop(0), sizes.pop(0))
                    number += 1


def _too_large(size: int) -> Unread:
    return Unread("row_too_large", f"{size / 2**20:.0f} MiB")


def _row_values(batch: pa.RecordBatch) -> Any:
    try:
        return batch.to_pylist()[0]
    except (ValueError, OverflowError) as error:  # text that is not UTF-8, a date that Python has not
        return Unread("row_misread", f"a value that cannot be read ({error})")


def _by_way_of_a_file(
    batches: Iterator[pa.RecordBatch], schema: pa.Schema, folder: Path | None
) -> Iterator[pa.RecordBatch]:
    """The same batches, when the last of them has been read and what reading them held is free again."""
    with tempfile.TemporaryFile(dir=folder) as file:
        with pa.ipc.new_stream(file, schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
                # Else the loop's variable would hold this batch while the next is read.
                del batch
        file.seek(0)
        yield from pa.ipc.open_stream(file)


def _line_rows(segment: Segment, split: str, max_row_bytes: int) -> Iterator[RawRow]:
    number, position = segment.first_row, segment.start
    with _readable(segment.file), _opened(segment.file) as handle:
        if position:
            handle.seek(position)
        # One byte over the limit is enough to tell that a line is too long.
        while position < segment.stop and (line := handle.readline(max_row_bytes + 1)):
            size = len(line)
            if size > max_row_bytes:
                # The rest is read past in pieces, for its size and to reach the next line.
                while not line.endswith(b"\n") and (line := handle.readline(CHUNK_BYTES)):
                    size += len(line)
                del line  # as large as the limit, if it ends right behind it
                values: list[Any] = [_too_large(size)]
            else:
                text = _decoded(line)
                del line  # each of these may be as large as the row
                values = [json_or_text(text)] if text.strip() else []
                del text
            if values:  # popped: a variable of this frame would hold the row as long as its taker works on it
                yield RawRow(split, number, values.pop(), size)
            number += 1
            position += size


def _decoded(text: bytes) -> str:
    # Bytes that are not UTF-8 cost their row (not_utf8, in `problem_from_row`), not the file.
    return text.removeprefix(BYTE_ORDER_MARK).decode("utf-8", "surrogateescape")


def _csv_rows(segment: Segment, split: str, max_row_bytes: int) -> Iterator[RawRow]:
    """The rows below a header, all values text; separated by whichever of comma, semicolon and tab the header has most.
    A row with more or fewer cells than the header is `Unread`: a comma without quotes has moved them."""
    file = segment.file
    # A setting of the whole process; the default of 128 KB is too low. The limit ends a cell whose quote is not closed.
    csv.field_size_limit(min(max_row_bytes, MAX_CELL_CHARS))
    with _readable(file), _opened(file) as handle:
        text = io.TextIOWrapper(handle, "utf-8-sig", errors="surrogateescape", newline="")
        head = text.readline(CHUNK_BYTES)
        separator = max(",;\t", key=head.count)
        names = next(csv.reader([head], delimiter=separator), [])
        _require_distinct_names(file, names)
        for number, cells in enumerate(csv.reader(text, delimiter=separator, strict=True), segment.first_row):
            size = sum(map(len, cells))
            if not cells:  # a blank line
                continue
            if size > max_row_bytes:
                yield RawRow(split, number, _too_large(size), size)
            elif len(cells) != len(names):
                why = f"{len(cells)} cells under a header of {len(names)}: a cell with a separator needs quotes"
                yield RawRow(split, number, Unread("row_misread", why), size)
            else:
                yield RawRow(split, number, dict(zip(names, cells, strict=True)), size)


def _require_distinct_names(file: RawFile, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise DataError(f"{file.path}: several columns have the name {printable(repeated[0])!r}: rename all but one")


def _json_rows(segment: Segment, split: str, max_row_bytes: int) -> Iterator[RawRow]:
    """The rows of a .json file: of the array that it is or has, else of its lines."""
    file = segment.file
    with _readable(file), _opened(file) as handle:
        text = handle.readline(max_row_bytes + 1)
        is_object = isinstance(json_or_text(_decoded(text)), dict)
        text += handle.read(CHUNK_BYTES if is_object else max_row_bytes + 1 - len(text))
    # Lines where an object ends with its line and another follows: such a file is not held.
    rows = None if is_object and text.strip().count(b"\n") else _document_rows(file, text, max_row_bytes)
    if rows is None:
        yield from _line_rows(segment, split, max_row_bytes)
        return
    size = len(text) // max(len(rows), 1)
    del text
    rows.reverse()  # popped, as in `_line_rows`
    for number in range(segment.first_row, segment.first_row + len(rows)):
        yield RawRow(split, number, rows.pop(), size)


def _document_rows(file: RawFile, text: bytes, max_row_bytes: int) -> list[Any] | None:
    """The rows of a JSON document: an array, the one array that an object has under a known name, or else the object.
    An object with a statement is a row, unless the items of that array have statements too. None if `text` is lines and
    no document. Raises DataError if it is too large, broken or has several such arrays."""
    if len(text) > max_row_bytes:
        raise DataError(
            f"{file.path}: a JSON document of more than {max_row_bytes / 2**20:.0f} MiB, which would be held as a "
            "whole: write it as JSON lines (.jsonl), one row per line"
        )
    try:
        document = json.loads(_decoded(text))
    except (ValueError, RecursionError) as error:
        # A bracket alone in front is a document over several lines; in JSON lines a row begins right after it.
        if text.removeprefix(BYTE_ORDER_MARK).split(None, 1)[:1] in ([b"{"], [b"["], [b"[{"]):
            raise DataError(f"{file.path}: broken JSON ({error})") from None
        return None
    if isinstance(document, list):
        return document
    if not isinstance(document, dict):  # one line with a text or a number
        return None
    arrays = [name for name in ARRAYS_OF_ROWS if isinstance(document.get(name), list)]
    rows = document[arrays[0]] if arrays else []
    if not arrays or (_has_statement(document) and not any(map(_has_statement, rows))):
        return [document]
    if len(arrays) > 1:
        raise DataError(f"{file.path}: several arrays of rows ({', '.join(arrays)}): write each into a file of its own")
    return rows


def _has_statement(row: Any) -> bool:
    return isinstance(row, dict) and any(row.get(name) for name in STATEMENT_COLUMNS)


def json_or_text(text: str) -> Any:
    """The JSON value in `text`, or the text itself where it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
