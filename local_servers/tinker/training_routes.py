"""Routes of training: creating models, passes, optimizer steps, saving and loading weights."""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from aiohttp import web
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.types.optimizer import AdamOptimizerConfig, AdamParams

from local_servers.tinker.engine.losses import LOSSES
from local_servers.tinker.engine_types import AdamSettings
from local_servers.tinker.models import CREATION_SEQ, TrainingModel
from local_servers.tinker.promises import PROTOBUF, Answer, content_of, json_answer
from local_servers.tinker.records import (
    CheckpointKind,
    CheckpointRecord,
    LoraSettings,
    RunRecord,
    check_name,
    check_run_id,
    expiry,
)
from local_servers.tinker.refusal import BadRequest, Refusal, about_datum
from local_servers.tinker.state import Sampler, ServerState, read, sampler_name, state_of
from local_servers.tinker.wire_format import (
    forward_backward_output,
    loss_config_of,
    loss_of,
    parse_forward_backward,
    train_datums,
)

Work = Callable[[], Awaitable[Answer]]
Metadata = dict[str, Any] | None
SaveRequest = types.SaveWeightsRequest | types.SaveWeightsForSamplerRequest | types.SaveWeightsExternalRequest
MAX_WAITING = 10_000  # requests that one model may have waiting
routes = web.RouteTableDef()


def submit(
    state: ServerState,
    model: TrainingModel,
    kind: str,
    message: SaveRequest | types.OptimStepRequest | types.LoadWeightsRequest | pb.ForwardBackwardRequest,
    prepare: Callable[[], Work],
    *,
    backward: bool = False,
) -> web.Response:
    """Queues a request of a model; a client that sends it again, with the same seq_id, gets the first one's answer.
    `prepare` checks the request at once and returns the work to do in its turn. A request that it refuses takes its
    turn too, and spoils the accumulated gradient if it was a backward pass. Nothing is awaited here: a resend cannot
    come between looking for the first request and queueing it."""
    seq_id = message.seq_id
    if seq_id is None or seq_id < 1:
        raise BadRequest(f"seq_id is {seq_id}; requests of a model are numbered from 1")
    state.sessions.require_living(model.run.session_id)
    request_id = f"{model.run.run_id}:{seq_id}"
    content = content_of(message)
    if state.promises.find(request_id, kind, content) is None:
        # Only of a new request: a resend of one that waits adds nothing.
        if model.queue.waiting >= MAX_WAITING:
            raise Refusal(429, f"model {model.run.run_id} has {MAX_WAITING} requests waiting")
        refusal: Refusal | None = None
        try:
            work = prepare()
        except Refusal as error:
            refusal, work = error, partial(_refuse, error)
        promise = state.promises.open(request_id, kind, content)
        promise.refusal = refusal
        model.submit(seq_id, promise, work, backward=backward)
        if refusal is not None:
            raise refusal
    return web.json_response({"request_id": request_id, "model_id": model.run.run_id})


async def _refuse(refusal: Refusal) -> Answer:
    raise refusal


def check_optimizer(config: object) -> None:
    if not isinstance(config, AdamOptimizerConfig | AdamParams | None):
        raise BadRequest(f"optimizer {getattr(config, 'type', config)!r} is not offered here: adamw")


def _new_model(
    state: ServerState, session_id: str, model_id: str, base_model: str, lora: LoraSettings, metadata: Metadata
) -> TrainingModel:
    """A model of a living session, which its request CREATION_SEQ will make or load."""
    run = RunRecord(run_id=model_id, session_id=session_id, base_model=base_model, lora=lora, user_metadata=metadata)
    host = state.engines.find(base_model)
    model = TrainingModel(run, host, state.promises, state.store)
    state.models[model_id] = model
    state.sessions[session_id].training_run_ids.append(model_id)
    return model


