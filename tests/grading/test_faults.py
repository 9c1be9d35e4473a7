"""While servers die, hang, fail, cut and stall, every verdict of a batch is that of a quiet run.

The batch is a mix of known submissions: right, wrong, slow, crashing. The servers are embedded sandboxes, started and
watched as a run does it; the faults on the way are a proxy's.
"""

import asyncio
import json
import os
import signal
import socket
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from coderl_tasks.errors import InfraError
from coderl_tasks.grading import Judge, RunRequest, SandboxClient, Verdict, score_group
from coderl_tasks.grading.judge import require_sandbox
from coderl_tasks.server_addresses import authorization, without_credentials
from coderl_tasks.services import embedded_sandbox
from coderl_tasks.services.supervisor import EmbeddedServer
from tests.conftest import Serve
from tests.faults.fault_proxy import BAD_GATEWAY, SERVER_ERROR, FaultProxy
from tests.grading.faulty_servers import FaultyServer, answers, refuses
from tests.grading.submission_cases import Submission, call_submissions, stdin_submissions

SANDBOX_ERROR = (200, json.dumps({"status": "SandboxError", "message": "disk full"}).encode())
FAILURES = (BAD_GATEWAY, SERVER_ERROR, SANDBOX_ERROR)
QUICK: dict[str, Any] = {"max_concurrency": 8, "backoff_s": 0.02, "watch_every_s": 1.0}
OF_A_KIND = 8  # submissions for each verdict, but for those that take long
SLOW = {Verdict.TIME_LIMIT: 2, Verdict.MEMORY_LIMIT: 1}


def chosen_batch() -> list[Submission]:
    batch: list[Submission] = []
    counts: Counter[Verdict] = Counter()
    for case in [*call_submissions(), *stdin_submissions()]:
        counts[case[3]] += 1
        if counts[case[3]] <= SLOW.get(case[3], OF_A_KIND):
            batch.append(case)
    return batch


BATCH = chosen_batch()
EXPECTED = {name: verdict for name, _, _, verdict in BATCH}


@pytest.fixture(scope="module")
def mortal_server() -> Iterator[EmbeddedServer]:
    """A server that tests may kill; its supervisor starts it again."""
    with embedded_sandbox() as server:
        yield server


async def verdicts(client: SandboxClient, graded: Callable[[], None] = lambda: None) -> dict[str, Verdict]:
    """The verdict on each submission of the batch, all graded at the same time; calls `graded` after each."""
    judge = Judge(client, timeout_s=10.0)

    async def grade(case: Submission) -> tuple[str, Verdict]:
        name, problem, code, _ = case
        verdict = (await judge.grade(problem, code)).verdict
        graded()
        return name, verdict

    return dict(await asyncio.gather(*map(grade, BATCH)))


async def test_a_quiet_run_gives_the_known_verdicts(embedded_url: str) -> None:
    assert {Verdict.PASSED, Verdict.WRONG_ANSWER, Verdict.RUNTIME_ERROR, Verdict.TIME_LIMIT} <= set(EXPECTED.values())
    async with SandboxClient([embedded_url], **QUICK) as client:
        assert await verdicts(client) == EXPECTED


@pytest.mark.parametrize(
    "rates",
    [
        {"fail": 0.3},
        {"cut": 0.3},
        {"reset": 0.1, "lose": 0.1, "delay": 0.05, "twice": 0.05},
    ],
    ids=lambda rates: "-".join(rates),
)
async def test_every_third_request_goes_wrong(serve: Serve, embedded_url: str, rates: Mapping[str, float]) -> None:
    proxies = [FaultProxy(embedded_url, seed, rates=rates, failures=FAILURES) for seed in range(3)]
    await every_verdict_stands(serve, proxies, enough=lambda: all(proxy.met for proxy in proxies))


