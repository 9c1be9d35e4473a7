"""Sampling against the embedded server."""

from typing import Any

import pytest
import tinker

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.policy import clients
from coderl_tasks.policy.sampling import (
    MISSING,
    Completion,
    completion_budget,
    sample_group,
)

PROMPT = [5, 6, 7, 8]


@pytest.fixture
async def sampler(service: tinker.ServiceClient, tiny_model: str) -> tinker.SamplingClient:
    return await clients.create_sampling_client(service, base_model=tiny_model)


async def test_a_group(sampler: tinker.SamplingClient) -> None:
    async def draw(seed: int) -> list[Completion]:
        return await sample_group(sampler, PROMPT, num_samples=4, max_tokens=16, temperature=1.0, seed=seed)

    group = await draw(7)
    assert len(group) == 4
    for completion in group:
        assert 1 <= len(completion.tokens) <= 16
        assert completion.logprobs is not None and len(completion.logprobs) == len(completion.tokens)
        assert all(logprob <= 0 for logprob in completion.logprobs)
        assert completion.stop_reason == ("length" if completion.tokens[-1] != 1 else "stop")
    assert len({tuple(completion.tokens) for completion in group}) > 1
    assert await draw(7) == group
    assert await draw(8) != group


async def test_stop_tokens_end_a_completion(sampler: tinker.SamplingClient) -> None:
    stop = list(range(2, 64))
    (completion,) = await sample_group(
        sampler, PROMPT, num_samples=1, max_tokens=16, temperature=1.0, seed=0, stop=stop
    )
    assert completion.stop_reason == "stop" and completion.tokens[-1] in stop


async def test_an_unknown_model_is_named(service: tinker.ServiceClient, tinker_url: str, tiny_model: str) -> None:
    with pytest.raises(ConfigError, match="no-such-model"):
        await clients.create_sampling_client(service, base_model="no-such-model")
    with pytest.raises(ConfigError, match=r"no-such-model.*it offers"):
        await clients.context_length(tinker_url, "tml-test", "no-such-model")
    assert await clients.context_length(tinker_url, "tml-test", tiny_model) == 256


async def test_a_key_of_another_form_is_refused(tinker_url: str) -> None:
    with pytest.raises(ConfigError, match="tml-"):
        await clients.connect(tinker_url, "sk-123")


@pytest.mark.parametrize(("prompt_len", "limit"), [(10, 50), (60, 40), (99, 1), (100, 0), (150, 0)])
def test_completion_budget(prompt_len: int, limit: int) -> None:
    assert completion_budget(prompt_len, 50, 100) == limit


@pytest.mark.parametrize("change", [{"max_tokens": 0}, {"num_samples": 0}, {"stop": []}])
async def test_nonsense_is_refused_before_it_is_sent(change: dict[str, object]) -> None:
    arguments = {"num_samples": 1, "max_tokens": 4, "temperature": 1.0, "seed": 0} | change
    with pytest.raises(ValueError):
        await sample_group(None, PROMPT, **arguments)  # type: ignore[arg-type]


class Answers:
    """A sampler that answers with these sequences, or fails as the SDK does when their number is not as promised."""

    def __init__(self, *sequences: tinker.SampledSequence, promised: int) -> None:
        self.sequences, self.promised = sequences, promised

    async def sample(self, **_: object) -> tinker.SampleResponse:
        assert len(self.sequences) == self.promised, f"{self.promised} sequence ids for {len(self.sequences)} sequences"
        return tinker.SampleResponse(sequences=self.sequences)


def sequence(tokens: list[int], logprobs: list[float] | None) -> tinker.SampledSequence:
    return tinker.SampledSequence(stop_reason="stop", sequence_id="s", _tokens_list=tokens, _logprobs_list=logprobs)


async def test_a_bad_completion_does_not_fail_its_group() -> None:
    bad: tuple[Any, ...] = (None, [], [-0.5], [-0.5, None], [-0.5, float("nan")], [-0.5, float("-inf")])
    client = Answers(sequence([7, 1], [-0.5, -0.25]), *(sequence([7, 1], one) for one in bad), promised=7)
    group = await sample_group(client, PROMPT, num_samples=8, max_tokens=4, temperature=1.0, seed=0)  # type: ignore[arg-type]
    assert group == [Completion([7, 1], [-0.5, -0.25], "stop"), *[Completion([7, 1], None, "stop")] * 6, MISSING]


@pytest.mark.parametrize(("promised", "says"), [(1, "1 completions asked for, 2 came"), (3, "3 sequence ids for 2")])
async def test_another_number_than_asked_for_or_promised_fails_the_group(promised: int, says: str) -> None:
    client = Answers(*[sequence([7], [-0.5])] * 2, promised=2 if promised < 2 else promised)
    with pytest.raises(InfraError, match=says):
        await sample_group(client, PROMPT, num_samples=promised, max_tokens=4, temperature=1.0, seed=0)  # type: ignore[arg-type]
