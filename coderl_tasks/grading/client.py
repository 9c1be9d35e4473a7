"""The sandbox client: sends programs to one or many Sandbox Fusion servers, and retries what goes wrong there.

Least loaded first. What went wrong on the way (no connection, 5xx, a cut or senseless answer, SandboxError, no answer
in time) is retried on another server with growing pauses; the circuit of a server that failed is open until `/v1/ping`
answers. A full server (503, 429) is asked again after its Retry-After. While no server is up, requests wait for the
first to come back, for a time counted from the beginning of the outage: a long one fails a whole batch at once, not
request by request. What remains after that is an `InfraError`: never a verdict on the program.
"""

import asyncio
import logging
import random
import time
from collections.abc import Sequence
from typing import Self

import aiohttp

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.grading.server_link import Busy, Failed, Refused, RunRequest, RunResult, ServerLink
from coderl_tasks.server_addresses import sandbox_addresses, without_credentials

_LONGEST_PAUSE_S = 5.0
_LONGEST_GRACE_S = 300.0
_FIRST_ANSWER_S = 5.0
logger = logging.getLogger(__name__)


class SandboxClient:
    """An async context manager around one pooled session to the servers at `urls` (any form of `sandbox_addresses`).

    At most `max_concurrency` requests are in flight, over all servers. A request gets `attempts` attempts, with pauses
    that start at `backoff_s` and double, with jitter. An attempt may take the request's time limit and `grace_s`, which
    doubles too, because others may use the server. A full server is asked again for up to `busy_patience_s`. While no
    server is up, requests wait until the outage has lasted `outage_patience_s`: long enough to restart an embedded
    server that hangs, but only 5 s if no server has ever answered, as the address may be wrong. After `notice_s` the
    log says, once per outage, that requests wait, and later that a server answers again. A server that is silent for
    `watch_every_s` is pinged, and the attempt fails if it does not answer in half that time. An answer that exceeds
    `max_answer_bytes` is the program's doing, and its result says so.
    """

    def __init__(
        self,
        urls: Sequence[str],
        max_concurrency: int = 34,
        *,
        attempts: int = 10,
        backoff_s: float = 0.2,
        grace_s: float = 20.0,
        busy_patience_s: float = 600.0,
        outage_patience_s: float = 90.0,
        watch_every_s: float = 10.0,
        max_answer_bytes: int = 256 << 20,
        notice_s: float = 5.0,
    ) -> None:
        self._urls = sandbox_addresses(urls)
        if not self._urls:
            raise ConfigError("no sandbox server is named: set SANDBOX_URL to what `coderl serve sandbox` prints")
        self._slots = asyncio.Semaphore(max_concurrency)
        self._attempts, self._backoff_s, self._grace_s = attempts, backoff_s, grace_s
        self._busy_patience_s, self._outage_patience_s = busy_patience_s, outage_patience_s
        self._watch_every_s, self._max_answer_bytes = watch_every_s, max_answer_bytes
        self._notice_s, self._outage_logged = notice_s, False
        self._session: aiohttp.ClientSession | None = None
        self._links: list[ServerLink] = []

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of the servers, as `run_code` takes and results name them: without credentials."""
        return tuple(map(without_credentials, self._urls))

    async def __aenter__(self) -> Self:
        # No limit of its own: the slots bound the requests, and a ping must not queue behind them.
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        self._session = session = aiohttp.ClientSession(connector=connector)
        self._links = [
            ServerLink(url, session, self._watch_every_s, self._backoff_s, self._max_answer_bytes) for url in self._urls
        ]
        return self

    async def __aexit__(self, *_: object) -> None:
        links, self._links = self._links, []
        for link in links:
            await link.close()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def run_code(self, request: RunRequest, *, at: str | None = None) -> RunResult:
        """Run a program on the least loaded server, or on the one at the address `at`. Raises InfraError if every
        attempt fails, every server refuses the program, or those that may run it are quarantined."""
        if not self._links:
            raise RuntimeError("SandboxClient is used as `async with SandboxClient(...) as client`")
        body = request.to_json()
        links = [link for link in self._links if at in (None, link.url)]
        failures, avoid, full_since = 0, None, None
        while True:
            # Wait without a slot, here and in the pause below: a waiting request must not keep others from running.
            await self._some_server(links)
            async with self._slots:
                link = min(links, key=lambda one: one.cost(avoided=one is avoid))
                if link.is_open:  # all have gone down while this waited for a slot
                    continue
                takes_s = request.run_timeout_s + min(_LONGEST_GRACE_S, self._grace_s * 2**failures)
                try:
                    return await link.run(body, takes_s)
                except Busy as busy:  # costs patience, and no attempt
                    problem: Exception = busy
                    full_since = full_since or time.monotonic()
                    exhausted = time.monotonic() - full_since > self._busy_patience_s
                    # Pause until the first server that is up takes requests again, with jitter.
                    up = [one for one in links if not one.is_open] or links
                    full_for_s = min(one.retry_at for one in up) - time.monotonic()
                    pause = max(0.0, full_for_s) * random.uniform(1.0, 1.2)
                except Failed as failure:
                    problem = failure
                    failures, avoid, full_since = failures + 1, link, None
                    exhausted = failures >= self._attempts
                    # With jitter, because requests that failed together would all come back at the same time.
                    pause = min(_LONGEST_PAUSE_S, self._backoff_s * 2 ** (failures - 1)) * random.uniform(0.5, 1.0)
                except Refused as refusal:  # this server will never take it, but another one may
                    problem = refusal
                    links.remove(link)
                    exhausted, pause = not links, 0.0
            if exhausted:
                how = f"failed {failures} times, the last time" if failures > 1 else "failed"
                message = f"the sandbox at {link.url} {how}: {problem}. Check SANDBOX_URL, or the server's log"
                raise InfraError(message) from problem
            await asyncio.sleep(pause)

    def quarantine(self, url: str, fault: str) -> bool:
        """Send nothing to this server for a while, whatever it answers to pings, if another one is up; whether it is.
        For a server whose answers are well-formed and no good, which only the caller can tell."""
        if all(link.is_open for link in self._links if link.url != url):
            return False
        for link in self._links:
            # Many requests find the same fault at about the same time: the first starts the minute.
            if link.url == url and not link.is_quarantined:
                link.quarantine(fault)
        return True

    async def _some_server(self, links: Sequence[ServerLink]) -> None:
        """Wait until one of these is up. Raises InfraError if all are quarantined, or the outage lasts too long."""
        while all(link.is_open for link in links):
            if all(link.is_quarantined for link in links):
                raise InfraError(f"the sandbox at {links[0].url} is quarantined: {links[0].fault}")
            # The outage began when the last server went down, so all waiting requests give up at the same time.
            outage_s = time.monotonic() - max(link.open_since for link in links)
            ever_answered = any(link.has_answered for link in links)
            patience_s = self._outage_patience_s if ever_answered else min(_FIRST_ANSWER_S, self._outage_patience_s)
            left, until_notice = patience_s - outage_s, self._notice_s - outage_s
            faults = "; ".join(f"{link.url}: {link.fault}" for link in links)
            if left <= 0:
                why = f"no sandbox has answered for {outage_s:.0f} s ({faults})"
                raise InfraError(f"{why}. Check SANDBOX_URL, or its log")
            if not self._outage_logged and until_notice <= 0:
                self._outage_logged = True
                logger.warning("no answer from the sandbox (%s): waiting, for up to %.0f s more", faults, left)
            pause = left if self._outage_logged else min(left, until_notice)
            probes = [link.probe for link in links if link.probe is not None]
            await asyncio.wait(probes, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        if self._outage_logged:
            self._outage_logged = False
            answering = ", ".join(link.url for link in links if not link.is_open)
            logger.warning("the sandbox answers again: %s", answering)
