"""`coderl evaluate benchmark=`: of the nano model, and of a file of completions; and what curations keep out for it."""

import json
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.environments.test_benchmarks import HUMAN_EVAL, MBPP, write
from tests.flows.conftest import Coderl, Refused

OTHER = {**HUMAN_EVAL, "task_id": "HumanEval/902"}


@pytest.fixture
def human_eval(tmp_path: Path) -> Path:
    return write(tmp_path / "humaneval.jsonl", HUMAN_EVAL, OTHER)


def completions(tmp_path: Path, *rows: dict[str, Any]) -> Path:
    return write(tmp_path / "samples.jsonl", *rows)


def summary(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def test_a_model_is_asked_as_the_harness_asks(coderl: Coderl, human_eval: Path, tmp_path: Path) -> None:
    mbpp, folder = write(tmp_path / "mbpp.jsonl", MBPP), tmp_path / "eval"
    words = ("preset=nano", "checkpoint=data/nano", f"benchmark=humaneval:{human_eval},mbpp:{mbpp}", "max_tokens=9")
    done = coderl("evaluate", *words, "prices=prefill:1,sample:2", f"log_path={folder}")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^estimate: evaluate .* 3 completions; max_tokens=9 .*; max_usd=N caps it$", done.stdout, re.M)
    found = summary(folder)
    assert f"format rate  {found['format_rate']:.1%}  truncated 100.0%" in done.stdout.splitlines()
    assert "warning: 100% of the completions are truncated (max_tokens=9): set a larger max_tokens\n" in done.stdout
    assert {split: share["n"] for split, share in found["by_split"].items()} == {"humaneval": 2, "mbpp": 1}
    assert (found["temperature"], found["max_tokens"], found["policy"]) == (0.0, 9, "data/nano")
    rollouts = pl.read_parquet(folder / "rollouts.parquet")
    assert rollouts["problem_id"].to_list() == ["HumanEval/901", "HumanEval/902", "901"]
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["benchmark"] == [f"humaneval:{human_eval}", f"mbpp:{mbpp}"]
    again = coderl("evaluate", *words, f"log_path={folder}")
    assert "evaluated before with these settings: nothing is sampled" in again.stdout, again.stderr
    assert "estimate: " not in again.stdout


def test_completions_are_graded_without_a_model(coderl: Coderl, human_eval: Path, tmp_path: Path) -> None:
    right, wrong = "    return 2 * x\n", "    return x\n"
    given = completions(
        tmp_path,
        {"task_id": "HumanEval/901", "samples": [right, wrong, "```python\ndef twice(x):\n    return x + x\n```"]},
        {"task_id": "HumanEval/902", "completion": "\n\n    return x + x"},
        {"task_id": "HumanEval/902", "completion": "def twice(x):\n    return 3 * x"},
        {"task_id": "HumanEval/902", "completion": wrong},
    )
    folder = tmp_path / "eval"
    words = ("evaluate", f"benchmark=humaneval:{human_eval}", f"completions={given}", f"log_path={folder}")
    done = coderl(*words)
    assert done.returncode == 0, done.stderr
    rollouts = pl.read_parquet(folder / "rollouts.parquet")
    verdicts = ["passed", "wrong_answer", "passed", "passed", "wrong_answer", "wrong_answer"]
    assert rollouts["verdict"].to_list() == verdicts
    found = summary(folder)
    assert "temperature" in found and found["temperature"] is None
    assert found["pass_at_k"]["1"]["estimate"] == pytest.approx(0.5)
    assert found["pass_at_k"]["2"]["estimate"] == pytest.approx((1 + 2 / 3) / 2)
    assert "@2" in done.stdout and str(given) in done.stdout
    other = tmp_path / "other"
    given = completions(
        tmp_path / "second",
        {"task_id": "HumanEval/901", "solution": "def twice(x):\n    return 2 * x"},
        {"task_id": "HumanEval/902", "solution": "def twice(x):\n    return 2 * x"},
    )
    done = coderl(*words[:2], f"completions={given}", f"log_path={other}", f"compare_to={folder}")
    assert done.returncode == 0, done.stderr
    assert summary(other)["pass_at_1"] == 1.0
    assert "against eval: +50.0 points" in done.stdout
    sides = coderl("evaluate", f"compare={folder},{other}")
    assert sides.returncode == 0 and "2 gained" in sides.stdout, sides.stderr
    seeds = coderl("evaluate", f"compare={folder},{other}+{other}")
    assert "B - A, seed by seed: +50.0 +50.0; mean +50.0" in seeds.stdout, seeds.stderr


def test_files_that_do_not_fit_are_refused(coderl: Coderl, human_eval: Path, tmp_path: Path) -> None:
    words = ("evaluate", f"benchmark=humaneval:{human_eval}")
    right = {"task_id": "HumanEval/901", "completion": "    return 2 * x\n"}
    missing = coderl(*words, f"completions={completions(tmp_path, right)}", f"log_path={tmp_path / 'a'}")
    assert "samples.jsonl: 1 of 2 problems have no completion: HumanEval/902" in missing.stderr
    unknown = {**right, "task_id": "HumanEval/7"}
    given = completions(tmp_path / "b", right, unknown)
    done = coderl(*words, f"completions={given}", f"log_path={tmp_path / 'b' / 'eval'}", "eval_limit=1")
    assert "samples.jsonl: 1 of its tasks are not in the benchmark: HumanEval/7" in done.stderr
    assert not (tmp_path / "b" / "eval" / "summary.json").exists()


def test_mistakes_end_the_command_at_once(refused: Refused, human_eval: Path, tmp_path: Path) -> None:
    given = completions(tmp_path, {"task_id": "HumanEval/901", "completion": "    return 2 * x\n"})
    benchmark = f"benchmark=humaneval:{human_eval}"
    for words, said in {
        ("benchmark=human_eval",): "there is no benchmark human_eval; there are humaneval, mbpp,",
        ("benchmark=humaneval:/nowhere",): "benchmark=humaneval:/nowhere: no such file or folder",
        (f"completions={given}",): "needs benchmark=NAME",
        (
            benchmark,
            f"completions={given}",
            "checkpoint=data/nano",
        ): "in place of a model's: leave checkpoint=data/nano",
        (benchmark, f"completions={given}", "preset=nano"): "so leave model_name and preset out",
        (benchmark, f"completions={given}.gone"): "there is no such file",
        (benchmark, "splits=lcbv5"): "benchmark and splits both say what is evaluated on",
        (benchmark, "since=2025-01-02", "until=2025-01-01"): "since=2025-01-02 is after until=2025-01-01",
        (benchmark, "n_samples=4"): "n_samples=4 with temperature=0",
        (f"{benchmark},livecodebench",): "their harnesses differ (temperature is 0, and 0.2 in livecodebench)",
    }.items():
        preset = () if any("completions" in word for word in words) else ("preset=nano", "checkpoint=data/nano")
        assert said in refused("evaluate", *words, *preset), words


def test_a_pool_keeps_benchmarks_out(coderl: Coderl, human_eval: Path, tmp_path: Path) -> None:
    text = "Given a whole number, give back the same number twice over, as one sum of it with itself and nothing else."
    secret = {**HUMAN_EVAL, "prompt": f'def twice(x: int) -> int:\n    """ {text} """\n'}
    bench = write(tmp_path / "bench.jsonl", secret)
    tests = ["assert twice(2) == 4", "assert twice(0) == 0"]
    stated = [text, "Print how many of the letters in the word are vowels, and then the word itself in upper case."]
    rows = [{"question": each, "tests": [*tests, f"assert twice({n}) == {2 * n}"]} for n, each in enumerate(stated)]
    data, pool = write(tmp_path / "data.jsonl", *rows), tmp_path / "pool"
    words = (f"dataset={data}", "min_tests=1", "profile_mode=none", f"benchmark=humaneval:{bench}", f"name={pool}")
    done = coderl("curate", "preset=nano", *words)
    assert done.returncode == 0, done.stderr
    assert pl.read_parquet(pool / "pool.parquet")["statement"].to_list() == stated[1:]
    dropped = pl.read_parquet(pool / "dropped.parquet")
    assert dropped["stage"].to_list() == ["decontaminate"]
    assert "row 0 of humaneval test" in dropped["detail"][0]
