"""A tiny random Qwen3 model, served by the embedded Tinker server in a process of its own."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import tinker

from coderl_tasks.policy import clients
from coderl_tasks.services.supervisor import EmbeddedServer
from tests.conftest import Found, Share

VOCABULARY, CONTEXT, END = 64, 256, 1
API_KEY = "tml-test"


@pytest.fixture(scope="session")
def tiny(
    random_qwen3: Callable[..., Any], common: Path, tmp_path_factory: pytest.TempPathFactory, share: Share
) -> Iterator[tuple[str, str]]:
    """The folder of the model, in which token 1 ends a completion, and the address of the server for it."""

    def start(running: ExitStack) -> Found:
        model, log = str(common / "tiny-qwen3"), tmp_path_factory.mktemp("tinker") / "server.log"
        random_qwen3(VOCABULARY, CONTEXT, END, width=32).save_pretrained(model)
        command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "tinker", "--model", model]
        server = EmbeddedServer("Tinker", command, "/api/v1/healthz", log, environment={"OMP_NUM_THREADS": "1"})
        return [model, running.enter_context(server).url]

    with share("tiny-qwen3", start) as (model, url):
        yield model, url


@pytest.fixture(scope="session")
def tiny_model(tiny: tuple[str, str]) -> str:
    return tiny[0]


@pytest.fixture(scope="session")
def tinker_url(tiny: tuple[str, str]) -> str:
    return tiny[1]


@pytest.fixture
async def service(tinker_url: str) -> AsyncIterator[tinker.ServiceClient]:
    """A session with the server."""
    connected = await clients.connect(tinker_url, API_KEY)
    yield connected
    await clients.disconnect(connected)
