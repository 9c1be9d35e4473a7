"""Sandbox servers that misbehave as told, for the tests of the client."""

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterator

from aiohttp import web

Behaviour = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def answers(_: web.Request) -> web.StreamResponse:
    result = {"status": "Finished", "execution_time": 0.1, "return_code": 0, "stdout": "hello", "stderr": ""}
    files = {"out": base64.b64encode(b"\0\xff").decode()}
    return web.json_response({"status": "Success", "message": "", "run_result": result, "files": files})


async def sandbox_error(_: web.Request) -> web.StreamResponse:
    return web.json_response({"status": "SandboxError", "message": "disk full", "run_result": None, "files": {}})


async def breaks(_: web.Request) -> web.StreamResponse:
    return web.Response(status=502, text="bad gateway")


async def is_full(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503, headers={"Retry-After": "0.05"})


async def is_full_for_long(_: web.Request) -> web.StreamResponse:
    return web.Response(status=503, headers={"Retry-After": "20"})


async def refuses(_: web.Request) -> web.StreamResponse:
    return web.Response(status=404, text="no such page")


async def talks_nonsense(_: web.Request) -> web.StreamResponse:
    return web.Response(text='{"status": "Success"')


async def floods(_: web.Request) -> web.StreamResponse:
    return web.Response(body=b" " * (4 << 20))


async def hangs(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def cuts_off(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"status": ')
    assert request.transport is not None
    request.transport.abort()
    return response


class FaultyServer:
    """Behaves as each of `behaviours` in turn, then as the last; `pings` says whether it answers a ping."""

    def __init__(self, *behaviours: Behaviour, pings: bool = True) -> None:
        self._behaviours: Iterator[Behaviour] = iter(behaviours)
        self._behaviour = behaviours[0]
        self.pings = pings
        self.requests = 0
        self.pinged = 0
        self.running = 0
        self.most_at_once = 0

    async def _run_code(self, request: web.Request) -> web.StreamResponse:
        await request.read()
        self.requests += 1
        self._behaviour = next(self._behaviours, self._behaviour)
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            return await self._behaviour(request)
        finally:
            self.running -= 1

    async def _ping(self, request: web.Request) -> web.StreamResponse:
        self.pinged += 1
        return web.Response(text="pong") if self.pings else await hangs(request)

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_post("/run_code", self._run_code)
        app.router.add_get("/v1/ping", self._ping)
        return app
