"""The embedded sandbox and a stock server, and problems small enough to be graded in milliseconds."""

import os
from collections.abc import AsyncIterator, Iterator

import pytest

from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.sandbox_programs import DRIVER
from coderl_tasks.services import embedded_sandbox
from tests.conftest import Serve
from tests.grading.stock_sandbox import stock_app
from tests.local_servers.sandbox.sandbox_servers import (
    Installation,
    Sandbox,
    installation_for_anyone,
    refusing_namespaces,
    serving,
)


@pytest.fixture(scope="session")
def embedded_url() -> Iterator[str]:
    with embedded_sandbox() as server:
        yield server.address


@pytest.fixture(scope="session")
def stock_url(serve: Serve) -> str:
    return serve(stock_app())


@pytest.fixture(params=["embedded", "stock"])
def judge(request: pytest.FixtureRequest) -> Judge:
    """A judge on each kind of server in turn, few programs at a time."""
    return request.getfixturevalue(f"{request.param}_judge")


@pytest.fixture
async def embedded_judge(embedded_url: str) -> AsyncIterator[Judge]:
    async with SandboxClient([embedded_url], max_concurrency=4) as client:
        yield Judge(client, timeout_s=10.0)


@pytest.fixture
async def stock_judge(stock_url: str) -> AsyncIterator[Judge]:
    async with SandboxClient([stock_url], max_concurrency=4) as client:
        yield Judge(client, timeout_s=10.0)


@pytest.fixture(scope="session", params=["as this user", "as an ordinary user", "without namespaces"])
def isolated_server(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """An embedded sandbox of two slots at each level of isolation in turn."""
    options, installation = [], Installation()
    if request.param == "as an ordinary user":
        if os.getuid() != 0:
            pytest.skip("only root can become another user; the other tests run as an ordinary one already")
        options, installation = ["--as-ordinary-user"], installation_for_anyone()
    elif request.param == "without namespaces":
        options, installation = refusing_namespaces()
    options += ["--concurrency=2", f"--prepared={DRIVER}"]
    with serving(*options, installation=installation) as server:
        yield server
