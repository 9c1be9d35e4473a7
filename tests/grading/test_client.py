"""The client gets an answer out of servers that fail in every way, or says that it cannot."""

import asyncio
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.grading import RunRequest, SandboxClient
from coderl_tasks.grading import client as client_module
from coderl_tasks.grading.client import SERVER_STATES, ServerLink
from tests.conftest import Serve
from tests.grading.faulty_servers import (
    Behaviour,
    FaultyServer,
    answers,
    breaks,
    cuts_off,
    floods,
    hangs,
    is_full,
    is_full_for_long,
    refuses,
    sandbox_error,
    talks_nonsense,
)

REQUEST = RunRequest("pass", run_timeout_s=1.0)
QUICK: dict[str, Any] = {"backoff_s": 0.01, "busy_patience_s": 0.5, "outage_patience_s": 0.5}


def closed_port() -> str:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


async def test_an_answer_is_taken_apart(serve: Serve) -> None:
    async with SandboxClient([serve(FaultyServer(answers).app())]) as client:
        result = await client.run_code(REQUEST)
    assert (result.status, result.return_code, result.stdout, result.files) == (
        "Finished",
        0,
        "hello",
        {"out": b"\0\xff"},
    )


@pytest.mark.parametrize("fault", [sandbox_error, breaks, is_full, talks_nonsense, cuts_off])
async def test_a_retryable_fault_is_retried(serve: Serve, fault: Behaviour) -> None:
    server = FaultyServer(fault, fault, answers)
    async with SandboxClient([serve(server.app())], **QUICK) as client:
        assert (await client.run_code(REQUEST)).stdout == "hello"
    assert server.requests == 3


@pytest.mark.parametrize("fault", [sandbox_error, breaks, is_full, talks_nonsense, cuts_off, refuses])
async def test_a_lasting_fault_is_an_infra_error_that_names_the_server(serve: Serve, fault: Behaviour) -> None:
    url = serve(FaultyServer(fault).app())
    async with SandboxClient([url], attempts=3, **QUICK) as client:
        with pytest.raises(InfraError, match=url):
            await client.run_code(REQUEST)


async def test_nobody_listens() -> None:
    async with SandboxClient([closed_port()], attempts=2, **QUICK) as client:
        with pytest.raises(InfraError):
            await client.run_code(REQUEST)


@pytest.mark.parametrize("fault", [sandbox_error, breaks, cuts_off, refuses, is_full_for_long, None])
async def test_what_fails_here_is_tried_elsewhere(serve: Serve, fault: Behaviour | None) -> None:
    good = FaultyServer(answers)
    bad_url = closed_port() if fault is None else serve(FaultyServer(fault).app())
    async with SandboxClient([bad_url, serve(good.app())], **QUICK) as client:
        results = await asyncio.gather(*(client.run_code(REQUEST) for _ in range(30)))
    assert {result.stdout for result in results} == {"hello"}
    assert good.requests == 30


async def test_a_server_that_hangs_is_given_up(serve: Serve) -> None:
    hanging, good = FaultyServer(hangs, pings=False), FaultyServer(answers)
    urls = [serve(hanging.app()), serve(good.app())]
    async with SandboxClient(urls, watch_every_s=0.5, **QUICK) as client:
        results = await asyncio.gather(*(client.run_code(REQUEST) for _ in range(10)))
    assert {result.stdout for result in results} == {"hello"}


async def test_a_server_that_hangs_is_pinged_once_before_others_are_asked(serve: Serve) -> None:
    """With the usual times, 10 and 5 s, and just after a full second: aiohttp rounds time-outs up to the next one."""
    hanging, good = FaultyServer(hangs, pings=False), FaultyServer(answers)
    async with SandboxClient([serve(hanging.app()), serve(good.app())]) as client:
        await asyncio.sleep(1.1 - asyncio.get_running_loop().time() % 1)
        while not hanging.requests:
            request = asyncio.ensure_future(client.run_code(REQUEST))
            await asyncio.wait({request}, timeout=0.1)
        assert (await request).stdout == "hello"
        assert hanging.pinged <= 2  # and once more to see whether it is back


