"""Checkpoints: saved once, loaded, listed, and removed when they expire."""

import json
import os
import time
from pathlib import Path

import pytest
import tinker
from tinker import types

from local_servers.tinker import rest_routes
from local_servers.tinker import tinker_server as server_module
from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.records import LoraSettings, RunRecord
from local_servers.tinker.refusal import Refusal
from tests.local_servers.tinker_wire.conftest import Fingerprint, NewRun, Server, Step, Wire


@pytest.fixture
def busy_housekeeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "HOUSEKEEPING_S", 0.02)
    monkeypatch.setattr(server_module, "SWEEP_EVERY", 1)


def test_what_expires_while_the_server_runs_is_removed(
    busy_housekeeping: None, impatient_server: Server, new_run: NewRun
) -> None:
    with impatient_server.client() as client:
        run = new_run(client)
        kept, expired = (run.save_weights_for_sampler(name, 3600).result().path for name in ("kept", "expired"))
        store = CheckpointStore(impatient_server.home)
        record = store.find(expired)
        file = impatient_server.home / run.model_id / "sampler_weights" / "expired.json"
        file.write_text(record.model_copy(update={"expires_at": time.time() - 1}).model_dump_json())
        data = impatient_server.home / run.model_id / "data" / record.data
        deadline = time.monotonic() + 30
        while data.exists() or file.exists():
            assert time.monotonic() < deadline, "not removed in 30 s"
            time.sleep(0.01)
        assert store.find(kept).path == kept


def test_names_are_taken_unless_overwritten(
    client: tinker.ServiceClient,
    server: Server,
    new_run: NewRun,
    lesson: list[types.Datum],
    step: Step,
    fingerprint: Fingerprint,
) -> None:
    run = new_run(client)
    step(run, lesson)
    path = run.save_state("last").result().path
    step(run, lesson)
    assert run.save_state("last", overwrite=True).result().path == path
    expected = fingerprint(run, lesson)
    loaded = client.create_training_client_from_state(path).result()
    assert fingerprint(loaded, lesson) == expected
    assert len(server.rest().list_checkpoints(run.model_id).result().checkpoints) == 1
    (data,) = (server.home / "tinker" / run.model_id / "data").iterdir()
    assert data.is_dir()
    with pytest.raises(tinker.RequestFailedError, match="last exists: choose another name, or overwrite it") as caught:
        run.save_state("last").result()
    assert caught.value.category == types.RequestErrorCategory.User
    with pytest.raises(tinker.BadRequestError, match="not usable"):
        run.save_weights_for_sampler("../escape").result()


@pytest.mark.filterwarnings("ignore:DEPRECATED:FutureWarning")
def test_in_place_loading_takes_over_weights_and_moments(
    client: tinker.ServiceClient, new_run: NewRun, lesson: list[types.Datum], step: Step, fingerprint: Fingerprint
) -> None:
    run, other = new_run(client), new_run(client, seed=9)
    step(run, lesson)
    path = run.save_state("one").result().path
    step(run, lesson)
    other.forward_backward(lesson, "cross_entropy").result()
    other.load_state_with_optimizer(path).result()
    with pytest.raises(tinker.RequestFailedError, match="no forward_backward"):
        other.optim_step(types.AdamParams()).result()
    step(other, lesson)
    assert fingerprint(other, lesson) == fingerprint(run, lesson)
    narrow = new_run(client, rank=2)
    with pytest.raises(tinker.RequestFailedError, match="rank=4"):
        narrow.load_state(path).result()


