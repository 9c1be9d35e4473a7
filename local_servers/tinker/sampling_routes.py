"""Routes of sampling: sampling sessions, samples, cancellation."""

import asyncio

from aiohttp import web
from tinker import types

from local_servers.tinker.engine_types import SampleResult, SampleSpec
from local_servers.tinker.promises import PROTOBUF, Answer, Promise, content_of, failure, settle
from local_servers.tinker.refusal import BadRequest, Refusal
from local_servers.tinker.state import (
    CLONE_BLOCK,
    Sampler,
    ServerState,
    no_content,
    read,
    read_json,
    sampler_name,
    state_of,
)
from local_servers.tinker.wire_format import sample_response, sample_spec

routes = web.RouteTableDef()


@routes.post("/api/v1/create_sampling_session")
async def create_sampling_session(request: web.Request) -> web.Response:
    """A sampler of a base model or of a checkpoint, whose weights are loaded before it is announced."""
    state, body = await read(request, types.CreateSamplingSessionRequest)
    state.sessions.require_living(body.session_id)
    sampler_id = sampler_name(body.session_id, body.sampling_session_seq_id)
    if (known := state.samplers.get(sampler_id)) is None:
        sampler = await _new_sampler(state, sampler_id, body)
        # Loaded first, so that a damaged checkpoint is refused here, and not in every request for samples.
        await state.samplers.weights(sampler)
        # Again: nothing would remove a sampler that is added after its session's end.
        session = state.sessions.require_living(body.session_id)
        if state.samplers.get(sampler_id) is None:  # a resend may have been faster
            state.samplers.add(sampler)
            session.sampler_ids.append(sampler_id)
    elif not known.is_of(body.base_model, body.model_path):
        raise BadRequest(f"sampler {sampler_id} exists already, with other weights: give another number")
    return web.json_response({"type": "create_sampling_session", "sampling_session_id": sampler_id})


async def _new_sampler(state: ServerState, sampler_id: str, body: types.CreateSamplingSessionRequest) -> Sampler:
    if body.model_path is None:
        if body.base_model is None:
            raise BadRequest("give a base_model or a model_path to sample from")
        host = state.engines.find(body.base_model)
        return Sampler(sampler_id, body.session_id, host, body.base_model)
    record = await asyncio.to_thread(state.store.find, body.model_path)
    if record.kind == "external_weights":
        raise BadRequest(f"{record.path} is an export and cannot be sampled from; use the checkpoint it came from")
    host = state.engines.find(record.base_model)
    if body.base_model is not None and state.engines.find(body.base_model) is not host:
        raise BadRequest(f"{record.path} was trained on {record.base_model}, not on {body.base_model}")
    return Sampler(sampler_id, body.session_id, host, record.base_model, checkpoint=record)


@routes.post("/api/v1/join_sampling_session")
async def join_sampling_session(request: web.Request) -> web.Response:
    """A number of its own for a copy of a sampling client, so that their request numbers do not collide."""
    state, body = await read(request, types.JoinSamplingSessionRequest)
    sampler = state.samplers.find(body.sampling_session_id)
    joined, sampler.clients = sampler.clients, sampler.clients + 1
    return web.json_response({"type": "join_sampling_session", "client_counter": joined})


@routes.get("/api/v1/samplers/{sampler_id}")
async def get_sampler(request: web.Request) -> web.Response:
    sampler_id = request.match_info["sampler_id"]
    sampler = state_of(request).samplers.get(sampler_id)
    if sampler is None:
        raise Refusal(404, f"there is no sampler {sampler_id}")
    return web.json_response(sampler.to_json())


@routes.post("/api/v1/asample")
async def asample(request: web.Request) -> web.Response:
    """Starts a sampling request and answers with the id of its promise, which is the same for a request that is sent
    again, with the same (sampler, seq_id)."""
    state, body = await read(request, types.SampleRequest)
    if body.sampling_session_id is None or body.seq_id is None:
        raise BadRequest("asample needs a sampling_session_id and a seq_id: call create_sampling_session first")
    if body.seq_id < 0:
        raise BadRequest(f"seq_id is {body.seq_id}; it has to be 0 or greater")
    sampler = state.samplers.find(body.sampling_session_id)
    state.sessions.require_living(sampler.session_id)
    request_id = f"{sampler.sampler_id}:{body.seq_id}"
    content = content_of(body)
    if state.promises.find(request_id, "sample", content) is None:
        engine = await sampler.host.engine()
        spec = sample_spec(body, engine.eos_tokens, engine.context_length)
        engine.validate_sample(spec)
        state.sessions.require_living(sampler.session_id)  # again: the engine may have been loading
        if state.promises.find(request_id, "sample", content) is None:
            promise = state.promises.open(request_id, "sample", content)
            task = asyncio.create_task(_sample(state, sampler, promise, spec, body.prompt_logprobs_last_n))
            state.running_samples[request_id] = task
            task.add_done_callback(lambda _: _ended(state, sampler, promise))
    sequence_ids = _sequence_ids(request_id, body.num_samples)
    return web.json_response({"request_id": request_id, "sample_sequence_ids": sequence_ids})


def _sequence_ids(request_id: str, num_samples: int) -> list[str]:
    """Ids that no other sequence of the session has; a resent request gets the same."""
    return [f"{request_id}:{number}" for number in range(num_samples)]


async def _sample(state: ServerState, sampler: Sampler, promise: Promise, spec: SampleSpec, last_n: int | None) -> bool:
    session = state.sessions[sampler.session_id]

    async def sample() -> SampleResult:
        # The weights are not held while the client is silent: they are large.
        return await sampler.host.sample(await state.samplers.weights(sampler), spec)

    async def work() -> Answer:
        result = await session.while_heard(sample)
        if spec.record_top_k > 0 and session.finished is None:
            ids = _sequence_ids(promise.request_id, spec.num_samples)
            state.recorded.add(sampler.session_id, spec.prompt, result.sequences, ids)
        return Answer(sample_response(result, last_n), PROTOBUF)

    return await settle(state.promises, promise, work)


def _ended(state: ServerState, sampler: Sampler, promise: Promise) -> None:
    """Answers a request that was cancelled; logs every one, as a client that reads the log would wait for it."""
    # A callback of the task, as a task that is cancelled before its first step runs no line of its own.
    del state.running_samples[promise.request_id]
    if promise.answer is None:
        session = state.sessions.get(sampler.session_id)
        is_over = session is None or session.finished is not None  # which a client may survive, with another session
        why = "its session was ended" if is_over else "the request was cancelled"
        state.promises.resolve(promise, failure(why, "server" if is_over else "user"))
    sampler.log(int(promise.request_id.rsplit(":", 1)[1]) // CLONE_BLOCK).add(promise)


@routes.post("/api/v1/cancel_future")
async def cancel_future(request: web.Request) -> web.Response:
    """Stop a sampling request, waiting or running; one that is done is left as it is."""
    request_id = (await read_json(request)).get("request_id")
    task = state_of(request).running_samples.get(str(request_id))
    if task is not None:
        task.cancel()
    return no_content()
