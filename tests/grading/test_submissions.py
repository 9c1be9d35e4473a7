"""No known submission gets another verdict than it should."""

import asyncio
import json

import pytest

from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems import load_problems
from tests.grading.submission_cases import LONG, ROOT, Submission, call_submissions, stdin_submissions, submission
from tests.grading.submissions import OLYMPIAD

OLYMPIAD_FILE = ROOT.parent / "shared" / "data" / "olympiad-2024.parquet"


async def misjudged(url: str, submissions: list[Submission]) -> dict[str, str]:
    """What each submission got that did not get its verdict."""
    async with SandboxClient([url], max_concurrency=4) as client:
        judge, patient = Judge(client, timeout_s=10.0), Judge(client, timeout_s=60.0)
        grades = await asyncio.gather(
            *((patient if LONG in name else judge).grade(problem, code) for name, problem, code, _ in submissions)
        )
    return {
        name: f"{grade.verdict} ({grade.reason}), not {verdict}"
        for (name, _, _, verdict), grade in zip(submissions, grades, strict=True)
        if grade.verdict is not verdict
    }


async def test_bundled_problems(embedded_url: str) -> None:
    submissions = [*stdin_submissions(), *call_submissions()]
    assert len({(problem.problem_id, code) for _, problem, code, _ in submissions}) >= 150
    assert await misjudged(embedded_url, submissions) == {}


async def test_olympiad_problems(embedded_url: str) -> None:
    if not OLYMPIAD_FILE.exists():
        pytest.skip(f"no {OLYMPIAD_FILE}")
    import polars as pl

    packages = [json.loads(text)["package"] for text in pl.read_parquet(OLYMPIAD_FILE)["metadata"]]
    rows = {problem.source_row: problem for problem in load_problems(str(OLYMPIAD_FILE), role="test").problems}
    submissions = [
        submission(f"{package}: {name}", rows[packages.index(package)], code, verdict)
        for package, programs in OLYMPIAD.items()
        for name, (code, verdict) in programs.items()
    ]
    assert len(submissions) >= 36
    assert await misjudged(embedded_url, submissions) == {}
