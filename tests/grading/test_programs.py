"""Known programs get the verdict they should, on the embedded sandbox and on a stock server."""

import asyncio
import contextlib
import signal
from pathlib import Path
from textwrap import indent

import pytest

from coderl_tasks.grading import Grade, Judge, SandboxClient, Verdict
from coderl_tasks.scorecard.graders import as_problem
from tests.grading.attacks import HARMFUL_ATTACKS, cases, reaching
from tests.grading.programs import ADD, LOOP, RIGHT, SLEEP, SUM, TOTAL, WRONG, graded, stdin_problem
from tests.local_servers.sandbox.sandbox_servers import Sandbox

# None of its expected outputs is empty, a single number below 100, or alike for two tests.
SECRET = stdin_problem(("2 3\n", "5 271828\n"), ("4 1\n", "5 314159\n"))


async def test_who_knows_the_answers_passes(embedded_judge: Judge) -> None:
    """So it is for want of them that the attacks fail."""
    code = "print(5, {'2 3': 271828, '4 1': 314159}[input()])"
    assert (await embedded_judge.grade(SECRET, code)).passed


async def test_right_programs_pass(judge: Judge) -> None:
    assert len(RIGHT) >= 50
    grades = await graded(judge, RIGHT)
    assert {name: grade.reason for name, grade in grades.items() if not grade.passed} == {}


async def test_other_programs_get_their_verdict(judge: Judge) -> None:
    assert len(WRONG) >= 25
    grades = await graded(judge, WRONG)
    misjudged = {name: (g.verdict, g.reason) for name, g in grades.items() if g.verdict != WRONG[name][2]}
    assert misjudged == {}


async def test_no_attack_passes_on_a_stock_server(stock_url: str) -> None:
    """The score card's test has all on the embedded one; what they answer is compared here, whatever the server."""
    reach = [*reaching("stdin-attack"), *reaching("call-attack")]
    assert len(reach) >= 100
    attacks = {case.id: (as_problem(case), case.program) for case in reach}
    async with SandboxClient([stock_url], max_concurrency=4) as client:
        judge = Judge(client, timeout_s=10.0)
        grades = await graded(judge, attacks)
        assert {name: grade for name, grade in grades.items() if grade.passed or not grade.gradable} == {}
        after = await judge.grade(ADD, SUM + "print(a + b)")
    assert after.passed, after.reason


async def test_no_harm_is_done_by_all_attacks_at_once(isolated_server: Sandbox) -> None:
    """But for those that only answer: they are the score card's alone."""
    jobs = {name: (SECRET, code) for name, code in HARMFUL_ATTACKS.items()}
    jobs |= {case.id: (SECRET, str(case.program)) for case in reaching("stdin-attack")}
    jobs |= {case.id: (TOTAL, str(case.program)) for case in reaching("call-attack")}
    assert len(jobs) >= 150
    mounts = Path(f"/proc/{isolated_server.process.pid}/mounts")
    mounted = mounts.read_text()
    async with SandboxClient([isolated_server.url], max_concurrency=8) as client:
        hasty, judge = Judge(client, timeout_s=0.5, memory_mb=256), Judge(client)
        honest = [judge.grade(ADD, SUM + f"print(a + b)  # {n}") for n in range(10)]
        grades, others = await asyncio.gather(graded(hasty, jobs), asyncio.gather(*honest))
        after = await judge.grade(ADD, SUM + "print(a + b)")
    assert {name: grade for name, grade in grades.items() if grade.passed or not grade.gradable} == {}
    assert [grade for grade in [*others, after] if not grade.passed] == []
    # Two fork servers and, for each of the two slots, at most two workers.
    isolated_server.wait_until(lambda info: info["running"] == 0 and len(isolated_server.descendants()) <= 2 + 2 * 2)
    assert mounts.read_text() == mounted


async def test_no_process_outlives_its_test(judge: Judge) -> None:
    marker = "coderl-test-survivor"
    code = (
        "import os, time\n"
        f"open('/proc/thread-self/comm', 'w').write({marker[:15]!r})\n"
        "for _ in range(3):\n    if os.fork() == 0:\n        os.setsid()\n        if os.fork() == 0: time.sleep(1000)\n"
        "        os._exit(0)\nprint(5)"
    )
    assert (await judge.grade(ADD, code)).tests_passed == 1  # it ran through
    names = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # others end meanwhile
            names.append(path.read_text().strip())
    assert marker[:15] not in names


async def test_time_is_cpu_time_and_sleeping_is_bounded(judge: Judge) -> None:
    problem = stdin_problem(("", "1\n"), time_limit_s=0.5)
    loop, asleep, nap = await asyncio.gather(
        judge.grade(problem, LOOP),
        judge.grade(problem, SLEEP),
        judge.grade(problem, "import time\ntime.sleep(0.7)\nprint(1)"),
    )
    assert (loop.verdict, asleep.verdict) == (Verdict.TIME_LIMIT, Verdict.TIME_LIMIT)
    assert loop.run_seconds >= 0.5 > asleep.run_seconds
    assert nap.passed, nap.reason


