"""The embedded sandbox and a stock server, and problems small enough to be graded in milliseconds."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
from aiohttp import web
from sandbox_servers import Sandbox, python_for_anyone, refusing_namespaces, serving
from stock_sandbox import stock_app

from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.services import embedded_sandbox

Serve = Callable[[web.Application], str]


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    with embedded_sandbox() as server:
        yield server.url


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Serves applications on loopback, in a loop and a thread of its own; returns their addresses."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield lambda app: asyncio.run_coroutine_threadsafe(start(app), loop).result()
    for runner in runners:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture(scope="session")
def stock_url(serve: Serve) -> str:
    return serve(stock_app())


@pytest.fixture(params=["embedded", "stock"])
async def judge(request: pytest.FixtureRequest) -> AsyncIterator[Judge]:
    """A judge on each kind of server in turn, few programs at a time."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    async with SandboxClient([url], max_concurrency=4) as client:
        yield Judge(client, timeout_s=10.0)


@pytest.fixture
async def embedded_judge(embedded_url: str) -> AsyncIterator[Judge]:
    async with SandboxClient([embedded_url], max_concurrency=4) as client:
        yield Judge(client, timeout_s=10.0)


@pytest.fixture(scope="session", params=["as this user", "as an ordinary user", "without namespaces"])
def isolated_server(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """An embedded sandbox of two slots at each level of isolation in turn."""
    options, python = [], None
    if request.param == "as an ordinary user":
        if os.getuid() != 0:
            pytest.skip("only root can become another user; the other tests run as an ordinary one already")
        options, python = ["--as-ordinary-user"], python_for_anyone()
    elif request.param == "without namespaces":
        options, python = refusing_namespaces()
    with serving("--concurrency=2", *options, python=python) as server:
        yield server