def test_what_cannot_be_loaded_says_so(
    client: tinker.ServiceClient, server: Server, new_run: NewRun, lesson: list[types.Datum], step: Step
) -> None:
    run = new_run(client)
    step(run, lesson)
    named = run.save_weights_for_sampler("only-weights").result().path
    state = run.save_state("whole").result().path
    with pytest.raises(tinker.RequestFailedError, match="cannot be trained from"):
        client.create_training_client_from_state(named).result()
    with pytest.raises(tinker.NotFoundError, match="no checkpoint"):
        client.create_training_client_from_state(state + "-not").result()
    with pytest.raises(tinker.NotFoundError, match="no checkpoint"):
        client.create_sampling_client(model_path=named + "-not").result()
    data = server.home / "tinker" / run.model_id / "data"
    for path in (named, state):
        kind, name = path.split("/")[-2:]
        record = json.loads((server.home / "tinker" / run.model_id / kind / f"{name}.json").read_text())
        file = data / record["data"] / "adapter_model.safetensors"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        file.write_bytes(content)
    with pytest.raises(tinker.UnprocessableEntityError, match="damaged: the content of adapter_model"):
        client.create_sampling_client(model_path=named).result()
    with pytest.raises(tinker.RequestFailedError, match="damaged"):
        client.create_training_client_from_state_with_optimizer(state).result()


