"""The sandbox client: sends programs to one or many Sandbox Fusion servers, and retries what goes wrong there.

Choice of a server. The one that gets to a request first: it has the fewest requests of ours, or is the fastest where
another one is several times slower than it. What went wrong on the way (no connection, 5xx, a cut or senseless answer,
SandboxError, no answer in time) is retried on another server with growing pauses. A full server (503, 429) is asked
again after its Retry-After. While no server is up, requests wait for the first to come back, for a time counted from
the beginning of the outage, so that they fail together. What remains is an `InfraError`: never a verdict on a program.

Time limits. A server runs what it is sent in order, so a request's turn comes, at the latest, when all that we sent
before it are done. From then on it may take its own time and a grace. A slow server with a long queue of ours is
waited for, as long as it gets on; one that has gone quiet is not, whether or not it still answers pings.

Circuit. A server that failed has its circuit open: it gets nothing before it answers `/v1/ping`. Where it fails again
without a success in between, it rests first, longer each time, and is half-open afterwards: it gets one request at a
time as long as there is another server to send to. One whose answers are well-formed and no good is quarantined: its
circuit stays open for a minute, and then until it answers a ping. The log has a line for each change.
"""

import asyncio
import base64
import json
import logging
import math
import random
import time
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache
from statistics import median
from typing import Any, Self

import aiohttp

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.server_addresses import sandbox_addresses, without_credentials

_LONGEST_PAUSE_S = 5.0
_LONGEST_GRACE_S = 300.0
_FIRST_ANSWER_S = 5.0
_BUSY_STATUSES = (429, 503)
_LONGEST_RETRY_AFTER_S = 30.0
_LONGEST_REST_S = 10.0
_CONNECT_S = 10.0
_CANCEL_AGAIN_S = 0.1
_QUARANTINE_S = 60.0
_HALF_OPEN_FAILURES = 2  # one failure may be a restart, after which it takes all it is sent
_LATE = 1.1  # times its length, after which a time-out says that this process did not come to it
_LATE_PINGS = 5  # in a row: after fewer, a server that answers has been heard
_ERRORS_IN_A_ROW = 3  # each may be one run's trouble; so many are the server's
_SLOW_FROM = 5.0  # times the fastest one's seconds: below, the difference may be the programs'
_SHORTEST_S = 0.05  # requests that take less count as taking so long: differences among milliseconds mean nothing
_FEWEST_TIMES = 5  # before these, nothing is known of a server
_TIMES_LAST_S = 60.0  # then a slow server may be fast again, and gets a request
UP, _DOWN, _FAILING, _QUARANTINED, SLOW = "up", "down", "failing", "quarantined", "slow"

SERVER_STATES: dict[str, str] = {}
"""What was last said of each server that this process asks, by address."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunRequest:
    """One run of the Python program `code`."""

    code: str
    files: Mapping[str, bytes] = field(default_factory=dict)  # in its working directory
    fetch_files: Sequence[str] = ()  # sent back
    run_timeout_s: float = 10.0  # wall clock
    memory_limit_mb: int = -1  # per process; the server's own
    stdin: str = ""

    def to_json(self) -> bytes:
        """The body of POST /run_code."""
        body = {
            "language": "python",
            "run_timeout": self.run_timeout_s,
            "compile_timeout": self.run_timeout_s,
            "memory_limit_MB": self.memory_limit_mb,
            "stdin": self.stdin,
            "files": {path: base64.b64encode(data).decode() for path, data in self.files.items()},
            "fetch_files": list(self.fetch_files),
        }
        # The code first: there the embedded server recognizes a driver without decoding it.
        return f'{{"code": {_as_json(self.code)}, {json.dumps(body)[1:]}'.encode()


# A grading driver is sent with each request, and to encode its text takes as long as all the rest.
_as_json = lru_cache(maxsize=4)(json.dumps)


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a server answered. All of it but `server` was in the program's hands and is to be taken as data."""

    status: str  # Finished, Error, TimeLimitExceeded, or AnswerTooLarge for the client's limit: nothing of it was kept
    return_code: int | None
    stdout: str
    stderr: str
    files: Mapping[str, bytes]  # those of `fetch_files` that the program left
    server: str
    retries: int = 0  # attempts before it that came to nothing

    def report(self, most_bytes: float = math.inf) -> dict[str, Any]:
        """The JSON object in the file results.json; empty if there is none. Of one with more bytes only the id counts:
        it tells whether it is another request's, which may have larger limits."""
        written = self.files.get("results.json", b"")
        try:
            report = json.loads(written)
        except (ValueError, RecursionError):
            report = None
        if not isinstance(report, dict):
            return {}
        return report if len(written) <= most_bytes else {"id": report.get("id")}