async def test_a_ping_that_this_process_comes_to_late_is_asked_again(serve: Serve) -> None:
    """As where it takes large answers apart: the server's pong lies unread when the time-out fires."""
    loop = asyncio.get_running_loop()

    async def slowly(request: web.Request) -> web.StreamResponse:
        while server.pinged < 2:
            await asyncio.sleep(0.01)
        return await answers(request)

    class Stalling(FaultyServer):
        async def _ping(self, request: web.Request) -> web.StreamResponse:
            if self.pinged == 0:
                loop.call_soon_threadsafe(time.sleep, 0.6)
                await asyncio.sleep(0.1)
            return await super()._ping(request)

    server = Stalling(slowly)
    async with SandboxClient([serve(server.app())], attempts=1, watch_every_s=0.8, **QUICK) as client:
        assert (await client.run_code(REQUEST)).stdout == "hello"
    assert server.requests == 1


async def test_a_process_that_is_always_late_does_not_wait_for_ever_for_a_dead_server(serve: Serve) -> None:
    loop = asyncio.get_running_loop()

    async def after_many_pings(request: web.Request) -> web.StreamResponse:
        while server.pinged < 15:
            await asyncio.sleep(0.01)
        return await answers(request)

    class Mute(FaultyServer):
        async def _ping(self, request: web.Request) -> web.StreamResponse:
            if self.pinged >= 15:  # else the test, and not only the request, would wait for ever
                return await super()._ping(request)
            self.pinged += 1
            loop.call_soon_threadsafe(time.sleep, 0.3)  # the time-out of 0.2 s fires late
            return await hangs(request)

    server = Mute(after_many_pings)
    async with SandboxClient([serve(server.app())], attempts=1, watch_every_s=0.4, **QUICK) as client:
        with pytest.raises(InfraError, match="stopped answering"):
            await client.run_code(REQUEST)
    assert server.pinged < 15


async def test_a_request_that_is_never_answered_is_tried_elsewhere(serve: Serve) -> None:
    """The server answers pings, so only the time limit tells."""
    hanging, good = FaultyServer(hangs), FaultyServer(answers)
    urls = [serve(hanging.app()), serve(good.app())]
    request = RunRequest("pass", run_timeout_s=0.2)
    async with SandboxClient(urls, grace_s=0.1, **QUICK) as client:
        results = await asyncio.gather(*(client.run_code(request) for _ in range(20)))
    assert {result.stdout for result in results} == {"hello"}
    assert good.requests == 20


async def test_a_long_queue_of_ours_is_waited_for(serve: Serve) -> None:
    """All together take many times as long as one may, one after the other."""
    turn = asyncio.Semaphore(1)

    async def one_by_one(request: web.Request) -> web.StreamResponse:
        async with turn:
            await asyncio.sleep(0.2)
            return await answers(request)

    server = FaultyServer(one_by_one)
    request = RunRequest("pass", run_timeout_s=0.2)
    async with SandboxClient([serve(server.app())], grace_s=1.3, attempts=1, **QUICK) as client:
        await asyncio.gather(*(client.run_code(request) for _ in range(20)))
    assert server.requests == 20


async def test_an_outage_is_waited_out_and_said_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    server = FaultyServer(answers, breaks, answers)
    url = serve(server.app())
    quick: dict[str, Any] = {"attempts": 2, "backoff_s": 0.01, "watch_every_s": 0.1, "notice_s": 0.02}
    async with SandboxClient([url], **quick) as client:
        await client.run_code(REQUEST)
        server.pings = False
        waiting = [asyncio.ensure_future(client.run_code(REQUEST)) for _ in range(5)]
        while server.pinged < 3 or not caplog.records:
            await asyncio.sleep(0.01)
        server.pings = True
        assert {result.stdout for result in await asyncio.gather(*waiting)} == {"hello"}
    said = [record.message for record in caplog.records]
    (waiting_is_said,) = [line for line in said if "waiting" in line]
    assert waiting_is_said.startswith(f"no answer from the sandbox ({url}: HTTP 502): waiting, for up to ")
    assert len(said) == 3 and said_of(url, caplog) == ["down", "back"]


