"""Sampling through the real SDK."""

import math
import pickle
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types

from coderl_tasks.cli.entry import FEWEST_OPEN_FILES
from local_servers.tinker.state import KEPT_WEIGHTS
from tests.local_servers.tinker_wire.conftest import NewRun, Server, Step

PROMPT = types.ModelInput.from_ints([5, 6, 7, 8])


@pytest.fixture(scope="module")
def sampler(server: Server, base_model: str) -> Iterator[tinker.SamplingClient]:
    with server.client() as client:
        yield client.create_sampling_client(base_model=base_model).result()


def test_one_client_cannot_take_all_connections(sampler: tinker.SamplingClient) -> None:
    assert sampler.holder.get_client_config().sample_max_concurrent_requests <= FEWEST_OPEN_FILES / 2


def test_same_seed_same_tokens_whatever_runs_beside(sampler: tinker.SamplingClient) -> None:
    params = types.SamplingParams(max_tokens=20, temperature=1.0, seed=3)
    alone = sampler.sample(PROMPT, 4, params).result()
    crowd = [
        sampler.sample(types.ModelInput.from_ints([9] * n), 2, types.SamplingParams(max_tokens=15)) for n in range(1, 9)
    ]
    together = sampler.sample(PROMPT, 4, params).result()
    for future in crowd:
        future.result()
    assert [s.tokens for s in together.sequences] == [s.tokens for s in alone.sequences]
    assert [s.logprobs for s in together.sequences] == [s.logprobs for s in alone.sequences]
    assert len({tuple(s.tokens) for s in alone.sequences}) > 1
    other = sampler.sample(PROMPT, 4, types.SamplingParams(max_tokens=20, seed=4)).result()
    assert [s.tokens for s in other.sequences] != [s.tokens for s in alone.sequences]


def test_sequences_have_ids_of_their_own(sampler: tinker.SamplingClient) -> None:
    params = types.SamplingParams(max_tokens=3)
    ids = [s.sequence_id for _ in range(2) for s in sampler.sample(PROMPT, 3, params).result().sequences]
    assert len(set(ids)) == 6


def test_greedy_is_what_the_scores_say(sampler: tinker.SamplingClient) -> None:
    (greedy,) = sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=8, temperature=0.0)).result().sequences
    whole = types.ModelInput.from_ints(PROMPT.to_ints() + greedy.tokens)
    scores = sampler.compute_logprobs(whole).result()
    assert scores[0] is None
    assert scores[PROMPT.length :] == pytest.approx(greedy.logprobs, abs=1e-4)
    suffix = sampler.compute_logprobs(whole, prompt_logprobs_last_n=3).result()
    assert suffix[-3:] == scores[-3:] and set(suffix[:-3]) == {None}


def test_sampled_scores_are_scaled_by_the_temperature(sampler: tinker.SamplingClient) -> None:
    """As the cookbook's validator expects: differences of two tokens' scores are those at 1, over the temperature."""
    scores = {}
    for temperature in (1.0, 0.5):
        params = types.SamplingParams(max_tokens=1, temperature=temperature, seed=4)
        sequences = sampler.sample(PROMPT, 64, params).result().sequences
        scores[temperature] = {s.tokens[0]: s.logprobs[0] for s in sequences if s.logprobs}
    common = sorted(set(scores[0.5]) & set(scores[1.0]))
    assert len(common) >= 3
    halved, plain = (np.array([scores[t][token] for token in common]) for t in (0.5, 1.0))
    assert np.diff(halved) == pytest.approx(2 * np.diff(plain), abs=1e-4)
    for token in common:
        whole = types.ModelInput.from_ints([*PROMPT.to_ints(), token])
        assert sampler.compute_logprobs(whole).result()[-1] == pytest.approx(scores[1.0][token], abs=1e-4)


def test_topk_prompt_scores(sampler: tinker.SamplingClient) -> None:
    params = types.SamplingParams(max_tokens=1)
    result = sampler.sample(PROMPT, 1, params, include_prompt_logprobs=True, topk_prompt_logprobs=5).result()
    assert result.topk_prompt_logprobs and result.prompt_logprobs
    first, *rows = result.topk_prompt_logprobs
    assert first is None
    for row, score, token in zip(rows, result.prompt_logprobs[1:], PROMPT.to_ints()[1:], strict=True):
        assert row is not None
        values = [value for _, value in row]
        assert len(row) == 5 and values == sorted(values, reverse=True)
        assert dict(row).get(token, score) == pytest.approx(score, abs=1e-5)
        assert sum(math.exp(value) for value in values) <= 1 + 1e-5


def test_stops(sampler: tinker.SamplingClient) -> None:
    free = sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=12, temperature=0.0, stop=[])).result()
    (tokens,) = [s.tokens for s in free.sequences]
    assert len(tokens) == 12 and free.sequences[0].stop_reason == "length"
    params = types.SamplingParams(max_tokens=12, temperature=0.0, stop=[tokens[3]])
    (stopped,) = sampler.sample(PROMPT, 1, params).result().sequences
    assert stopped.tokens == tokens[: tokens.index(tokens[3]) + 1] and stopped.stop_reason == "stop"


