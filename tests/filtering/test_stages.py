import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import curation_offline
import polars as pl
import pytest
from deepcoder_sized import generate

from coderl_tasks.errors import DataError
from coderl_tasks.filtering.rows import RowRules
from coderl_tasks.filtering.stages import FilterRequest, filter_dataset
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.problems.loading import EvaluationSide, load_problems
from coderl_tasks.problems.problem import PROBLEM_SCHEMA
from coderl_tasks.problems.profile_columns import PROFILE_SCHEMA
from tests.filtering.conftest import DataSet
from tests.filtering.made_problems import make_row, make_text, with_changed_words

FAULTY = [
    make_row(make_text("a"), "a"),
    make_row(make_text("b"), "b", count=9),
    make_row(with_changed_words(make_text("a"), 1), "a"),
    make_row(make_text("secret"), "c"),
    make_row(make_text("d"), "d", count=2),
    make_row(" "),
    '{"problem": "cut',
    make_row(make_text("e"), "e"),
]


def hashes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def faulty(data_set: DataSet) -> Path:
    return data_set(FAULTY, [make_row(make_text("secret"), "s"), make_row(make_text("other"), "o")])


def test_every_row_is_kept_or_dropped_with_stage_and_reason(faulty: Path, tmp_path: Path) -> None:
    done = filter_dataset(tmp_path / "out", FilterRequest(str(faulty), rows=RowRules(max_tests=8)))
    assert done.read == len(FAULTY) == len(done.kept) + done.dropped.height
    dropped = {row["source_row"]: (row["stage"], row["reason"]) for row in done.dropped.iter_rows(named=True)}
    assert dropped == {
        2: ("dedup", "near_duplicate"),
        3: ("decontaminate", "ngram_overlap"),
        4: ("sanity", "too_few_tests"),
        5: ("parse", "no_statement"),
        6: ("parse", "row_not_object"),
    }
    problems = list(done.kept)
    assert [problem.source_row for problem in problems] == [0, 1, 7]
    loaded = {p.problem_id: p for p in load_problems(str(faulty), role="train", max_tests=8).problems}
    assert problems == [loaded[problem.problem_id] for problem in problems]
    detail = done.dropped.filter(stage="decontaminate").row(0, named=True)
    assert "row 0 of codeforces test" in detail["detail"] and detail["statement"] == make_text("secret")
    assert done.manifest["dropped"]["dedup/near_duplicate"] == 1
    assert {file["file"] for side in ("train", "evaluation") for file in done.manifest[side]} == {
        "taco.jsonl",
        "codeforces.jsonl",
    }
    assert str(tmp_path) not in json.dumps(done.manifest["train"])


def test_a_share_is_held_out_and_nothing_like_it_stays(tmp_path: Path) -> None:
    rows = [make_row(make_text(key), str(key)) for key in range(20)]
    rows += [make_row(with_changed_words(make_text(key), 1), str(key)) for key in range(20)]
    rows += [make_row(make_text(f"few {key}"), f"few {key}", count=2) for key in range(20)]
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    request = FilterRequest(str(tmp_path / "mine.jsonl"), test_share=0.3)
    done = filter_dataset(tmp_path / "out", request)
    side = EvaluationSide(request.source, 0.3).load().problems
    dropped = done.dropped.filter(stage="test_side")
    assert set(dropped["problem_id"]) == {problem.problem_id for problem in side} != set()
    assert set(dropped["reason"]) == {"held_out"}
    assert done.manifest["evaluation_problems"] == len(side)
    assert done.manifest["test_share"] == 0.3
    few = done.dropped.filter(pl.col("detail").str.contains("too_few_tests"))
    assert 0 < few.height < 20 and set(few["reason"]) == {"held_out"}  # evaluated on all the same
    held_out = {problem.source_row % 20 for problem in side if problem.source_row < 40}
    assert not held_out & {problem.source_row % 20 for problem in done.kept}
    assert set(done.dropped.filter(stage="decontaminate")["reason"]) == {"ngram_overlap"}
    assert len(done.kept) == 20 - len(held_out)
    assert filter_dataset(tmp_path / "out", request).manifest == done.manifest
    assert "test_share" not in filter_dataset(tmp_path / "out", FilterRequest(request.source)).manifest


