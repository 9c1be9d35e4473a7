"""Raw HTTP: each numbered request is computed once, in the order of the numbers."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest
from tinker import types
from tinker.proto import tinker_public_pb2 as pb
from tinker.proto.response_conv import deserialize_forward_backward_output

from local_servers.tinker import service_routes, state
from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.models import TrainingModel
from local_servers.tinker.state import CLONE_BLOCK, SamplerRegistry
from tests.local_servers.tinker_wire.conftest import PROTOBUF, Server, Supervised, Wire


@pytest.fixture
def wire(server: Server, base_model: str) -> Wire:
    return Wire(server, base_model)


def test_a_resend_is_answered_and_not_computed_again(
    server: Server, base_model: str, lesson: list[types.Datum]
) -> None:
    once, often = Wire(server, base_model), Wire(server, base_model)
    outputs = {}
    for wire, sends in ((once, 1), (often, 3)):
        for _ in range(sends):
            forward = wire.forward_backward(1, lesson)
        for _ in range(sends):
            update = wire.optim_step(2)
        assert wire.retrieve(update["request_id"])["metrics"]["grad_norm"] > 0
        assert wire.optim_step(2) == update
        first = wire.retrieve(forward["request_id"])
        assert wire.retrieve(forward["request_id"]) == first
        after = wire.forward_backward(3, lesson)
        outputs[wire] = wire.retrieve(after["request_id"])
        assert wire.steps() == 1
    assert outputs[once] == outputs[often]


def test_requests_run_in_order_however_they_arrive(server: Server, base_model: str, lesson: list[types.Datum]) -> None:
    straight, shuffled = Wire(server, base_model), Wire(server, base_model)
    for seq in (1, 3):
        straight.forward_backward(seq, lesson)
        straight.optim_step(seq + 1)
    shuffled.optim_step(4)
    last = shuffled.forward_backward(5, lesson)["request_id"]
    shuffled.forward_backward(3, lesson)
    shuffled.optim_step(2)
    assert shuffled.steps() == 0
    shuffled.forward_backward(1, lesson)
    expected = straight.retrieve(straight.forward_backward(5, lesson)["request_id"])
    assert shuffled.retrieve(last) == expected
    assert shuffled.steps() == straight.steps() == 2


def test_a_number_that_never_arrives_is_named(
    impatient_server: Server, base_model: str, lesson: list[types.Datum]
) -> None:
    wire = Wire(impatient_server, base_model)
    forward, update = wire.forward_backward(2, lesson), wire.optim_step(3)
    for accepted in (forward, update):
        answer = wire.retrieve(accepted["request_id"])
        assert answer["category"] == "server", "sending all of it again helps"
        assert f"request 1 of {wire.model_id} comes before it and did not arrive" in answer["error"]
    # Coming late it is still served; what was given up is not, and the step after it is refused.
    late = wire.retrieve(wire.forward_backward(1, lesson)["request_id"])
    assert deserialize_forward_backward_output(late).metrics["loss:sum"] > 0
    assert "forward_backward) was not executed" in wire.retrieve(wire.optim_step(4)["request_id"])["error"]
    wire.forward_backward(5, lesson)
    assert "metrics" in wire.retrieve(wire.optim_step(6)["request_id"])
    assert wire.steps() == 1


def test_a_refused_request_takes_its_turn_and_stays_refused(
    wire: Wire, lesson: list[types.Datum], supervised: Supervised
) -> None:
    refused = wire.forward_backward(1, [supervised([1, 2, 9999])], status=400)
    assert "datum 0" in refused["detail"] and "9999" in refused["detail"]
    assert wire.forward_backward(1, lesson, status=400) == refused
    answer = wire.retrieve(wire.optim_step(2)["request_id"])
    assert "request 1 (forward_backward) failed" in answer["error"]
    wire.forward_backward(3, lesson)
    assert "metrics" in wire.retrieve(wire.optim_step(4)["request_id"])


def test_a_number_cannot_be_reused_for_another_kind(wire: Wire, lesson: list[types.Datum]) -> None:
    wire.forward_backward(1, lesson)
    status, answer = wire.server.call(
        "/api/v1/optim_step", {"model_id": wire.model_id, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}
    )
    assert status == 400 and "forward_backward" in answer["detail"]


def test_answers_in_protobuf_are_not_given_to_those_who_do_not_read_it(wire: Wire, lesson: list[types.Datum]) -> None:
    accepted = wire.forward_backward(1, lesson)
    status, answer = wire.server.call("/api/v1/retrieve_future", {"request_id": accepted["request_id"]})
    assert status == 406 and PROTOBUF in answer["detail"]


def test_malformed_requests(wire: Wire) -> None:
    call = wire.server.call
    assert call("/api/v1/forward_backward", b"\xff\xff\xff")[0] == 400
    assert "not JSON" in call("/api/v1/optim_step", b"{")[1]["detail"]
    status, answer = call("/api/v1/optim_step", b'{"a":' * 100_000)
    assert status == 400 and "not JSON: maximum recursion depth" in answer["detail"]
    status, answer = call("/api/v1/optim_step", {"model_id": wire.model_id, "seq_id": 1})
    assert status == 400 and "optim_params" in answer["detail"]
    status, answer = call("/api/v1/optim_step", {"model_id": wire.model_id, "adam_params": {}})
    assert status == 400 and "numbered from 1" in answer["detail"]
    message = pb.ForwardBackwardRequest(model_id=wire.model_id, seq_id=1, loss_fn="cross_entropy")
    chunk = message.data.add().model_input.add()
    chunk.image.data, chunk.image.format = b"x", "png"
    status, answer = call("/api/v1/forward_backward", message.SerializeToString())
    assert status == 400 and "only tokens are supported" in answer["detail"]
    message = pb.ForwardBackwardRequest(model_id=wire.model_id, seq_id=2, loss_fn="cross_entropy")
    datum = message.data.add()
    datum.model_input.add().encoded_text.tokens = np.array([1, 2], dtype=np.int32).tobytes()
    datum.loss_fn_inputs["target_tokens"].dense = b"123"
    datum.loss_fn_inputs["target_tokens"].dtype = pb.DTYPE_INT64
    status, answer = call("/api/v1/forward_backward", message.SerializeToString())
    assert status == 400 and "target_tokens" in answer["detail"]


def test_keys(server: Server) -> None:
    assert server.call("/api/v1/healthz", key=None) == (200, {"status": "ok"})
    status, answer = server.call("/api/v1/get_server_capabilities", key=None)
    assert status == 401 and "TINKER_API_KEY" in answer["detail"]
    status, answer = server.call("/api/v1/get_server_capabilities", key="sk-1")
    assert status == 401 and "tml-" in answer["detail"]
    status, answer = server.call("/api/v1/nothing")
    assert status == 404 and "/api/v1/nothing" in answer["detail"]
    assert "jwt" in server.call("/api/v1/auth/token", {})[1]


@pytest.mark.parametrize(
    ("more", "status", "says"),
    [
        ({"Host": "evil.example"}, 400, "evil.example"),
        ({"Origin": "http://127.0.0.1"}, 403, "web pages"),
        ({"Content-Type": "text/plain"}, 415, "application/json or application/x-protobuf"),
    ],
)
def test_a_server_without_a_key_refuses_web_pages_too(
    server: Server, more: dict[str, str], status: int, says: str
) -> None:
    found, answer = server.call("/api/v1/auth/token", {}, more=more)
    assert found == status and says in answer["detail"]


def test_what_is_not_known_is_gone(server: Server, base_model: str) -> None:
    for path, body in (
        ("retrieve_future", {"request_id": "nobody:train:0:1"}),
        ("session_heartbeat", {"session_id": "nobody"}),
        ("get_info", {"model_id": "nobody:train:0"}),
        ("create_sampling_session", {"session_id": "nobody", "sampling_session_seq_id": 0, "base_model": base_model}),
    ):
        status, answer = server.call(f"/api/v1/{path}", body)
        assert status == 410 and "not known to this server" in answer["detail"]


def test_a_finished_session_is_over(wire: Wire, lesson: list[types.Datum], base_model: str) -> None:
    running = wire.forward_backward(1, lesson)["request_id"]
    wire.retrieve(running)
    opened = {"session_id": wire.session_id, "sampling_session_seq_id": 0, "base_model": base_model}
    ask = {
        "sampling_session_id": wire.post("create_sampling_session", opened)["sampling_session_id"],
        "num_samples": 256,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 120, "stop": []},
    }
    # More than the server samples until the session ends; the last one is of a copy of the client.
    sampled = [wire.post("asample", ask | {"seq_id": seq})["request_id"] for seq in (*range(40), CLONE_BLOCK)]
    for _ in range(2):
        path = f"/api/v1/sessions/{wire.session_id}/finish"
        assert wire.server.call(path, {"reason": {"type": "success"}, "detail": None})[0] == 204
    wire.post("session_heartbeat", {"session_id": wire.session_id}, status=410)
    wire.forward_backward(2, lesson, status=410)
    assert wire.model_id not in wire.server.stats()["models"]
    assert wire.retrieve(running)
    for request_id in sampled[-2:]:
        answer = wire.retrieve(request_id)
        assert (answer["error"], answer["category"]) == ("its session was ended", "server")


def test_samples_of_a_silent_client_give_way_and_come_out_the_same_once_it_is_heard(
    impatient_server: Server, base_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, living = Wire(impatient_server, base_model), Wire(impatient_server, base_model)

    def ask(wire: Wire, number: int) -> str:
        opened = {"session_id": wire.session_id, "sampling_session_seq_id": number, "base_model": base_model}
        request = {
            "sampling_session_id": wire.post("create_sampling_session", opened)["sampling_session_id"],
            "seq_id": 0,
            "num_samples": 4,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
            "sampling_params": {"max_tokens": 40, "stop": [], "seed": 1},
        }
        return wire.post("asample", request)["request_id"]

    expected = living.retrieve(ask(living, 0))
    monkeypatch.setattr(state, "QUIET_S", 0.001)  # from now on a client is silent from each of its requests to the next
    monkeypatch.setattr(service_routes, "LONG_POLL_S", 0.02)
    left = ask(killed, 0)
    assert living.retrieve(ask(living, 1)) == expected
    assert impatient_server.stats()["promises"]["running"] == 1
    assert killed.retrieve(left) == expected


@pytest.mark.parametrize("made_in", [SamplerRegistry.weights, TrainingModel.snapshot])
def test_no_sampler_outlives_a_session_that_ends_while_it_is_made(
    impatient_server: Server, base_model: str, monkeypatch: pytest.MonkeyPatch, made_in: Callable[..., Awaitable[Any]]
) -> None:
    wire = Wire(impatient_server, base_model)

    async def made_too_late(*arguments: Any) -> Any:
        made = await made_in(*arguments)
        path = f"/api/v1/sessions/{wire.session_id}/finish"
        assert (await asyncio.to_thread(impatient_server.call, path, {}))[0] == 204
        return made

    if made_in is SamplerRegistry.weights:
        monkeypatch.setattr(SamplerRegistry, "weights", made_too_late)
        opened = {"session_id": wire.session_id, "sampling_session_seq_id": 0, "base_model": base_model}
        refused = wire.post("create_sampling_session", opened, status=410)["detail"]
    else:
        monkeypatch.setattr(TrainingModel, "snapshot", made_too_late)
        saved = {"model_id": wire.model_id, "seq_id": 1, "sampling_session_seq_id": 0}
        refused = wire.retrieve(wire.post("save_weights_for_sampler", saved)["request_id"])["error"]
    assert "the session has ended" in refused
    assert impatient_server.stats()["samplers"] == 0


def test_a_sampler_of_a_checkpoint_opens_while_a_pass_is_under_way(
    impatient_server: Server, base_model: str, lesson: list[types.Datum], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, is_over, compute = Wire(impatient_server, base_model), threading.Event(), TrainingModel.forward_backward

    async def long_pass(model: TrainingModel, *arguments: Any, **options: Any) -> Any:
        assert await model.host.train(lambda _: is_over.wait(120))
        return await compute(model, *arguments, **options)

    saved = wire.post("save_weights_for_sampler", {"model_id": wire.model_id, "seq_id": 1, "path": "a"})
    path = wire.retrieve(saved["request_id"])["path"]
    monkeypatch.setattr(TrainingModel, "forward_backward", long_pass)
    running = wire.forward_backward(2, lesson)
    try:
        opened = {"session_id": wire.session_id, "sampling_session_seq_id": 0, "model_path": path}
        wire.post("create_sampling_session", opened)
    finally:
        is_over.set()
    assert wire.retrieve(running["request_id"])


def test_a_checkpoint_that_is_overwritten_before_its_loading_begins_is_loaded_as_it_is_then(
    impatient_server: Server, base_model: str, lesson: list[types.Datum], monkeypatch: pytest.MonkeyPatch
) -> None:
    busy, writer, reader = (Wire(impatient_server, base_model) for _ in range(3))
    is_over, compute = threading.Event(), TrainingModel.forward_backward

    async def long_pass(model: TrainingModel, *arguments: Any, **options: Any) -> Any:
        assert await model.host.train(lambda _: is_over.wait(120))
        return await compute(model, *arguments, **options)

    save = {"model_id": writer.model_id, "path": "last", "overwrite": True}
    path = writer.retrieve(writer.post("save_weights", save | {"seq_id": 1})["request_id"])["path"]
    monkeypatch.setattr(TrainingModel, "forward_backward", long_pass)
    busy.forward_backward(1, lesson)
    try:
        saved = writer.post("save_weights", save | {"seq_id": 2})
        load = {"model_id": reader.model_id, "seq_id": 1, "path": path, "optimizer": True}
        loaded = reader.post("load_weights", load)
        while any(model["waiting"] for model in impatient_server.stats()["models"].values()):
            time.sleep(0.01)
    finally:
        is_over.set()
    assert writer.retrieve(saved["request_id"])["path"] == path
    assert reader.retrieve(loaded["request_id"])["path"] == path


def test_what_was_done_is_no_failure_because_its_record_cannot_be_written(
    impatient_server: Server, base_model: str, lesson: list[types.Datum]
) -> None:
    wire = Wire(impatient_server, base_model)
    saved = wire.post("save_weights", {"model_id": wire.model_id, "seq_id": 1, "path": "a"})
    path = wire.retrieve(saved["request_id"])["path"]
    record = impatient_server.home / wire.model_id / "run.json"
    record.unlink()
    record.mkdir()
    wire.forward_backward(2, lesson)
    assert "metrics" in wire.retrieve(wire.optim_step(3)["request_id"])
    assert wire.steps() == 1
    load = {"model_id": wire.model_id, "seq_id": 4, "path": path, "optimizer": True}
    assert wire.retrieve(wire.post("load_weights", load)["request_id"])["path"] == path
    assert wire.steps() == 0
    wire.forward_backward(5, lesson)
    assert "metrics" in wire.retrieve(wire.optim_step(6)["request_id"])
    record.rmdir()
    save = {"model_id": wire.model_id, "seq_id": 7, "path": "b"}
    assert "path" in wire.retrieve(wire.post("save_weights", save)["request_id"])
    assert CheckpointStore(impatient_server.home).run(wire.model_id).optimizer_steps == 1


def test_cancelling_is_always_accepted(server: Server) -> None:
    assert server.call("/api/v1/cancel_future", {"request_id": "nobody:sample:0:1"})[0] == 204


def test_a_number_cannot_be_reused_with_other_content(wire: Wire, lesson: list[types.Datum]) -> None:
    """Its answer would be taken for the answer to what was never computed."""
    wire.forward_backward(1, lesson)
    refused = wire.forward_backward(1, lesson[:1], status=400)
    assert "sent before with other content" in refused["detail"]
    assert "metrics" in wire.retrieve(wire.optim_step(2)["request_id"])
    other = {"model_id": wire.model_id, "seq_id": 2, "adam_params": {"learning_rate": 1.0}}
    assert "other content" in wire.post("optim_step", other, 400)["detail"]
    create = wire.create | {"lora_config": {"rank": 8, "seed": 7}}
    assert "other content" in wire.post("create_model", create, 400)["detail"]


def test_a_sampling_number_cannot_be_reused_with_other_content(wire: Wire, base_model: str) -> None:
    opened = {"session_id": wire.session_id, "sampling_session_seq_id": 0, "base_model": base_model}
    sampler = wire.post("create_sampling_session", opened)["sampling_session_id"]
    assert wire.post("create_sampling_session", opened)["sampling_session_id"] == sampler
    other_weights = opened | {"base_model": None, "model_path": f"tinker://{wire.model_id}/weights/none"}
    assert "exists already, with other weights" in wire.post("create_sampling_session", other_weights, 400)["detail"]
    ask = {
        "sampling_session_id": sampler,
        "seq_id": 0,
        "num_samples": 1,
        "prompt": {"chunks": [{"type": "encoded_text", "tokens": [1, 2, 3]}]},
        "sampling_params": {"max_tokens": 4, "seed": 1},
    }
    assert wire.post("asample", ask) == wire.post("asample", ask)
    # An id per completion would be made up before anything looks at the number.
    assert "other content" in wire.post("asample", ask | {"num_samples": 3_000_000}, 400)["detail"]


def test_unnamed_sampler_weights_sent_again_are_those_of_the_first_request(wire: Wire) -> None:
    """The SDK numbers the sampler anew each time it sends the request, also where only the reply was lost."""
    save = {"model_id": wire.model_id, "seq_id": 1}
    first = wire.post("save_weights_for_sampler", save | {"sampling_session_seq_id": 5})["request_id"]
    assert wire.post("save_weights_for_sampler", save | {"sampling_session_seq_id": 6})["request_id"] == first
    assert wire.retrieve(first)["sampling_session_id"].endswith(":5")
    assert "other content" in wire.post("save_weights_for_sampler", save | {"path": "named"}, 400)["detail"]


@pytest.mark.parametrize("number", [-1, 10**9, 10**300])
def test_ids_that_no_route_could_name_are_not_given_out(wire: Wire, number: int, base_model: str) -> None:
    """One run or sampler with such an id made every search over sessions fail, for all clients."""
    wire.post("create_model", wire.create | {"model_seq_id": number}, 400)
    load = {"session_id": wire.session_id, "path": f"tinker://{wire.model_id}/weights/x", "optimizer": False}
    wire.post("load_weights", load | {"model_seq_id": number}, 400)
    opened = {"session_id": wire.session_id, "sampling_session_seq_id": number, "base_model": base_model}
    wire.post("create_sampling_session", opened, 400)
    wire.post("sessions/search", {"limit": 5})


def test_what_no_text_and_no_number_can_be_is_a_bad_request(wire: Wire) -> None:
    call = wire.server.call
    assert "surrogates" in wire.post("create_model", wire.create | {"user_metadata": {"a": "\ud800"}}, 400)["detail"]
    assert (
        call("/api/v1/weights_info", b'{"tinker_path": "\xed\xa0\x80"}', more={"Content-Type": "application/json"})[0]
        == 400
    )
    for page in ("limit=%C2%B2", f"limit={'9' * 5000}", f"offset={'9' * 30}"):
        status, answer = call(f"/api/v1/sessions?{page}")
        assert status == 400 and "has to be a number" in answer["detail"]
    for name in ("m" * 5000, "~nobody-has-this-name/m", "a\0b"):
        status, answer = call("/api/v1/create_model", wire.create | {"model_seq_id": 1, "base_model": name})
        assert status == 404 and "is not served here" in answer["detail"]


@pytest.mark.parametrize(
    "settings", [{"learning_rate": 1e300}, {"weight_decay": 1e300}, {"learning_rate": 1e-4, "weight_decay": 1e5}]
)
def test_an_optimizer_step_that_would_ruin_the_weights_leaves_them(
    wire: Wire, lesson: list[types.Datum], settings: dict[str, float]
) -> None:
    wire.forward_backward(1, lesson)
    step = {"model_id": wire.model_id, "seq_id": 2, "adam_params": settings}
    answer = wire.retrieve(wire.post("optim_step", step)["request_id"])
    assert answer["category"] == "user", answer
    wire.forward_backward(3, lesson)
    assert "metrics" in wire.retrieve(wire.optim_step(4)["request_id"])
