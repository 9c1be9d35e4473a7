from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tinker

from coderl_tasks.environments import CODE, CodeEnvironment, Environment, environment_of
from coderl_tasks.environments.benchmarks import benchmark_settings
from coderl_tasks.environments.environment import Turns
from coderl_tasks.evaluation.pass_at_1 import evaluate_policy
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.policy import clients
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems import Problem, load_problems
from coderl_tasks.prompts import get_renderer, load_tokenizer, recommended_renderer
from coderl_tasks.rollouts.engine import RolloutEngine, RolloutSettings
from coderl_tasks.services import Services
from coderl_tasks.settings import EvaluateSettings, parse_settings

MODEL = "data/nano"

Evaluate = Callable[..., Awaitable[tuple[pl.DataFrame, dict[str, Any]]]]


@pytest.fixture
async def evaluate(embedded: Services) -> AsyncIterator[Evaluate]:
    """evaluate_policy of the base model on the embedded servers, greedy unless told otherwise."""
    service = await clients.connect(embedded.tinker_url, embedded.tinker_api_key)
    sampler = await clients.create_sampling_client(service, base_model=MODEL)
    renderer = get_renderer(recommended_renderer(MODEL), load_tokenizer(MODEL))
    async with SandboxClient(embedded.sandbox_urls) as client:

        async def run(
            problems: list[Problem],
            sampler: tinker.SamplingClient = sampler,
            concurrency: int = 64,
            environment: Environment = CODE,
            **recording: Any,
        ) -> tuple[pl.DataFrame, dict[str, Any]]:
            settings = RolloutSettings("evaluate", MODEL, 0.0, 128, 8192, seed=0, concurrency=concurrency)
            engine = RolloutEngine(Judge(client), renderer, settings, environment)
            return await evaluate_policy(problems, sampler, engine, **recording)

        yield run
    await clients.disconnect(service)


async def test_the_base_model_on_bundled_problems(evaluate: Evaluate, tmp_path: Path) -> None:
    problems = load_problems("data/mini", role="test", limit=12).problems
    groups = GroupFiles(tmp_path / "groups")
    seen = []
    rollouts, summary = await evaluate(
        problems, groups=groups, on_progress=lambda done, total: seen.append((done, total))
    )
    assert rollouts.schema == ROLLOUT_SCHEMA
    assert rollouts["problem_id"].to_list() == [problem.problem_id for problem in problems]
    assert set(rollouts["tests_total"]) <= {len(problem.tests) for problem in problems}
    assert seen[-1] == (12, 12)
    assert summary["n"] == 12 and summary["infra_errors"] == 0
    assert summary["pass_at_1"] == (rollouts["verdict"] == "passed").mean()
    assert summary["ci_low"] <= summary["pass_at_1"] <= summary["ci_high"]
    assert {split: share["n"] for split, share in summary["by_split"].items()} == {"codeforces": 6, "lcbv5": 6}
    again, _ = await evaluate(problems, sampler=None, groups=groups)
    assert again.equals(rollouts), "what is recorded is neither sampled nor graded again"
    greedy, _ = await evaluate(problems[::-1], concurrency=3)
    assert greedy.sort("problem_id")["completion"].equals(rollouts.sort("problem_id")["completion"])
    _, twice = await evaluate(problems[:2], environment=CodeEnvironment(turns=Turns(2)))
    assert (summary.get("max_turns"), twice["max_turns"], twice.get("max_tool_calls")) == (None, 2, None)


async def test_a_completion_can_end_with_its_code(evaluate: Evaluate) -> None:
    problems = load_problems("data/mini", role="test", limit=6).problems
    whole, _ = await evaluate(problems)
    cut, summary = await evaluate(problems, environment=CodeEnvironment(stop_after_code=True))
    ends = [text.partition("\n```\n")[:2] for text in whole["completion"]]
    assert [text.rstrip("\n") for text in cut["completion"]] == ["".join(end).rstrip("\n") for end in ends]
    # nano writes nothing after its code, and its end of turn, a text among others here, ends a completion as before.
    assert cut["code"].equals(whole["code"]) and summary["truncated_rate"] == 0


def test_code_ends_with_the_fence_that_closes_it_and_no_answer_with_the_one_that_opens_it() -> None:
    renderer = get_renderer(recommended_renderer(MODEL), load_tokenizer(MODEL))
    ends = [str(end) for end in CodeEnvironment(stop_after_code=True).stop(renderer)]
    assert ends[0] == "<|im_end|>"
    assert any(end in "```python\nprint(1)\n```\n\nThis" for end in ends)
    assert not any(end in "First:\n```python\nprint(`1`)\n``` # no" for end in ends)


@pytest.mark.parametrize(
    ("given", "ends"),
    [
        ({}, False),
        ({"stop_after_code": "true"}, True),
        ({"preset": "smollm2"}, True),
        ({"preset": "smollm2", "benchmark": "mbpp"}, False),
        ({"stop_after_code": "true", "benchmark": "mbpp"}, True),
        ({"preset": "smollm2", "environment": "gsm8k"}, False),
    ],
)
def test_a_benchmark_stops_as_published_unless_it_is_asked_to_stop_after_the_code(
    given: dict[str, str], ends: bool
) -> None:
    settings = parse_settings(EvaluateSettings, given)
    if settings.benchmark is not None:
        settings = settings.filled_from(benchmark_settings(settings.benchmark, settings.given))
    assert settings.stop_after_code == ends
    assert environment_of(settings).fingerprint.get("stop_after_code", False) == ends


async def test_no_problems_is_a_mistake(evaluate: Evaluate) -> None:
    with pytest.raises(ValueError, match="no problems"):
        await evaluate([])
