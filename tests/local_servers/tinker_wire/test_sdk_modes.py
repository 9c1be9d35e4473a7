"""Ways in which the SDK talks only if the server asks it to, or takes long: polls that run out, pollers, tokens."""

import pickle

import pytest
from tinker import types

from local_servers.tinker import service_routes
from tests.local_servers.tinker_wire.conftest import NewRun, Server, Step

PROMPT = types.ModelInput.from_ints([5, 6, 7])


def test_polls_that_run_out_are_repeated(
    impatient_server: Server, monkeypatch: pytest.MonkeyPatch, new_run: NewRun, lesson: list[types.Datum], step: Step
) -> None:
    monkeypatch.setattr(service_routes, "LONG_POLL_S", 0.005)
    with impatient_server.client() as client:
        run = new_run(client)
        output = step(run, lesson * 60)
        assert len(output.loss_fn_outputs) == 180
        sampler = run.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=60, stop=[])
        assert len(sampler.sample(PROMPT, 8, params).result().sequences) == 8


def test_session_poller_clone_numbers_and_tokens(
    impatient_server: Server, monkeypatch: pytest.MonkeyPatch, base_model: str
) -> None:
    flags = types.ClientConfigResponse(
        sample_use_retrieve_futures=True, sample_join_sampling_session=True, pjwt_auth_enabled=True
    )
    monkeypatch.setattr(service_routes, "CLIENT_CONFIG", flags)
    with impatient_server.client() as client:
        sampler = client.create_sampling_client(base_model=base_model).result()
        params = types.SamplingParams(max_tokens=5, seed=1)
        copy = pickle.loads(pickle.dumps(sampler))
        futures = [each.sample(PROMPT, 2, params) for each in (sampler, copy) for _ in range(5)]
        sequences = [sequence for future in futures for sequence in future.result().sequences]
        assert len({sequence.sequence_id for sequence in sequences}) == 20
        assert len({tuple(sequence.tokens) for sequence in sequences}) <= 2
        # Its heartbeat ends when a server says that the session has; this server ends with the test.
        copy.holder.close()


def test_a_sample_that_is_given_up_is_cancelled(impatient_server: Server, base_model: str) -> None:
    with impatient_server.client() as client:
        sampler = client.create_sampling_client(base_model=base_model).result()
        future = sampler.sample(PROMPT, 16, types.SamplingParams(max_tokens=100, stop=[]))
        future.future().cancel()
        params = types.SamplingParams(max_tokens=5, seed=1)
        assert sampler.sample(PROMPT, 1, params).result().sequences
