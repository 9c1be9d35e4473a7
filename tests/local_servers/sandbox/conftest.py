"""Embedded sandbox servers for the tests: as this user, as an ordinary user, and where namespaces are forbidden."""

import os
from collections.abc import Iterator

import pytest

from tests.local_servers.sandbox.sandbox_servers import (
    PREPARED,
    Sandbox,
    installation_for_anyone,
    refusing_namespaces,
    serving,
)

OPTIONS = ("--concurrency=2", f"--prepared={PREPARED}")


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    """A server of two slots, as the user who runs the tests."""
    with serving(*OPTIONS) as server:
        yield server


@pytest.fixture(scope="session")
def ordinary_sandbox() -> Iterator[Sandbox]:
    """A server of an ordinary user's."""
    if os.getuid() != 0:
        pytest.skip("only root can become another user; the other tests run as an ordinary one already")
    with serving(*OPTIONS, "--as-ordinary-user", installation=installation_for_anyone()) as server:
        yield server


@pytest.fixture(scope="session")
def landlock_sandbox() -> Iterator[Sandbox]:
    """A server of an ordinary user's in a place where user namespaces are forbidden."""
    options, installation = refusing_namespaces()
    with serving(*OPTIONS, *options, installation=installation) as server:
        yield server


@pytest.fixture(params=["sandbox", "ordinary_sandbox", "landlock_sandbox"])
def any_sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Each of the servers in turn."""
    server: Sandbox = request.getfixturevalue(request.param)
    return server
