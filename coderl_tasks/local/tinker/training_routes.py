"""Routes of training: creating models, forward and backward passes, optimizer steps."""

import secrets

from aiohttp import web
from tinker import types
from tinker.types.optimizer import AdamParams

from coderl_tasks.local.tinker.engine_types import AdamSettings, about_datum
from coderl_tasks.local.tinker.models import TrainingModel
from coderl_tasks.local.tinker.promises import PROTOBUF, Answer, json_answer
from coderl_tasks.local.tinker.provenance import check_tiling
from coderl_tasks.local.tinker.records import LoraSettings, RunRecord
from coderl_tasks.local.tinker.refusal import bad_request
from coderl_tasks.local.tinker.state import read, state_of
from coderl_tasks.local.tinker.submission import Work, check_optimizer, submit
from coderl_tasks.local.tinker.wire_format import (
    forward_backward_output,
    loss_config_of,
    loss_of,
    parse_forward_backward,
    provenance_of,
    train_datums,
)

routes = web.RouteTableDef()


@routes.post("/api/v1/create_model")
async def create_model(request: web.Request) -> web.Response:
    """A new training run: a LoRA adapter on a base model."""
    body = await read(request, types.CreateModelRequest)
    state = state_of(request)
    session = state.sessions.living(body.session_id)
    model_id = f"{body.session_id}:train:{body.model_seq_id}"
    request_id = f"{model_id}:0"
    if state.promises.find(request_id, "create_model") is None:
        host = state.engines.find(body.base_model)
        check_optimizer(body.optimizer_config)
        lora = body.lora_config
        if lora is None:
            raise bad_request("lora_config is missing: only LoRA training is offered here")
        if lora.rank < 1:
            raise bad_request(f"LoRA rank is {lora.rank}; it has to be at least 1")
        settings = LoraSettings(
            rank=lora.rank,
            seed=lora.seed if lora.seed is not None else secrets.randbits(62),
            train_mlp=lora.train_mlp,
            train_attn=lora.train_attn,
            train_unembed=lora.train_unembed,
        )
        run = RunRecord(
            run_id=model_id,
            session_id=body.session_id,
            base_model=body.base_model,
            lora=settings,
            user_metadata=body.user_metadata,
        )
        model = TrainingModel(run, host, state.promises, state.store, state.gap_timeout_s)
        state.models.add(model)
        session.training_run_ids.append(model_id)

        async def work() -> Answer:
            await model.create()
            return json_answer({"type": "create_model", "model_id": model_id})

        model.submit(0, state.promises.open(request_id, "create_model"), work)
    return web.json_response({"request_id": request_id, "model_id": model_id})


@routes.post("/api/v1/get_info")
async def get_info(request: web.Request) -> web.Response:
    """A live model's base model, LoRA rank, tokenizer folder and optimizer steps."""
    model = state_of(request).models.find((await read(request, types.GetInfoRequest)).model_id)
    run = model.run
    return web.json_response(
        {
            "type": "get_info",
            "model_id": run.run_id,
            "model_name": run.base_model,
            "model_data": {
                "arch": model.host.architecture,
                "model_name": run.base_model,
                "tokenizer_id": str(model.host.folder),
            },
            "is_lora": True,
            "lora_rank": run.lora.rank,
            "optimizer_steps": run.optimizer_steps,
            "steps_before": run.steps_before,
        }
    )


@routes.post("/api/v1/forward_backward")
async def forward_backward(request: web.Request) -> web.Response:
    """A forward pass, and a backward one unless `forward_only`."""
    state = state_of(request)
    message = parse_forward_backward(await request.read())
    model = state.models.find(message.model_id)
    backward = not message.forward_only

    def prepare() -> Work:
        loss, config, datums = loss_of(message), loss_config_of(message), train_datums(message)
        for number, datum in enumerate(datums):
            with about_datum(number):
                provenance = provenance_of(message.data[number])
                check_tiling(datum, provenance)
                if loss == "stable_reinforce":
                    datums[number] = state.recorded.with_sampler(model.run.session_id, datum, provenance)
        model.check_request(datums, loss, config)

        async def work() -> Answer:
            output = await model.forward_backward(datums, loss, config, backward=backward)
            return Answer(forward_backward_output(output), PROTOBUF)

        return work

    kind = "forward_backward" if backward else "forward"
    return submit(state, model, message.seq_id, kind, prepare, backward=backward)


@routes.post("/api/v1/optim_step")
async def optim_step(request: web.Request) -> web.Response:
    """One optimizer step over the gradient accumulated since the last one."""
    state = state_of(request)
    body = await read(request, types.OptimStepRequest)
    model = state.models.find(body.model_id)

    def prepare() -> Work:
        params = body.optim_params
        if not isinstance(params, AdamParams):
            raise bad_request(f"optimizer {params.type!r} is not offered here: adamw")
        settings = AdamSettings(**params.model_dump())

        async def work() -> Answer:
            return json_answer({"metrics": await model.optim_step(settings)})

        return work

    return submit(state, model, body.seq_id, "optim_step", prepare)
