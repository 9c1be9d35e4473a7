"""The table of benchmarks: where rows come from, what is asked, what the harnesses say."""

import gzip
import json
import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.environments.benchmarks import (
    BENCHMARKS,
    Benchmark,
    benchmark_ids,
    benchmark_settings,
    benchmark_sources,
    load_benchmarks,
)
from coderl_tasks.errors import ConfigError, DataError
from coderl_tasks.paths import PROJECT_ROOT
from coderl_tasks.problems.loading import Dates
from coderl_tasks.prompts.renderers import problem_messages
from coderl_tasks.settings import EvaluateSettings
from tests.problems.test_benchmark_rows import HUMAN_EVAL_PLUS, PRIVATE, livecodebench, mbpp_plus, private

SHARED = PROJECT_ROOT.parent / "shared" / "data"
HUMAN_EVAL: dict[str, Any] = {
    "task_id": "HumanEval/901",
    "prompt": 'def twice(x: int) -> int:\n    """ Twice x.\n    >>> twice(2)\n    4\n    """\n',
    "canonical_solution": "    return 2 * x\n",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-1) == -2\n",
    "entry_point": "twice",
}
MBPP: dict[str, Any] = {
    "task_id": 901,
    "text": "Write a function to double a number.",
    "code": "def double(x):\r\n    return 2 * x",
    "test_setup_code": "",
    "test_list": ["assert double(2) == 4", "assert double(0) == 0"],
    "challenge_test_list": ["assert double('a') == 'aa'"],
}


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def asked(name: str, file: Path) -> str:
    (problem,) = load_benchmarks([f"{name}:{file}"]).problems
    return "\n---\n".join(message["content"] for message in BENCHMARKS[name].messages(problem))


def test_the_help_names_the_benchmarks() -> None:
    said = EvaluateSettings.model_fields["benchmark"].description
    assert said is not None
    assert all(name in said for name in BENCHMARKS if not name.startswith("livecodebench_"))
    assert {name for name in BENCHMARKS if name.startswith("livecodebench_")} == {
        f"livecodebench_v{release}" for release in range(1, 7)
    }


def test_prompts_are_the_published_ones(tmp_path: Path) -> None:
    start = (
        "Please provide a self-contained Python script that solves the following problem in a markdown code block:\n"
        "```python\n"
    )
    prompt = HUMAN_EVAL["prompt"].strip()
    assert asked("humaneval", write(tmp_path / "a.jsonl", HUMAN_EVAL)) == f"{start}{prompt}\n```"
    plus = str(HUMAN_EVAL_PLUS["prompt"]).strip()
    assert asked("humaneval_plus", write(tmp_path / "b.jsonl", HUMAN_EVAL_PLUS)) == f"{start}{plus}\n```"
    text = '"""\nWrite a function to double a number.\nassert double(2) == 4\n"""'
    assert asked("mbpp", write(tmp_path / "c.jsonl", MBPP)) == f"{start}{text}\n```"
    row = mbpp_plus(3, "f", "def f(x):\n    return x\n", [1])
    assert asked("mbpp_plus", write(tmp_path / "d.jsonl", row)) == f"{start}{row['prompt'].strip()}\n```"
    said = asked("livecodebench", write(tmp_path / "e.jsonl", livecodebench(PRIVATE)))
    assert said.startswith("You are an expert Python programmer. You will be given a question")
    assert "### Question:\nPrint the number.\n\n### Format: Read the inputs from stdin" in said


def test_mbpp_is_measured_by_its_three_tests(tmp_path: Path) -> None:
    (problem,) = load_benchmarks([f"mbpp:{write(tmp_path / 'a.jsonl', MBPP)}"]).problems
    assert [test.expected for test in problem.tests] == MBPP["test_list"]
    assert (problem.split, problem.problem_id, problem.time_limit_s) == ("mbpp", "901", 10.0)


def test_plain_humaneval_of_a_file_of_humaneval_plus(tmp_path: Path) -> None:
    (problem,) = load_benchmarks([f"humaneval:{write(tmp_path / 'a.jsonl', HUMAN_EVAL_PLUS)}"]).problems
    assert len(problem.tests) == 1 and "check(mean)" in problem.tests[0].expected


def test_folders_and_compressed_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "hub" / "test.jsonl", HUMAN_EVAL).parent
    write(folder / "train.jsonl", {**HUMAN_EVAL, "task_id": "HumanEval/902"})
    packed = tmp_path / "HumanEvalPlus.jsonl.gz"
    packed.write_bytes(gzip.compress(f"{json.dumps(HUMAN_EVAL_PLUS)}\n".encode()))
    loaded = load_benchmarks([f"humaneval:{folder}", f"humaneval_plus:{packed}"])
    assert [(problem.split, problem.problem_id) for problem in loaded.problems] == [
        ("humaneval", "HumanEval/901"),
        ("humaneval_plus", "HumanEval/900"),
    ]


def test_an_installed_package_is_read_and_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "human_eval"
    (package / "data").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError")
    (package / "data" / "HumanEval.jsonl.gz").write_bytes(gzip.compress(json.dumps(HUMAN_EVAL).encode()))
    monkeypatch.syspath_prepend(tmp_path)
    assert [problem.problem_id for problem in load_benchmarks(["humaneval"]).problems] == ["HumanEval/901"]
    assert "human_eval" not in sys.modules