class Failed(Exception):
    """An attempt came to nothing."""


class Busy(Exception):
    """The server is full until its `retry_at`."""


class Refused(Exception):
    """The server will never take this request (HTTP 4xx)."""


def parse_answer(answer: bytes | bytearray, server: str) -> RunResult:
    """The result in the body of a 200 answer from `server`. Raises Failed for a SandboxError and for nonsense."""
    try:
        body: dict[str, Any] = json.loads(answer)
        if body["status"] == "SandboxError":
            raise Failed(f"SandboxError: {str(body.get('message'))[:200]}")
        run: dict[str, Any] = body["run_result"]
        sent = {str(path): data for path, data in (body.get("files") or {}).items() if data is not None}
        files = {path: base64.b64decode(data, validate=True) for path, data in sent.items()}
        return_code = code if isinstance(code := run.get("return_code"), int) else None
        stdout, stderr = (str(run.get(stream) or "") for stream in ("stdout", "stderr"))
        return RunResult(str(run["status"]), return_code, stdout, stderr, files, server)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Failed(f"a senseless answer ({type(error).__name__}: {error})") from error


@dataclass(eq=False)
class _Turn:
    """A request at the server."""

    since: float  # monotonic seconds: from then on it waits for its turn
    takes_s: float  # what it may take once it is its turn
    sent: float = field(default_factory=time.monotonic)


