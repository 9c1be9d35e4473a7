"""Routes of the service itself: health, capabilities, client configuration, sessions, futures, statistics."""

import base64
import json
import os
import time
from typing import Any

from aiohttp import web
from tinker import types

from local_servers.tinker.engines import EngineHost
from local_servers.tinker.promises import PROTOBUF
from local_servers.tinker.records import OWNER
from local_servers.tinker.refusal import Refusal
from local_servers.tinker.state import no_content, read, read_json, state_of

LONG_POLL_S = 30.0  # how long a poll is held open; the SDK's own limit is 45 s
CLIENT_CONFIG = types.ClientConfigResponse(sample_max_concurrent_requests=256)
"""The SDK's start-up flags: its defaults suit a local server, but for 2000 samples in flight per sampling client. Each
holds a connection, and the server may have 4096 files open, on some machines 512."""
_TOKEN_LIFE_S = 3600
routes = web.RouteTableDef()


@routes.get("/api/v1/healthz")
async def health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"})


@routes.get("/stats")
async def stats(request: web.Request) -> web.Response:
    """Answers what this process has done and holds: per model, per engine, `recorded` (sampled sequences that training
    data may name) and `promises` (the answers to requests)."""
    state = state_of(request)

    def engine(host: EngineHost) -> dict[str, object]:
        loaded: dict[str, object] = {"loaded": host.loaded is not None, "sampled_requests": host.sampled_requests}
        return loaded | {"device": host.device, "dtype": host.dtype}

    return web.json_response(
        {
            "pid": os.getpid(),
            "started": state.started,
            "sessions": sum(session.finished is None for session in state.sessions.values()),
            "models": {run_id: model.to_json() for run_id, model in state.models.items()},
            "samplers": len(state.samplers),
            "recorded": {"sequences": len(state.recorded), "bytes": state.recorded.nbytes},
            "promises": state.promises.counts(),
            "engines": {host.name: engine(host) for host in state.engines.hosts.values()},
        }
    )


@routes.get("/api/v1/get_server_capabilities")
async def capabilities(request: web.Request) -> web.Response:
    """The models on offer; `served`, which is ours, says what answers for one: an evaluation records it."""
    able = {"trainable": True, "sampleable": True}
    models = [
        {"model_name": host.name, "max_context_length": host.context_length, **able, "served": host.served}
        for host in state_of(request).engines.hosts.values()
    ]
    return web.json_response({"supported_models": models})


@routes.post("/api/v1/client/config")
async def client_config(request: web.Request) -> web.Response:
    await read(request, types.ClientConfigRequest)
    return web.json_response(CLIENT_CONFIG.model_dump(mode="json"))


@routes.post("/api/v1/client/dynamic_config")
async def client_dynamic_config(request: web.Request) -> web.Response:
    """The SDK's live flags: a sampling request that is given up is cancelled here."""
    await read(request, types.ClientConfigRequest)
    return web.json_response(types.ClientDynamicConfigResponse(sample_cancel_enabled=True).model_dump(mode="json"))


@routes.post("/api/v1/auth/token")
async def auth_token(request: web.Request) -> web.Response:
    """A token for clients that insist on one. It ends in the key that it was asked for with, which is all that counts
    here, in the place of a signature."""
    now = int(time.time())
    claims = {"iss": "passport-local", "sub": OWNER, "org_id": OWNER, "iat": now, "exp": now + _TOKEN_LIFE_S}

    def segment(payload: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(payload).encode()).rstrip(b"=").decode()

    key = request.headers["X-API-Key"].rpartition(".")[2]
    return web.json_response({"jwt": f"{segment({'alg': 'none', 'typ': 'JWT'})}.{segment(claims)}.{key}"})


@routes.post("/api/v1/create_session")
async def create_session(request: web.Request) -> web.Response:
    state, body = await read(request, types.CreateSessionRequest)
    return web.json_response({"type": "create_session", "session_id": state.sessions.open(body).session_id})


@routes.post("/api/v1/session_heartbeat")
async def session_heartbeat(request: web.Request) -> web.Response:
    """Keep a session alive; 410 tells its client that it is over."""
    state, body = await read(request, types.SessionHeartbeatRequest)
    state.sessions.require_living(body.session_id)
    return web.json_response({"type": "session_heartbeat"})


@routes.post("/api/v1/sessions/{session_id}/finish")
async def finish_session(request: web.Request) -> web.Response:
    """End a session and free its models; the first reason given stays. One that died with an earlier server is over."""
    state = state_of(request)
    session = state.sessions.get(request.match_info["session_id"])
    if session is None:
        return no_content()
    body = await read_json(request)
    if session.finished is None:
        reason = body.get("reason") or {"type": "success"}
        session.finished = {"type": "client_finished", "reason": reason, "detail": body.get("detail")}
        state.end_session(session.session_id, "its session was finished")
    return no_content()


@routes.post("/api/v1/telemetry")
async def telemetry(request: web.Request) -> web.Response:
    """Accepted and dropped: nothing leaves this machine."""
    await request.read()
    return web.json_response({"status": "accepted"})


@routes.post("/api/v1/retrieve_future")
async def retrieve_future(request: web.Request) -> web.Response:
    """The answer to a submitted request; 408 while it runs, 410 if this process does not know it."""
    state, body = await read(request, types.FutureRetrieveRequest)
    promise = state.promises.get(body.request_id)
    state.sessions.hear(body.request_id.split(":")[0])
    answer = await state.promises.wait(promise, LONG_POLL_S)
    if answer is None:
        again = {"type": "try_again", "request_id": body.request_id, "queue_state": "active"}
        return web.json_response(again, status=408)
    if answer.content_type == PROTOBUF and PROTOBUF not in request.headers.get("Accept", ""):
        raise Refusal(406, f"the answer to a {promise.kind} is protobuf: send Accept: {PROTOBUF}")
    # Marked, not deleted: the answer may get lost on the way, and is then asked for again.
    state.promises.mark_read(promise.request_id)
    return web.Response(body=answer.body, content_type=answer.content_type)


@routes.post("/api/v1/retrieve_futures")
async def retrieve_futures(request: web.Request) -> web.Response:
    """The requests of one sampling client that finished since its last poll, with a cursor for the next one."""
    state, body = await read(request, types.FuturesRetrieveRequest)
    for request_id in body.retrieved_request_ids:
        state.promises.mark_read(request_id)
    sampler = state.samplers.find(body.target.sampling_session_id)
    state.sessions.hear(sampler.session_id)
    timeout_s = LONG_POLL_S if body.timeout is None else min(body.timeout, LONG_POLL_S)
    completions, cursor = await sampler.log(body.target.cloned_sampler_id).after(body.prev_cursor, timeout_s)
    return web.json_response({"completions": completions, "cursor": cursor})
