"""Problems read from parquet files at addresses."""

import errno
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import fsspec
import polars as pl
import pyarrow.parquet as pq
import pytest

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.problems import problem as problem_files
from coderl_tasks.problems.problem import (
    Kind,
    PoolFile,
    Problem,
    SpilledTests,
    StoredTests,
    Test,
    problems_frame,
    read_problem_rows,
)

PROBLEMS = [
    Problem(f"p{n}", "taco", "Add.", "", "stdin", "", (Test("1\n", f"{n}\n"),) * (n + 1), n + 1, n + 1, None, ("x",), n)
    for n in range(10)
]


@pytest.fixture
def addresses(tmp_path: Path) -> Iterator[list[str]]:
    """Six problems in small row groups on a remote file system, four in a local file with a further column."""
    remote = "memory://problem-files/first.parquet"
    with fsspec.open(remote, "wb") as file:
        problems_frame(PROBLEMS[:6]).write_parquet(file, row_group_size=2)
    local = tmp_path / "second.parquet"
    problems_frame(PROBLEMS[6:]).with_columns(pass_rate=pl.lit(0.5)).write_parquet(local)
    yield [remote, f"file://{local}"]
    fsspec.filesystem("memory").rm("/problem-files", recursive=True)


@pytest.mark.parametrize(("start", "count"), [(0, -1), (0, 3), (3, 5), (5, 1), (6, -1), (9, 5), (10, -1), (4, 0)])
def test_a_range_of_rows_over_all_files(addresses: list[str], start: int, count: int) -> None:
    end = len(PROBLEMS) if count < 0 else start + count
    assert read_problem_rows(addresses, start, count) == PROBLEMS[start:end]