def test_a_data_set_without_a_usable_row_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text('{"text": "Add.", "cases": []}\n{"text": "Double."}\n')
    done = filter_dataset(tmp_path / "out", FilterRequest(str(file)))
    assert (len(done.kept), done.kept.shards(3), list(done.kept)) == (0, [], [])
    with pytest.raises(DataError) as caught:
        done.require_problems()
    said = str(caught.value)
    assert said.startswith(
        f"{file}: none of 2 rows can be used (2 parse/no_statement); row 0 of mine: no text in question,"
    )
    assert "; columns: text, cases." in said and "\n" not in said
    file.write_text("\n")
    with pytest.raises(DataError, match="has no rows"):
        filter_dataset(tmp_path / "none", FilterRequest(str(file))).require_problems()


def test_the_bundled_data_set_loses_two_true_duplicates(tmp_path: Path) -> None:
    done = filter_dataset(tmp_path, FilterRequest("data/mini"))
    assert (done.read, len(done.kept), done.manifest["dropped"]) == (640, 638, {"dedup/near_duplicate": 2})
    statements = {(p.split, p.source_row): p.statement for p in load_problems("data/mini", role="train").problems}
    for row in done.dropped.iter_rows(named=True):
        number, split = row["detail"].split()[4], row["detail"].split()[6].rstrip(",")
        assert statements[split, int(number)] == row["statement"]


def test_a_finished_filtering_is_not_done_again_and_another_one_is(faulty: Path, tmp_path: Path) -> None:
    request = FilterRequest(str(faulty))
    first = filter_dataset(tmp_path / "out", request)
    (tmp_path / "out" / "train" / "00000.parquet").unlink()  # nothing looks for it any more
    again = filter_dataset(tmp_path / "out", request)
    assert again.kept.table.equals(first.kept.table) and again.dropped.equals(first.dropped)
    with (faulty / "taco.jsonl").open("a") as file:
        file.write(json.dumps(make_row(make_text("new"), "n")) + "\n")
    assert filter_dataset(tmp_path / "out", request).read == first.read + 1


def test_a_source_without_an_evaluation_side(faulty: Path, tmp_path: Path) -> None:
    file = str(faulty / "taco.jsonl")
    done = filter_dataset(tmp_path / "a", FilterRequest(file))
    assert "decontaminate" not in set(done.dropped["stage"])
    assert any("not decontaminated" in line for line in done.lines())
    named = FilterRequest(file, evaluation=str(faulty / "codeforces.jsonl"))
    assert "decontaminate" in set(filter_dataset(tmp_path / "b", named).dropped["stage"])
    none = FilterRequest(str(faulty), evaluation="none")
    assert filter_dataset(tmp_path / "c", none).manifest["evaluation_problems"] == 0
    with pytest.raises(DataError):
        filter_dataset(tmp_path / "d", FilterRequest(file, evaluation="no-such.jsonl"))


def test_a_limit_takes_from_all_splits_in_turn(tmp_path: Path) -> None:
    done = filter_dataset(tmp_path / "a", FilterRequest("data/mini", limit=500, evaluation="none"))
    assert dict(done.kept.table.group_by("split").len().iter_rows()) == {
        "lcbv5": 140,
        "primeintellect": 180,
        "taco": 180,
    }
    assert done.read == 500
    ids = [problem.problem_id for problem in load_problems("data/mini", role="train", limit=10).problems]
    few = filter_dataset(tmp_path / "b", FilterRequest("data/mini", limit=10, evaluation="none"))
    assert sorted(few.kept.table["problem_id"]) == sorted(ids)


