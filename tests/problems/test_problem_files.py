"""Problems read from parquet files at addresses."""

from collections.abc import Iterator
from pathlib import Path

import fsspec
import polars as pl
import pytest

from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.problems import Problem, Test, problems_frame, read_problem_rows

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
    pl.DataFrame({"statement": ["x"]}).write_parquet(text)
    with pytest.raises(DataError, match="holds no problems: it has no column entry_point"):
        read_problem_rows([str(text)])
    with pytest.raises(ConfigError, match=r"nosuch://x: "):
        read_problem_rows(["nosuch://x"])