async def test_every_third_request_goes_wrong_and_there_is_one_server(serve: Serve, embedded_url: str) -> None:
    proxy = FaultProxy(embedded_url, 1, rates={"fail": 0.15, "reset": 0.05, "cut": 0.1}, failures=FAILURES)
    await every_verdict_stands(serve, [proxy], enough=lambda: len(proxy.met) == 3)


async def every_verdict_stands(serve: Serve, proxies: Sequence[FaultProxy], enough: Callable[[], bool]) -> None:
    """Grades the batch through the proxies until `enough` has gone wrong: faults are drawn, one batch may meet few."""
    async with SandboxClient([serve(proxy.app()) for proxy in proxies], **QUICK) as client:
        for _ in range(10):
            assert await verdicts(client) == EXPECTED
            if enough():
                return
    pytest.fail(f"ten batches met only {[dict(proxy.met) for proxy in proxies]}")


async def test_one_of_three_servers_hangs_in_mid_batch(serve: Serve, embedded_url: str) -> None:
    proxies = [FaultProxy(embedded_url, seed, rates={}) for seed in range(3)]

    def hang() -> None:
        proxies[0].hanging = True

    async with SandboxClient([serve(proxy.app()) for proxy in proxies], **QUICK) as client:
        assert await verdicts(client, hang) == EXPECTED
        proxies[0].hanging = False
        assert await verdicts(client) == EXPECTED


async def test_the_server_is_killed_in_mid_batch(mortal_server: EmbeddedServer) -> None:
    killed: list[int] = []
    graded = 0

    def kill_now_and_then() -> None:
        nonlocal graded
        graded += 1
        if graded in (5, len(BATCH) // 2):
            asked = urllib.request.Request(f"{mortal_server.url}/v1/info", headers=authorization(mortal_server.address))
            with urllib.request.urlopen(asked, timeout=60) as answer:
                killed.append(json.load(answer)["pid"])
            os.kill(killed[-1], signal.SIGKILL)

    async with SandboxClient([mortal_server.address], **QUICK) as client:
        assert await verdicts(client, kill_now_and_then) == EXPECTED
    assert len(set(killed)) == 2


async def test_all_servers_down_is_an_infra_error_and_no_score() -> None:
    with socket.socket() as first, socket.socket() as second:
        for unused in (first, second):
            unused.bind(("127.0.0.1", 0))  # and nobody listens
        urls = [f"http://127.0.0.1:{unused.getsockname()[1]}" for unused in (first, second)]
        async with SandboxClient(urls, outage_patience_s=0.5, **QUICK) as client:
            judge = Judge(client)
            grades = await asyncio.gather(*(judge.grade(problem, code) for _, problem, code, _ in BATCH))
            texts = [f"```python\n{code}\n```" for _, _, code, _ in BATCH[:4]] + ["no code"]
            scored = await score_group(judge, BATCH[0][1], texts)
    assert {grade.verdict for grade in grades} == {Verdict.INFRA_ERROR}
    assert all(any(url in grade.reason for url in urls) for grade in grades)
    assert [completion.reward is None for completion in scored] == [True] * 4 + [False]


async def test_a_sandbox_that_runs_no_program_right_is_found_out_before_there_is_one_to_grade(
    serve: Serve, embedded_url: str, closed: str, caplog: pytest.LogCaptureFixture
) -> None:
    wrong, absent = (serve(FaultyServer(behaviour).app()) for behaviour in (answers, refuses))
    for urls, said in (
        ([wrong], "cannot run the grading driver"),
        ([absent], "404"),
        ([closed], "no sandbox has answered"),
    ):
        async with SandboxClient(urls, **QUICK) as client:
            with pytest.raises(InfraError, match=said):
                await require_sandbox(client)
    async with SandboxClient([wrong, embedded_url], **QUICK) as client:
        await require_sandbox(client)
        assert f"the sandbox at {wrong} cannot run the grading driver" in caplog.text
        result = await client.run_code(RunRequest("print(6 * 7)"))
    assert (result.server, result.stdout) == (without_credentials(embedded_url), "42\n")
