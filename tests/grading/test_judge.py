"""How the judge sends tests: in chunks, by priority, without the answers; and what an outage becomes."""

import asyncio
import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from coderl_tasks.environments.environment import CodeEnvironment
from coderl_tasks.errors import DataError
from coderl_tasks.grading import Judge, RunResult, SandboxClient, Verdict, sandbox_check_correctness
from coderl_tasks.grading import judge as judge_module
from coderl_tasks.grading.judge import Limits, reported_tests
from coderl_tasks.problems.output_checker import Checker
from coderl_tasks.settings.flow_settings import IsolationPerTest
from tests.conftest import Serve
from tests.grading import stock_sandbox
from tests.grading.faulty_servers import FaultyServer, answers, breaks, sandbox_error
from tests.grading.programs import ADD, PAIRS, SUM, TOTAL, call_problem, stdin_problem

ECHO = "print(input())"
LIMITS = Limits(1.0, 2.0, 256, 1 << 20)


def echo_problem(n_tests: int) -> Any:
    return stdin_problem(*[(f"input-{n}\n", f"input-{n}\n") for n in range(n_tests)])


class Recording:
    """A stock server that remembers what it was sent."""

    def __init__(self, serve: Serve) -> None:
        self.bodies: list[bytes] = []
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/run_code", self._run_code)
        self.url = serve(app)

    async def _run_code(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        return await stock_sandbox.run_code(request)

    def chunk_sizes(self) -> list[int]:
        tests = [json.loads(base64.b64decode(json.loads(body)["files"]["tests.json"])) for body in self.bodies]
        return [len(test["inputs"]) for test in tests]


@pytest.mark.parametrize(
    ("isolation_per_test", "code", "n_tests", "sizes"),
    [
        ("always", ECHO, 40, [1, 4, 35]),
        ("failures", ECHO, 40, [40]),  # all in the process of the first
        ("failures", f"import threading\n{ECHO}", 40, [40, 4, 35]),  # not for company: the first only
    ],
)
async def test_tests_go_out_in_growing_chunks(
    serve: Serve, isolation_per_test: IsolationPerTest, code: str, n_tests: int, sizes: list[int]
) -> None:
    server = Recording(serve)
    async with SandboxClient([server.url]) as client:
        grade = await Judge(client, isolation_per_test=isolation_per_test).grade(echo_problem(n_tests), code)
    assert grade.passed and grade.tests_run == n_tests
    assert server.chunk_sizes() == sizes


async def test_a_program_that_passes_alone_what_it_fails_in_company_is_graded_without_any(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such a program is not let into company, as far as its code tells.
    driver = judge_module.DRIVER
    assert "__annotations__ " in driver
    monkeypatch.setattr(judge_module, "DRIVER", driver.replace("__annotations__ ", ""))
    server = Recording(serve)
    code = "kept = heapq.merge.__annotations__\nn = input()\nprint('again' if 'n' in kept else n)\nkept['n'] = 1"
    async with SandboxClient([server.url]) as client:
        grade = await Judge(client).grade(echo_problem(8), code)
        whole = await Judge(client).grade(echo_problem(8), code, run_all=True)
    assert grade.passed and grade.tests_run == 8
    assert whole.passed and whole.tests_run == 8
    assert server.chunk_sizes() == [8, 1, 1, 7, 8, 7, 8]


@pytest.mark.parametrize("run_all", [False, True])
async def test_what_fails_in_company_fails_alone(serve: Serve, run_all: bool) -> None:
    server = Recording(serve)
    problem = stdin_problem(*[(f"{n}\n", f"{n % 5}\n") for n in range(8)])
    async with SandboxClient([server.url]) as client:
        grade = await Judge(client).grade(problem, ECHO, run_all=run_all)
    assert (grade.verdict, grade.first_failed) == (Verdict.WRONG_ANSWER, 5)
    assert (grade.tests_run, grade.tests_passed) == ((8, 5) if run_all else (6, 5))
    assert server.chunk_sizes() == ([8, 3] if run_all else [8, 1])


@pytest.mark.parametrize(
    ("own", "whose"), [(0.5, "the problem's own limit"), (None, "the limit of problems that name none")]
)
async def test_a_program_that_is_too_slow_is_told_whose_limit_it_broke(
    serve: Serve, own: float | None, whose: str
) -> None:
    async with SandboxClient([Recording(serve).url]) as client:
        grade = await Judge(client, 0.5).grade(stdin_problem(("1\n", "1\n"), time_limit_s=own), "while True: pass")
    assert (grade.verdict, grade.reason) == (Verdict.TIME_LIMIT, f"test 0: more than 0.5 s of CPU time, {whose}")


async def test_a_wrong_program_costs_one_small_request(serve: Serve) -> None:
    server = Recording(serve)
    async with SandboxClient([server.url]) as client:
        grade = await Judge(client).grade(echo_problem(40), "print('no')")
    assert (grade.tests_run, grade.tests_passed, grade.first_failed) == (1, 0, 0)
    assert server.chunk_sizes() == [40]


async def test_all_tests_go_out_in_large_chunks(serve: Serve) -> None:
    server = Recording(serve)
    async with SandboxClient([server.url]) as client:
        grade = await Judge(client).grade(echo_problem(80), ECHO, run_all=True)
        assert grade.passed and grade.tests_run == 80
        grade = await Judge(client).grade(echo_problem(80), "print(", run_all=True)
    assert (grade.verdict, grade.tests_passed, grade.tests_run) == (Verdict.RUNTIME_ERROR, 0, 1)
    assert server.chunk_sizes() == [64, 16, 64]


async def test_large_inputs_are_split(serve: Serve) -> None:
    server = Recording(serve)
    problem = stdin_problem(*[("x" * (9 << 20), "9437184\n")] * 4)
    async with SandboxClient([server.url]) as client:
        grade = await Judge(client).grade(problem, "print(len(input()))")
    assert grade.passed, grade.reason
    assert server.chunk_sizes() == [1, 1, 1, 1]


SQUARES = [(177245, "31415790025"), (164872, "27182776384")]
SQUARE = "def square(n):\n    return n * n  # the policy's\n"
AS_PROGRAM = f"{SQUARE}print(square(int(input())))"
CHECK = Checker("def check(input, output, expected):\n    return output == expected", "python", "check").to_text()
READ = stdin_problem(*[(f"{n}\n", f"{square}\n") for n, square in SQUARES])
ASSERTED = call_problem("square", *[("", f"assert square({n}) == {square}") for n, square in SQUARES])
OF_EACH_KIND = {
    "stdin": (READ, AS_PROGRAM),
    "call": (call_problem("square", *[(f"[{n}]", square) for n, square in SQUARES]), SQUARE),
    "checker": (replace(READ, checker=CHECK), AS_PROGRAM),
    "assert": (replace(ASSERTED, kind="assert"), SQUARE),
}


@pytest.mark.parametrize("kind", OF_EACH_KIND)
async def test_no_expected_output_is_ever_sent_with_a_program(serve: Serve, kind: str) -> None:
    server = Recording(serve)
    problem, code = OF_EACH_KIND[kind]
    async with SandboxClient([server.url]) as client:
        half = CodeEnvironment(holdback=0.5)  # one test gives the reward, the other is held back
        (scored,) = await half.score(Judge(client), problem, [f"```python\n{code}\n```"])
        assert scored.grade.passed and scored.passes_held_back, scored.grade.reason
        assert (await Judge(client).grade(problem, code, run_all=True)).passed
    sent = [body + b"".join(map(base64.b64decode, json.loads(body)["files"].values())) for body in server.bodies]
    with_program = [body for body in sent if b"return n * n  # the policy's" in body]
    assert len(with_program) >= 3
    assert not [square for _, square in SQUARES for body in with_program if square.encode() in body]
    # What decides by itself runs apart from the program.
    is_decided_there = any(SQUARES[0][1].encode() in body for body in sent)
    assert is_decided_there == (kind in ("checker", "assert"))


async def test_the_priority_given_is_followed(embedded_judge: Judge) -> None:
    problem = stdin_problem(("1\n", "1\n"), ("2\n", "2\n"), ("3\n", "no\n"))
    grade = await embedded_judge.grade(problem, ECHO, priority=[2, 0, 1])
    assert (grade.verdict, grade.tests_run, grade.first_failed) == (Verdict.WRONG_ANSWER, 1, 2)
    with pytest.raises(DataError, match="permutation"):
        await embedded_judge.grade(problem, ECHO, priority=[0, 0, 1])


async def test_all_tests_run_for_partial_credit(embedded_judge: Judge) -> None:
    problem = stdin_problem(("1\n", "1\n"), ("2\n", "x\n"), ("3\n", "3\n"), ("4\n", "x\n"), ("5\n", "5\n"))
    crash = "n = int(input())\nif n == 4: 1 / 0\nprint(n)"
    grade = await embedded_judge.grade(problem, crash, run_all=True)
    assert (grade.tests_passed, grade.tests_run, grade.first_failed) == (3, 5, 1)
    assert grade.verdict is Verdict.WRONG_ANSWER
    assert len(grade.test_seconds) == 5 and sum(grade.test_seconds) == grade.run_seconds > 0


async def test_reasons_are_one_line_for_people(embedded_judge: Judge) -> None:
    grade = await embedded_judge.grade(ADD, "x = 1\nx / 0")
    assert grade.reason == "test 0: ZeroDivisionError: division by zero (line 2)"
    grade = await embedded_judge.grade(TOTAL, "def total(xs): return 7")
    assert grade.reason == "test 0: value: expected 6, got 7"


async def test_a_problem_names_when_an_answer_is_right(embedded_judge: Judge) -> None:
    asked = stdin_problem(("3\n", "0\n1\n2\n"))
    backwards, falsely = "print(*reversed(range(int(input()))), sep='\\n')", "print(0, 2, sep='\\n')"
    unordered = replace(asked, comparator="lines_any_order")
    assert (await embedded_judge.grade(asked, backwards)).verdict is Verdict.WRONG_ANSWER
    assert (await embedded_judge.grade(unordered, backwards)).passed
    wrong = await embedded_judge.grade(unordered, falsely)
    assert (wrong.verdict, wrong.reason) == (Verdict.WRONG_ANSWER, "test 0: lines: expected 3, got 2")
    off = "def total(xs): return sum(xs) + 0.25"
    call = replace(TOTAL, comparator="float:0.5")
    assert (await embedded_judge.grade(call, off)).passed
    assert not (await embedded_judge.grade(TOTAL, off)).passed


@pytest.mark.parametrize("name", ["case_insensitive", "set"])
async def test_a_deep_value_is_a_wrong_answer(embedded_judge: Judge, name: str) -> None:
    asked = replace(PAIRS, comparator=name)
    for depth in (500, 700, *range(970, 1000)):  # some near the depth that the parser can read
        code = f"def pairs(a, b):\n    a = []\n    for _ in range({depth}): a = [a]\n    return [1, a]"
        assert (await embedded_judge.grade(asked, code)).verdict is Verdict.WRONG_ANSWER


async def test_a_problem_without_tests_is_refused(embedded_judge: Judge) -> None:
    with pytest.raises(DataError):
        await embedded_judge.grade(stdin_problem(), ECHO)


@pytest.mark.parametrize("fault", [breaks, sandbox_error])
async def test_an_outage_is_an_infra_error(serve: Serve, fault: Any) -> None:
    async with SandboxClient([serve(FaultyServer(fault).app())], attempts=2, backoff_s=0.01) as client:
        grade = await Judge(client).grade(ADD, SUM + "print(a + b)")
    assert (grade.verdict, grade.tests_run, grade.first_failed, grade.gradable) == (Verdict.INFRA_ERROR, 0, None, False)


async def test_an_outage_midway_is_an_infra_error(serve: Serve) -> None:
    server = FaultyServer(stock_sandbox.run_code, breaks)
    async with SandboxClient([serve(server.app())], attempts=2, backoff_s=0.01) as client:
        grade = await Judge(client, isolation_per_test="always").grade(ADD, SUM + "print(a + b)")
    assert (grade.verdict, grade.tests_passed, grade.tests_run) == (Verdict.INFRA_ERROR, 1, 1)


async def test_verdicts_are_those_of_a_quiet_run_while_servers_fail(serve: Serve) -> None:
    flaky = [FaultyServer(*[breaks, stock_sandbox.run_code] * 20) for _ in range(2)]
    async with SandboxClient([serve(server.app()) for server in flaky], 4, attempts=12, backoff_s=0.01) as client:
        judge = Judge(client)
        grades = await asyncio.gather(*(judge.grade(ADD, SUM + f"print(a + b + {n % 2})") for n in range(8)))
        faults = client.take_faults()
    assert [grade.verdict.value for grade in grades] == ["passed", "wrong_answer"] * 4
    uses = [grade.sandbox for grade in grades if grade.sandbox is not None]
    assert len(uses) == 8 and sum(use.retries for use in uses) == sum(faults.values()) > 0
    assert {use.server for use in uses} <= set(client.urls)


@pytest.mark.parametrize("ending", ["", "/run_code"])
async def test_verdict_over_raw_tests(embedded_url: str, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_URL", f"{embedded_url}{ending}")
    tests = [{"input": "2 3\n", "output": "5\n", "testtype": "stdin"}]
    assert await sandbox_check_correctness(tests, SUM + "print(a + b)") is Verdict.PASSED
    assert await sandbox_check_correctness(tests, SUM + "print(a - b)", timeout=1) is Verdict.WRONG_ANSWER
    functional = {"inputs": [[[1, 2]]], "outputs": [3], "fn_name": "total"}
    assert await sandbox_check_correctness(functional, "def total(xs): return sum(xs)") is Verdict.PASSED


async def test_a_program_that_gets_no_processor_has_no_verdict(
    embedded_judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = judge_module.DRIVER
    assert "\nSTARVED_AT_MOST = 4 " in driver
    judge, sleeping = Judge(embedded_judge.client, timeout_s=0.2), "import time\ntime.sleep(60)"
    assert (await judge.grade(echo_problem(1), sleeping)).verdict is Verdict.TIME_LIMIT
    # As if it had waited for a processor all the time.
    monkeypatch.setattr(judge_module, "DRIVER", driver.replace("\nSTARVED_AT_MOST = 4 ", "\nSTARVED_AT_MOST = 0 "))
    grade = await judge.grade(echo_problem(1), sleeping)
    assert grade.verdict is Verdict.INFRA_ERROR and "too busy" in grade.reason


@pytest.mark.parametrize("run_all", [False, True])
async def test_a_program_that_is_killed_once_is_not_to_blame(serve: Serve, tmp_path: Path, run_all: bool) -> None:
    async with SandboxClient([Recording(serve).url]) as client:
        judge = Judge(client)
        killed = "import os\nos.kill(os.getpid(), 9)"
        for_ever = await judge.grade(echo_problem(2), killed, run_all=run_all)
        killed_once = f"import os\ntry: os.mkdir('{tmp_path}/a')\nexcept OSError: pass\nelse: os.kill(os.getpid(), 9)"
        grade = await judge.grade(echo_problem(2), f"{killed_once}\n{ECHO}", run_all=run_all)
    assert (for_ever.verdict, for_ever.reason) == (Verdict.RUNTIME_ERROR, "test 0: ended by SIGKILL")
    assert (grade.verdict, grade.tests_passed) == (Verdict.PASSED, 2), grade


@pytest.mark.parametrize("run_all", [False, True])
async def test_a_program_that_gets_no_processor_has_no_verdict_after_a_lost_report_either(
    embedded_judge: Judge, run_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    starved, write = "\nSTARVED_AT_MOST = 4 ", "\n    write_report(json.dumps(report).encode())\n"
    driver = judge_module.DRIVER
    assert driver.count(starved) == driver.count(write) == 1
    # Reports on several tests are lost, and each test alone gets no processor.
    only_of_one = f'\n    if len(request["inputs"]) == 1:\n    {write[1:]}'
    monkeypatch.setattr(
        judge_module, "DRIVER", driver.replace(starved, "\nSTARVED_AT_MOST = 0 ").replace(write, only_of_one)
    )
    judge = Judge(embedded_judge.client, timeout_s=0.2)
    grade = await judge.grade(echo_problem(2), "import time\ntime.sleep(60)", run_all=run_all)
    assert grade.verdict is Verdict.INFRA_ERROR and "too busy" in grade.reason


GOOD = {"ended": "exit", "code": 0, "cpu_s": 0.1, "rss_kb": 1, "answer": "NQ==", "stderr": "", "in_company": False}


async def test_a_report_that_a_program_has_forged_blames_no_machine(serve: Serve, embedded_judge: Judge) -> None:
    forged = base64.b64encode(json.dumps({"tests": [GOOD | {"ended": "starved"}]}).encode()).decode()

    async def forges(_: web.Request) -> web.StreamResponse:
        ended = {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stdout": "", "stderr": ""}
        files = {"results.json": forged}
        return web.json_response({"status": "Success", "message": "", "run_result": ended, "files": files})

    async with SandboxClient([serve(FaultyServer(forges).app())]) as client:
        assert (await Judge(client).grade(echo_problem(1), ECHO)).verdict is Verdict.TIME_LIMIT
    # What tells a forged report from the driver's is out of the program's reach.
    looks = (
        "import os, re, sys\nseen, frame = '', sys._getframe()\nwhile frame:\n"
        "    seen, frame = seen + repr(frame.f_locals), frame.f_back\nfor number in range(3, 300):\n"
        "    try: seen += repr(os.pread(number, 1000, 0))\n    except OSError: pass\n"
        "print(len(re.findall('[\\x22\\x27][0-9a-f]{16}[\\x22\\x27]', seen)), 'inputs' in seen)"
    )
    grade = await embedded_judge.grade(stdin_problem(("", "0 True\n")), looks)
    assert grade.passed, grade.output


def result(report: Any) -> RunResult:
    data = report if isinstance(report, bytes) else json.dumps(report).encode()
    return RunResult("Finished", 0, "", "", {"results.json": data}, "")


def test_a_report_is_parsed() -> None:
    tests = reported_tests(result({"tests": [GOOD]}).report(9 << 20), [7, 3], LIMITS)
    assert tests is not None
    assert [(test.index, test.ended, test.cpu_s, test.answer) for test in tests] == [(7, "exit", 0.1, b"5")]


def test_of_a_report_that_is_too_long_only_the_id_counts() -> None:
    report = result({"id": "mine", "tests": [GOOD], "python": " " * (20 << 20)}).report(9 << 20)
    assert report == {"id": "mine"}


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"{",
        b"[" * 100_000,
        b" " * (20 << 20),
        [],
        {},
        None,
        {"tests": []},
        {"tests": [GOOD, GOOD, GOOD]},
        {"tests": GOOD},
        {"tests": [None]},
        {"tests": [GOOD | {"ended": "well"}]},
        {"tests": [GOOD | {"code": "0"}]},
        {"tests": [GOOD | {"code": True}]},
        {"tests": [GOOD | {"cpu_s": -1}]},
        {"tests": [GOOD | {"cpu_s": float("nan")}]},
        {"tests": [GOOD | {"cpu_s": "1"}]},
        {"tests": [GOOD | {"cpu_s": 10**400}]},
        {"tests": [GOOD | {"rss_kb": 1.5}]},
        {"tests": [GOOD | {"answer": "?"}]},
        {"tests": [GOOD | {"answer": 5}]},
        {"tests": [GOOD | {"answer": "AAAA" * (1 << 19)}]},
        {"tests": [{key: value for key, value in GOOD.items() if key != "stderr"}]},
        {"compile_error": 5},
    ],
)
def test_anything_but_a_report_is_none(report: Any) -> None:
    assert reported_tests(result(report).report(9 << 20), [0, 1], LIMITS) is None


async def test_a_sandbox_that_cannot_run_the_driver_is_an_infra_error(serve: Serve) -> None:
    async with SandboxClient([serve(FaultyServer(answers).app())]) as client:
        grade = await Judge(client).grade(ADD, SUM + "print(a + b)")
    assert grade.verdict is Verdict.INFRA_ERROR
    assert "cannot run the grading driver" in grade.reason


async def test_a_server_that_cannot_run_the_driver_is_quarantined(serve: Serve) -> None:
    """The programs are run elsewhere, and not blamed."""
    urls = [serve(FaultyServer(answers).app()), serve(FaultyServer(stock_sandbox.run_code).app())]
    async with SandboxClient(urls, 4) as client:
        judge = Judge(client)
        grades = await asyncio.gather(*(judge.grade(ADD, SUM + f"print(a + b + {n % 2})") for n in range(8)))
    assert [grade.verdict.value for grade in grades] == ["passed", "wrong_answer"] * 4


@pytest.mark.parametrize("with_another", [False, True])
async def test_the_result_of_another_request_is_no_verdict(serve: Serve, with_another: bool) -> None:
    last: list[bytes] = []

    async def answers_late_by_one(request: web.Request) -> web.Response:
        own = await stock_sandbox.run_code(request)
        assert isinstance(own.body, bytes)
        last.append(own.body)
        return web.Response(body=last[-2:][0], content_type="application/json")

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/run_code", answers_late_by_one)
    late = serve(app)
    async with SandboxClient([late, *([Recording(serve).url] if with_another else [])]) as client:
        judge = Judge(client, isolation_per_test="always")
        grades = [await judge.grade(echo_problem(6), f"{ECHO}  # {n}") for n in range(3)]
    if with_another:
        assert all(grade.passed for grade in grades)
    else:
        assert {grade.verdict for grade in grades} == {Verdict.INFRA_ERROR}
        assert grades[0].reason == f"the sandbox at {late} answered with the result of another request"
