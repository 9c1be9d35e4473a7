"""Everything one server process holds, and what the request handlers share."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import TypeVar

import pydantic
from aiohttp import web

from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.engines import EnginePool
from local_servers.tinker.models import TrainingModel
from local_servers.tinker.ordering import GAP_TIMEOUT_S
from local_servers.tinker.promises import PromiseTable
from local_servers.tinker.provenance import RecordedSequences
from local_servers.tinker.refusal import BadRequest, gone
from local_servers.tinker.sessions import SamplerRegistry, SessionRegistry

M = TypeVar("M", bound=pydantic.BaseModel)


@dataclass
class ServerState:
    """One server process: its models on offer, what its clients made, and the store on disk."""

    engines: EnginePool
    store: CheckpointStore
    gap_timeout_s: float = GAP_TIMEOUT_S
    started: float = field(default_factory=time.time)
    sessions: SessionRegistry = field(default_factory=SessionRegistry)
    models: dict[str, TrainingModel] = field(default_factory=dict)
    promises: PromiseTable = field(default_factory=PromiseTable)
    recorded: RecordedSequences = field(default_factory=RecordedSequences)
    samplers: SamplerRegistry = field(init=False)
    running_samples: dict[str, asyncio.Task[bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.samplers = SamplerRegistry(self.store)

    def model(self, model_id: str) -> TrainingModel:
        """The model; Refusal 410 if this server process does not have it."""
        if model_id not in self.models:
            raise gone(f"model {model_id}")
        return self.models[model_id]

    def end_session(self, session_id: str, reason: str) -> None:
        """Free the session's models, samplers and recorded sequences; answers not yet fetched stay."""
        for model in [model for model in self.models.values() if model.run.session_id == session_id]:
            model.close(reason)
            del self.models[model.run.run_id]
        self.samplers.end_session(session_id)
        self.recorded.end_session(session_id)


STATE = web.AppKey("state", ServerState)


def state_of(request: web.Request) -> ServerState:
    return request.app[STATE]


async def read(request: web.Request, model: type[M]) -> M:
    """The JSON body as one of the SDK's request types; Refusal 400 that names the first field that is wrong."""
    body = await read_json(request)
    try:
        return model.model_validate(body)
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
