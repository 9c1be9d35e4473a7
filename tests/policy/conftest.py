"""A tiny random Qwen3 model, served by the embedded Tinker server in a process of its own."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tinker

from coderl_tasks.policy import clients
from coderl_tasks.services.supervisor import EmbeddedServer

VOCABULARY, CONTEXT, END = 64, 256, 1
API_KEY = "tml-test"


@pytest.fixture(scope="session")
def tiny_model(random_qwen3: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the model; token 1 ends a completion."""
    folder = tmp_path_factory.mktemp("tiny-qwen3")
    random_qwen3(VOCABULARY, CONTEXT, END, width=32).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def tinker_url(tiny_model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the embedded server for the tiny model."""
    command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "tinker", "--model", tiny_model]
    log: Path = tmp_path_factory.mktemp("tinker") / "server.log"
    with EmbeddedServer("Tinker", command, "/api/v1/healthz", log, environment={"OMP_NUM_THREADS": "1"}) as server:
        yield server.url


@pytest.fixture
async def service(tinker_url: str) -> AsyncIterator[tinker.ServiceClient]:
    """A session with the server."""
    connected = await clients.connect(tinker_url, API_KEY)
    yield connected
    await clients.disconnect(connected)
