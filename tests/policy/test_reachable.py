"""A wrong address is found soon, and named."""

import asyncio
import logging
import shutil
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.paths import NANO_MODEL, local_model_folder
from coderl_tasks.policy import clients
from coderl_tasks.policy.clients import lost, require_answer, served_by
from coderl_tasks.services import Services
from coderl_tasks.services.supervisor import free_port
from local_servers.tinker.served_model import served_model
from tests.conftest import Serve
from tests.faults.fault_proxy import FaultProxy


def ours(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What was said here: the SDK says things too, of sessions of other tests."""
    return [record.message for record in caplog.records if record.name == clients.logger.name]


@pytest.mark.parametrize("kind", ["silent", "closed"])
async def test_no_answer_names_the_address_and_the_variable(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    url = request.getfixturevalue(kind)
    monkeypatch.setenv("TINKER_BASE_URL", url)
    with pytest.raises(InfraError, match="coderl doctor") as caught:
        await require_answer(url, patience_s=0.3, notice_s=0.05)
    assert str(caught.value).startswith(f"no answer from Tinker at {url} (TINKER_BASE_URL) in 0.3 s")
    assert [said.rpartition(" ")[0] for said in ours(caplog)] == [
        f"no answer yet from {url} (TINKER_BASE_URL); still trying until"
    ]


async def test_a_session_that_nobody_waits_for_any_more_is_ended(embedded: Services, serve: Serve) -> None:
    assert embedded.tinker_url is not None
    asked: list[str] = []

    def note(path: str) -> bool:
        asked.append(path)
        return False

    slow = FaultProxy(embedded.tinker_url, rates={"delay": 1.0}, delay_s=0.3, spares=note)
    connecting = asyncio.create_task(clients.connect(serve(slow.app()), embedded.tinker_api_key))
    while "/api/v1/create_session" not in asked:
        await asyncio.sleep(0.01)
    connecting.cancel()
    await asyncio.wait([connecting])
    async with asyncio.timeout(60):  # else it would send heartbeats until the end
        while not any(path.endswith("/finish") for path in asked):
            await asyncio.sleep(0.01)
    assert connecting.cancelled()


async def test_a_service_is_told_by_its_address_and_our_engine_by_what_it_is(embedded: Services, serve: Serve) -> None:
    async def offers(_request: web.Request) -> web.Response:
        return web.json_response({"supported_models": [{"model_name": NANO_MODEL, "max_context_length": 512}]})

    other = web.Application()
    other.router.add_get("/api/v1/get_server_capabilities", offers)
    url = serve(other)
    assert await served_by(url, "tml-key", NANO_MODEL) == url
    folder = local_model_folder(NANO_MODEL)
    assert folder is not None
    assert await served_by(embedded.tinker_url, embedded.tinker_api_key, NANO_MODEL) == served_model(folder)
    assert served_model(folder) != served_model(folder, dtype="bfloat16")
    assert await served_by(embedded.tinker_url, "tml-wrong", NANO_MODEL) == embedded.tinker_url


def test_other_weights_are_another_model(tmp_path: Path) -> None:
    folder = local_model_folder(NANO_MODEL)
    assert folder is not None
    shutil.copytree(folder, tmp_path / "copy")
    assert served_model(tmp_path / "copy") == served_model(folder)
    (file,) = (tmp_path / "copy").glob("*.safetensors")
    weights = bytearray(file.read_bytes())
    weights[-1] ^= 1
    file.write_bytes(weights)
    assert served_model(tmp_path / "copy") != served_model(folder)


async def test_any_answer_will_do(embedded: Services, caplog: pytest.LogCaptureFixture) -> None:
    await require_answer(embedded.tinker_url)
    await require_answer(embedded.sandbox_urls[0])  # answers 404
    assert not ours(caplog)


async def test_what_is_no_address_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        await require_answer("http://127.0.0.1:port")


async def test_a_service_that_stays_silent_is_lost(closed: str) -> None:
    with pytest.raises(InfraError, match=f"no answer from Tinker at {closed} for 0.05 s"):
        await lost(closed, outage_s=0.05, every_s=0.01)


async def test_a_service_that_answers_slowly_is_neither_silent_nor_lost(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clients, "CONNECT_S", 0.1)
    answered = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal answered
        await asyncio.sleep(0.3)
        answered += 1
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    url = serve(app)
    await require_answer(url)
    waiting = asyncio.create_task(lost(url, outage_s=0.1, every_s=0.01))
    while answered < 4:
        await asyncio.sleep(0.05)
    assert not waiting.done() and not ours(caplog)
    waiting.cancel()


async def test_a_service_that_comes_back_is_not_lost(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with caplog.at_level(logging.WARNING):
        waiting = asyncio.create_task(lost(f"http://127.0.0.1:{port}", outage_s=60, every_s=0.01))
        while not ours(caplog):
            await asyncio.sleep(0.01)
        async with TestServer(web.Application(), port=port):
            while len(ours(caplog)) < 2:
                await asyncio.sleep(0.01)
        waiting.cancel()
    assert "waiting" in ours(caplog)[0]
    assert ours(caplog)[1].endswith("answers again")
