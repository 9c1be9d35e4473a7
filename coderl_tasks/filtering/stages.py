"""All stages over a data set: read, check, de-duplicate, decontaminate. One folder holds everything they make:

    request.json            what the parts are of: hashes of the files, rules
    evaluation/NNNNN.parquet, benchmarks/NNNNN.parquet, train/NNNNN.parquet (see `parts`)
    kept.parquet            the problems that came through, and where they lie (see `parts`)
    dropped.parquet         every row that did not, with stage and reason
    screening.json          counts, files and rules; written last

The same files and rules give the same bytes, with any number of workers. Memory is bounded: rows are read, checked and
written part by part (see `rows`), and the stages after trimming need no test and no statement, only the signatures,
which are read back from the parts.
"""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow.parquet as pq

from coderl_tasks.errors import DataError
from coderl_tasks.filtering.overlap import Entry, OverlapRules, find_contaminated, find_duplicates, known_windows
from coderl_tasks.filtering.parts import KEPT_SCHEMA, KeptProblems, dropped_file
from coderl_tasks.filtering.rows import OnRows, PartJob, RowRules, RowsProgress, make_part, run_jobs, workers_for
from coderl_tasks.filtering.signature import SIGNATURE_FIELDS, Hashes, read_signatures
from coderl_tasks.journal import atomic
from coderl_tasks.problems.loading import CODE_ROWS, NO_EVALUATION, RowReader, is_held_out
from coderl_tasks.problems.problem import DROPPED_SCHEMA, Drop, count_drops, dropped_frame, require_all_rows
from coderl_tasks.problems.raw_files import FileIndex, RawFile, Segment, index_file, whole_file
from coderl_tasks.problems.sources import PINNED_REVISIONS, NoSplitsError, RowSource, is_file, open_source

PARTS_FORMAT = 3  # goes up when the same rows give other part files: parts of an earlier format are made again
BENCHMARKS = "benchmarks"
"""The side of benchmarks, beside that of the evaluation data."""


@dataclass(frozen=True, slots=True)
class FilterRequest:
    """What to filter, and by which rules.

    `splits` None is all of them; `limit` -1 all rows, else so many, taken from all splits in turn. `evaluation` is
    the data set whose test side must not be given away: None is `source` itself, where it has one, "none" is no data
    set. With a `test_share`, that share of the train side of `source` is the test side (see `loading.is_held_out`).
    `near_duplicate` is the least resemblance of near duplicates (Jaccard similarity of statements' 5-word shingles).
    `workers` None is one per core. `environment` names what `reader` makes of the rows. The problems of `benchmarks`
    must not be given away either.
    """

    source: str
    splits: Sequence[str] | None = None
    limit: int = -1
    evaluation: str | None = None
    test_share: float | None = None
    rows: RowRules = field(default_factory=RowRules)
    near_duplicate: float = 0.6
    overlap: OverlapRules = field(default_factory=OverlapRules)
    workers: int | None = None
    environment: str = "code"
    reader: RowReader = CODE_ROWS
    benchmarks: Sequence[RowSource] = ()


@dataclass(frozen=True, slots=True)
class FilterResult:
    """What came of it: `kept`, `dropped` (DROPPED_SCHEMA), the rows read, and the `manifest` (screening.json)."""

    kept: KeptProblems
    dropped: pl.DataFrame
    read: int
    manifest: dict[str, Any]

    def __post_init__(self) -> None:
        require_all_rows(len(self.kept), self.dropped, self.read)

    @property
    def drops_in_words(self) -> str:
        """How many rows were dropped for which reason; empty if none was."""
        return ", ".join(f"{count} {reason}" for reason, count in self.manifest["dropped"].items())

    def lines(self) -> list[str]:
        """What came of it, for people."""
        lines = [f"{self.read} rows read from {self.manifest['dataset']}: {len(self.kept)} problems"]
        if self.drops_in_words:
            lines.append(f"dropped: {self.drops_in_words}")
        if (hint := min_tests_hint(self.dropped)) is not None:
            lines.append(hint)
        if not self.manifest["evaluation_problems"]:
            lines.append("not decontaminated: there are no evaluation problems to compare with (evaluation_dataset=)")
        return lines

    def require_problems(self) -> None:
        """Raise DataError, one line that says what was found and what is missing, if no row came through."""
        if len(self.kept):
            return
        dataset = self.manifest["dataset"]
        if self.dropped.is_empty():
            raise DataError(f"{dataset} has no rows")
        first, hint = self.dropped.row(0, named=True), min_tests_hint(self.dropped)
        why = f"row {first['source_row']} of {first['split']}: {first['detail'] or first['reason']}"
        why += f". {hint.capitalize()}" if hint is not None else ""
        all_rows = f"All rows: coderl validate {dataset} --environment={self.manifest['environment']}"
        raise DataError(f"{dataset}: none of {self.read} rows can be used ({self.drops_in_words}); {why}. {all_rows}")


