"""Everything one server process holds, and what the request handlers share."""

import json
import time
from dataclasses import dataclass, field
from typing import TypeVar

import pydantic
from aiohttp import web

from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.engines import EnginePool
from local_servers.tinker.models import ModelRegistry
from local_servers.tinker.ordering import GAP_TIMEOUT_S
from local_servers.tinker.promises import PromiseTable
from local_servers.tinker.provenance import RecordedSequences
from local_servers.tinker.refusal import BadRequest
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
    models: ModelRegistry = field(default_factory=ModelRegistry)
    promises: PromiseTable = field(default_factory=PromiseTable)
    recorded: RecordedSequences = field(default_factory=RecordedSequences)
    samplers: SamplerRegistry = field(init=False)

    def __post_init__(self) -> None:
        self.samplers = SamplerRegistry(self.store)

    def end_session(self, session_id: str, reason: str) -> None:
        """Free the session's models, samplers and recorded sequences; answers not yet fetched stay."""
        self.models.end_session(session_id, reason)
        self.samplers.end_session(session_id)
        self.recorded.end_session(session_id)


STATE = web.AppKey("state", ServerState)


def state_of(request: web.Request) -> ServerState:
    """The server's state, from a handler."""
    return request.app[STATE]


async def read(request: web.Request, model: type[M]) -> M:
    """The JSON body as one of the SDK's request types; Refusal 400 that names the first field that is wrong."""
    return parse(await read_json(request), model)


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


def parse(body: dict[str, object], model: type[M]) -> M:
    """`body` as one of the SDK's request types; Refusal 400 that names the first field that is wrong."""
    try:
        return model.model_validate(body)
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        field_name = ".".join(str(part) for part in first["loc"]) or "body"
        raise BadRequest(f"{model.__name__}: {field_name}: {first['msg']}") from error


def no_content() -> web.Response:
    """The answer of a request that has nothing to say."""
    return web.Response(status=204)
