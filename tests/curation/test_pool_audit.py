"""Audits on the embedded sandbox: a planted problem per finding, and one that has none."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from coderl_tasks.cli import main
from coderl_tasks.curation import recorded_checks
from coderl_tasks.curation.pool_audit import audit_problems, split_by_audit
from coderl_tasks.curation.solutions import check_solutions
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.insight.report import write_audit
from coderl_tasks.problems import Problem, Test
from coderl_tasks.problems.problem import Kind
from coderl_tasks.problems.profile_columns import AUDIT_SCHEMA
from tests.curation.conftest import Stack
from tests.curation.test_solutions import QUICK_S, RANDOM, SLOW, serving
from tests.faults.fault_proxy import FaultProxy

RIGHT = "n = int(input())\nprint(2 * n if n > 3 else n)"
GIVEN = (5, 4, 3, 2, 1, 0, -7)


def answer(n: int) -> int:
    return 2 * n if n > 3 else n


def problem(
    name: str, *solutions: str, statement: str = "Double what is above 3.", given: tuple[int, ...] = GIVEN
) -> Problem:
    tests = tuple(Test(f"{n}\n", f"{answer(n)}\n") for n in given)
    return Problem(
        name, "taco", statement, "", "stdin", "", tests, len(tests), len(tests), None, solutions or (RIGHT,), 0
    )


def function(name: str, statement: str, *tests: Test, code: str = "def twice(n):\n    return n * 2") -> Problem:
    kind: Kind = "call" if tests[0].input else "assert"
    return Problem(name, "s", statement, "", kind, "twice", tests, len(tests), len(tests), None, (code,), 0)


def shown(given: int, expected: int) -> str:
    return f"Double what is above 3.\n\nExample\nInput\n{given}\n\nOutput\n{expected}\n\nNote\nIt is {expected}."


CALLS = tuple(Test(f"[{n}]", str(2 * n)) for n in (0, 3, -2))
PLANTED: dict[str, tuple[Problem, list[str], str]] = {
    "clean": (problem("clean", statement=shown(5, 10)), [], ""),
    "weak": (problem("weak", given=(9, 8)), ["weak"], "mutants pass all tests (2)"),
    "several": (
        problem("several", statement="If there are several answers, print any of them."),
        ["several_answers"],
        'the statement says "several answers, print any"',
    ),
    "flaky": (problem("flaky", RANDOM), ["flaky_solution"], "answers differently"),
    "slow": (problem("slow", SLOW, given=(5, 4)), ["slow"], "not within the time limit"),
    "wrong": (problem("wrong", "print(7)"), ["own_solution_fails"], "wrong_answer, test 0"),
    "contradictory": (
        replace(problem("contradictory"), tests=(*problem("").tests, Test("5", "11\n"))),
        ["contradictory_tests", "own_solution_fails"],
        "tests 0 and 7 have one input and different answers",
    ),
    "duplicate": (
        replace(problem("duplicate"), tests=(*problem("").tests, Test("5", "10"))),
        ["duplicate_tests"],
        "test 7 repeats test 0",
    ),
    "missing": (problem("missing", statement=shown(6, 12)), ["samples_missing"], "the sample 6 is no test"),
    "failed": (problem("failed", statement=shown(5, 11)), ["samples_failed"], "the sample 5: line 1, token 1"),
    "call": (function("call", "`twice(3)` returns `6`.", *CALLS), [], ""),
    "says": (function("says", ">>> twice(3)\n7", *CALLS), ["samples_failed"], "the sample [3]: value: expected 7"),
    "asserts": (
        function("asserts", "So twice(4) == 8.", *(Test("", f"assert twice({n}) == {2 * n}") for n in (0, 3, -2))),
        ["samples_missing"],
        "the sample [4] is no test",
    ),
    "excluded": (
        function("excluded", "Double it.", Test("", "assert twice(3) == 6"), Test("", "assert twice( 3 ) == 5")),
        ["contradictory_tests", "own_solution_fails"],
        "tests 0 and 1 have one input",
    ),
}  # fmt: skip
PROBLEMS = [each for each, *_ in PLANTED.values()]


@pytest.fixture
async def judge(stack: Stack) -> AsyncIterator[Judge]:
    async with SandboxClient([stack.sandbox_url], max_concurrency=4) as client:
        yield Judge(client, QUICK_S)


async def test_planted_faults_are_found_and_the_page_shows_them(judge: Judge, tmp_path: Path) -> None:
    audits = await audit_problems(PROBLEMS, judge)
    assert audits.schema == AUDIT_SCHEMA and audits["problem_id"].to_list() == list(PLANTED)
    for row in audits.iter_rows(named=True):
        _, findings, evidence = PLANTED[row["problem_id"]]
        assert row["audit"] == findings, row
        assert evidence in "; ".join(row["evidence"]) and len(row["evidence"]) == len(findings)
    rows = {row["problem_id"]: row for row in audits.iter_rows(named=True)}
    clean, weak = rows["clean"], rows["weak"]
    assert clean["mutants"] >= 6 and clean["mutants_survive"] <= 1 and clean["samples"] == 1
    # A diff to the reference, whose surviving mistake the two tests do not see.
    assert weak["mutants_survive"] >= weak["mutants"] / 4
    assert any("-print(2 * n if n > 3 else n)" in diff for diff in weak["survivors"])
    for name in ("flaky", "slow", "wrong"):  # no reference passes in time
        assert rows[name]["mutants"] is None and rows[name]["samples_failed"] is None

    kept, drops = split_by_audit(PROBLEMS, audits)
    assert {drop.problem_id: drop.reason for drop in drops} == {
        name: findings[0]
        for name, (_, findings, _) in PLANTED.items()
        if findings and findings[0] in ("weak", "several_answers", "contradictory_tests", "samples_failed")
    }
    assert {drop.stage for drop in drops} == {"audit"} and all(drop.detail for drop in drops)
    assert len(kept) + len(drops) == len(PROBLEMS)

    hostile = audits.with_columns(statement=pl.lit("<script>alert(1)</script>"))
    page = write_audit(tmp_path, hostile, "mine").read_text()
    assert pl.read_parquet(tmp_path / "audit.parquet").equals(hostile)
    assert "<script" not in page and "&lt;script&gt;" in page
    for name, (_, findings, _) in PLANTED.items():
        assert (f'<span class="name">{name}</span>' in page) is bool(findings)
    assert '<span class="gd">-print(2 * n if n &gt; 3 else n)</span>' in page


async def test_mutants_are_drawn_by_the_seed_and_no_more_than_asked_for(judge: Judge) -> None:
    first, again, other, few = [
        await audit_problems([PLANTED["weak"][0]], judge, seed=seed, most=most)
        for seed, most in ((0, 6), (0, 6), (1, 6), (0, 2))
    ]
    assert first.equals(again) and first["mutants"][0] == 6
    assert other["survivors"].to_list() != first["survivors"].to_list() and few["mutants"][0] <= 2


async def test_what_the_curation_knows_of_solutions_is_not_run_again(judge: Judge) -> None:
    checks = await check_solutions([PLANTED["clean"][0]], judge)
    told = checks.with_columns(status=pl.lit("slow"), detail=pl.lit("as told"), suspicion=pl.lit("as told"))
    audits = await audit_problems([PLANTED["clean"][0]], judge, checks=told.to_dicts())
    assert audits["audit"].to_list() == [["several_answers", "slow"]]


async def test_a_killed_audit_goes_on_and_ends_with_the_same_bytes(
    judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = [PLANTED[name][0] for name in ("weak", "missing", "says", "clean")]
    monkeypatch.setattr(recorded_checks, "CONCURRENCY", 1)

    class Stop(Exception):
        pass

    def stop_at_two(done: int, total: int) -> None:
        if done == 2:
            raise Stop

    with pytest.raises(Stop):
        await audit_problems(problems, judge, folder=tmp_path / "killed", on_progress=stop_at_two)
    seen: list[tuple[int, int]] = []
    resumed = await audit_problems(
        problems, judge, folder=tmp_path / "killed", on_progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(3, 4), (4, 4)]
    for name, audits in (("resumed", resumed), ("whole", await audit_problems(problems, judge))):
        write_audit(tmp_path / name, audits, "mine")
    one, other = ((tmp_path / name / "audit.parquet").read_bytes() for name in ("resumed", "whole"))
    assert one == other


async def test_a_mutant_that_the_sandbox_cannot_run_is_no_finding(stack: Stack) -> None:
    large = problem("large", f"x = '{'x' * 300_000}'\n{RIGHT}")
    refused = 0

    @web.middleware
    async def refusing_large(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal refused
        if (request.content_length or 0) < 200_000:
            return await handler(request)
        refused += 1
        return web.Response(status=413)

    app = FaultProxy(stack.sandbox_url, rates={}).app()
    app.middlewares.append(refusing_large)
    runner, url = await serving(app)
    try:
        async with SandboxClient([url]) as client:
            audits = await audit_problems([PLANTED["clean"][0], large], Judge(client))
    finally:
        await runner.cleanup()
    assert audits["audit"].to_list() == [[], ["undecided"]] and audits["mutants"][1] is None
    assert refused >= recorded_checks.PASSES_OVER
    assert split_by_audit([large], audits) == ([large], [])


def test_the_command_audits_data_and_says_what_it_found(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDBOX_URL", stack.sandbox_url)
    monkeypatch.chdir(tmp_path)
    pl.DataFrame([PLANTED[name][0].to_row() for name in ("clean", "weak", "missing")]).write_parquet("mine.parquet")
    assert main(["audit", "mine.parquet", "mutants=12"]) == 0
    said = capsys.readouterr().out
    assert "3 problems audited, 1 with a finding that can make rewards wrong" in said
    assert str(tmp_path / "audit-mine" / "audit.html") in said and "the sample 6 is no test" in said
    audits = pl.read_parquet(tmp_path / "audit-mine" / "audit.parquet")
    assert dict(audits.select("problem_id", "audit").iter_rows()) == {
        "clean": [],
        "weak": ["weak"],
        "missing": ["samples_missing"],
    }
    recorded = (tmp_path / "audit-mine" / "audit" / "checks.jsonl").read_text().splitlines()
    assert {json.loads(line)["problem_id"] for line in recorded} == {"clean", "weak", "missing"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["no-such-pool"], "pool=no-such-pool: no such pool, file or folder"),
        (["data/mini", "mutants=none"], "'none' is not a number of at least 1"),
    ],
)
def test_bad_arguments_are_one_clear_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *words]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