def filter_dataset(folder: Path, request: FilterRequest, on_rows: OnRows | None = None) -> FilterResult:
    """Reads, checks, de-duplicates and decontaminates a data set, and returns its usable train problems and the dropped
    rows. Train problems that give away evaluation data or benchmarks are dropped. The rows of each segment of a file
    become a part, a file in `folder`, which nothing else may use: a restart makes only missing parts, another request
    deletes them. Raises DataError for bad data, InfraError if a worker dies."""
    sides = [
        _Side("train", open_source(request.source, request.splits, "train"), request.rows, request.limit),
        _Side("evaluation", _evaluation_sources(request), rules=None, limit=-1, held_out=request.test_share),
    ]
    if request.benchmarks:
        sides.append(_Side(BENCHMARKS, list(request.benchmarks), rules=None, limit=-1))
    # All files are hashed and cut into segments, even if all parts exist: a file may have changed under its name. Sides
    # may share files: each is hashed once.
    files = list(dict.fromkeys(file for side in sides for source in side.sources for file in source.files))
    if on_rows is not None:
        on_rows(RowsProgress(rows=0, bytes_read=0, bytes_total=0, phase="hashing"))
    n_workers = workers_for(sum(file.path.stat().st_size for file in files), request.workers)
    indices = dict(zip(files, run_jobs(index_file, files, n_workers), strict=True))
    parts_request = _parts_request(request, sides, indices)
    # The request is recorded before its parts: part files do not say which request they belong to.
    _empty_if_other_request(folder, parts_request)
    # Parts do not depend on the rules for duplicates and overlap: if those differ, only `_decide_and_write` runs again.
    rules = {"duplicates": {"resemblance": request.near_duplicate}, "overlap": asdict(request.overlap)}
    full_request = parts_request | rules
    if (finished := _finished_result(folder, full_request)) is not None:
        return finished
    # The largest segments are read first, and of one size those of evaluation data: faults in them then show early.
    jobs = [replace(job, reader=request.reader) for side in reversed(sides) for job in _jobs(side, indices, folder)]
    _make_parts(jobs, request.workers, on_rows)
    return _decide_and_write(folder, request, full_request)


@dataclass(frozen=True, slots=True)
class _Side:
    """Train data, or the evaluation data or benchmarks that they are compared with (without `rules`: each problem
    counts). At most `limit` rows are read (-1: all); with `held_out`, only that share of the problems counts."""

    name: str
    sources: list[RowSource]
    rules: RowRules | None
    limit: int
    held_out: float | None = None


def _parts_request(request: FilterRequest, sides: list[_Side], indices: dict[RawFile, FileIndex]) -> dict[str, Any]:
    """All that decides the part files, as JSON (request.json): settings, and the hash of each file of rows."""
    described: dict[str, Any] = {
        "format": PARTS_FORMAT,
        "dataset": request.source,
        "revision": PINNED_REVISIONS.get(request.source),
        "splits": None if request.splits is None else list(request.splits),
        "limit": request.limit,
        "rows": asdict(request.rows),
        "environment": request.environment,
    }
    for side in sides:
        described[side.name] = [
            {"split": source.split, "file": file.name, "sha256": indices[file].sha256, "bytes": indices[file].size}
            for source in side.sources
            for file in source.files
        ]
    if request.test_share is not None:  # absent without one: records made before it stay valid
        described["test_share"] = request.test_share
    return described


def _evaluation_sources(request: FilterRequest) -> list[RowSource]:
    if request.test_share is not None:
        return open_source(request.source, None, "train")
    if request.evaluation == NO_EVALUATION or (request.evaluation is None and is_file(request.source)):
        return []
    try:
        return open_source(request.evaluation or request.source, None, "test")
    except NoSplitsError:
        if request.evaluation is not None:
            raise
        return []


def _empty_if_other_request(folder: Path, described: dict[str, Any]) -> None:
    """Keep what is in `folder` if it is of the same request, else empty it."""
    # Delete another request's parts before recording this request: their names are only numbers.
    file = folder / "request.json"
    if not file.is_file() or atomic.read_json(file) != described:
        if folder.exists():
            shutil.rmtree(folder)
        for name in ("evaluation", BENCHMARKS, "train"):
            atomic.make_folder(folder / name)
        atomic.write_json(file, described)
    atomic.remove_leftovers(folder)


