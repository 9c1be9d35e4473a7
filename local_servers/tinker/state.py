"""Everything one server process holds: client sessions, samplers, models, the store; and what its handlers share.

A client session is opened by a ServiceClient, kept by its heartbeat, ended by its `close` or by silence. A sampling
session says which weights a sampling client draws from: named ones are read from disk when they are needed, a snapshot
without a name lives in memory alone, as an adapter, while it is among the newest of its session.
"""

import asyncio
import json
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import pydantic
from aiohttp import web
from tinker import types

from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.engines import EngineHost, EnginePool
from local_servers.tinker.models import TrainingModel
from local_servers.tinker.promises import Promise, PromiseTable
from local_servers.tinker.provenance import RecordedSequences
from local_servers.tinker.records import OWNER, CheckpointRecord, text_metadata
from local_servers.tinker.refusal import BadRequest, Refusal, gone

if TYPE_CHECKING:
    from local_servers.tinker.engine.adapter import Snapshot, SnapshotWeights
    from local_servers.tinker.engine.causal_lm import Weights

K = TypeVar("K")
M = TypeVar("M", bound=pydantic.BaseModel)
T = TypeVar("T")

SILENCE_S = 1800.0  # a session that sends nothing for this long is over
QUIET_S = 60.0
"""A session that sends nothing for this long is not sampled for until it does: its client may have been killed, and a
resumed run would wait. The SDK sends a heartbeat every 10 s."""
KEPT_SNAPSHOTS = 16
KEPT_CHECKPOINTS = 8
KEPT_WEIGHTS = 1
"""Adapters whose weights stay in memory when no request needs them: the policy now. To make those of SmolLM2-135M again
takes 0.1 s, to keep them 0.2 GB in each process that samples."""
KEPT_COMPLETIONS = 20_000
CLONE_BLOCK = 1_000_000_000  # a copy of a sampling client numbers its requests from its copy id times this


@dataclass
class Session:
    """One client session. `finished` is why it is over, None while it lives."""

    session_id: str
    user_metadata: dict[str, Any] | None
    display_name: str | None
    project_id: str | None
    created_at: float = field(default_factory=time.time)
    last_heartbeat: float = field(default_factory=time.monotonic)
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # set by each sign of life
    finished: dict[str, object] | None = None
    training_run_ids: list[str] = field(default_factory=list)
    sampler_ids: list[str] = field(default_factory=list)

    def hear(self) -> None:
        """Note a sign of life of the client."""
        # Any request counts: a heartbeat may be late where the client's machine is busy.
        self.last_heartbeat = time.monotonic()
        self.heard.set()

    async def while_heard(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of `work`, which must give the same each time: it is cancelled when nothing was heard of the
        client for `QUIET_S`, and begun anew at the next sign of life."""
        patience_s = QUIET_S
        while True:
            task, is_silent = asyncio.create_task(work()), False
            try:
                while True:
                    left_s = self.last_heartbeat + patience_s - time.monotonic()
                    if left_s <= 0 and is_silent:
                        break
                    # Once more, shortly: if this process stood still, what the client sent meanwhile is read first.
                    is_silent = left_s <= 0
                    done, _ = await asyncio.wait([task], timeout=patience_s / 10 if is_silent else left_s)
                    if done:
                        return task.result()
            finally:
                task.cancel()
            patience_s *= 2  # work that takes longer than a slow client's pauses must come to an end too
            self.heard.clear()
            await self.heard.wait()

    def to_json(self) -> dict[str, object]:
        return {
            "session_id": self.session_id,
            "training_run_ids": self.training_run_ids,
            "sampler_ids": self.sampler_ids,
            "user_metadata": text_metadata(self.user_metadata),
            "display_name": self.display_name,
        }

    def summary(self, checkpoints: int) -> dict[str, object]:
        return {
            "session_id": self.session_id,
            "created_at": self.created_at,
            "owner": OWNER,
            "project_id": self.project_id or OWNER,
            "status": self.finished or {"type": "active"},
            "checkpoints_count": checkpoints,
            "display_name": self.display_name,
            "user_metadata": text_metadata(self.user_metadata),
        }


class SessionRegistry(dict[str, Session]):
    """The sessions of this server process by their ids, living or over; none survives it."""

    def open(self, request: types.CreateSessionRequest) -> Session:
        """A new session under an id that no server has used before."""
        # A number would come again after a restart, and with it the runs on disk of another.
        session = Session(str(uuid.uuid4()), request.user_metadata, request.display_name, request.project_id)
        self[session.session_id] = session
        return session

    def require_living(self, session_id: str) -> Session:
        """The session if it still lives; Refusal 410 otherwise. Counts as a sign of life."""
        session = self.get(session_id)
        if session is None or session.finished is not None:
            raise gone(f"session {session_id}")
        session.hear()
        return session

    def hear(self, session_id: str) -> None:
        """Note a sign of life of the session's client, if there is such a session."""
        if (session := self.get(session_id)) is not None:
            session.hear()

    def newest_first(self) -> list[Session]:
        return sorted(self.values(), key=lambda session: -session.created_at)

    def silent(self) -> list[Session]:
        """Living sessions whose client has not been heard for `SILENCE_S`."""
        limit = time.monotonic() - SILENCE_S
        return [session for session in self.values() if session.finished is None and session.last_heartbeat < limit]


class CompletionLog:
    """The finished requests of one sampling client, numbered, until the client says it has seen them."""

    def __init__(self) -> None:
        self.cursor = 0
        # Bounded, as most clients ask for each answer by itself and never read the log.
        self._entries: deque[tuple[int, dict[str, object]]] = deque(maxlen=KEPT_COMPLETIONS)
        self._news = asyncio.Event()

    def add(self, promise: Promise) -> None:
        assert promise.answer is not None
        body, failed = promise.answer.body, promise.answer.failed
        entry: dict[str, object] = {"request_id": promise.request_id, "state": "failed" if failed else "finished"}
        if not failed:
            entry["response_payload_uncompressed_size"] = len(body)
        self.cursor += 1
        self._entries.append((self.cursor, entry))
        self._news.set()

    async def after(self, seen: int, timeout_s: float) -> tuple[list[dict[str, object]], int]:
        """What finished after number `seen`, and the newest number; waits up to `timeout_s` if there is nothing."""
        while self._entries and self._entries[0][0] <= seen:
            self._entries.popleft()
        if not self._entries and timeout_s > 0:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), timeout_s)
            except TimeoutError:
                return [], self.cursor
        return [entry for _, entry in self._entries], self.cursor


