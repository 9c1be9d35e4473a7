"""Outages: a grader whose sandbox fails has no verdict. A reward of 0 for a right program is wrong then.

Each fault is a server of its own that has it for every request; only its health check answers.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from aiohttp import web

from coderl_tasks.scorecard.corpus import Case
from coderl_tasks.scorecard.graders import Outcome, started

Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def _server_error(_: web.Request) -> web.StreamResponse:
    return web.Response(status=500, text="internal server error")


async def _sandbox_error(_: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "SandboxError", "message": "no space left on device", "run_result": None})


async def _page(_: web.Request) -> web.StreamResponse:
    return web.Response(text="<html>starting, please wait</html>", content_type="text/html")


async def _reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _cut(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"status": "Success", "message": "", "run_result": {"status": "Finished", "stdo')
    assert request.transport is not None
    request.transport.abort()
    return response


FAULTS: dict[str, Fault] = {
    "answers 500": _server_error,
    "answers SandboxError": _sandbox_error,
    "answers with a page": _page,
    "resets the connection": _reset,
    "cuts its answer": _cut,
}
CASES = ("sum/stdin-readline", "call/a-lambda", "assert/a-function")
"""Right programs, one of each kind: those that the grader takes."""


@asynccontextmanager
async def _failing(fault: Fault) -> AsyncIterator[tuple[str, list[str]]]:
    """Runs a sandbox server that answers a health check (GET), and every other request with `fault`. Yields its address
    and a list of the paths of the requests that got `fault`."""
    asked: list[str] = []

    async def handle(request: web.Request) -> web.StreamResponse:
        await request.read()  # so that the client has sent all before the fault
        if request.method == "GET":
            return web.Response(text="pong")
        asked.append(request.path)
        return await fault(request)

    app = web.Application(client_max_size=1 << 28)  # requests have tests in them
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


async def _with_fault(target: str, fault: Fault, cases: Sequence[Case]) -> list[Outcome] | None:
    """The outcomes of right programs; None where the grader has sent the sandbox nothing."""
    async with _failing(fault) as (address, asked), started(target, address) as grade:
        outcomes = list(await asyncio.gather(*map(grade, cases)))
        return outcomes if asked else None


async def outages(target: str, cases: Sequence[Case]) -> dict[str, list[Outcome] | None]:
    """Per fault the outcomes of the right programs among `cases` that CASES names."""
    right = [case for case in cases if case.id in CASES]
    found = await asyncio.gather(*(_with_fault(target, fault, right) for fault in FAULTS.values()))
    return dict(zip(FAULTS, found, strict=True))
