"""What a restart does and does not lose, and how a server ends."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import tinker
from tinker import types

from tests.local_servers.tinker_wire.conftest import Fingerprint, NewRun, Server, Step, Wire

PROMPT = types.ModelInput.from_ints([5, 6, 7])


@pytest.fixture(scope="module")
def own_server(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that is killed, restarted and, by the last test, ended: to start another one would take seconds."""
    server = Server(model_folder, tmp_path_factory.mktemp("home")).start()
    yield server
    server.kill()


def test_a_killed_server_loses_nothing_that_was_saved(
    own_server: Server, new_run: NewRun, lesson: list[types.Datum], step: Step, fingerprint: Fingerprint
) -> None:
    server = own_server
    client = server.client()
    run = new_run(client)
    for _ in range(3):
        step(run, lesson)
    saved = run.save_state("step-3", user_metadata={"why": "test"}).result()
    named = run.save_weights_for_sampler("step-3").result()
    assert saved.path == f"tinker://{run.model_id}/weights/step-3"
    assert named.path == f"tinker://{run.model_id}/sampler_weights/step-3"
    expected = []
    for _ in range(2):
        step(run, lesson)
        expected.append(fingerprint(run, lesson))
    greedy = types.SamplingParams(max_tokens=10, temperature=0.0)
    before = client.create_sampling_client(model_path=named.path).result()
    sampled = before.sample(PROMPT, 1, greedy).result()

    server.restart()

    for path, body in (
        ("retrieve_future", {"request_id": f"{run.model_id}:1"}),
        ("optim_step", {"model_id": run.model_id, "seq_id": 99, "adam_params": {}}),
        ("session_heartbeat", {"session_id": run.model_id.split(":")[0]}),
    ):
        status, answer = server.call(f"/api/v1/{path}", body)
        assert status == 410 and "restarted" in answer["detail"]
    with server.client() as later:
        resumed = later.create_training_client_from_state_with_optimizer(saved.path).result()
        again = []
        for _ in range(2):
            step(resumed, lesson)
            again.append(fingerprint(resumed, lesson))
        assert again == expected
        fresh_moments = later.create_training_client_from_state(saved.path).result()
        for _ in range(2):
            step(fresh_moments, lesson)
        assert fingerprint(fresh_moments, lesson) != expected[-1]
        sampler = later.create_sampling_client(model_path=named.path).result()
        assert sampler.get_base_model() == str(server.model)
        repeated = sampler.sample(PROMPT, 1, greedy).result()
        assert repeated.sequences[0].logprobs == sampled.sequences[0].logprobs
        of_state = later.create_sampling_client(model_path=saved.path).result().sample(PROMPT, 1, greedy).result()
        assert of_state.sequences[0].logprobs == sampled.sequences[0].logprobs
        stats = server.stats()["models"][resumed.model_id]
        assert (stats["steps_before"], stats["optimizer_steps"], stats["loaded_from"]) == (3, 2, saved.path)
        old = server.rest().get_training_run(run.model_id).result()
        assert old.lora_rank == 4
        assert old.last_checkpoint is not None and old.last_checkpoint.user_metadata == {"why": "test"}
        # Steps after the last checkpoint are counted too: the run did apply them.
        assert server.call(f"/api/v1/training_runs/{run.model_id}")[1]["optimizer_steps"] == 5
    # What the killed server had in memory is lost for its clients, and they are told at once.
    for lost in (before.sample(PROMPT, 1, greedy), run.forward_backward(lesson, "cross_entropy")):
        with pytest.raises(tinker.APIStatusError, match="restarted") as caught:
            lost.result()
        assert caught.value.status_code == 410
    client.close("interrupted").result()


def test_a_server_stops_cleanly_while_requests_wait(
    own_server: Server, base_model: str, lesson: list[types.Datum]
) -> None:
    """The last test of this server."""
    wire = Wire(own_server, base_model)
    for seq in range(1, 20):
        wire.forward_backward(seq, lesson * 100)
    assert own_server.terminate() == 0