@routes.post("/api/v1/create_model")
async def create_model(request: web.Request) -> web.Response:
    """Makes a training run, a LoRA adapter on a base model. Answers at once with the id of a promise."""
    state, body = await read(request, types.CreateModelRequest)
    state.sessions.require_living(body.session_id)
    model_id = check_run_id(f"{body.session_id}:train:{body.model_seq_id}")
    request_id, content = f"{model_id}:{CREATION_SEQ}", content_of(body)
    # Nothing is awaited between `find` and `open`: a request that is sent again finds the promise of the first.
    if state.promises.find(request_id, "create_model", content) is None:
        check_optimizer(body.optimizer_config)
        lora = body.lora_config
        if lora is None:
            raise BadRequest("lora_config is missing: only LoRA training is offered here")
        if lora.rank < 1:
            raise BadRequest(f"LoRA rank is {lora.rank}; it has to be at least 1")
        seed = lora.seed if lora.seed is not None else secrets.randbits(62)
        settings = LoraSettings(**lora.model_dump() | {"seed": seed})
        model = _new_model(state, body.session_id, model_id, body.base_model, settings, body.user_metadata)

        async def work() -> Answer:
            await model.create()
            return json_answer({"type": "create_model", "model_id": model_id})

        model.submit(CREATION_SEQ, state.promises.open(request_id, "create_model", content), work)
    return web.json_response({"request_id": request_id, "model_id": model_id})


@routes.post("/api/v1/get_info")
async def get_info(request: web.Request) -> web.Response:
    state, body = await read(request, types.GetInfoRequest)
    model = state.model(body.model_id)
    run, host = model.run, model.host
    data = {"arch": host.architecture, "model_name": run.base_model, "tokenizer_id": str(host.folder)}
    info = {"type": "get_info", "model_id": run.run_id, "model_name": run.base_model, "model_data": data}
    steps = {"optimizer_steps": run.optimizer_steps, "steps_before": run.steps_before}
    return web.json_response(info | {"is_lora": True, "lora_rank": run.lora.rank} | steps)


@routes.post("/api/v1/forward_backward")
async def forward_backward(request: web.Request) -> web.Response:
    """Queues a forward pass, and a backward one unless `forward_only`; answers with the id of a promise. The datums are
    checked at once, so that a bad one is refused before it waits for its turn."""
    state = state_of(request)
    message = parse_forward_backward(await request.read())
    model = state.model(message.model_id)
    backward = not message.forward_only

    def prepare() -> Work:
        loss, config, with_provenance = loss_of(message), loss_config_of(message), train_datums(message)
        datums = [datum for datum, _ in with_provenance]
        if LOSSES[loss].divergence:  # the loss compares with what the sampler recorded, which provenance leads to
            for number, (datum, provenance) in enumerate(with_provenance):
                with about_datum(number):
                    datums[number] = state.recorded.with_sampler(model.run.session_id, datum, provenance, loss)
        if model.host.loaded is not None:  # nothing is checked before it is loaded
            model.host.loaded.validate(datums, loss, config)

        async def work() -> Answer:
            output = await model.forward_backward(datums, loss, config, backward=backward)
            return Answer(forward_backward_output(output), PROTOBUF)

        return work

    kind = "forward_backward" if backward else "forward"
    return submit(state, model, kind, message, prepare, backward=backward)


@routes.post("/api/v1/optim_step")
async def optim_step(request: web.Request) -> web.Response:
    state, body = await read(request, types.OptimStepRequest)
    model = state.model(body.model_id)

    def prepare() -> Work:
        check_optimizer(body.optim_params)
        settings = AdamSettings(**body.optim_params.model_dump())

        async def work() -> Answer:
            return json_answer({"metrics": await model.optim_step(settings)})

        return work

    return submit(state, model, body.type, body, prepare)


def _save_work(state: ServerState, model: TrainingModel, kind: CheckpointKind, body: SaveRequest) -> Work:
    name, ttl_seconds = check_name(body.path), body.ttl_seconds
    expiry(ttl_seconds)
    overwrite = isinstance(body, types.SaveWeightsRequest) and body.overwrite
    user_metadata = None if isinstance(body, types.SaveWeightsExternalRequest) else body.user_metadata

    async def work() -> Answer:
        # Whether the name is taken is seen here: a 409 at once would be retried for minutes by the SDK.
        record = await model.save(kind, name, overwrite, ttl_seconds, user_metadata)
        return json_answer({"type": body.type, "path": record.path, "size_bytes": record.size})

    return work


@routes.post("/api/v1/save_weights")
async def save_weights(request: web.Request) -> web.Response:
    """A training checkpoint: weights and optimizer state."""
    state, body = await read(request, types.SaveWeightsRequest)
    model = state.model(body.model_id)
    return submit(state, model, body.type, body, lambda: _save_work(state, model, "weights", body))


