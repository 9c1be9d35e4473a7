"""What a policy is told of its program, on a real sandbox."""

import re
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from coderl_tasks.environments.feedback import (
    AGAIN,
    LOOK_AGAIN,
    NO_CODE,
    PART_CHARS,
    Reply,
    code_replies,
    shown_problem,
)
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import Verdict
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.services import Services
from coderl_tasks.settings.flow_settings import Feedback

HIDDEN = (Test("70001 70002\n", "80001\n"), Test("1 2\n", "3\n"))
STATEMENT = "Add two numbers.\n\nExample\n\nInput\n2 3\n\nOutput\n5\n\nInput\n-1 1\n\nOutput\n0\n"
ADD = Problem("add", "taco", STATEMENT, "", "stdin", "", HIDDEN, 2, 2, None, (), 0)
CALL = Problem(
    *("half", "taco", "Halve `n`. For example, `half(6)` returns `3`.", "", "call", "half"),
    *((Test("[70001]", "80001"),), 1, 1, None, (), 0),
)
RIGHT = "print(sum(map(int, input().split())))"


@pytest.fixture
async def judge(embedded: Services) -> AsyncIterator[Judge]:
    async with SandboxClient(embedded.sandbox_urls) as client:
        yield Judge(client, timeout_s=1.0)


async def text(judge: Judge, problem: Problem, code: str | None, feedback: Feedback = "samples") -> str:
    (reply,) = await code_replies(judge, problem, [code], feedback)
    assert reply.text is not None
    return reply.text


async def test_a_wrong_answer_is_shown_with_the_sample(judge: Judge) -> None:
    assert await text(judge, ADD, "a, b = map(int, input().split())\nprint(a - b)") == (
        "Your program fails example 1 of the problem: wrong answer.\n\nInput:\n2 3\n\nExpected output:\n5\n\n"
        f"Your program's output:\n-1\n\n{AGAIN}"
    )
    second = await text(judge, ADD, "a, b = map(int, input().split())\nprint(a + abs(b) if a > 0 else 7)")
    assert "example 2 of the problem" in second and "Input:\n-1 1" in second and "output:\n7" in second


async def test_an_error_is_shown_with_its_line(judge: Judge) -> None:
    found = await text(judge, ADD, "a, b = input().split()\nprint(a + bb)")
    assert found.endswith(f"Error:\nNameError: name 'bb' is not defined (line 2)\nLine 2: print(a + bb)\n\n{AGAIN}")
    assert "SyntaxError: '(' was never closed (line 1)\nLine 1: print(" in await text(judge, ADD, "print(")
    assert "no function half" in await text(judge, CALL, "def other(n):\n    return n")


async def test_a_function_is_shown_as_a_call(judge: Judge) -> None:
    found = await text(judge, CALL, "def half(n):\n    return n / 3")
    assert "Call:\nhalf(6)\n\nExpected value:\n3\n\nYour program's value:\n2.0" in found


async def test_broken_limits_are_named_without_a_time(judge: Judge) -> None:
    found = await text(judge, ADD, "while True: pass")
    assert "example 1 of the problem: time limit exceeded." in found and " s" not in found.replace("'s", "")


async def test_less_is_said_where_less_is_asked_for(judge: Judge) -> None:
    wrong = "print(1)"
    assert await text(judge, ADD, wrong, "verdict") == (
        f"Your program fails an example of the problem: wrong answer. {AGAIN}"
    )
    assert await text(judge, ADD, wrong, "none") == LOOK_AGAIN == await text(judge, ADD, None, "none")
    assert await text(judge, ADD, None) == NO_CODE


async def test_a_pass_ends_the_completion_whatever_the_hidden_tests_say(judge: Judge) -> None:
    replies = await code_replies(judge, ADD, [RIGHT, "print(sum(map(int, input().split())) % 100)", RIGHT])
    assert replies == [Reply(Verdict.PASSED, None)] * 3


async def test_without_samples_a_program_is_run_on_nothing(judge: Judge) -> None:
    bare = replace(ADD, statement="Add two numbers.")
    assert shown_problem(bare) is None
    passed, unknown, syntax = await code_replies(judge, bare, [RIGHT, "print(x)", "print("])
    assert passed.text is None, "that there is no input is no fault of the program"
    assert "NameError" in str(unknown.text) and "SyntaxError" in str(syntax.text)
    function = replace(CALL, statement="Halve n.")
    fine, broken = await code_replies(judge, function, ["def half(n): return 1", "def half(n): return 1\nhalf(1 / 0)"])
    assert fine.text is None and "ZeroDivisionError: division by zero (line 2)" in str(broken.text)


async def test_long_texts_are_cut(judge: Judge) -> None:
    found = await text(judge, ADD, "print('x' * 5000)")
    assert "x" * PART_CHARS + "... (" in found and len(found) < 1500


CURIOUS = "[open(name).read() for name in ('tests.json',)]"
KNOWING = "print({70001: GUESS, 1: 3}.get(int(input().split()[0]), 7))"
READING = (f"print(input(), {CURIOUS})", KNOWING, "print(GUESS)", "print(input()[::-1])", "x = GUESS / 0")
CALLED = (f"def half(n): return {CURIOUS}", "def half(n): return GUESS", "def half(n): return -n", "x = GUESS / 0")
OF_EACH_KIND = {
    "stdin": (ADD, READING),
    "no samples": (replace(ADD, statement="Add two numbers."), READING),
    "call": (CALL, CALLED),
    "assert": (replace(CALL, kind="assert", tests=(Test("", "assert half(70001) == 80001"),)), CALLED),
}


@pytest.mark.parametrize("feedback", ["samples", "verdict"])
@pytest.mark.parametrize("kind", OF_EACH_KIND)
async def test_nothing_of_a_hidden_test_is_in_a_reply_or_decides_it(
    judge: Judge, kind: str, feedback: Feedback
) -> None:
    problem, programs = OF_EACH_KIND[kind]
    others = tuple(
        Test(*(text.replace("7000", "5000").replace("80001", "60001") for text in (test.input, test.expected)))
        for test in problem.tests
    )
    assert others != problem.tests
    guessing, not_guessing = (
        [program.replace("GUESS", guess) for program in (*programs, "print(")] for guess in ("80001", "90001")
    )
    of_one = await code_replies(judge, problem, guessing, feedback)
    assert of_one == await code_replies(judge, replace(problem, tests=others), guessing, feedback)
    assert any(reply.text for reply in of_one)
    # A guess is shown as any other number is.
    for reply, other in zip(of_one, await code_replies(judge, problem, not_guessing, feedback), strict=True):
        assert not re.search("7000[12]|80001", str(other.text))
        assert (reply.check, str(reply.text)) == (other.check, str(other.text).replace("90001", "80001"))


async def test_a_program_that_differs_on_hidden_tests_alone_gets_the_same_reply(judge: Judge) -> None:
    same = "a, b = map(int, input().split())\nprint(9 if (a, b) == (2, 3) else {} if a > 70000 else a + b)"
    passing, failing = await code_replies(judge, ADD, [same.format("a + b + 9999"), same.format("0")])
    assert passing == failing


async def test_an_outage_is_no_reply(embedded: Services) -> None:
    async with SandboxClient(["http://127.0.0.1:9"], outage_patience_s=0.2) as client:
        (reply,) = await code_replies(Judge(client), ADD, [RIGHT])
    assert reply == Reply(Verdict.INFRA_ERROR, None)