def test_a_limit_counts_the_rows_of_the_splits_wanted(tmp_path: Path) -> None:
    rows = [make_row(make_text(n), str(n)) | {"split": "ab"[n % 2]} for n in range(20)]
    (tmp_path / "mixed.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    request = FilterRequest(str(tmp_path / "mixed.jsonl"), splits=["b"], limit=4)
    assert filter_dataset(tmp_path / "out", request).kept.table["source_row"].to_list() == [1, 3, 5, 7]


def test_shards_and_the_file_of_a_selection(tmp_path: Path) -> None:
    done = filter_dataset(tmp_path / "out", FilterRequest("data/mini", limit=50, evaluation="none"))
    shards = done.kept.shards(20)
    assert [len(shard) for shard in shards] == [20, 20, 10]
    assert [p for shard in shards for p in shard] == list(done.kept)
    assert all(len(shard) == 1 for shard in done.kept.shards(20, max_bytes=1))
    assert [p.problem_id for p in done.kept.outlines()] == [p.problem_id for p in done.kept]
    ids = done.kept.table["problem_id"].to_list()
    compared = replace(done.kept, comparators={ids[3]: "set"})
    for part in (compared, compared.outlines(), compared.shards(20)[0], compared.only(ids[2:5])):
        assert [p.problem_id for p in part if p.comparator == "set"] == [ids[3]]
    some = done.kept.only(ids[5:9])
    some.write(tmp_path / "some.parquet", pl.DataFrame({"pass_rate": [0.1, 0.2, 0.3, 0.4]}))
    frame = pl.read_parquet(tmp_path / "some.parquet")
    assert frame.schema == pl.Schema(PROBLEM_SCHEMA | {"pass_rate": PROFILE_SCHEMA["pass_rate"]})
    assert load_problems(str(tmp_path / "some.parquet"), role="train").problems == list(some)
    with pytest.raises(ValueError, match="4 problems"):
        some.write(tmp_path / "none.parquet", pl.DataFrame({"pass_rate": [0.1]}))


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The benchmark's data set at a five-hundredth of its size, with all its faults."""
    folder = tmp_path_factory.mktemp("generated") / "data"
    generate(folder, 0.002)
    return folder


def test_the_benchmark_finds_all_that_it_planted(
    generated: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["curation_offline.py", "--folder", str(generated), "--keep"])
    ended = curation_offline.main()
    printed = capsys.readouterr().out
    assert ended == 0, printed
    assert "0 of them clean" in printed


START = """
import sys, pathlib
import coderl_tasks.filtering.stages as stages, coderl_tasks.filtering.rows as workers
if __name__ == "__main__":
    workers.BYTES_WORTH_A_PROCESS = 1
    stages.filter_dataset(pathlib.Path(sys.argv[2]), stages.FilterRequest(sys.argv[1], workers=2))
"""


def members(pid: int) -> list[int]:
    """The processes started by `pid`."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def test_killed_and_started_again_it_gives_the_same_bytes_with_any_number_of_workers(
    generated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "start.py"
    script.write_text(START)
    alone, out = tmp_path / "alone", tmp_path / "killed"
    filter_dataset(alone, FilterRequest(str(generated), workers=1))
    process = subprocess.Popen([sys.executable, str(script), str(generated), str(out)], cwd=PROJECT_ROOT)
    while process.poll() is None and len(list(out.glob("*/[0-9]*.parquet"))) < 4:
        time.sleep(0.01)
    workers = members(process.pid)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        time.sleep(0.01)
    done = {path: path.stat().st_mtime_ns for path in out.glob("train/*.parquet")}
    monkeypatch.setattr("coderl_tasks.filtering.rows.BYTES_WORTH_A_PROCESS", 1)
    filter_dataset(out, FilterRequest(str(generated), workers=2))
    assert hashes(out) == hashes(alone)
    assert all(path.stat().st_mtime_ns == written for path, written in done.items() if not path.match("*dropped*"))
    shutil.rmtree(out)
