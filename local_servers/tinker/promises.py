"""Promises: what a submitted request will be answered with, found again by its id however often the client asks.

1. A request id is derived from the client's own sequence number, so a request that is sent again finds the promise
   of the first one and is not computed a second time.
2. An answer that was fetched stays while it is among the newest few, in case it got lost on the way; the others until
   newer answers need their room. What went is remembered as answered: a late resend is refused (410), not computed.
3. All of it lives in the server's event loop; nothing here is thread-safe.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

import pydantic
from google.protobuf.message import Message

from local_servers.memory import as_out_of_memory
from local_servers.server_errors import ServerError
from local_servers.tinker.refusal import BadRequest, Refusal, gone

JSON = "application/json"
PROTOBUF = "application/x-protobuf"

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_DISK_FULL_TEXT = (
    "the disk of the embedded Tinker server is full: free some space where CODERL_HOME is (coderl clean --weights "
    "removes checkpoints that no run names), then run the same command again: what is recorded stays"
)
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answer:
    """The body that `retrieve_future` sends; `failed` when it reports an error."""

    body: bytes
    content_type: str = JSON
    failed: bool = False


def content_of(message: pydantic.BaseModel | Message) -> bytes:
    """What a request asks for, the same bytes for the same message: a resend has them, another request does not."""
    # deterministic, as a map has no order of its own
    proto = isinstance(message, Message)
    body = message.SerializeToString(deterministic=True) if proto else message.model_dump_json().encode()
    return hashlib.blake2b(body, digest_size=16).digest()


def json_answer(payload: dict[str, object]) -> Answer:
    return Answer(json.dumps(payload).encode())


def failure(message: str, category: Literal["user", "server"]) -> Answer:
    """The answer of a request that failed; `user` when the caller has to change something."""
    return Answer(json.dumps({"error": message, "category": category}).encode(), failed=True)


@dataclass
class Promise:
    """One accepted request: still running, answered, or refused when it was submitted."""

    request_id: str
    kind: str
    content: bytes = b""
    answer: Answer | None = None
    refusal: Refusal | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class PromiseTable:
    """All promises of the server, with bounds on the memory that they take: answers `max_bytes` in all, and those that
    were fetched `max_read_bytes`."""

    max_answers: int = 20_000
    max_bytes: int = 256 * 2**20
    max_read_bytes: int = 16 * 2**20
    max_forgotten: int = 100_000

    def __post_init__(self) -> None:
        self._promises: dict[str, Promise] = {}
        self._unread: OrderedDict[str, int] = OrderedDict()
        self._read: OrderedDict[str, int] = OrderedDict()
        self._forgotten: dict[str, None] = {}
        self._bytes = self._read_bytes = 0

    def find(self, request_id: str, kind: str, content: bytes = b"") -> Promise | None:
        """The promise of an earlier submission under this id, None for a new one. Raises Refusal: what the first
        submission was refused with; 400 if it was another kind of request, or of other content (`content_of`); 410 if
        its answer is no longer kept."""
        if request_id in self._forgotten:
            raise Refusal(410, f"request {request_id} was answered before and its answer is no longer kept")
        promise = self._promises.get(request_id)
        if promise is None:
            return None
        if promise.kind != kind:
            raise BadRequest(f"request {request_id} is a {promise.kind}, and cannot be reused for a {kind}")
        # A resend of what was refused is told the same, and is not looked at anew.
        if promise.refusal is not None:
            raise promise.refusal
        if promise.content != content:  # its answer would be taken for the answer to this one
            raise BadRequest(f"request {request_id} was sent before with other content, and counts as that one")
        return promise

    def open(self, request_id: str, kind: str, content: bytes = b"") -> Promise:
        """A new promise; `find` must have returned None."""
        assert request_id not in self._promises, request_id
        promise = self._promises[request_id] = Promise(request_id, kind, content)
        return promise

    def resolve(self, promise: Promise, answer: Answer) -> None:
        """Answer the promise, once: a later answer (after a cancellation, say) is dropped."""
        if promise.answer is not None:
            return
        promise.answer = answer
        # A running promise is in neither group and so never forgotten; an answer is counted from now on.
        self._unread[promise.request_id] = len(answer.body)
        self._bytes += len(answer.body)
        promise.done.set()
        while len(self._read) + len(self._unread) > self.max_answers or self._bytes > self.max_bytes:
            if not self._forget_oldest(spare=promise.request_id):
                break

    def get(self, request_id: str) -> Promise:
        """The promise that a client waits for; Refusal 410 if there is none."""
        promise = self._promises.get(request_id)
        if promise is None:
            raise gone(f"request {request_id}")
        return promise

    async def wait(self, promise: Promise, timeout_s: float) -> Answer | None:
        """The promise's answer, or None if it is still running after `timeout_s` seconds."""
        if promise.answer is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(promise.done.wait(), timeout_s)
        return promise.answer

    def mark_read(self, request_id: str) -> None:
        """The client has fetched this answer: it is among the first to go when room is needed."""
        size = self._unread.pop(request_id, None)
        if size is not None:
            self._read[request_id] = size
            self._read_bytes += size
            while self._read_bytes > self.max_read_bytes and len(self._read) > 1:
                self._forget_oldest(spare=request_id)

    def _forget_oldest(self, spare: str) -> bool:
        # Those that were fetched first: of the others a client may still be waiting for each.
        for group in (self._read, self._unread):
            oldest = next((request_id for request_id in group if request_id != spare), None)
            if oldest is not None:
                size = group.pop(oldest)
                self._bytes -= size
                self._read_bytes -= size if group is self._read else 0
                del self._promises[oldest]
                # The id stays when the answer goes: a resend must not be taken for a new request, which would add its
                # gradient a second time.
                self._forgotten[oldest] = None
                if len(self._forgotten) > self.max_forgotten:
                    del self._forgotten[next(iter(self._forgotten))]
                return True
        return False

    def counts(self) -> dict[str, int]:
        """How many promises are running, answered and forgotten, and the bytes that answers take."""
        counts = {"answered": len(self._read) + len(self._unread), "forgotten": len(self._forgotten)}
        return {"running": len(self._promises) - counts["answered"], **counts, "answer_bytes": self._bytes}


def status_and_text(error: Exception, what: str) -> tuple[int, str]:
    """The HTTP status of an error, 500 and more where the caller need not change anything, and what it says; logs
    faults of the machine or of the server, as of `what`."""
    if isinstance(error, Refusal):
        return error.status, error.message
    # Told apart from a fault of the server: with room made, the same request succeeds.
    out_of_memory = as_out_of_memory(error)
    # safetensors has the system's error in its text alone
    in_text = any(f"(os error {number})" in str(error) for number in _DISK_FULL)
    if out_of_memory is not None or in_text or getattr(error, "errno", None) in _DISK_FULL:
        text = str(out_of_memory) if out_of_memory is not None else _DISK_FULL_TEXT
        logger.error("%s: %s", what, text)
        return 507, text
    # Above all a model that this server cannot run: the same request would fail again, so it is the client's to change.
    if isinstance(error, ServerError):
        return 400, str(error)
    logger.exception("%s failed", what)
    return 500, f"the server failed: {type(error).__name__}: {error}"


async def settle(table: PromiseTable, promise: Promise, work: Callable[[], Awaitable[Answer]]) -> bool:
    """Run `work` and resolve the promise with its answer or its failure; whether it succeeded."""
    try:
        answer = await work()
    except Exception as error:
        status, text = status_and_text(error, f"request {promise.request_id}")
        answer = failure(text, "user" if status < 500 else "server")
    table.resolve(promise, answer)
    return not answer.failed
