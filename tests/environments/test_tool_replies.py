"""What a policy is told of a program that it asked to be run, on a real sandbox."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from coderl_tasks.environments.environment import CodeEnvironment, Turns
from coderl_tasks.environments.feedback import ANSWERED, CALLED, NO_CALLS_LEFT, Reply, tool_replies
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import SHOWN_CHARS, Verdict
from coderl_tasks.problems.problem import Problem, Test
from coderl_tasks.services import Services
from tests.grading.attacks import HARMFUL_ATTACKS

STATEMENT = "Add two numbers.\n\nExample\n\nInput\n2 3\n\nOutput\n5\n"
HIDDEN = (Test("70001 70002\n", "80001\n"), Test("1 2\n", "3\n"))
ADD = Problem("add", "taco", STATEMENT, "", "stdin", "", HIDDEN, 2, 2, None, (), 0)
NOSY = (
    "import sys\nprint(sys.stdin.read(), sys.argv)",
    "import os\nprint(dict(os.environ))\nfor folder, _, files in os.walk('.'):\n    for file in files:\n"
    "        print(open(os.path.join(folder, file), errors='replace').read()[:900])",
    "import sys\nframe = sys._getframe()\nwhile frame:"
    "\n    print(str(dict(frame.f_locals))[:300])\n    frame = frame.f_back",
    "print(open('/proc/self/cmdline').read(), open('/proc/self/environ').read())",
    "import gc\nprint([each for each in gc.get_objects() if isinstance(each, (str, bytes, dict))][:2000])",
)


@pytest.fixture
async def judge(embedded: Services) -> AsyncIterator[Judge]:
    async with SandboxClient(embedded.sandbox_urls) as client:
        yield Judge(client, timeout_s=1.0)


def call(code: str, stdin: str = "") -> str:
    arguments = json.dumps({"name": "run_python", "arguments": {"code": code, "stdin": stdin}})
    return f"I try it.\n<tool_call>\n{arguments}\n</tool_call>"


async def result(judge: Judge, code: str, stdin: str = "") -> str:
    (reply,) = await tool_replies(judge, [call(code, stdin)], is_last=False)
    assert reply.check == CALLED and reply.text is not None
    return reply.text


async def test_output_errors_and_status_are_told(judge: Judge) -> None:
    assert await result(judge, "a, b = map(int, input().split())\nprint(a + b)", "2 3\n") == (
        "Output:\n5\n\nEnded: exit status 0."
    )
    assert await result(judge, "x = 1") == "No output.\n\nEnded: exit status 0."
    assert await result(judge, "print('so far')\nx = 1\nprint(x + y)") == (
        "Output:\nso far\n\nErrors:\nNameError: name 'y' is not defined (line 3)\n\nEnded: exit status 1."
    )
    warned = await result(judge, "import sys\nprint('careful', file=sys.stderr)\nsys.exit(3)")
    assert warned == "No output.\n\nErrors:\ncareful\n\nEnded: exit status 3."
    syntax = await result(judge, "print(")
    assert syntax == "Errors:\nSyntaxError: '(' was never closed (line 1)\n\nEnded: exit status 1."


async def test_broken_limits_are_named_without_a_time(judge: Judge) -> None:
    assert await result(judge, "while True: pass") == "Ended: time limit exceeded."

    assert await result(judge, "print('x' * 3_000_000)") == "Ended: output limit exceeded."
    assert "Ended: memory limit exceeded." in await result(judge, "x = b'x' * (4 << 30)")
    assert await result(judge, "import os\nos.abort()") == "Ended: ended by SIGABRT."
    long = await result(judge, "print('y' * 50_000)")
    assert "y" * SHOWN_CHARS + "... (50,001 bytes)" in long and len(long) < SHOWN_CHARS + 100


async def test_a_call_that_cannot_be_read_is_answered_and_an_answer_ends_the_completion(judge: Judge) -> None:
    texts = ["<tool_call>print(1)</tool_call>", "```python\nprint(1)\n```", call("print(1)")]
    broken, final, called = await tool_replies(judge, texts, is_last=True)
    assert final == Reply(ANSWERED, None)
    assert broken.check == Verdict.FORMAT_ERROR and str(broken.text).startswith("The call cannot be read: it is not")
    assert called == Reply(CALLED, f"Output:\n1\n\nEnded: exit status 0.\n\n{NO_CALLS_LEFT}")
    assert str(broken.text).endswith(NO_CALLS_LEFT)
    thinking = f"<think>{call('print(1)')}</think>\n```python\nprint(1)\n```"
    assert await tool_replies(judge, [thinking], is_last=False) == [Reply(ANSWERED, None)]


async def test_equal_calls_run_once(judge: Judge) -> None:
    noise = "import os\nprint(os.urandom(16).hex())"
    one, other, third = await tool_replies(judge, [call(noise), call(noise), call(noise, "5")], is_last=False)
    assert one == other != third


async def test_a_result_is_of_the_call_alone(judge: Judge) -> None:
    environment = CodeEnvironment(turns=Turns(3, tool_calls=2))
    other = replace(ADD, tests=(Test("5 5\n", "10\n"),), tests_total=1, time_limit_s=0.1)
    texts = [call(code, "4 4\n") for code in NOSY]
    of_one, of_other = [await environment.replies(judge, problem, texts, 0) for problem in (ADD, other)]
    for one, two in zip(of_one, of_other, strict=True):
        said = str(one.text) + str(two.text)
        assert not any(mark in said for mark in ("70001", "70002", "80001", "Add two numbers"))
    # These print no names of folders or ids of requests, which differ from run to run.
    assert (of_one[0], of_one[3]) == (of_other[0], of_other[3])
    slow = call("import time\nbegun = time.process_time()\nwhile time.process_time() - begun < 0.3: pass\nprint(1)")
    assert await environment.replies(judge, ADD, [slow], 0) == await environment.replies(judge, other, [slow], 0)


@pytest.mark.parametrize("attack", ["a fork bomb", "asks the network", "asks a name server"])
async def test_an_attack_harms_nothing(judge: Judge, attack: str) -> None:
    said = await result(judge, HARMFUL_ATTACKS[attack])
    assert "exit status 0" not in said, said
    assert await result(judge, "print(6 * 7)") == "Output:\n42\n\nEnded: exit status 0."


async def test_an_outage_is_no_result() -> None:
    async with SandboxClient(["http://127.0.0.1:9"], outage_patience_s=0.2) as client:
        replies = await tool_replies(Judge(client), [call("print(1)"), "done"], is_last=False)
    assert replies == [Reply(Verdict.INFRA_ERROR, None), Reply(ANSWERED, None)]