def said_of(url: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says of this server's state, up to the reason."""
    lines = [record.getMessage().partition(f"the sandbox at {url} is ")[2] for record in caplog.records]
    return [line.partition(":")[0].partition(",")[0] for line in lines if line]


async def test_each_change_of_a_servers_state_is_a_line(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    failing, good = serve(FaultyServer(breaks, breaks, breaks, answers).app()), serve(FaultyServer(answers).app())
    dead = closed_port()
    async with SandboxClient([failing, good, dead], **QUICK) as client:
        for _ in range(3):
            await client.run_code(REQUEST, at=failing)
        await asyncio.gather(*(client.run_code(REQUEST) for _ in range(10)))
        assert client.quarantine(failing, "it says that all is right")
        faults = client.take_faults()
        assert faults.pop(dead) >= 1 and faults == {failing: 3}
        assert client.take_faults() == {}
    assert said_of(failing, caplog) == ["failing", "back", "quarantined"]
    assert said_of(dead, caplog) == ["down"]
    assert "is quarantined: it says that all is right" in caplog.text


async def test_a_server_that_is_much_slower_gets_little_until_it_is_fast_again(
    serve: Serve, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pause_s = 2.0

    async def slowly(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(pause_s)
        return await answers(request)

    fast, slow = FaultyServer(answers), FaultyServer(slowly)
    urls = [serve(fast.app()), serve(slow.app())]
    async with SandboxClient(urls, **QUICK) as client:

        async def requests_of_slow() -> int:
            before = slow.requests
            await asyncio.gather(*(client.run_code(REQUEST) for _ in range(40)))
            return slow.requests - before

        at_first = await requests_of_slow()  # nothing is known of either yet
        for _ in range(5):  # where this machine stalls, the fast server looks slow as well
            if (then := await requests_of_slow()) < at_first / 2:
                break
        assert then < at_first / 2
        assert said_of(urls[1], caplog)[0] == "slow"
        pause_s = 0.0
        monkeypatch.setattr("coderl_tasks.grading.client._TIMES_LAST_S", 0.0)
        while await requests_of_slow() < 10:
            continue
    states = said_of(urls[1], caplog)  # "slow" may come again where this machine stalls while old times still count
    assert states[:2] == ["slow", "back"] and states[-1] == "back"
    assert said_of(urls[0], caplog) == []


async def test_a_long_outage_fails_all_requests_at_once(serve: Serve) -> None:
    server = FaultyServer(breaks, pings=False)
    url = serve(server.app())
    async with SandboxClient([url], 1, backoff_s=0.01, watch_every_s=0.1, outage_patience_s=0.5) as client:
        outcomes = await asyncio.gather(*(client.run_code(REQUEST) for _ in range(100)), return_exceptions=True)
    assert all(isinstance(outcome, InfraError) and url in str(outcome) for outcome in outcomes)
    assert server.requests == 1


@pytest.mark.parametrize(("behaviours", "patience_s"), [((answers, breaks), 90), ((breaks,), 5)])
async def test_an_outage_is_waited_out_for_90_s_and_for_5_s_where_no_sandbox_has_ever_answered(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, behaviours: tuple[Behaviour, ...], patience_s: int
) -> None:
    passed_s = 0.0

    async def wait(tasks: Any, *, timeout: float, return_when: str = asyncio.ALL_COMPLETED) -> object:
        nonlocal passed_s
        if return_when == asyncio.FIRST_COMPLETED:  # it waits for a server to come back: so much time passes at once
            passed_s, timeout = passed_s + timeout, 0
        return await asyncio.wait(tasks, timeout=timeout, return_when=return_when)

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + passed_s)
    monkeypatch.setattr(client_module, "time", clock)
    monkeypatch.setattr(client_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"wait": wait}))
    async with SandboxClient([serve(FaultyServer(*behaviours, pings=False).app())]) as client:
        for _ in behaviours[1:]:
            await client.run_code(REQUEST)
        with pytest.raises(InfraError, match=f"^no sandbox has answered for {patience_s} s "):
            await client.run_code(REQUEST)


async def test_what_every_server_refuses_is_not_tried_again(serve: Serve) -> None:
    servers = [FaultyServer(refuses), FaultyServer(refuses)]
    async with SandboxClient([serve(server.app()) for server in servers], **QUICK) as client:
        with pytest.raises(InfraError, match="HTTP 404 no such page"):
            await client.run_code(REQUEST)
    assert [server.requests for server in servers] == [1, 1]


async def test_a_quarantined_server_gets_nothing(serve: Serve) -> None:
    servers = [FaultyServer(answers), FaultyServer(answers)]
    urls = [serve(server.app()) for server in servers]
    async with SandboxClient(urls, **QUICK) as client:
        assert client.quarantine(urls[0], "it lies")
        await asyncio.gather(*(client.run_code(REQUEST) for _ in range(10)))
        with pytest.raises(InfraError, match="it lies"):
            await client.run_code(REQUEST, at=urls[0])
        assert (await client.run_code(REQUEST, at=urls[1])).server == urls[1]
        assert not client.quarantine(urls[1], "it lies too")  # there is no other
    assert [server.requests for server in servers] == [0, 11]


async def test_a_quarantine_ends_with_a_ping_after_a_minute(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    rests_s: list[float] = []
    is_over = asyncio.Event()

    async def sleep(seconds: float) -> None:
        rests_s.append(seconds)
        await is_over.wait()

    monkeypatch.setattr(client_module, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    servers = [FaultyServer(answers), FaultyServer(answers)]
    urls = [serve(server.app()) for server in servers]
    async with SandboxClient(urls) as client:
        assert client.quarantine(urls[0], "it lies")
        assert (await client.run_code(REQUEST)).server == urls[1]
        assert (rests_s, servers[0].pinged) == ([60], 0)
        is_over.set()
        while SERVER_STATES[urls[0]] != "up":
            await asyncio.sleep(0.01)
        assert (await client.run_code(REQUEST, at=urls[0])).server == urls[0]
    assert servers[0].pinged == 1


async def test_a_server_whose_circuit_is_open_comes_back(serve: Serve) -> None:
    server = FaultyServer(breaks, answers)
    other = FaultyServer(answers)
    async with SandboxClient([serve(server.app()), serve(other.app())], **QUICK) as client:
        while server.requests < 5:
            await client.run_code(REQUEST)
    assert other.requests > 0


async def test_load_is_spread_and_bounded(serve: Serve) -> None:
    async def slow(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.02)
        return await answers(request)

    servers = [FaultyServer(slow) for _ in range(3)]
    async with SandboxClient([serve(server.app()) for server in servers], max_concurrency=6) as client:
        await asyncio.gather(*(client.run_code(REQUEST) for _ in range(30)))
    assert [server.most_at_once for server in servers] == [2, 2, 2]


async def test_an_endless_answer_is_the_programs_doing(serve: Serve) -> None:
    server = FaultyServer(floods)
    async with SandboxClient([serve(server.app())], max_answer_bytes=1 << 20) as client:
        result = await client.run_code(REQUEST)
    assert (result.status, result.files, server.requests) == ("AnswerTooLarge", {}, 1)


async def test_a_cancelled_request_leaves_nothing_behind(serve: Serve) -> None:
    server = FaultyServer(hangs, answers)
    async with SandboxClient([serve(server.app())], max_concurrency=1) as client:
        task = asyncio.ensure_future(client.run_code(REQUEST))
        while not server.running:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await client.run_code(REQUEST)).stdout == "hello"
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_cancellation_that_is_lost_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """As aiohttp loses one that comes at the moment of a time-out: the ping fails, and the next one is sent."""
    lost = 0

    async def ping(_: ServerLink) -> bool:
        nonlocal lost
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            lost += 1
            if lost > 2:
                raise
        return False

    monkeypatch.setattr(ServerLink, "_answers_ping", ping)
    async with SandboxClient([closed_port()], attempts=1, **QUICK) as client:
        with pytest.raises(InfraError):
            await client.run_code(REQUEST)
    assert lost == 3


async def test_misuse_is_told() -> None:
    for urls in ([], ["localhost:8080"]):
        with pytest.raises(ConfigError, match="SANDBOX_URL"):
            SandboxClient(urls)
    with pytest.raises(RuntimeError, match="async with"):
        await SandboxClient(["http://127.0.0.1:1"]).run_code(REQUEST)
