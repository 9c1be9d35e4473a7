"""Groups are recorded as they arrive, whatever happens to others, and graded once, as soon as they are there."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import polars as pl
import pytest
import tinker

from coderl_tasks.environments.environment import CodeEnvironment
from coderl_tasks.errors import CoderlError, ConfigError, InfraError
from coderl_tasks.grading import Judge, SandboxClient
from coderl_tasks.grading.scoring import ScoredCompletion, Verdict
from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.policy import clients
from coderl_tasks.policy.rollout import GRADED_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.sampling import GroupRequest, try_all
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.problems.problem import Problem, SpilledTests, Test
from coderl_tasks.prompts import get_renderer, load_tokenizer
from coderl_tasks.rollouts.engine import GradedAhead, RolloutEngine, RolloutSettings, Session
from coderl_tasks.rollouts.turns import Record, not_graded
from coderl_tasks.services import Services

PROBLEM = Problem("p", "taco", "", "", "stdin", "", (), 0, 0, None, (), 0)
"""Which one it is decides nothing of completions in one turn."""


def group(index: int, step: int = 0, completions: int = 1) -> pl.DataFrame:
    row = {"step": step, "group_index": index, "completion": "text", "logprobs": [-1.0]}
    return pl.DataFrame([row | {"sample_index": place} for place in range(completions)], schema=SAMPLED_SCHEMA)


class Scoring:
    """Notes what is graded; the first `failing` calls fail, and `holding` keeps all waiting."""

    def __init__(self, failing: int = 0, *, holding: bool = False) -> None:
        self.graded: list[tuple[int, int]] = []
        self.heights: list[int] = []
        self.cancelled = 0
        self._failing = failing
        self._holding = holding

    async def __call__(self, frame: pl.DataFrame) -> pl.DataFrame:
        self.graded.append((frame["step"][0], frame["group_index"][0]))
        self.heights.append(frame.height)
        if len(self.graded) <= self._failing:
            raise InfraError("no sandbox")
        try:
            await (asyncio.Event().wait() if self._holding else asyncio.sleep(0))
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        grades = pl.DataFrame([{"verdict": "passed"}] * frame.height, schema=GRADED_SCHEMA)
        return pl.concat([frame, grades], how="horizontal")


async def test_what_began_early_is_not_begun_again() -> None:
    scoring = Scoring()
    ahead = GradedAhead(scoring)
    ahead.start(group(1))
    graded = await ahead.graded(pl.concat([group(0), group(1)]), "step 0")
    assert graded.select("group_index", "verdict").rows() == [(0, "passed"), (1, "passed")]
    assert sorted(scoring.graded) == [(0, 0), (0, 1)]


async def test_a_failure_comes_out_and_the_step_is_graded_afresh() -> None:
    scoring = Scoring(failing=1)
    ahead = GradedAhead(scoring)
    ahead.start(group(0))
    with pytest.raises(InfraError):
        await ahead.graded(group(0), "step 0")
    assert (await ahead.graded(group(0), "step 0")).height == 1
    assert scoring.graded == [(0, 0), (0, 0)]


async def test_releasing_ends_what_is_under_way_of_that_step_only() -> None:
    scoring = Scoring(holding=True)
    ahead = GradedAhead(scoring)
    for step in (0, 1):
        ahead.start(group(0, step))
    await asyncio.sleep(0)
    await ahead.release(0)
    assert scoring.cancelled == 1
    await ahead.release()
    assert scoring.cancelled == 2


async def test_of_a_group_that_has_grown_the_rest_is_graded_and_all_of_it_released() -> None:
    ahead = GradedAhead(scoring := Scoring())
    ahead.start(group(0, completions=2))
    ahead.start(group(0, completions=5))
    assert (await ahead.graded(group(0, completions=5), "step 0")).height == 5
    assert scoring.heights == [2, 3]
    await ahead.release(0)
    for completions in (2, 5):
        ahead.start(group(0, completions=completions))
    await ahead.release(0)  # before any of it has begun
    await asyncio.sleep(0)
    assert scoring.heights == [2, 3]
    assert (await ahead.graded(group(0, completions=5), "step 0")).height == 5
    assert scoring.heights == [2, 3, 5], "afresh, and at once"


PROMPT = [5, 6, 7, 8]


def requests(count: int) -> list[GroupRequest]:
    return [
        GroupRequest(index, f"p{index}", "taco", [*PROMPT, 10 + index], 3, 12, seed_for(0, index), 1.0, step=4)
        for index in range(count)
    ]


@pytest.fixture
def engine() -> RolloutEngine:
    renderer = get_renderer("qwen3_instruct", load_tokenizer(NANO_MODEL))
    settings = RolloutSettings("train", NANO_MODEL, 1.0, 12, 512, seed=0, concurrency=2)
    return RolloutEngine(Judge(SandboxClient(["http://127.0.0.1:9"])), renderer, settings)


async def test_tests_are_read_when_it_is_the_turn_of_a_group_to_be_graded(
    engine: RolloutEngine, tmp_path: Path
) -> None:
    n_read = n_scored = most = 0

    class Counting(SpilledTests):
        def tests(self, start: int, size: int, problem_id: str) -> tuple[Test, ...]:
            nonlocal n_read
            n_read += 1
            return super().tests(start, size, problem_id)

    class Slow(CodeEnvironment):
        async def score(self, judge: Judge, problem: Problem, texts: Sequence[str]) -> list[ScoredCompletion]:
            nonlocal n_scored, most
            most = max(most, n_read - n_scored)
            await asyncio.sleep(0.01)
            n_scored += 1
            return [not_graded(Verdict.INFRA_ERROR, problem) for _ in texts]

    stored = Counting(tmp_path).keep(replace(PROBLEM, tests=(Test("", ""),)))
    engine = replace(engine, environment=Slow(), graded_at_once=2)
    graded = await asyncio.gather(*(engine.grade(stored, group(index)) for index in range(6)))
    assert [each["verdict"].to_list() for each in graded] == [["infra_error"]] * 6
    assert n_read == 6 and most <= 2


@pytest.fixture
async def sampler(embedded: Services) -> AsyncIterator[tinker.SamplingClient]:
    service = await clients.connect(embedded.tinker_url, embedded.tinker_api_key)
    yield await clients.create_sampling_client(service, base_model=NANO_MODEL)
    await clients.disconnect(service)


async def test_a_released_session_ends_with_the_work_that_uses_it_although_other_work_goes_on(
    engine: RolloutEngine, embedded: Services
) -> None:
    session = Session(embedded, engine.judge, engine.renderer, context=512)

    async def work(has_begun: asyncio.Event, may_end: asyncio.Event) -> tinker.ServiceClient:
        service = await session.service()
        has_begun.set()
        await may_end.wait()
        await clients.create_sampling_client(service, base_model=NANO_MODEL)  # its session is still open
        return service

    async def fail() -> None:
        raise InfraError("the server was restarted")

    async def begin() -> tuple[asyncio.Task[tinker.ServiceClient], asyncio.Event]:
        has_begun, may_end = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(session.supervise(work(has_begun, may_end)))
        await has_begun.wait()
        return task, may_end

    before, may_end_before = await begin()
    with pytest.raises(InfraError, match="restarted"):
        await session.supervise(fail())
    after, may_end_after = await begin()
    may_end_before.set()
    released = await before
    with pytest.raises(CoderlError):
        await clients.create_sampling_client(released, base_model=NANO_MODEL)
    may_end_after.set()
    assert await after is session.current
    await session.close()


async def sample_all(
    engine: RolloutEngine, sampler: tinker.SamplingClient, wanted: Sequence[GroupRequest], record: Record
) -> list[pl.DataFrame]:
    return await try_all(partial(engine.sample, sampler, PROBLEM, record=record), wanted)


async def test_groups_arrive_one_by_one_and_return_in_order(
    engine: RolloutEngine, sampler: tinker.SamplingClient
) -> None:
    wanted, arrived = requests(6), {}

    def record(group: pl.DataFrame) -> None:
        arrived[group["group_index"][0]] = group

    groups = await sample_all(engine, sampler, wanted, record)
    assert [group["problem_id"].unique().to_list() for group in groups] == [[f"p{index}"] for index in range(6)]
    assert all(arrived[index].equals(groups[index]) for index in range(6)) and len(arrived) == 6
    (alone,) = await sample_all(engine, sampler, wanted[3:4], record)
    assert alone.equals(groups[3]), "a draw depends on its request only"


async def test_a_refused_group_stops_the_rest_with_the_reason(
    engine: RolloutEngine, sampler: tinker.SamplingClient
) -> None:
    bad = GroupRequest(0, "p", "taco", [999_999], 2, 4, 0, 1.0)
    with pytest.raises(ConfigError, match="sampling"):
        await sample_all(engine, sampler, [bad, *requests(2)], lambda group: None)


async def test_an_error_in_recording_reaches_the_caller(engine: RolloutEngine, sampler: tinker.SamplingClient) -> None:
    def record(group: pl.DataFrame) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        await sample_all(engine, sampler, requests(3), record)


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


async def test_a_failing_group_lets_the_others_be_recorded(engine: RolloutEngine) -> None:
    client, arrived = Flaky({11, 13}), []
    with pytest.raises(InfraError, match=r"2 of 6 groups failed; first: .*lost 11"):
        await sample_all(
            engine,
            client,  # type: ignore[arg-type]
            requests(6),
            lambda group: arrived.append(group["group_index"][0]),
        )
    assert sorted(arrived) == [0, 2, 4, 5]
    assert client.most_in_flight == 2