@routes.post("/api/v1/save_weights_for_sampler")
async def save_weights_for_sampler(request: web.Request) -> web.Response:
    """Queues the saving of a model's weights for sampling: on disk under `path`, or without a path as a snapshot in
    memory, with a sampling session of its own. Answers with the id of a promise of the checkpoint's path or the
    session's id. A request of kind "inflight", which would accept newer weights too, gets these."""
    state, body = await read(request, types.SaveWeightsForSamplerRequest)
    model = state.model(body.model_id)

    def prepare() -> Work:  # refuses a bad request at once; the work that it returns runs in the model's queue
        if body.path is not None:
            return _save_work(state, model, "sampler_weights", body)
        if body.sampling_session_seq_id is None:
            raise BadRequest("give a path, or a sampling_session_seq_id for weights without a name")
        sampler_id = sampler_name(model.run.session_id, body.sampling_session_seq_id)
        if sampler_id in state.samplers:
            raise BadRequest(f"sampler {sampler_id} exists already")

        async def work() -> Answer:
            snapshot = await model.snapshot()
            run = model.run
            # The session may have ended meanwhile: nothing would remove a sampler that is added after its end.
            session = state.sessions.require_living(run.session_id)
            state.samplers.add(Sampler(sampler_id, run.session_id, model.host, run.base_model, snapshot=snapshot))
            session.sampler_ids.append(sampler_id)
            return json_answer({"type": body.type, "sampling_session_id": sampler_id})

        return work

    # Left out of what is compared with an earlier request of the same seq_id: the SDK draws this number anew for a
    # resend, which gets the first one's sampler.
    content = body.model_copy(update={"sampling_session_seq_id": None})
    return submit(state, model, body.type, content, prepare)


@routes.post("/api/v1/save_weights_external")
async def save_weights_external(request: web.Request) -> web.Response:
    """The adapter as PEFT files that other tools read; they are downloaded through the REST routes."""
    state, body = await read(request, types.SaveWeightsExternalRequest)
    model = state.model(body.model_id)

    def prepare() -> Work:
        if body.age_encryption_recipients:
            raise BadRequest("age encryption of exports is not offered here")
        return _save_work(state, model, "external_weights", body)

    return submit(state, model, body.type, body, prepare)


@routes.post("/api/v1/load_weights")
async def load_weights(request: web.Request) -> web.Response:
    """Load a training checkpoint into a model, or make a new model from it."""
    state, body = await read(request, types.LoadWeightsRequest)
    check_optimizer(body.optimizer_config)
    if body.model_id is not None:
        model = state.model(body.model_id)
        return submit(state, model, body.type, body, lambda: _load_work(state, model, body))
    if body.session_id is None or body.model_seq_id is None:
        raise BadRequest("give model_id and seq_id, or session_id and model_seq_id for a new model")
    return await _create_by_loading(state, body, check_run_id(f"{body.session_id}:train:{body.model_seq_id}"))


def _load_work(state: ServerState, model: TrainingModel, body: types.LoadWeightsRequest) -> Work:
    def find() -> CheckpointRecord:
        record = state.store.find(body.path)
        if record.kind != "weights":
            raise BadRequest(f"{record.path} cannot be trained from; load a tinker://<run>/weights/<name> path")
        if state.engines.find(record.base_model) is not model.host:
            raise BadRequest(f"{record.path} was trained on {record.base_model}, not on {model.host.name}")
        return record

    async def work() -> Answer:
        await model.load(find, optimizer=body.optimizer)
        return json_answer({"type": "load_weights", "path": body.path, "model_id": model.run.run_id})

    return work


async def _create_by_loading(state: ServerState, body: types.LoadWeightsRequest, model_id: str) -> web.Response:
    request_id, content = f"{model_id}:{CREATION_SEQ}", content_of(body)
    if state.promises.find(request_id, "load_weights", content) is None:
        record = await asyncio.to_thread(state.store.find, body.path)
        session_id = state.sessions.require_living(model_id.split(":")[0]).session_id
        base_model = body.base_model or record.base_model
        if state.promises.find(request_id, "load_weights", content) is None:  # a resend may have been faster
            model = _new_model(state, session_id, model_id, base_model, record.lora, body.user_metadata)
            promise = state.promises.open(request_id, "load_weights", content)
            model.submit(CREATION_SEQ, promise, _load_work(state, model, body))
    return web.json_response({"request_id": request_id, "model_id": model_id})
