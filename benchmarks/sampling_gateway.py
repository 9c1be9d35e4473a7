"""Stands before a server, passes requests on, and notes who samples what; for what kills or delays runs."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import aiohttp
from aiohttp import web
from started_commands import Process


class Gateway:
    """Passes requests on to the server at `target` and notes the seeds of those that sample, each request once.

    `admit(path)` is awaited before each request. With `most`, so many of those that sample are passed on, and the
    others hang until who sent them hangs up.
    """

    def __init__(
        self, target: str, admit: Callable[[str], Awaitable[None]] | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.target, self._host = target, host
        self.most: int | None = None
        self.seeds: list[int] = []
        self.url = ""
        self._admit = admit
        self._seen: set[tuple[str, int]] = set()
        self._arrived = threading.Condition()

    def wait_for(self, count: int, process: Process, is_late: Callable[[], bool] = lambda: False) -> bool:
        """Wait until `count` requests have been noted; False if the process ended before, or `is_late`."""
        with self._arrived:
            while len(self.seeds) < count:
                if process.poll() is not None or is_late():
                    return False
                self._arrived.wait(0.1)
        return True

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Serve on a free port of the host, in a thread, until the block ends."""
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()
        runner = asyncio.run_coroutine_threadsafe(self._start(), loop).result()
        try:
            yield
        finally:
            asyncio.run_coroutine_threadsafe(self._stop(runner), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _start(self) -> web.AppRunner:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False)
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, self._host, 0)
        await site.start()
        self.url = f"http://{self._host}:{runner.addresses[0][1]}"
        return runner

    async def _stop(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.Response:
        body = await request.read()
        if request.path == "/api/v1/asample":
            if self.most is not None and len(self.seeds) >= self.most:
                await asyncio.Event().wait()
            self._note(json.loads(body))
        if self._admit is not None:
            await self._admit(request.path)
        return await self._send(request, body)

    async def _send(self, request: web.Request, body: bytes) -> web.Response:
        """The server's answer to `request`, sent with `body`."""
        own = {"host", "content-length", "transfer-encoding", "connection"}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in own}
        url = self.target + request.raw_path
        try:
            async with self._session.request(request.method, url, headers=headers, data=body) as response:
                kept = {name: value for name, value in response.headers.items() if name.lower() not in own}
                return web.Response(status=response.status, headers=kept, body=await response.read())
        except aiohttp.ClientError:  # the server is down: so is the way to it
            assert request.transport is not None
            request.transport.abort()
            return web.Response()

    def _note(self, sample: dict[str, object]) -> None:
        key = (str(sample["sampling_session_id"]), int(str(sample["seq_id"])))
        params = sample["sampling_params"]
        assert isinstance(params, dict)
        with self._arrived:
            if key not in self._seen:  # else it is sent again, and answered once
                self._seen.add(key)
                self.seeds.append(int(params["seed"]))
                self._arrived.notify_all()