def test_the_files_of_a_checkpoint_that_is_another_now_are_not_called_damaged(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    run = RunRecord(run_id="a:train:0", session_id="a", base_model="m", lora=LoraSettings(rank=4, seed=0))
    store.save_run(run)
    first, second = (
        store.write(run, "weights", "last", lambda folder: (folder / "file").touch(), overwrite=True) for _ in range(2)
    )
    assert (store.files(second) / "file").exists()
    with pytest.raises(Refusal, match="weights/last was overwritten since: open it again"):
        store.files(first)
    store.delete(second)
    for record in (first, second):
        with pytest.raises(Refusal, match="there is no checkpoint"):
            store.files(record)


def test_checkpoints_expire(client: tinker.ServiceClient, server: Server, new_run: NewRun) -> None:
    run = new_run(client)
    with pytest.raises(tinker.BadRequestError, match="3600"):
        run.save_state("short", ttl_seconds=60).result()
    path = run.save_state("hour", ttl_seconds=3600).result().path
    rest = server.rest()
    (listed,) = rest.list_checkpoints(run.model_id).result().checkpoints
    assert listed.expires_at is not None
    assert 3590 < (listed.expires_at - listed.time).total_seconds() < 3610
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert rest.list_checkpoints(run.model_id).result().checkpoints[0].expires_at is None
    record_file = server.home / "tinker" / run.model_id / "weights" / "hour.json"
    record = json.loads(record_file.read_text())
    record_file.write_text(json.dumps(record | {"expires_at": 1.0}))
    assert rest.list_checkpoints(run.model_id).result().checkpoints == []
    assert not record_file.exists() and not any((server.home / "tinker" / run.model_id / "data").iterdir())
    assert run.save_state("hour").result().path == path


def test_what_a_crash_left_behind_is_swept(impatient_server: Server, new_run: NewRun) -> None:
    """In a store of its own: in that of the other tests, files come and go while it is swept."""
    with impatient_server.client() as client:
        run = new_run(client)
        path = run.save_state("kept").result().path
    folder = impatient_server.home / run.model_id
    half, recent = folder / "data" / ".tmp-crashed", folder / "data" / ".tmp-recent"
    for data in (half, recent):
        data.mkdir()
        (data / "adapter_model.safetensors").write_bytes(b"half")
    (folder / "weights" / ".tmp-crashed").write_text("{")
    for leftover in (half, folder / "weights" / ".tmp-crashed"):
        os.utime(leftover, (1, 1))
    store = CheckpointStore(impatient_server.home)
    store.sweep()
    assert list(folder.rglob(".tmp-*")) == [recent]
    assert store.files(store.find(path)).is_dir()


def test_runs_and_checkpoints_over_rest(
    client: tinker.ServiceClient, server: Server, new_run: NewRun, base_model: str
) -> None:
    run = new_run(client, user_metadata={"name": "mine"})
    state = run.save_state("a").result().path
    sampler = run.save_weights_for_sampler("b").result().path
    rest = server.rest()
    record = rest.get_training_run_by_tinker_path(state).result()
    assert (record.training_run_id, record.base_model, record.is_lora) == (run.model_id, base_model, True)
    assert record.user_metadata == {"name": "mine"}
    assert record.last_checkpoint is not None and record.last_sampler_checkpoint is not None
    assert (record.last_checkpoint.tinker_path, record.last_sampler_checkpoint.tinker_path) == (state, sampler)
    with pytest.raises(tinker.BadRequestError, match="without project_id"):
        rest.list_training_runs(project_id="one").result()
    listed = rest.list_training_runs(limit=1).result()
    assert len(listed.training_runs) == 1 and listed.cursor.total_count >= 1
    assert {c.tinker_path for c in rest.list_user_checkpoints().result().checkpoints} >= {state, sampler}
    info = rest.get_weights_info_by_tinker_path(state).result()
    assert (info.base_model, info.lora_rank, info.train_unembed) == (base_model, 4, True)
    rest.publish_checkpoint_from_tinker_path(state).result()
    published = rest.get_training_run(run.model_id).result().last_checkpoint
    assert published is not None and published.public
    rest.unpublish_checkpoint_from_tinker_path(state).result()
    rest.delete_checkpoint_from_tinker_path(state).result()
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(state).result()
    assert [c.tinker_path for c in rest.list_checkpoints(run.model_id).result().checkpoints] == [sampler]
    session_id = run.model_id.split(":")[0]
    assert session_id in rest.list_sessions(limit=1000).result().sessions
    assert rest.get_session(session_id).result().training_run_ids == [run.model_id]
    session = {"session_id": session_id}

    def is_found(**wanted: object) -> bool:
        status, answer = server.call("/api/v1/sessions/search", session | wanted)
        assert status == 200
        return [found["session_id"] for found in answer["sessions"]] == [session_id]

    active, finished = [{"type": "active"}], [{"type": "client_finished", "reasons": ["success"]}]
    rest.assign_session_project(session_id, "one").result()
    assert is_found() and is_found(statuses=active) and not is_found(statuses=finished)
    assert is_found(project_ids=["one"]) and not is_found(project_ids=["two"])
    assert not is_found(owner={"type": "user", "owner_urns": ["somebody"]})
    (model,) = rest.get_server_capabilities().result().supported_models
    assert (model.model_name, model.max_context_length) == (base_model, 128)
    path = f"/api/v1/training_runs/{run.model_id}"
    assert server.call(path, method="DELETE")[0] == 409
    client.close("success").result()
    assert is_found(statuses=finished) and not is_found(statuses=active)
    assert not is_found(statuses=[{"type": "client_finished", "reasons": ["errored"]}])
    assert server.call(path, method="DELETE")[0] == 204
    with pytest.raises(tinker.NotFoundError):
        rest.get_training_run(run.model_id).result()


def test_a_download_address_is_of_one_export_and_for_an_hour(
    impatient_server: Server, base_model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(impatient_server, base_model)
    for seq, name in ((1, "one"), (2, "two")):
        saved = wire.post("save_weights_external", {"model_id": wire.model_id, "seq_id": seq, "path": name})
        wire.retrieve(saved["request_id"])
    asked = f"/api/v1/training_runs/{wire.model_id}/checkpoints/external_weights/one/external_weights_urls"

    def address() -> str:
        urls = impatient_server.call(asked)[1]["urls"]
        return urls["adapter_config.json"].removeprefix(impatient_server.url)

    url = address()
    assert impatient_server.call(url, key=None)[0] == 200
    head, rest = url.split("-", 1)
    later = f"{head[:-1]}{(int(head[-1]) + 1) % 10}-{rest}"
    for other in (url.replace("/one/", "/two/"), later, "/download/9-%C3%A9/" + url.split("/", 3)[3]):
        assert impatient_server.call(other, key=None)[0] == 404
    monkeypatch.setattr(rest_routes, "_DOWNLOAD_LIFE_S", -2)
    status, answer = impatient_server.call(address(), key=None)
    assert status == 404 and "address is over" in answer["detail"]