def _jobs(side: _Side, indices: dict[RawFile, FileIndex], folder: Path) -> list[PartJob]:
    """One job per file segment of a side, in order; a job's number names its part. Segments past the side's row limit
    get no job."""
    rows_left = _row_limits(side, indices)  # by split, None for all
    jobs: list[PartJob] = []
    for source in side.sources:
        numbers_before = 0  # row numbers of the split in earlier files: they go on from file to file
        for file in source.files:
            if side.limit != -1 and source.only is not None:
                # Rows of this source, a single file, name their own split, and those of unwanted splits do not count
                # towards the limit. How many rows count is not known before reading: one job reads the whole file.
                segments = [(whole_file(file), rows_left[source.split])]
            else:
                segments = list(_within_limit(indices[file].segments, rows_left, source.split))
            for segment, limit in segments:
                numbered = replace(segment, first_row=numbers_before + segment.first_row)
                part = folder / side.name / f"{len(jobs):05d}.parquet"
                jobs.append(PartJob(source, numbered, part, side.rules, limit, side.held_out))
            numbers_before += indices[file].numbers  # more than its rows: blank lines have a number too
    return jobs


def _within_limit(
    segments: Sequence[Segment], rows_left: dict[str, int | None], split: str
) -> Iterator[tuple[Segment, int | None]]:
    """Yields a file's segments with how many rows of each to read (None: all) until the rows left to `split` are used
    up, and subtracts them there."""
    for segment in segments:
        left = rows_left[split]
        if left is None:
            yield segment, None
        elif limit := min(segment.rows, left):
            rows_left[split] = left - limit
            yield segment, limit