def test_stop_strings(sampler: tinker.SamplingClient) -> None:
    free = types.SamplingParams(max_tokens=40, seed=2, stop=[])
    (tokens,) = [s.tokens for s in sampler.sample(PROMPT, 1, free).result().sequences]
    texts = [str(sampler.get_tokenizer().decode([token])) for token in tokens]
    end = next(number for number, text in enumerate(texts) if text.isascii() and text.isprintable() and text)
    stopping = types.SamplingParams(max_tokens=40, seed=2, stop=texts[end])
    (stopped,) = sampler.sample(PROMPT, 1, stopping).result().sequences
    assert stopped.tokens == tokens[: end + 1] and stopped.stop_reason == "stop"


def test_bad_sampling_requests_say_what_is_wrong(sampler: tinker.SamplingClient) -> None:
    ok = types.SamplingParams(max_tokens=4)
    nothing: dict[str, Any] = {}
    not_offered: dict[str, Any] = {"topk_sample_logprobs": 2}
    for prompt, params, extra, text in (
        (types.ModelInput.from_ints([5] * 128), ok, nothing, "context of 128"),
        (types.ModelInput.from_ints([]), ok, nothing, "empty"),
        (types.ModelInput.from_ints([5, 4000]), ok, nothing, "4000"),
        (PROMPT, types.SamplingParams(max_tokens=4, temperature=-1), nothing, "temperature"),
        (PROMPT, ok, not_offered, "topk_sample_logprobs is not offered"),
    ):
        with pytest.raises(tinker.BadRequestError, match=text):
            sampler.sample(prompt, 1, params, **extra).result()


def test_a_pickled_client_samples_on_its_own_numbers(sampler: tinker.SamplingClient) -> None:
    params = types.SamplingParams(max_tokens=5, seed=1)
    copy = pickle.loads(pickle.dumps(sampler))
    here, there = sampler.sample(PROMPT, 1, params), copy.sample(PROMPT, 1, params)
    assert here.result().sequences[0].tokens == there.result().sequences[0].tokens
    assert here.result().sequences[0].sequence_id != there.result().sequences[0].sequence_id


def test_unnamed_snapshots_keep_their_weights_and_old_ones_are_gone(
    server: Server, new_run: NewRun, lesson: list[types.Datum], step: Step
) -> None:
    with server.client() as client:
        run = new_run(client)
        params = types.SamplingParams(max_tokens=10, temperature=0.0)
        first = run.save_weights_and_get_sampling_client().result()
        before = first.sample(PROMPT, 1, params).result().sequences[0].logprobs
        for _ in range(3):
            step(run, lesson)
        second = run.save_weights_and_get_sampling_client().result()
        assert first.sample(PROMPT, 1, params).result().sequences[0].logprobs == before
        changed = second.sample(PROMPT, 1, params).result().sequences[0].logprobs
        assert changed != before
        others = [run.save_weights_and_get_sampling_client().result() for _ in range(15)]
        with pytest.raises(tinker.APIStatusError, match="newest 16 of a session are kept") as caught:
            first.sample(PROMPT, 1, params).result()
        assert caught.value.status_code == 410
        for other in others[:KEPT_WEIGHTS]:  # whose weights take the place of the second's, which are made again
            assert other.sample(PROMPT, 1, params).result().sequences[0].logprobs == changed
        assert second.sample(PROMPT, 1, params).result().sequences[0].logprobs == changed


def test_finished_requests_can_be_polled_together(server: Server, base_model: str) -> None:
    """What the SDK does when the service turns on its session poller."""
    status, session = server.call("/api/v1/create_session", {"tags": [], "user_metadata": None, "sdk_version": "0"})
    assert status == 200
    body = {"session_id": session["session_id"], "sampling_session_seq_id": 0, "base_model": base_model}
    sampler_id = server.call("/api/v1/create_sampling_session", body)[1]["sampling_session_id"]
    assert sampler_id == f"{session['session_id']}:sample:0"
    wanted = set()
    for seq in (0, 1, 2):
        sample = {
            "sampling_session_id": sampler_id,
            "seq_id": seq,
            "num_samples": 1,
            "prompt": {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]},
            "sampling_params": {"max_tokens": 3},
        }
        status, accepted = server.call("/api/v1/asample", sample)
        assert status == 200, accepted
        wanted.add(accepted["request_id"])
    target, cursor = {"type": "sampling_session", "sampling_session_id": sampler_id}, 0
    seen: set[str] = set()
    while seen != wanted:
        status, page = server.call("/api/v1/retrieve_futures", {"target": target, "prev_cursor": cursor})
        assert status == 200 and page["completions"]
        cursor = page["cursor"]
        assert all(entry["state"] == "finished" for entry in page["completions"])
        seen |= {entry["request_id"] for entry in page["completions"]}
    body = {"target": target, "prev_cursor": cursor, "timeout": 0, "retrieved_request_ids": sorted(seen)}
    assert server.call("/api/v1/retrieve_futures", body) == (200, {"completions": [], "cursor": cursor})
