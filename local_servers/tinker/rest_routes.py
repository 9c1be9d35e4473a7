"""REST routes of what was made: sessions, training runs, checkpoints and their files."""

import asyncio
import hmac
import re
import secrets
import time
from datetime import UTC, datetime

from aiohttp import web
from tinker import types

from local_servers.tinker.records import OWNER, CheckpointRecord, RunRecord, checkpoint_json, run_json
from local_servers.tinker.refusal import BadRequest, Refusal
from local_servers.tinker.state import ServerState, Session, no_content, read, read_json, state_of

_CHECKPOINT = "/api/v1/training_runs/{run_id}/checkpoints/{kind}/{name}"
_DOWNLOAD_SECRET = secrets.token_bytes(32)
_DOWNLOAD_LIFE_S = 3600
_MAX_PAGE = 1000
routes = web.RouteTableDef()


def _page(request: web.Request, default_limit: int) -> tuple[int, int]:
    numbers = []
    for name, default in (("limit", default_limit), ("offset", 0)):
        text = request.query.get(name, str(default))
        if not re.fullmatch("[0-9]{1,12}", text):
            raise BadRequest(f"{name} is {text[:20]!r}; it has to be a number of 0 or more, of 12 digits at most")
        numbers.append(int(text))
    return min(numbers[0], _MAX_PAGE), numbers[1]


def _run_json(state: ServerState, stored: RunRecord) -> dict[str, object]:
    return run_json(_live(state, stored), state.store.checkpoints(stored.run_id))


def _live(state: ServerState, stored: RunRecord) -> RunRecord:
    # What is live is ahead of its record, which is written when a step is done.
    model = state.models.get(stored.run_id)
    return stored if model is None else model.run


@routes.get("/api/v1/training_runs")
async def list_runs(request: web.Request) -> web.Response:
    """Training runs of every server that used this store, most recently used first."""
    state = state_of(request)
    limit, offset = _page(request, 20)
    if "project_id" in request.query:
        raise BadRequest("training runs are kept without their project here: list them without project_id")

    def collect() -> dict[str, object]:
        runs = sorted(state.store.runs(), key=lambda run: -_live(state, run).last_request_at)
        return {
            "training_runs": [_run_json(state, run) for run in runs[offset : offset + limit]],
            "cursor": {"offset": offset, "limit": limit, "total_count": len(runs)},
        }

    return web.json_response(await asyncio.to_thread(collect))


@routes.get("/api/v1/training_runs/{run_id}")
async def get_run(request: web.Request) -> web.Response:
    state, run_id = state_of(request), request.match_info["run_id"]
    return web.json_response(await asyncio.to_thread(lambda: _run_json(state, state.store.run(run_id))))


@routes.delete("/api/v1/training_runs/{run_id}")
async def delete_run(request: web.Request) -> web.Response:
    """Remove a run and its checkpoints; a run that is live here stays (409)."""
    state, run_id = state_of(request), request.match_info["run_id"]
    if run_id in state.models:
        raise Refusal(409, f"training run {run_id} is in use: close its client first")
    await asyncio.to_thread(state.store.delete_run, run_id)
    return no_content()


@routes.get("/api/v1/training_runs/{run_id}/checkpoints")
async def list_run_checkpoints(request: web.Request) -> web.Response:
    store, run_id = state_of(request).store, request.match_info["run_id"]
    await asyncio.to_thread(store.run, run_id)  # 404 if there is none
    records = await asyncio.to_thread(store.checkpoints, run_id)
    return web.json_response({"checkpoints": [checkpoint_json(record) for record in records]})


@routes.get("/api/v1/checkpoints")
async def list_checkpoints(request: web.Request) -> web.Response:
    """The checkpoints of all runs, newest first."""
    state = state_of(request)
    limit, offset = _page(request, 100)

    def collect() -> dict[str, object]:
        records = [record for run in state.store.runs() for record in state.store.checkpoints(run.run_id)]
        records.sort(key=lambda record: -record.created_at)
        return {
            "checkpoints": [checkpoint_json(record) for record in records[offset : offset + limit]],
            "cursor": {"offset": offset, "limit": limit, "total_count": len(records)},
        }

    return web.json_response(await asyncio.to_thread(collect))


async def _record(request: web.Request) -> CheckpointRecord:
    path = "tinker://{run_id}/{kind}/{name}".format(**request.match_info)
    return await asyncio.to_thread(state_of(request).store.find, path)


@routes.delete(_CHECKPOINT)
async def delete_checkpoint(request: web.Request) -> web.Response:
    await asyncio.to_thread(state_of(request).store.delete, await _record(request))
    return no_content()


@routes.post(_CHECKPOINT + "/publish")
@routes.delete(_CHECKPOINT + "/publish")
async def publish(request: web.Request) -> web.Response:
    """Mark a checkpoint as public or as private; here everyone with a key reads everything anyway."""
    public = request.method == "POST"
    await asyncio.to_thread(state_of(request).store.set_public, await _record(request), public)
    return no_content()


@routes.put(_CHECKPOINT + "/ttl")
async def set_ttl(request: web.Request) -> web.Response:
    ttl_seconds = (await read_json(request)).get("ttl_seconds")
    if ttl_seconds is not None and not isinstance(ttl_seconds, int):
        raise BadRequest(f"ttl_seconds is {ttl_seconds!r}; it has to be a number or null")
    await asyncio.to_thread(state_of(request).store.set_expiry, await _record(request), ttl_seconds)
    return no_content()


