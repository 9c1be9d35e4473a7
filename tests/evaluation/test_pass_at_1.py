from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tinker

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
            **recording: Any,
        ) -> tuple[pl.DataFrame, dict[str, Any]]:
            settings = RolloutSettings("evaluate", MODEL, 0.0, 128, 8192, seed=0, concurrency=concurrency)
            engine = RolloutEngine(Judge(client), renderer, settings)
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


async def test_no_problems_is_a_mistake(evaluate: Evaluate) -> None:
    with pytest.raises(ValueError, match="no problems"):
        await evaluate([])