def sampler_name(session_id: str, number: int) -> str:
    """The id of a session's sampling session of this number; Refusal 400 outside 0 to 999,999,999, as of runs."""
    if not 0 <= number < CLONE_BLOCK:
        raise BadRequest(f"sampling_session_seq_id is {number}: from 0 to {CLONE_BLOCK - 1}")
    return f"{session_id}:sample:{number}"


@dataclass
class Sampler:
    """One sampling session: the base model, a checkpoint, or a snapshot in memory."""

    sampler_id: str
    session_id: str
    host: EngineHost
    base_model: str
    checkpoint: CheckpointRecord | None = None
    snapshot: "Snapshot | None" = None
    clients: int = 1
    logs: dict[int, CompletionLog] = field(default_factory=dict)

    def is_of(self, base_model: str | None, model_path: str | None) -> bool:
        """Whether it draws from what a request for it names; from a snapshot never, which no request names."""
        if self.checkpoint is not None:
            return self.checkpoint.path == model_path
        return self.snapshot is None and model_path is None and self.base_model == base_model

    def log(self, clone: int) -> CompletionLog:
        """The completion log of the client with this copy id (0 for the original)."""
        return self.logs.setdefault(clone, CompletionLog())

    def to_json(self) -> dict[str, object]:
        path = self.checkpoint.path if self.checkpoint is not None else None
        return {"sampler_id": self.sampler_id, "base_model": self.base_model, "model_path": path}