def _row_limits(side: _Side, indices: dict[RawFile, FileIndex]) -> dict[str, int | None]:
    """How many rows to read of each split: None for all, else as many as taking them in turn gives it."""
    if side.limit == -1:
        return {source.split: None for source in side.sources}
    there = {source.split: sum(indices[file].rows for file in source.files) for source in side.sources}
    taken = dict.fromkeys(there, 0)
    left = min(side.limit, sum(there.values()))
    while left:
        open_splits = [split for split in there if taken[split] < there[split]]
        each = max(1, min(left // len(open_splits), *(there[split] - taken[split] for split in open_splits)))
        for split in open_splits[: left // each]:
            taken[split] += each
            left -= each
    return dict(taken)


def _make_parts(jobs: list[PartJob], workers: int | None, on_rows: OnRows | None) -> None:
    missing = [job for job in jobs if not job.part.is_file()]  # a part that exists is complete (see `parts`)
    total, rows_read = sum(job.segment.size for job in jobs), 0
    before = total - sum(job.segment.size for job in missing)

    def count(rows: int, bytes_read: int) -> None:
        nonlocal rows_read
        rows_read = rows
        if on_rows is not None:
            on_rows(RowsProgress(rows, min(before + bytes_read, total), total))

    # The largest first: those that end last, when other workers have nothing left to do, are then short.
    missing.sort(key=lambda job: -job.segment.size)
    n_workers = workers_for(total - before, workers)
    run_jobs(make_part, missing, n_workers, is_heavy=lambda job: job.is_heavy, on_progress=count)
    if on_rows is not None:
        on_rows(RowsProgress(rows_read, total, total, "comparing"))


def _decide_and_write(folder: Path, request: FilterRequest, described: dict[str, Any]) -> FilterResult:
    """Hold out, de-duplicate and decontaminate the train problems of the finished parts, and write the result files.
    `described` is the manifest as far as the request and its files decide it."""
    evaluation = [entry for side in ("evaluation", BENCHMARKS) for entry in _read_side(folder, side)[0]]
    # To save memory, only those windows of train problems are kept that an evaluation problem has too.
    train, table = _read_side(folder, "train", only_windows=known_windows(evaluation))
    faults: dict[int, tuple[str, str, str]] = {}  # (stage, reason, detail), by index in `train`
    if request.test_share is not None:
        held_out = ("test_side", "held_out", f"one of test_share={request.test_share:g}")
        ids = table["problem_id"]
        faults = {index: held_out for index, name in enumerate(ids) if is_held_out(name, request.test_share)}
    # Each stage sees only what the stages before it kept: a row has one reason, and decontamination counts a window
    # once per problem, not once per duplicate.
    for stage, find in (
        ("dedup", lambda entries: find_duplicates(entries, request.near_duplicate)),
        ("decontaminate", lambda entries: find_contaminated(entries, evaluation, request.overlap)),
    ):
        remaining = [index for index in range(len(train)) if index not in faults]
        found = find([train[index] for index in remaining])
        faults |= {remaining[index]: (stage, *fault) for index, fault in found.items()}
    indexed, has_fault = table.with_row_index("index"), pl.col("index").is_in(list(faults))
    faulty, kept = indexed.filter(has_fault), indexed.filter(~has_fault).drop("index")
    # Their outlines (problems without tests) are read back, for the drops' ids, splits and row numbers.
    problems = KeptProblems(folder, faulty.drop("index")).outlines()
    drops = [Drop.of(problem, *faults[index]) for index, problem in zip(faulty["index"], problems, strict=True)]
    from_parts = [atomic.read_parquet(dropped_file(part), DROPPED_SCHEMA) for part in _parts(folder, "train")]
    dropped = pl.concat([pl.DataFrame(schema=DROPPED_SCHEMA), *from_parts, dropped_frame(drops)])
    if request.test_share is not None:  # rows that were dropped before, as unfit to train on, may be held out too
        dropped = _with_held_out(dropped, request.test_share)
    manifest = described | {
        "read": kept.height + dropped.height,
        "kept": kept.height,
        "evaluation_problems": len(evaluation),
        "dropped": count_drops(dropped),
    }
    # The manifest comes last: `_finished_result` takes it as proof that both tables are complete.
    atomic.write_parquet(folder / "kept.parquet", kept)
    atomic.write_parquet(folder / "dropped.parquet", dropped)
    atomic.write_json(folder / "screening.json", manifest)
    return FilterResult(KeptProblems(folder, kept), dropped, manifest["read"], manifest)


def _with_held_out(dropped: pl.DataFrame, share: float) -> pl.DataFrame:
    """`dropped` with what the checks of a row found unfit for a pool as held out, where it is: it is evaluated on."""
    unfit = pl.col("stage") == "sanity"
    ids = dropped.filter(unfit)["problem_id"].drop_nulls()
    held_out = unfit & pl.col("problem_id").is_in([problem_id for problem_id in ids if is_held_out(problem_id, share)])
    detail = pl.format(f"one of test_share={share:g}; {{}}: {{}}", "reason", "detail")
    values = {"stage": pl.lit("test_side"), "reason": pl.lit("held_out"), "detail": detail}
    return dropped.with_columns(**{name: pl.when(held_out).then(it).otherwise(name) for name, it in values.items()})


def _finished_result(folder: Path, described: dict[str, Any]) -> FilterResult | None:
    """What an earlier start with the same request and rules made; None if it was not finished."""
    file = folder / "screening.json"
    manifest = atomic.read_json(file) if file.is_file() else None
    if manifest is None or {name: manifest.get(name) for name in described} != described:
        return None
    kept = atomic.read_parquet(folder / "kept.parquet", KEPT_SCHEMA)
    dropped = atomic.read_parquet(folder / "dropped.parquet", DROPPED_SCHEMA)
    return FilterResult(KeptProblems(folder, kept), dropped, manifest["read"], manifest)


def _parts(folder: Path, side: str) -> list[Path]:
    return [file for file in sorted((folder / side).glob("*.parquet")) if file.stem.isdecimal()]


def _read_side(folder: Path, side: str, only_windows: Hashes | None = None) -> tuple[list[Entry], pl.DataFrame]:
    """The problems of one side's parts, and where they lie (KEPT_SCHEMA)."""
    entries: list[Entry] = []
    tables = [pl.DataFrame(schema=KEPT_SCHEMA)]
    columns = ["problem_id", "split", "source_row", "tests_bytes"]
    role = "" if side == "train" else " test"
    for part in _parts(folder, side):
        read = pq.read_table(part, columns=[*columns, *(field.name for field in SIGNATURE_FIELDS)])
        table = pl.DataFrame(read.select(columns))
        for signature, row in zip(read_signatures(read, only_windows), table.iter_rows(named=True), strict=True):
            entries.append(Entry(row["problem_id"], f"row {row['source_row']} of {row['split']}{role}", signature))
        name, rows = part.relative_to(folder).as_posix(), pl.int_range(pl.len(), dtype=pl.Int64)
        tables.append(table.with_columns(part=pl.lit(name), row=rows).select(*KEPT_SCHEMA))
    return entries, pl.concat(tables)


def min_tests_hint(dropped: pl.DataFrame) -> str | None:
    """Which lower `min_tests` would keep how many of the rows that have too few; None if there are none."""
    few = dropped.filter(reason="too_few_tests")["detail"].str.extract(r"(\d+) different").cast(pl.Int64).drop_nulls()
    if few.is_empty():
        return None
    values = few.unique().sort(descending=True).to_list()
    shown = values if len(values) < 4 else [values[0], values[len(values) // 2], values[-1]]
    kept = ", ".join(f"{value} would keep {(few >= value).sum()}" for value in shown)
    return f"of {few.len()} rows with too few tests, min_tests={kept} (fewer tests: more wrong programs pass)"