def test_what_cannot_be_read_is_one_line(addresses: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no such file"):
        read_problem_rows(["memory://problem-files/none.parquet"])
    text = tmp_path / "text.parquet"
    text.write_text("no parquet at all")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_problem_rows([str(text)])
    for damaged in (str(text), f"file://{text}"):
        problems_frame(PROBLEMS).write_parquet(text)
        pages = bytearray(text.read_bytes())
        pages[4:200] = bytes(196)  # its footer is whole
        text.write_bytes(pages)
        with pytest.raises(DataError, match="cannot be read as parquet"):
            read_problem_rows([damaged])
    pl.DataFrame({"statement": ["x"]}).write_parquet(text)
    with pytest.raises(DataError, match="holds no problems: it has no column entry_point"):
        read_problem_rows([str(text)])
    with pytest.raises(ConfigError, match=r"nosuch://x: "):
        read_problem_rows(["nosuch://x"])


def stored(path: Path, kind: Kind, n_tests: int = 3, rows: int = 600) -> list[Problem]:
    """Problems of a pool at `path`, in row groups of 200."""
    made = [
        replace(PROBLEMS[0], problem_id=f"p{row}", kind=kind, solutions=("pass",), tests_total=n_tests,
                tests=tuple(Test(f"{row}.{number}", f"{row}") for number in range(n_tests)))
        for row in range(rows)
    ]  # fmt: skip
    problems_frame(made).write_parquet(path, row_group_size=200)
    return [replace(problem, solutions=()) for problem in made]


@pytest.mark.parametrize("kind", ["stdin", "call"])
def test_tests_of_a_pool_stay_in_its_file_and_are_those_of_the_problem(tmp_path: Path, kind: Kind) -> None:
    made = stored(tmp_path / "pool.parquet", kind)
    problems = PoolFile(tmp_path / "pool.parquet").problems()
    assert all(isinstance(problem.tests, StoredTests) and len(problem.tests) == 3 for problem in problems)
    (tmp_path / "pool.parquet").unlink()  # as another curation of its name would
    for row in (0, 199, 200, 599):
        assert problems[row].tests[0] == made[row].tests[0] and problems[row].tests[1:] == made[row].tests[1:]
        assert problems[row].whole() == made[row]


@pytest.mark.parametrize("kind", ["stdin", "call"])
def test_tests_that_are_spilled_are_those_of_the_problem(tmp_path: Path, kind: Kind) -> None:
    texts = ["1\n", "", "\u2028ü\ud800", '"\\', "x" * 100_000]
    made = [
        replace(PROBLEMS[n], kind=kind, tests=tuple(Test(text, f"{n}{text}") for text in texts[: n + 1]))
        for n in range(len(texts))
    ]
    spilled = SpilledTests(tmp_path)
    problems = [spilled.keep(problem) for problem in made]
    assert not list(tmp_path.iterdir()), "no run directory shows the file, and no kill leaves it"
    assert all(isinstance(problem.tests, StoredTests) for problem in problems)
    for problem, before in zip(reversed(problems), reversed(made), strict=True):
        assert len(problem.tests) == len(before.tests) and problem.tests[0] == before.tests[0]
        assert problem.whole() == replace(before, solutions=())


def test_a_disk_without_room_for_tests_is_named(tmp_path: Path) -> None:
    spilled = SpilledTests(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError) as caught:
            spilled.keep(PROBLEMS[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(tmp_path))


def test_a_start_does_not_read_the_tests_of_programs(tmp_path: Path) -> None:
    path = tmp_path / "pool.parquet"
    made = stored(path, "stdin")
    about = pq.ParquetFile(path).metadata.row_group(0)
    columns = [about.column(number) for number in range(about.num_columns)]
    content = bytearray(path.read_bytes())
    for column in columns:
        if column.path_in_schema.startswith("tests."):
            start = column.dictionary_page_offset or column.data_page_offset
            content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    path.write_bytes(content)
    problems = PoolFile(path).problems()
    assert [len(problem.tests) for problem in problems] == [len(problem.tests) for problem in made]
    assert problems[200].whole() == made[200]
    with pytest.raises(DataError, match="cannot be read any more"):
        problems[0].whole()


@pytest.mark.parametrize("tests_total", [7, 0, None])
def test_tests_are_counted_where_the_column_does_not_say_how_many(tmp_path: Path, tests_total: int | None) -> None:
    path = tmp_path / "pool.parquet"
    made = stored(path, "stdin")
    frame = pl.read_parquet(path).with_columns(tests_total=pl.lit(tests_total, pl.Int32()))
    frame.write_parquet(path, row_group_size=200)
    problems = PoolFile(path).problems()
    assert all(isinstance(problem.tests, StoredTests) and len(problem.tests) == 3 for problem in problems)
    assert problems[599].tests[2] == made[599].tests[2]


def test_a_problem_with_another_number_of_tests_than_its_column_says_is_not_graded(tmp_path: Path) -> None:
    path = tmp_path / "pool.parquet"
    stored(path, "stdin")
    frame = pl.read_parquet(path)
    frame.with_columns(tests_total=2 + 2 * (pl.int_range(pl.len(), dtype=pl.Int32()) % 2)).write_parquet(path)
    with pytest.raises(DataError, match="problem p1 has 3 tests and tests_total=4"):
        PoolFile(path).problems()[1].whole()


def test_row_groups_too_large_to_be_read_for_one_problem_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = stored(tmp_path / "pool.parquet", "stdin")
    monkeypatch.setattr(problem_files, "MOST_GROUP_BYTES", 100)
    assert PoolFile(tmp_path / "pool.parquet").problems() == made


def test_a_pool_that_is_written_over_is_not_graded_by(tmp_path: Path) -> None:
    path = tmp_path / "pool.parquet"
    stored(path, "stdin")
    problem = PoolFile(path).problems()[0]
    other = tmp_path / "other.parquet"
    problems_frame([replace(PROBLEMS[0], problem_id=f"q{row}") for row in range(600)]).write_parquet(other)
    path.write_bytes(other.read_bytes())  # into the same file, not beside it
    with pytest.raises(DataError, match=r"pool\.parquet (was changed while|cannot be read any more)"):
        problem.whole()


@pytest.mark.parametrize("name", ["source_row", "statement", "solutions"])
def test_a_row_that_lacks_a_column_is_no_problem(name: str) -> None:
    row = problems_frame(PROBLEMS[:1]).drop(name).row(0, named=True)
    with pytest.raises(KeyError, match=name):
        Problem.from_row(row)
