"""Problems checked with their own solutions, on the embedded sandbox, with planted faults."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.typedefs import Handler

from coderl_tasks.curation import recorded_checks, solutions
from coderl_tasks.curation.solutions import check_solutions, split_by_solutions
from coderl_tasks.errors import InfraError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.problems import Problem, Test
from coderl_tasks.problems.output_checker import Checker
from coderl_tasks.problems.profile_columns import SOLUTION_SCHEMA
from tests.curation.conftest import Stack
from tests.faults.fault_proxy import FaultProxy

RIGHT = "print(2 * int(input()))"
WRONG = "print(2 * int(input()) + 1)"
CRASHING = "print(2 * int(input()))\nraise KeyError(7)"
OFTEN_RIGHT = "n = int(input())\nprint(2 * n if n != 3 else 7)"
RANDOM = "import random\nprint(random.SystemRandom().random())"
SLOW = "import time\nend = time.process_time() + 0.6\nwhile time.process_time() < end: pass\nprint(2 * int(input()))"
ENDLESS = "while True: pass"
FENCED = f"Double it:\n```python\n{RIGHT}\n```\n"
QUICK_S = 0.3


def doubling(name: str, *solutions: str, statement: str = "Double it.") -> Problem:
    tests = tuple(Test(f"{n}\n", f"{2 * n}\n") for n in (5, 3, 1))
    return Problem(name, "taco", statement, "", "stdin", "", tests, 3, 3, None, solutions, 0)


def calling(name: str, *solutions: str) -> Problem:
    tests = (Test("[2, 3]", "6"), Test("[0, 3]", "0"))
    return Problem(name, "taco", "Multiply.", "", "call", "product", tests, 2, 2, None, solutions, 0)


@pytest.fixture
async def judge(stack: Stack) -> AsyncIterator[Judge]:
    async with SandboxClient([stack.sandbox_url], max_concurrency=4) as client:
        yield Judge(client, QUICK_S)


async def test_planted_faults_are_found_and_named(judge: Judge) -> None:
    planted = {
        "right": (doubling("right", RIGHT), "good", "solution 1 of 1 tried: passes"),
        "fenced": (doubling("fenced", FENCED), "good", "solution 1 of 1 tried: passes"),
        "backticks": (doubling("backticks", f"# not ```python\n# x```\n{RIGHT}"), "good", "1 of 1 tried: passes"),
        "second": (doubling("second", CRASHING, RIGHT), "good", "solution 2 of 2 tried: passes"),
        "none": (doubling("none"), "no_solution", ""),
        "wrong": (doubling("wrong", WRONG), "own_solution_fails", "wrong_answer, test 0: line 1, token 1: expected 10"),
        "crashing": (doubling("crashing", CRASHING), "own_solution_fails", "runtime_error, test 0: KeyError: 7"),
        "old": (doubling("old", "print 2 * input()"), "own_solution_fails", "runtime_error, test 0: SyntaxError"),
        "fourth": (doubling("fourth", *[f"{WRONG}  # {n}" for n in range(3)], RIGHT), "own_solution_fails", "of 3"),
        "random": (doubling("random", RANDOM), "flaky_solution", "answers differently from run to run"),
        "slow": (doubling("slow", SLOW), "slow", "passes, but not within the time limit"),
        "endless": (doubling("endless", ENDLESS), "too_slow", "time_limit, test 0"),
        "call": (calling("call", "def product(a, b):\n    return a * b"), "good", "passes"),
        "method": (
            calling("method", "class Solution:\n    def product(self, a, b):\n        return a + b"),
            "own_solution_fails",
            "wrong_answer, test 0: value: expected 6, got 5",
        ),
    }
    problems = [problem for problem, _, _ in planted.values()]
    checks = await check_solutions(problems, judge)
    assert checks.schema == SOLUTION_SCHEMA
    found = {row["problem_id"]: row for row in checks.iter_rows(named=True)}
    assert list(found) == list(planted)
    for name, (_, status, detail) in planted.items():
        assert found[name]["status"] == status, found[name]
        assert detail in found[name]["detail"]
    assert found["fourth"]["n_solutions"] == 4 and found["fourth"]["n_tried"] == 3
    kept, drops = split_by_solutions(problems, checks)
    assert len(kept) + len(drops) == len(problems)
    assert {drop.problem_id for drop in drops} == {"wrong", "crashing", "old", "fourth", "random", "method"}
    assert {(drop.stage, drop.reason) for drop in drops} == {
        ("solution", "own_solution_fails"),
        ("solution", "flaky_solution"),
    }


async def test_suspects_of_several_answers_are_flagged_and_kept(judge: Judge) -> None:
    problems = [
        doubling("says", RIGHT, statement="Double it. If there are several answers, print any of them."),
        doubling("disagree", OFTEN_RIGHT, RIGHT),
        doubling("opinion", RIGHT, OFTEN_RIGHT),
        doubling("nonsense", RIGHT, WRONG),
        doubling("agree", RIGHT, f"{RIGHT}  # again"),
        doubling("unchecked", statement="Output any valid answer."),
    ]
    checks = await check_solutions(problems, judge)
    assert split_by_solutions(problems, checks) == (problems, [])
    suspicions = dict(checks.select("problem_id", "suspicion").iter_rows())
    assert suspicions == {
        "says": 'the statement says "several answers, print any"',
        "disagree": "solutions 2 and 1 disagree on 1 of 3 tests",
        "opinion": "solutions 1 and 2 disagree on 1 of 3 tests",
        "nonsense": None,
        "agree": None,
        "unchecked": 'the statement says "Output any valid answer"',
    }
    assert checks["multi_answer_suspect"].to_list() == [text is not None for text in suspicions.values()]


async def test_tests_and_checkers_that_fail_by_themselves_drop_their_problem(judge: Judge) -> None:
    def asserting(name: str, script: str, *programs: str) -> Problem:
        return Problem(name, "s", "Any order.", "", "assert", "f", (Test("", script),), 1, 1, None, programs, 0)

    def checked(name: str, source: str) -> Problem:
        checker = Checker(source, "python", "check").to_text()
        return replace(doubling(name, RIGHT, statement="Print any of them."), checker=checker)

    planted = {
        "good": (asserting("good", "assert f(1) == 2", "def f(x): return 2"), "good", "passes"),
        "cannot": (asserting("cannot", "assert f(lambda: 1) == 2", "def f(x): return 2"), "tests_fail", "a function"),
        "broken": (checked("broken", "def check(i, o, e): return 1 / 0"), "tests_fail", "ZeroDivisionError"),
        "loose": (replace(checked("loose", "def check(i, o, e): return True"), wrong_solutions=(WRONG, CRASHING)),
                  "good", "known-wrong program 1 of 2 passes"),
    }  # fmt: skip
    problems = [problem for problem, *_ in planted.values()]
    checks = await check_solutions(problems, judge)
    for row in checks.iter_rows(named=True):
        _, status, detail = planted[row["problem_id"]]
        assert row["status"] == status and detail in row["detail"], row
        # What decides is said: no phrase of the statement makes it doubtful.
        assert not row["multi_answer_suspect"]
    kept, drops = split_by_solutions(problems, checks)
    assert [problem.problem_id for problem in kept] == ["good", "loose"]
    assert {drop.reason for drop in drops} == {"tests_fail"}
    assert set(await solutions.faulty_tests(problems, judge)) == {"cannot", "broken"}


async def test_a_restart_does_only_what_is_left(judge: Judge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [doubling(f"p{n}", f"{RIGHT}  # {n}") for n in range(6)]
    monkeypatch.setattr(recorded_checks, "CONCURRENCY", 1)

    class Stop(Exception):
        pass

    def stop_at_three(done: int, total: int) -> None:
        if done == 3:
            raise Stop

    with pytest.raises(Stop):
        await check_solutions(problems, judge, folder=tmp_path, on_progress=stop_at_three)
    with (tmp_path / "checks.jsonl").open("a") as file:
        file.write('{"problem_id": "p3", "sta')  # torn by a crash
    seen: list[tuple[int, int]] = []
    resumed = await check_solutions(
        problems, judge, folder=tmp_path, on_progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(4, 6), (5, 6), (6, 6)]
    assert resumed.equals(await check_solutions(problems, judge))

    seen.clear()
    changed = [*problems[:-1], doubling("p5", WRONG)]
    redone = await check_solutions(
        changed, judge, folder=tmp_path, on_progress=lambda done, total: seen.append((done, total))
    )
    assert len(seen) == 6 and redone["status"].to_list() == ["good"] * 5 + ["own_solution_fails"]


async def serving(app: web.Application) -> tuple[web.AppRunner, str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_a_sandbox_that_fails_drops_nothing_and_the_rest_stays_recorded(stack: Stack, tmp_path: Path) -> None:
    problems = [doubling("right", RIGHT), doubling("wrong", WRONG)]
    proxy = FaultProxy(stack.sandbox_url, rates={"fail": 1.0}, spares=lambda path: path == "/v1/ping")
    runner, url = await serving(proxy.app())
    try:
        async with SandboxClient([url], attempts=2, backoff_s=0.01) as client:
            with pytest.raises(InfraError, match="the sandbox cannot check solutions"):
                await check_solutions(problems, Judge(client), folder=tmp_path)
    finally:
        await runner.cleanup()
    async with SandboxClient([stack.sandbox_url]) as client:
        checks = await check_solutions(problems, Judge(client), folder=tmp_path)
    assert checks["status"].to_list() == ["good", "own_solution_fails"]


async def test_what_alone_cannot_be_run_stays_in_undecided(stack: Stack, tmp_path: Path) -> None:
    large = doubling("large", RIGHT + "\n#" + "x" * 300_000)
    problems = [doubling("right", RIGHT), large, doubling("wrong", WRONG)]

    @web.middleware
    async def refusing_large(request: web.Request, handler: Handler) -> web.StreamResponse:
        return await handler(request) if (request.content_length or 0) < 200_000 else web.Response(status=413)

    app = FaultProxy(stack.sandbox_url, rates={}).app()
    app.middlewares.append(refusing_large)
    runner, url = await serving(app)
    try:
        async with SandboxClient([url]) as client:
            checks = await check_solutions(problems, Judge(client), folder=tmp_path)
    finally:
        await runner.cleanup()
    assert checks["status"].to_list() == ["good", "undecided", "own_solution_fails"]
    kept, _ = split_by_solutions(problems, checks)
    assert kept == problems[:2]
    async with SandboxClient([stack.sandbox_url]) as client:
        again = await check_solutions(problems, Judge(client), folder=tmp_path)
    assert again["status"].to_list() == ["good", "good", "own_solution_fails"]