@routes.get(_CHECKPOINT + "/external_weights_urls")
async def external_weights_urls(request: web.Request) -> web.Response:
    """Where the files of an export can be fetched without a key, for an hour or until the server ends."""
    record = await _record(request)
    if record.kind != "external_weights":
        raise BadRequest(f"{record.path} is not an export; save one with save_weights_external")
    expires = int(time.time()) + _DOWNLOAD_LIFE_S
    key = _download_key(record.run_id, record.name, str(expires))
    base = f"{request.url.origin()}/download/{key}/{record.run_id}/{record.name}"
    until = datetime.fromtimestamp(expires, UTC).isoformat()
    return web.json_response({"urls": {name: f"{base}/{name}" for name in record.files}, "expires": until})


def _download_key(run_id: str, name: str, expires: str) -> str:
    """What opens the files of this export until `expires` (Unix time), which it begins with."""
    return f"{expires}-{hmac.digest(_DOWNLOAD_SECRET, f'{run_id}/{name}/{expires}'.encode(), 'sha256').hex()}"


@routes.get("/download/{key}/{run_id}/{name}/{file}")
async def download(request: web.Request) -> web.FileResponse:
    """A file of an export, for whoever was given its address."""
    part = request.match_info
    expires = part["key"].partition("-")[0]
    own_key = _download_key(part["run_id"], part["name"], expires)
    # In this order: only of a key of our own is it sure that it begins with a number.
    if not secrets.compare_digest(part["key"].encode(), own_key.encode()) or int(expires) < time.time():
        raise Refusal(404, "this download address is over, or of a server that was restarted: ask for new ones")
    store = state_of(request).store
    record = await asyncio.to_thread(store.find, f"tinker://{part['run_id']}/external_weights/{part['name']}")
    if part["file"] not in record.files:
        raise Refusal(404, f"{record.path} has no file {part['file']}")
    return web.FileResponse(await asyncio.to_thread(store.files, record) / part["file"])


@routes.post("/api/v1/weights_info")
async def weights_info(request: web.Request) -> web.Response:
    path = (await read_json(request)).get("tinker_path")
    if not isinstance(path, str):
        raise BadRequest("tinker_path is missing")
    record = await asyncio.to_thread(state_of(request).store.find, path)
    lora = record.lora.model_dump(include={"train_unembed", "train_mlp", "train_attn"})
    base = {"base_model": record.base_model, "is_lora": True, "lora_rank": record.lora.rank}
    return web.json_response(base | lora | {"optimizer_steps": record.optimizer_steps})


@routes.get("/api/v1/sessions")
async def list_sessions(request: web.Request) -> web.Response:
    limit, offset = _page(request, 20)
    sessions = state_of(request).sessions.newest_first()
    return web.json_response({"sessions": [s.session_id for s in sessions[offset : offset + limit]]})


@routes.get("/api/v1/sessions/{session_id}")
async def get_session(request: web.Request) -> web.Response:
    return web.json_response(_session(request).to_json())


def _session(request: web.Request) -> Session:
    session_id = request.match_info["session_id"]
    session = state_of(request).sessions.get(session_id)
    if session is None:
        raise Refusal(404, f"there is no session {session_id} in this server process")
    return session


@routes.post("/api/v1/sessions/search")
async def search_sessions(request: web.Request) -> web.Response:
    """The newest sessions of this server process whose id, name, metadata, project, owner and status match."""
    state, body = await read(request, types.SessionSearchRequest)
    if body.cursor is not None:
        raise BadRequest("a search has one page here: leave out cursor, and narrow the search or raise limit")
    found = [session for session in state.sessions.newest_first() if _matches(session, body)]

    def summary(session: Session) -> dict[str, object]:
        return session.summary(sum(len(state.store.checkpoints(run)) for run in session.training_run_ids))

    summaries = await asyncio.to_thread(lambda: [summary(session) for session in found[: body.limit]])
    return web.json_response({"sessions": summaries, "next_cursor": None})


def _matches(session: Session, search: types.SessionSearchRequest) -> bool:
    """Whether the session has the id or the name that is searched, and all else that the search asks for."""
    name, metadata = (session.display_name or "").lower(), session.user_metadata or {}
    by_id = session.session_id == search.session_id or (search.session_id is None and search.display_name is None)
    return (
        (by_id or (search.display_name is not None and all(w in name for w in search.display_name.lower().split())))
        and all(str(metadata.get(key)) == value for key, value in search.user_metadata.items())
        and (search.project_ids is None or (session.project_id or OWNER) in search.project_ids)
        and (search.statuses is None or any(_has_status(session, query) for query in search.statuses))
        and (not isinstance(search.owner, types.UserSearchOwner) or OWNER in search.owner.owner_urns)
    )


def _has_status(session: Session, query: types.SessionStatusQuery) -> bool:
    status = session.finished or {"type": "active"}
    reasons = query.reasons if isinstance(query, types.ClientFinishedSessionStatusQuery) else None
    return query.type == status["type"] and (
        reasons is None or any(status["reason"] == {"type": reason} for reason in reasons)
    )


@routes.put("/api/v1/sessions/{session_id}/project")
async def assign_project(request: web.Request) -> web.Response:
    """Put a session into a project, which is only a label here."""
    session = _session(request)
    project_id = (await read_json(request)).get("project_id")
    session.project_id = None if project_id is None else str(project_id)
    return no_content()
