"""Sampling against the embedded server."""

import asyncio

import pytest
import tinker

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.policy import clients
from coderl_tasks.policy.sampling import (
    MISSING,
    Completion,
    GroupRequest,
    cap_max_tokens,
    sample_group,
    sample_groups,
)
from coderl_tasks.policy.seeds import seed_for

PROMPT = [5, 6, 7, 8]


def requests(count: int, *, max_tokens: int = 12) -> list[GroupRequest]:
    return [
        GroupRequest(index, f"p{index}", "taco", [*PROMPT, 10 + index], 3, max_tokens, seed_for(0, index))
        for index in range(count)
    ]


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
        assert len(completion.logprobs) == len(completion.tokens)
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


async def test_groups_arrive_one_by_one_and_return_in_order(sampler: tinker.SamplingClient) -> None:
    wanted = requests(6)
    arrived: dict[int, list[Completion]] = {}

    def on_group(request: GroupRequest, completions: list[Completion]) -> None:
        arrived[request.group_index] = completions

    groups = await sample_groups(sampler, wanted, temperature=1.0, max_concurrency=2, on_group=on_group)
    assert [arrived[index] for index in range(6)] == groups
    alone = await sample_groups(sampler, wanted[3:4], temperature=1.0)
    assert alone == [groups[3]]


async def test_a_refused_group_stops_the_rest_with_the_reason(sampler: tinker.SamplingClient) -> None:
    bad = GroupRequest(0, "p", "taco", [9999], 2, 4, 0)
    with pytest.raises(ConfigError, match="sampling"):
        await sample_groups(sampler, [bad, *requests(2)], temperature=1.0)


async def test_an_unknown_model_is_named(service: tinker.ServiceClient, tinker_url: str, tiny_model: str) -> None:
    with pytest.raises(ConfigError, match="no-such-model"):
        await clients.create_sampling_client(service, base_model="no-such-model")
    with pytest.raises(ConfigError, match=r"no-such-model.*it offers"):
        await clients.context_length(tinker_url, "tml-test", "no-such-model")
    assert await clients.context_length(tinker_url, "tml-test", tiny_model) == 256


async def test_a_key_of_another_form_is_refused(tinker_url: str) -> None:
    with pytest.raises(ConfigError, match="tml-"):
        await clients.connect(tinker_url, "sk-123")


async def test_an_error_in_on_group_reaches_the_caller(sampler: tinker.SamplingClient) -> None:
    async def on_group(request: GroupRequest, completions: list[Completion]) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await sample_groups(sampler, requests(3), temperature=1.0, on_group=on_group)


@pytest.mark.parametrize(("prompt_len", "limit"), [(10, 50), (60, 40), (99, 1), (100, 0), (150, 0)])
def test_cap_max_tokens(prompt_len: int, limit: int) -> None:
    assert cap_max_tokens(prompt_len, 50, 100) == limit


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
    bad = (None, [], [-0.5], [-0.5, float("nan")], [-0.5, float("-inf")])
    client = Answers(sequence([7, 1], [-0.5, -0.25]), *(sequence([7, 1], one) for one in bad), promised=6)
    group = await sample_group(client, PROMPT, num_samples=7, max_tokens=4, temperature=1.0, seed=0)  # type: ignore[arg-type]
    assert group == [Completion([7, 1], [-0.5, -0.25], "stop"), *[Completion([7, 1], None, "stop")] * 5, MISSING]


@pytest.mark.parametrize(("promised", "says"), [(1, "1 completions asked for, 2 came"), (3, "3 sequence ids for 2")])
async def test_another_number_than_asked_for_or_promised_fails_the_group(promised: int, says: str) -> None:
    client = Answers(*[sequence([7], [-0.5])] * 2, promised=2 if promised < 2 else promised)
    with pytest.raises(InfraError, match=says):
        await sample_group(client, PROMPT, num_samples=promised, max_tokens=4, temperature=1.0, seed=0)  # type: ignore[arg-type]


class Flaky:
    """A sampler that answers for some prompts, fails for others, and counts how many calls are in flight."""

    def __init__(self, failing: set[int]) -> None:
        self.failing = failing
        self.in_flight = self.most_in_flight = 0

    async def sample(
        self, prompt: tinker.ModelInput, num_samples: int, sampling_params: tinker.SamplingParams
    ) -> tinker.SampleResponse:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        await asyncio.sleep(0)
        self.in_flight -= 1
        last = prompt.to_ints()[-1]
        if last in self.failing:
            raise ConnectionError(f"lost {last}")
        sequence = tinker.SampledSequence(stop_reason="stop", sequence_id="s", _tokens_list=[1], _logprobs_list=[-1.0])
        return tinker.SampleResponse(sequences=[sequence] * num_samples)


async def test_a_failing_group_lets_the_others_be_recorded() -> None:
    client, arrived = Flaky({11, 13}), []
    with pytest.raises(InfraError, match=r"2 of 6 groups failed; first: .*lost 11"):
        await sample_groups(
            client,  # type: ignore[arg-type]
            requests(6),
            temperature=1.0,
            max_concurrency=2,
            on_group=lambda request, _: arrived.append(request.group_index),
        )
    assert sorted(arrived) == [0, 2, 4, 5]
    assert client.most_in_flight == 2