class ServerLink:
    """The server at `url`, asked through `session`, with the settings of its `client`."""

    def __init__(self, url: str, session: aiohttp.ClientSession, client: "SandboxClient") -> None:
        self.url, self._address = without_credentials(url), url  # the first is for messages and verdicts
        self._session, self._client = session, client
        self.retry_at = 0.0  # monotonic seconds: when the server's Retry-After is over
        self.circuit_opened_at, self.fault = 0.0, ""  # monotonic seconds, and why
        self.probe: asyncio.Task[None] | None = None
        self.is_quarantined = False
        self.has_answered = False  # anything but an error
        self.turns: list[_Turn] = []  # the requests under way here, in the order of sending
        self.failures = 0  # times that the circuit was opened since the last success
        self._bad_answers = 0  # answers without a result since the last success
        self.faults = 0  # requests that came to nothing here
        self.state = SERVER_STATES[self.url] = UP  # what was last said
        self._state_since = time.monotonic()
        self._times_s: deque[float] = deque(maxlen=16)  # of the last requests, from sending to the result
        self._answered_at = -math.inf

    def say(self, state: str, why: str) -> None:
        """Log that the server's state is another one now."""
        if state == self.state:
            return
        if state == UP:
            lasted_s = time.monotonic() - self._state_since
            logger.warning("the sandbox at %s is back, %s for %.0f s", self.url, self.state, lasted_s)
        else:
            logger.warning("the sandbox at %s is %s: %s", self.url, state, why)
        self.state, self._state_since = state, time.monotonic()
        SERVER_STATES[self.url] = state

    def seconds(self) -> float | None:
        """What a request takes here: the median of the last ones, or of those under way for longer; None if unknown."""
        now = time.monotonic()
        under_way = [now - turn.sent for turn in self.turns]
        if len(self._times_s) < _FEWEST_TIMES:
            return median(under_way) if len(under_way) >= _FEWEST_TIMES else None
        if not under_way and now - self._answered_at > _TIMES_LAST_S:
            return None
        return median(self._times_s)

    @property
    def circuit_is_open(self) -> bool:
        """Whether it gets nothing, as it failed or is quarantined, until it answers a ping."""
        return self.probe is not None

    def cost(self, slowness: float, *, avoided: bool) -> tuple[float, ...]:
        """What a request sent here may cost, to compare servers by: an open circuit takes nothing, a full server
        makes wait, one that is half-open may fail and has with one request all that is to show that it works again.
        `slowness` is 1, or how many times slower than the fastest one it is."""
        is_full, is_tried = self.retry_at > time.monotonic(), self.failures >= _HALF_OPEN_FAILURES and bool(self.turns)
        return (self.circuit_is_open, is_full, is_tried, avoided, slowness * (len(self.turns) + 1), random.random())

    async def run(self, body: bytes, takes_s: float) -> RunResult:
        """POST /run_code and wait for the result: at most `takes_s` after the time that earlier requests may take, and
        only while the server answers pings. Raises Failed, Busy or Refused."""
        left_s = self.retry_at - time.monotonic()
        if left_s > 0:
            raise Busy(f"full, retry after {left_s:.2g} s")
        turn = _Turn(time.monotonic(), takes_s)
        self.turns.append(turn)
        post = asyncio.ensure_future(self._post(body))
        try:
            while True:
                earlier = self.turns[: self.turns.index(turn)]
                # The latest end, not the sum: each result restarts the clock of all later turns.
                its_turn = max([turn.since, *(other.since + other.takes_s for other in earlier)])
                left_s = its_turn + takes_s - time.monotonic()
                done, _ = await asyncio.wait({post}, timeout=max(0.0, min(left_s, self._client.watch_every_s)))
                if done:
                    break
                if left_s <= 0:
                    raise self._failure_opening_circuit(f"no answer within {takes_s:g} s")
                # The result may arrive during the ping, so `post` is checked once more.
                if not await self._answers_ping() and not post.done():
                    raise self._failure_opening_circuit("it stopped answering")
            result = post.result()
        finally:
            position = self.turns.index(turn)
            del self.turns[position]
            # So that its connection is closed before the caller goes on, even if that is cancelled.
            await ended([post])
        # Only a result restarts the later requests' time: a failure does not show how far the server has got.
        for later in self.turns[position:]:
            later.since = time.monotonic()
        self.failures = self._bad_answers = 0
        self.has_answered = True
        self._answered_at = time.monotonic()
        self._times_s.append(self._answered_at - turn.sent)
        if self.state == _FAILING:
            self.say(UP, "")
        return result

    def quarantine(self, fault: str) -> None:
        if self.probe is not None:
            self.probe.cancel()
        self.is_quarantined = True
        self.say(_QUARANTINED, fault)
        self._open_circuit(fault, _QUARANTINE_S)

    def _open_circuit(self, fault: str, rest_s: float) -> None:
        self.fault, self.circuit_opened_at = fault, time.monotonic()
        self.probe = asyncio.ensure_future(self._close_circuit(rest_s))

    async def _post(self, body: bytes) -> RunResult:
        """POST /run_code, without a time limit once it is connected. Raises Failed, Busy or Refused."""
        # `run` enforces the limit, which depends on the queue here. Only connecting has a limit of its own.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S)
        url, headers = f"{self._address}/run_code", {"Content-Type": "application/json"}
        answer = bytearray()
        try:
            async with self._session.post(url, data=body, headers=headers, timeout=timeout) as response:
                if response.status in _BUSY_STATUSES:
                    try:
                        seconds = float(response.headers.get("Retry-After") or 1.0)
                        seconds = min(_LONGEST_RETRY_AFTER_S, max(0.05, seconds))
                    except ValueError:  # a date
                        seconds = 1.0
                    self.retry_at = time.monotonic() + seconds
                    raise Busy(f"full, retry after {seconds:g} s")
                if response.status >= 500:
                    raise self._failure_opening_circuit(f"HTTP {response.status}")
                if response.status != 200:
                    text = f"HTTP {response.status} {(await response.text(errors='replace'))[:200]}"
                    raise Refused(f"it refused a request: {text}. Is it a Sandbox Fusion server?")
                # Read in parts: a program's output must not fill this process's memory.
                async for part in response.content.iter_any():
                    answer += part
                    if len(answer) > self._client.max_answer_bytes:
                        response.close()  # the rest is not read
                        return RunResult("AnswerTooLarge", None, stdout="", stderr="", files={}, server=self.url)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._failure_opening_circuit(str(error) or type(error).__name__) from error
        try:
            return parse_answer(answer, self.url)
        except Failed as error:
            # The program may have caused one such answer. Only several without a result between them open the circuit.
            self._bad_answers += 1
            if self._bad_answers >= _ERRORS_IN_A_ROW:
                raise self._failure_opening_circuit(str(error)) from error
            raise

    def _failure_opening_circuit(self, fault: str) -> Failed:
        """The error to raise. Opens the circuit until the server answers a ping, after a rest if it failed before."""
        # All requests under way fail together when a server dies: that is one failure.
        if self.probe is None:
            self.failures += 1
            if self.failures >= _HALF_OPEN_FAILURES:  # though it answers pings
                self.say(_FAILING, fault)
            doubled_s = self._client.backoff_s * 2 ** min(self.failures - 2, 20)
            rest_s = min(_LONGEST_REST_S, doubled_s) if self.failures > 1 else 0
            self._open_circuit(fault, rest_s * random.uniform(0.5, 1.0))
        return Failed(fault)

    async def _close_circuit(self, rest_s: float) -> None:
        await asyncio.sleep(rest_s)
        pause = self._client.backoff_s
        while not await self._answers_ping():
            self.say(_DOWN, self.fault)
            await asyncio.sleep(pause)
            pause = min(5.0, 2 * pause)
        if self.probe is not asyncio.current_task():  # a quarantine has begun meanwhile, which has its own
            return
        if self.state in (_DOWN, _QUARANTINED):
            self.say(UP, "")
        self._times_s.clear()  # a server that was restarted may be another machine
        self.probe, self.is_quarantined = None, False

    async def _answers_ping(self) -> bool:
        """Whether the server answers GET /v1/ping with 200 before half the watch interval is over. A time-out that
        fires late says nothing of the server: this process was too busy to read its answer, and asks again."""
        within_s = self._client.watch_every_s / 2
        # At most so often: if this process were always late, a request to a dead server would never end. If a living
        # one is called dead instead, the request is sent again, and no verdict changes.
        for _ in range(_LATE_PINGS):
            asked = time.monotonic()
            try:
                # Without the threshold, aiohttp prolongs 5 s to the next full second, which would look late here.
                timeout = aiohttp.ClientTimeout(total=within_s, ceil_threshold=math.inf)
                async with self._session.get(f"{self._address}/v1/ping", timeout=timeout) as response:
                    up = response.status == 200
                    self.has_answered = self.has_answered or up
                    return up
            except TimeoutError:
                fired_late = time.monotonic() - asked >= _LATE * within_s
                if not fired_late:
                    return False
            except aiohttp.ClientError:
                return False
        return False


