"""What is published in the Prefect UI, by requests to a server that is away, comes, and refuses."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from coderl_tasks.runtime import display
from coderl_tasks.runtime.display import _Outbox
from coderl_tasks.services.supervisor import free_port

Post = Callable[[str], Callable[[], Coroutine[Any, Any, object]]]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(display, "AWAY_S", 0.05)
    return free_port()


@pytest.fixture
def post(port: int) -> Post:
    def of(text: str) -> Callable[[], Coroutine[Any, Any, object]]:
        async def request() -> object:
            async with httpx.AsyncClient() as client:
                return (await client.post(f"http://127.0.0.1:{port}/", content=text)).raise_for_status()

        return request

    return of


async def test_what_is_published_during_an_outage_arrives_after_it(
    port: int, post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    arrived: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        arrived.append(await request.text())
        return web.Response(status=422 if arrived[-1] == "wrong" else 200)

    outbox = _Outbox()
    outbox.put("the history", post("old"))
    outbox.put("the name", post("name"))
    while "no answer from the Prefect server" not in caplog.text:
        await asyncio.sleep(0.01)
    outbox.put("the history", post("new"))
    outbox.put("the table", post("wrong"))
    app = web.Application()
    app.router.add_post("/", answer)
    async with TestServer(app, port=port):
        await outbox.wait_until_sent(60)
    assert arrived == ["new", "name", "wrong"]  # each once, the newest of its kind
    said = [record.message for record in caplog.records if record.name == "coderl_tasks.runtime.display"]
    assert [line.partition(":")[0] for line in said] == [
        "no answer from the Prefect server",
        "the Prefect server answers again",
        "the table was not published",
    ]


async def test_a_flow_that_ends_during_an_outage_says_what_did_not_arrive(
    post: Post, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = _Outbox()
    outbox.put("the history", post("old"))
    outbox.put("the name", post("name"))
    await outbox.wait_until_sent(0.2)
    assert "not published: the history, the name" in caplog.text
    await outbox.wait_until_sent(0.2)
    assert caplog.text.count("not published") == 1


async def test_an_artifacts_key_is_its_kind_and_name_as_prefect_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[tuple[str, str]] = []

    async def create(markdown: str, key: str) -> None:
        published.append((markdown, key))

    monkeypatch.setattr(display, "acreate_markdown_artifact", create)
    display.publish_later("step-history", "2026_11_21-10_00_00", "text")
    await display._outbox.wait_until_sent(60)
    assert published == [("text", "step-history-2026-11-21-10-00-00")]