async def test_time_of_children_counts(judge: Judge) -> None:
    problem = stdin_problem(("", "1\n"), time_limit_s=0.5)
    code = "import os\nif os.fork() == 0:\n    while True: pass\nos.wait()\nprint(1)"
    assert (await judge.grade(problem, code)).verdict is Verdict.TIME_LIMIT


IGNORED = {
    "SIG_IGN": "import _signal\n_signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)",
    "SA_NOCLDWAIT": (
        "import ctypes\naction = (ctypes.c_ulong * 19)()\nimport sys\naction[17] = 2\n"
        "assert ctypes.CDLL(None).sigaction(17, ctypes.byref(action), None) == 0"
    ),
}
"""Ways to have the kernel collect one's children, whose CPU time is then counted nowhere."""


@pytest.mark.parametrize("way", IGNORED)
async def test_time_of_children_that_are_not_to_be_collected_counts(judge: Judge, way: str) -> None:
    code = (
        f"import os, time\nif os.fork() == 0:\n{indent(IGNORED[way], '    ')}\n    for _ in range(3):\n"
        "        if os.fork() == 0:\n            while time.process_time() < 0.5: pass\n            os._exit(0)\n"
        "        try: os.wait()\n        except ChildProcessError: pass\n    os._exit(0)\nos.wait()\nprint(1)"
    )
    grade = await judge.grade(stdin_problem(("", "1\n"), time_limit_s=30.0), code)
    assert grade.passed, grade.reason
    assert grade.run_seconds >= 1.0  # of 1.5: what each child used after it was last looked at is lost


async def test_what_programs_do_in_company_gets_the_verdict_that_it_gets_alone(embedded_url: str) -> None:
    jobs = {case.id: (as_problem(case), case.program) for case in cases("sharing")}
    assert len(jobs) >= 40
    async with SandboxClient([embedded_url], max_concurrency=4) as client:
        # 1 s: on a busy machine the kernel takes most of that to provide 240 MiB.
        shared = await graded(Judge(client, timeout_s=1.0), jobs)
        alone = await graded(Judge(client, timeout_s=1.0, isolation_per_test="always"), jobs)
    assert {name for name, grade in alone.items() if grade.passed or not grade.gradable} == set()
    differing = {name for name in jobs if verdict_of(shared[name]) != verdict_of(alone[name])}
    assert {name: (verdict_of(shared[name]), verdict_of(alone[name])) for name in differing} == {}


def verdict_of(grade: Grade) -> tuple[Verdict, int, int, int | None]:
    return grade.verdict, grade.tests_passed, grade.tests_run, grade.first_failed


async def test_every_test_runs_in_a_fresh_process(judge: Judge) -> None:
    code = "import builtins, os\nbuiltins.seen = getattr(builtins, 'seen', 0) + 1\nfiles = os.listdir()\n"
    code += "open('left-over', 'w').write('x')\nprint(builtins.seen, len(files))"
    problem = stdin_problem(*[("", "1 1\n")] * 4)  # the one file is its own
    assert (await judge.grade(problem, code)).passed


async def test_a_program_that_kills_the_driver_now_and_then_fails_where_it_does(judge: Judge) -> None:
    problem = stdin_problem(*[(f"{n}\n", f"{n}\n") for n in range(8)])
    code = "import os\nn = int(input())\nif n == 5: os.kill(os.getppid(), 9)\nprint(n)"
    grade = await judge.grade(problem, code)
    assert (grade.verdict, grade.first_failed, grade.tests_passed) == (Verdict.RUNTIME_ERROR, 5, 5)


async def test_a_program_that_ends_itself_by_a_signal_has_not_ended_well(judge: Judge) -> None:
    """Even as its last act, with the right answer out; on one test again and again, so that a race would be lost."""
    numbers = (signal.SIGSEGV, signal.SIGABRT, signal.SIGFPE, signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
    problem = stdin_problem(*[("2 3\n", "5\n")] * 6)
    ending = SUM + "print(a + b, flush=True)\nimport os\nos.kill(os.getpid(), {})"
    grades = await asyncio.gather(*(judge.grade(problem, ending.format(int(n)), run_all=True) for n in numbers))
    assert [(grade.reason, grade.tests_passed, grade.tests_run) for grade in grades] == [
        (f"test 0: ended by {n.name}", 0, 6) for n in numbers
    ]


async def test_large_inputs_and_outputs(judge: Judge) -> None:
    text = "\n".join(map(str, range(200_000))) + "\n"
    problem = stdin_problem((text, text), (text[::-1], text[::-1]))
    assert (await judge.grade(problem, "import sys\nsys.stdout.write(sys.stdin.read())")).passed


async def test_an_expected_output_over_the_usual_limit_can_be_printed(embedded_judge: Judge) -> None:
    problem = stdin_problem(("", "x" * (17 << 20)))
    assert (await embedded_judge.grade(problem, "print('x' * (17 << 20))")).passed