def test_the_ids_of_a_benchmark_are_those_of_its_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def row(kata: Mapping[str, Any]) -> dict[str, Any]:
        return {"problem_id": kata["kata"], "statement": kata["asked"], "tests": kata["cases"]}

    columns = ("kata", "asked", "cases")
    monkeypatch.setitem(BENCHMARKS, "kata", Benchmark("", (), columns, problem_messages, {}, 1.0, row=row))
    kata = {"kata": 7, "asked": "Double the number.", "cases": [{"input": "2", "output": "4"}]}
    rows = {"humaneval": HUMAN_EVAL, "mbpp": MBPP, "livecodebench": livecodebench(PRIVATE), "kata": kata}
    named = [f"{name}:{write(tmp_path / f'{name}.jsonl', values)}" for name, values in rows.items()]
    ids = {problem.problem_id for problem in load_benchmarks(named).problems}
    assert benchmark_ids(named) == ids and {"HumanEval/901", "901", "7"} < ids and len(ids) == len(rows)
    assert benchmark_ids([f"kata:{tmp_path / 'mbpp.jsonl'}"]) == set()


def releases(folder: Path) -> Path:
    for number in range(1, 7):
        name = "test.jsonl" if number == 1 else f"test{number}.jsonl"
        row = livecodebench(private(PRIVATE), question_id=f"q{number}", contest_date=f"2024-0{number}-15T00:00:00")
        write(folder / name, row)
    return folder


def test_a_release_has_the_files_up_to_its_own(tmp_path: Path) -> None:
    folder = releases(tmp_path)
    for name, last in {"livecodebench": 6, "livecodebench_v1": 1, "livecodebench_v4": 4}.items():
        loaded = load_benchmarks([f"{name}:{folder}"])
        assert [problem.problem_id for problem in loaded.problems] == [f"q{number}" for number in range(1, last + 1)]
    (folder / "test3.jsonl").unlink()
    assert len(load_benchmarks([f"livecodebench_v2:{folder}"]).problems) == 2
    with pytest.raises(DataError, match=r"benchmark=livecodebench_v5:.*the folder has no test3.jsonl.*another release"):
        load_benchmarks([f"livecodebench_v5:{folder}"])


def test_the_contest_date_decides_since_and_until(tmp_path: Path) -> None:
    dates = Dates(date(2024, 2, 1), date(2024, 4, 15))
    loaded = load_benchmarks([f"livecodebench:{releases(tmp_path)}"], dates)
    assert [problem.problem_id for problem in loaded.problems] == ["q2", "q3", "q4"]


def test_what_cannot_be_evaluated_is_said(tmp_path: Path) -> None:
    human_eval, mbpp = write(tmp_path / "a.jsonl", HUMAN_EVAL), write(tmp_path / "b.jsonl", MBPP)
    for named, said in {
        "humanevals": r"^benchmark=humanevals: there is no benchmark humanevals; there are humaneval, mbpp, .*_v6$",
        "mbpp:/nowhere": r"^benchmark=mbpp:/nowhere: no such file or folder$",
    }.items():
        with pytest.raises((ConfigError, DataError), match=said):
            benchmark_sources([named])
    with pytest.raises(DataError, match="a row of mbpp has the columns task_id, test_list"):
        load_benchmarks([f"mbpp:{human_eval}"])
    with pytest.raises(DataError, match=r"a row of humaneval_plus has the columns task_id, .*plus_input"):
        load_benchmarks([f"humaneval_plus:{human_eval}"])
    with pytest.raises(DataError, match="give benchmarks of the same tasks one by one"):
        load_benchmarks([f"mbpp:{mbpp}", f"mbpp:{mbpp}"])


def test_harnesses_that_differ_are_evaluated_one_by_one() -> None:
    same = {"temperature": 0.0, "n_samples": 1, "top_p": 1.0, "max_tokens": 768, "stop_after_code": False}
    assert benchmark_settings(["humaneval", "mbpp", "mbpp_plus"], set()) == same
    given = {"temperature", "n_samples", "top_p"}
    with pytest.raises(
        ConfigError, match=r"harnesses differ \(max_tokens is 768, and 2000 in livecodebench\): give max"
    ):
        benchmark_settings(["humaneval", "livecodebench"], given)
    assert benchmark_settings(["humaneval", "livecodebench"], {*given, "max_tokens", "stop_after_code"}) == {}
    assert benchmark_settings(["livecodebench"], {"n_samples", "stop_after_code"}) == {
        "temperature": 0.2,
        "top_p": 0.95,
        "max_tokens": 2000,
    }


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs HumanEval and MBPP beside the checkout")
def test_the_published_rows_are_all_read() -> None:
    loaded = load_benchmarks([f"humaneval:{SHARED / 'humaneval'}", f"mbpp:{SHARED / 'mbpp'}"])
    assert [sum(problem.split == name for problem in loaded.problems) for name in ("humaneval", "mbpp")] == [164, 500]
