"""A file of completions is read as its benchmark means it, and graded once."""

from pathlib import Path
from typing import Any

import pytest

from coderl_tasks.environments.benchmarks import load_benchmarks
from coderl_tasks.errors import DataError
from coderl_tasks.evaluation.completions import grade_completions, read_completions_of
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.services import Services
from coderl_tasks.settings import EvaluateSettings
from tests.environments.test_benchmarks import HUMAN_EVAL, MBPP, write

FENCED = "Here:\n```python\ndef twice(x):\n    return x + x\n```"


def settings(folder: Path, name: str, row: dict[str, Any], *completions: dict[str, Any]) -> EvaluateSettings:
    rows, given = write(folder / "rows.jsonl", row), write(folder / "samples.jsonl", *completions)
    return EvaluateSettings(benchmark=[f"{name}:{rows}"], completions=str(given))


def test_what_the_program_is(tmp_path: Path) -> None:
    task, number = {"task_id": "HumanEval/901"}, {"task_id": 901}
    texts = [FENCED, "    return x", "def twice(x): pass", None]
    given = settings(tmp_path, "humaneval", HUMAN_EVAL, *({**task, "completion": text} for text in texts))
    read = read_completions_of(given, load_benchmarks(given.benchmark or []).problems)
    prompt = HUMAN_EVAL["prompt"]
    program = "def twice(x):\n    return x + x"
    assert read.codes == {"HumanEval/901": [program, f"{prompt}    return x", f"{prompt}def twice(x): pass", None]}
    solution = settings(tmp_path, "humaneval", HUMAN_EVAL, {**task, "solution": "    return x"})
    read = read_completions_of(solution, load_benchmarks(solution.benchmark or []).problems)
    assert read.codes == {"HumanEval/901": ["    return x"]}
    plain = settings(tmp_path, "mbpp", MBPP, {**number, "samples": ["def double(x): pass", FENCED]})
    read = read_completions_of(plain, load_benchmarks(plain.benchmark or []).problems)
    assert read.codes == {"901": ["def double(x): pass", program]}


def test_completions_without_a_task_are_refused(tmp_path: Path) -> None:
    given = settings(tmp_path, "humaneval", HUMAN_EVAL, {"source_row": 0, "completion": "    return x"})
    with pytest.raises(DataError, match="its completions name no task: give each a task_id"):
        read_completions_of(given, load_benchmarks(given.benchmark or []).problems)


async def test_a_restart_grades_only_what_is_not_recorded(embedded: Services, tmp_path: Path, closed: str) -> None:
    rows = [{"task_id": "HumanEval/901", "completion": text} for text in ("    return 2 * x", "    return x")]
    given = settings(tmp_path, "humaneval", HUMAN_EVAL, *rows)
    problems = load_benchmarks(given.benchmark or []).problems
    completions, groups = read_completions_of(given, problems), GroupFiles(tmp_path / "groups")
    async with SandboxClient(embedded.sandbox_urls) as client:
        graded, summary = await grade_completions.fn(completions, problems, Judge(client), groups, lambda *_: None)
    assert graded["verdict"].to_list() == ["passed", "wrong_answer"]
    assert summary["pass_at_k"]["2"]["estimate"] == 1.0
    async with SandboxClient([closed]) as nobody:
        again, _ = await grade_completions.fn(completions, problems, Judge(nobody), groups, lambda *_: None)
    assert again.equals(graded)
    # The file is corrected: verdicts of its earlier completions say nothing of it.
    given = settings(tmp_path, "humaneval", HUMAN_EVAL, *reversed(rows))
    completions = read_completions_of(given, problems)
    async with SandboxClient(embedded.sandbox_urls) as client:
        mended, _ = await grade_completions.fn(completions, problems, Judge(client), groups, lambda *_: None)
    assert mended["verdict"].to_list() == ["wrong_answer", "passed"]
