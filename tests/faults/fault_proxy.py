"""An HTTP proxy in front of a real server that breaks what passes through it, at given rates, reproducibly.

What befalls a request is drawn from a hash of the seed, the request and how many times it has come, not from the order
of arrival: the same requests meet the same faults however they interleave, and a request that is sent again is drawn
for again.

| fault | the server  | the client                                              |
|-------|-------------|---------------------------------------------------------|
| fail  | not reached | gets one of `failures` instead of an answer             |
| reset | not reached | its connection is reset                                 |
| lose  | does it     | its connection is reset instead of an answer            |
| cut   | does it     | gets the first half of the answer, then a reset         |
| delay | does it     | gets the answer `delay_s` later                         |
| stall | does it     | gets no answer before `stall_s` (default: never)        |
| twice | does it, then again | gets the second answer                          |

`hanging` makes everything, pings included, go unanswered until it is set to False or the client hangs up.
"""

import asyncio
import hashlib
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass

import aiohttp
from aiohttp import web

FAULTS = ("fail", "reset", "lose", "cut", "delay", "stall", "twice")
BAD_GATEWAY = (502, b"bad gateway")
SERVER_ERROR = (500, b"internal server error")
# Headers of one connection, or that the proxy sets anew.
_OWN_HEADERS = {"connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


class FaultProxy:
    """Serves `app()`, in front of the server at `target`.

    `rates` are the shares of requests, by fault; together at most 1. `spares` says which paths pass unharmed.
    """

    def __init__(
        self,
        target: str,
        seed: int = 0,
        *,
        rates: Mapping[str, float],
        failures: Sequence[tuple[int, bytes]] = (BAD_GATEWAY, SERVER_ERROR),
        delay_s: float = 0.2,
        stall_s: float = math.inf,
        spares: Callable[[str], bool] = lambda path: False,
    ) -> None:
        unknown = set(rates) - set(FAULTS)
        if unknown or sum(rates.values()) > 1:
            raise ValueError(f"rates of {', '.join(FAULTS)}, together at most 1, not {dict(rates)}")
        self.requests = 0
        self.met: Counter[str] = Counter()  # faults, by name
        self.hanging = False
        self._target, self._seed, self._rates, self._failures = target.rstrip("/"), seed, dict(rates), failures
        self._delay_s, self._stall_s, self._spares = delay_s, stall_s, spares
        self._times_seen: Counter[bytes] = Counter()
        self._session: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        """The proxy as an application; it needs a runner with handler_cancellation."""
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        app.cleanup_ctx.append(self._with_session)
        return app

    async def _with_session(self, _: web.Application) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False) as self._session:
            yield

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests += 1
        if self.hanging:
            await asyncio.Event().wait()
        draw = self._draw(request, body)
        fault = "" if self._spares(request.path) else self._fault(draw)
        if fault:
            self.met[fault] += 1
        if fault == "fail":
            status, text = draw.choice(self._failures)
            return web.Response(status=status, body=text)
        if fault == "reset":
            return _reset(request)
        try:
            answer = await self._forward(request, body)
            if fault == "twice":
                answer = await self._forward(request, body)
        except aiohttp.ClientError:  # the server itself is down
            return _reset(request)
        if fault == "lose":
            return _reset(request)
        if fault == "cut":
            return await _cut(request, answer)
        if fault == "delay":
            await asyncio.sleep(self._delay_s)
        if fault == "stall":
            await (asyncio.sleep(self._stall_s) if math.isfinite(self._stall_s) else asyncio.Event().wait())
        return web.Response(status=answer.status, headers=answer.headers, body=answer.body)

    def _draw(self, request: web.Request, body: bytes) -> random.Random:
        key = hashlib.sha256(b"\0".join([request.method.encode(), request.path_qs.encode(), body])).digest()
        self._times_seen[key] += 1
        return random.Random(f"{self._seed} {key.hex()} {self._times_seen[key]}")

    def _fault(self, draw: random.Random) -> str:
        left = draw.random()
        for fault, rate in self._rates.items():
            left -= rate
            if left < 0:
                return fault
        return ""

    async def _forward(self, request: web.Request, body: bytes) -> Answer:
        assert self._session is not None
        url, headers = self._target + request.raw_path, _passed_on(request.headers)
        async with self._session.request(request.method, url, headers=headers, data=body) as response:
            return Answer(response.status, _passed_on(response.headers), await response.read())


def _passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _OWN_HEADERS}


def _reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _cut(request: web.Request, answer: Answer) -> web.StreamResponse:
    headers = dict(answer.headers) | {"Content-Length": str(len(answer.body))}
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    await response.write(answer.body[: len(answer.body) // 2])
    assert request.transport is not None
    request.transport.abort()
    return response