class SamplerRegistry(dict[str, Sampler]):
    """The sampling sessions of this server process by their ids, and the weights they share."""

    def __init__(self, store: CheckpointStore) -> None:
        super().__init__()
        self._store = store
        self._snapshots: dict[str, deque[Sampler]] = {}
        self._dropped: set[str] = set()
        self._loaded: OrderedDict[str, asyncio.Task[Snapshot]] = OrderedDict()
        self._made: OrderedDict[Snapshot, asyncio.Task[SnapshotWeights]] = OrderedDict()

    def find(self, sampler_id: str) -> Sampler:
        """The sampler; Refusal 410 if it is not known, or was a snapshot that had to make room."""
        if sampler_id in self._dropped:
            raise Refusal(
                410,
                f"sampler {sampler_id} is gone: of weights saved without a name the newest {KEPT_SNAPSHOTS} of a "
                "session are kept; use save_weights_for_sampler(name) for weights that must stay",
            )
        if sampler_id not in self:
            raise gone(f"sampler {sampler_id}")
        return self[sampler_id]

    def add(self, sampler: Sampler) -> None:
        """Register a sampler; the oldest unnamed snapshot of the session makes room if there are too many."""
        self[sampler.sampler_id] = sampler
        if sampler.snapshot is None:
            return
        snapshots = self._snapshots.setdefault(sampler.session_id, deque())
        snapshots.append(sampler)
        if len(snapshots) > KEPT_SNAPSHOTS:
            oldest = snapshots.popleft().sampler_id
            del self[oldest]
            self._dropped.add(oldest)  # for `find`

    async def weights(self, sampler: Sampler) -> "Weights":
        """The weights to draw from. Refusal (`CheckpointStore.files`) if the checkpoint is not as it was any more."""
        snapshot, record, engine = sampler.snapshot, sampler.checkpoint, await sampler.host.engine()
        # In threads of their own: the training thread may be busy for long, and no pass changes what they read.
        if record is not None:

            def load() -> "Snapshot":
                return engine.snapshot(engine.load_adapter(self._store.files(record), optimizer=False))

            snapshot = await _once(self._loaded, record.data, KEPT_CHECKPOINTS, lambda: asyncio.to_thread(load))
        if snapshot is None:
            return engine.sampler_weights(None)
        return await _once(self._made, snapshot, KEPT_WEIGHTS, lambda: asyncio.to_thread(snapshot.weights))

    def end_session(self, session_id: str) -> None:
        self._snapshots.pop(session_id, None)
        for sampler_id in [s.sampler_id for s in self.values() if s.session_id == session_id]:
            if (snapshot := self.pop(sampler_id).snapshot) is not None:
                self._made.pop(snapshot, None)


async def _once(
    kept: OrderedDict[K, asyncio.Task[T]], key: K, most: int, make: Callable[[], Coroutine[Any, Any, T]]
) -> T:
    """What `make` gives for this key, of which the last `most` asked for are kept."""
    # The task itself is kept, from before it is done: requests that come together make it once. One that failed is
    # tried again.
    task = kept.get(key)
    if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
        kept.pop(key, None)
        while len(kept) >= most:  # before there is one more
            kept.popitem(last=False)
        task = kept[key] = asyncio.create_task(make())
    kept.move_to_end(key)
    # Others wait for the same task: a request that is cancelled must not take it with it.
    return await asyncio.shield(task)


@dataclass
class ServerState:
    """One server process: its models on offer, what its clients made, and the store on disk."""

    engines: EnginePool
    store: CheckpointStore
    samplers: SamplerRegistry
    started: float = field(default_factory=time.time)
    sessions: SessionRegistry = field(default_factory=SessionRegistry)
    models: dict[str, TrainingModel] = field(default_factory=dict)
    promises: PromiseTable = field(default_factory=PromiseTable)
    recorded: RecordedSequences = field(default_factory=RecordedSequences)
    running_samples: dict[str, asyncio.Task[bool]] = field(default_factory=dict)

    def model(self, model_id: str) -> TrainingModel:
        """The model; Refusal 410 if this server process does not have it."""
        if model_id not in self.models:
            raise gone(f"model {model_id}")
        return self.models[model_id]

    def end_session(self, session_id: str, reason: str) -> None:
        """Stop the session's sampling, free its models, samplers and recorded sequences; unfetched answers stay."""
        # Nobody waits for these samples, and they would hold up those of other sessions.
        for request_id, task in self.running_samples.items():
            if request_id.startswith(f"{session_id}:"):
                task.cancel()
        for model in [model for model in self.models.values() if model.run.session_id == session_id]:
            model.close(reason)
            del self.models[model.run.run_id]
        self.samplers.end_session(session_id)
        self.recorded.end_session(session_id)


STATE = web.AppKey("state", ServerState)


def state_of(request: web.Request) -> ServerState:
    return request.app[STATE]


async def read(request: web.Request, model: type[M]) -> tuple[ServerState, M]:
    """The state, and the JSON body as one of the SDK's request types; Refusal 400 that names the first field that is
    wrong."""
    body = await read_json(request)
    try:
        return state_of(request), model.model_validate(body)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(str(part) for part in first["loc"]) or "body"
        raise BadRequest(f"{model.__name__}: {field_name}: {first['msg']}") from error


async def read_json(request: web.Request) -> dict[str, object]:
    """The JSON body, which has to be an object; Refusal 400 otherwise."""
    content = await request.read()
    try:
        body = json.loads(content.decode())
        # Escapes may stand for half of a surrogate pair, which no file and no answer can hold.
        if b"\\ud" in content.lower():
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # the latter for one that is nested too deeply
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body has to be a JSON object")
    return body


def no_content() -> web.Response:
    return web.Response(status=204)