async def ended(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel these until they end: a cancellation at the moment of a time-out can be lost in aiohttp."""
    while waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_S)
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raised counts as read


def slownesses(links: Sequence[ServerLink]) -> dict[str, float]:
    """Returns by address how many times slower than the fastest server each one is, to choose servers by. A server is
    1 if it is less than _SLOW_FROM times slower, or if the time of its requests is not known. Logs changes."""
    slowness = dict.fromkeys((link.url for link in links), 1.0)
    request_s: dict[str, float] = {}  # the time that a request takes, of the servers that get any now
    for link in links:
        if not link.circuit_is_open and (seconds := link.seconds()) is not None:
            request_s[link.url] = seconds
    if len(request_s) < 2:  # nothing to compare with
        return slowness
    fastest_s = max(_SHORTEST_S, min(request_s.values()))  # at least that: differences of milliseconds are ignored
    for link in links:
        if link.url not in request_s:
            continue
        times = request_s[link.url] / fastest_s
        if times >= _SLOW_FROM:
            slowness[link.url] = times
            if link.state == UP:
                taken = f"{request_s[link.url]:.2g} s, {times:.0f} times as long as at the fastest one"
                link.say(SLOW, f"a request takes {taken}")
        # At half the threshold, so that a server near it is not logged as slow and up again by turns.
        elif link.state == SLOW and times < _SLOW_FROM / 2:
            link.say(UP, "")
    return slowness


@dataclass(eq=False, repr=False)
class SandboxClient:
    """An async context manager around one pooled session to the servers at `urls` (any form of `sandbox_addresses`; the
    attribute has them as `run_code` takes and results name them: without credentials). Raises ConfigError for none."""

    urls: Sequence[str]
    # Requests in flight, over all servers: programs that one Sandbox Fusion server runs at a time, as usually set up.
    max_concurrency: int = 34
    _: KW_ONLY
    attempts: int = 10  # of each request
    backoff_s: float = 0.2  # the first pause between them, which doubles, with jitter; and a server's first rest
    grace_s: float = 20.0  # beside a request's time limit, as others may use the server; doubles with each attempt
    busy_patience_s: float = 600.0  # so long a full server is asked again
    # Of an outage of all servers: enough to restart an embedded one. Only 5 s if none has ever answered.
    outage_patience_s: float = 90.0
    watch_every_s: float = 10.0  # a server that is silent for so long is pinged, and has half the time to answer
    max_answer_bytes: int = 256 << 20  # a longer answer is the program's doing, and its result says so
    notice_s: float = 5.0  # after so long the log says, once per outage, that requests wait

    def __post_init__(self) -> None:
        self._addresses = sandbox_addresses(self.urls)
        if not self._addresses:
            raise ConfigError("no sandbox server is named: set SANDBOX_URL to what `coderl serve sandbox` prints")
        self.urls = tuple(map(without_credentials, self._addresses))
        self._slots = asyncio.Semaphore(self.max_concurrency)
        self._outage_logged = False  # whether the log has the present outage
        self._session: aiohttp.ClientSession | None = None
        self._links: list[ServerLink] = []

    async def __aenter__(self) -> Self:
        # No limit of its own: the slots bound the requests, and a ping must not queue behind them.
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=30))
        self._links = [ServerLink(url, self._session, self) for url in self._addresses]
        return self

    async def __aexit__(self, *_: object) -> None:
        probes = [link.probe for link in self._links if link.probe is not None]
        self._links = []
        await ended(probes)
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
            await self._wait_for_a_server(links)
            async with self._slots:
                slowness = slownesses(links)
                link = min(links, key=lambda server: server.cost(slowness[server.url], avoided=server is avoid))
                if link.circuit_is_open:  # all have gone down while this waited for a slot
                    continue
                # The grace doubles, as the last attempt may have failed because others kept the server busy for longer.
                takes_s = request.run_timeout_s + min(_LONGEST_GRACE_S, self.grace_s * 2**failures)
                try:
                    return replace(await link.run(body, takes_s), retries=failures)
                except Busy as busy:  # costs patience, and no attempt
                    problem: Exception = busy
                    full_since = full_since or time.monotonic()
                    exhausted = time.monotonic() - full_since > self.busy_patience_s
                    # Pause until the first server that is up takes requests again, with jitter.
                    up = [server for server in links if not server.circuit_is_open] or links
                    full_for_s = min(server.retry_at for server in up) - time.monotonic()
                    pause = max(0.0, full_for_s) * random.uniform(1.0, 1.2)
                except Failed as failure:
                    link.faults += 1
                    problem = failure
                    failures, avoid, full_since = failures + 1, link, None  # not full any more: patience starts anew
                    exhausted = failures >= self.attempts
                    # With jitter, because requests that failed together would all come back at the same time.
                    pause = min(_LONGEST_PAUSE_S, self.backoff_s * 2 ** (failures - 1)) * random.uniform(0.5, 1.0)
                except Refused as refusal:  # this server will never take it, but another one may
                    problem = refusal
                    links.remove(link)
                    exhausted, pause = not links, 0.0
            if exhausted:
                how = f"failed {failures} times, the last time" if failures > 1 else "failed"
                message = f"the sandbox at {link.url} {how}: {problem}. Check SANDBOX_URL, or the server's log"
                raise InfraError(message) from problem
            await asyncio.sleep(pause)

    def take_faults(self) -> dict[str, int]:
        """How many requests have come to nothing at each server since this was last asked; without those at which none
        has. They were sent again, unless that was their last attempt."""
        faults = {link.url: link.faults for link in self._links if link.faults}
        for link in self._links:
            link.faults = 0
        return faults

    def quarantine(self, url: str, fault: str) -> bool:
        """Send nothing to this server for a while, whatever it answers to pings, if another one is up; whether it is.
        For a server whose answers are well-formed and no good, which only the caller can tell."""
        if all(link.circuit_is_open for link in self._links if link.url != url):
            return False
        for link in self._links:
            # Many requests find the same fault at about the same time: the first starts the minute.
            if link.url == url and not link.is_quarantined:
                link.quarantine(fault)
        return True

    async def _wait_for_a_server(self, links: Sequence[ServerLink]) -> None:
        """Wait until one of these gets requests again. Raises InfraError if all are quarantined, or the outage lasts
        too long. The log says once per outage, after a while, that requests wait."""
        while all(link.circuit_is_open for link in links):
            if all(link.is_quarantined for link in links):  # a quarantine lasts a minute: too long to wait for its end
                raise InfraError(f"the sandbox at {links[0].url} is quarantined: {links[0].fault}")
            # The outage began when the last server went down, so all waiting requests fail at the same time.
            outage_s = time.monotonic() - max(link.circuit_opened_at for link in links)
            ever_answered = any(link.has_answered for link in links)  # if not, the address may be wrong
            longest_s = self.outage_patience_s if ever_answered else min(_FIRST_ANSWER_S, self.outage_patience_s)
            left_s, until_notice_s = longest_s - outage_s, self.notice_s - outage_s
            faults = "; ".join(f"{link.url}: {link.fault}" for link in links)
            if left_s <= 0:
                why = f"no sandbox has answered for {outage_s:.0f} s ({faults})"
                raise InfraError(f"{why}. Check SANDBOX_URL, or its log")
            if not self._outage_logged and until_notice_s <= 0:
                self._outage_logged = True
                logger.warning("no answer from the sandbox (%s): waiting, for up to %.0f s more", faults, left_s)
            next_event_s = left_s if self._outage_logged else min(left_s, until_notice_s)  # the end, or the log's line
            # A server's probe pings it, and ends when it answers.
            probes = [link.probe for link in links if link.probe is not None]
            await asyncio.wait(probes, timeout=next_event_s, return_when=asyncio.FIRST_COMPLETED)
        self._outage_logged = False
