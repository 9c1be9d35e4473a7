from dataclasses import replace

import polars as pl
import pytest

from coderl_tasks.curation import drop_long_prompts, profile_frame, profile_shard
from coderl_tasks.curation.measure import MeasureSettings, measure
from coderl_tasks.errors import InfraError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems import PROFILE_SCHEMA

CONTEXT = 256
SETTINGS = MeasureSettings("profile", "two answers", 24, 1.0, 24, CONTEXT, seed=5)


class CountingSampler:
    """A real sampling client that counts its calls, and fails them from a given one on."""

    def __init__(self, sampler, fail_from: int | None = None):
        self.sampler = sampler
        self.calls = 0
        self.fail_from = fail_from

    async def sample(self, **arguments):
        self.calls += 1
        if self.fail_from is not None and self.calls > self.fail_from:
            raise InfraError("the service is gone")
        return await self.sampler.sample(**arguments)


@pytest.fixture
def problems(make_problem):
    return [make_problem("one", "1"), make_problem("two", "2"), make_problem("three", "3")]


async def profile(measuring, problems, sampler=None, *, folder=None, on_progress=None, **changes):
    return await profile_shard(
        problems,
        sampler or measuring.sampler,
        measuring.judge,
        measuring.renderer,
        replace(SETTINGS, **changes),
        folder=folder,
        on_progress=on_progress,
    )


async def test_pass_rates_of_a_known_policy(measuring, problems, tmp_path):
    seen = []
    frame = await profile(
        measuring, problems, folder=tmp_path / "shard", on_progress=lambda done, total: seen.append((done, total))
    )
    assert frame.schema == PROFILE_SCHEMA
    assert frame["problem_id"].to_list() == ["one", "two", "three"]
    one, two, three = frame.iter_rows(named=True)
    for row in (one, two):  # one answer in three: 24 samples stay between 2 and 16 but once in a thousand
        assert 2 <= row["n_correct"] <= 16
        assert row["ci_low"] < row["pass_rate"] == row["n_correct"] / 24 < row["ci_high"]
    assert (three["n_correct"], three["difficulty"], three["ci_low"]) == (0, "hard", 0.0)
    assert frame["n_samples"].to_list() == [24] * 3
    assert frame["infra_errors"].sum() == 0
    assert all(0.2 < rate < 1 for rate in frame["format_rate"])
    assert all(5 < tokens < 25 for tokens in frame["mean_completion_tokens"])
    assert seen[-1] == (3, 3) and len(seen) == 3
    rollouts = pl.read_parquet(tmp_path / "shard" / "rollouts.parquet")
    assert rollouts.schema == ROLLOUT_SCHEMA
    assert rollouts.height == 72 and set(rollouts["step"]) == {-1}
    assert profile_frame(problems, rollouts).equals(frame)
    programs = rollouts.drop_nulls("code").unique(["problem_id", "code"])  # each was graded once, on the one test
    for row in frame.iter_rows(named=True):
        mine = programs.filter(problem_id=row["problem_id"])
        assert row["test_runs"] == [mine.height]
        assert row["test_catches"] == [mine.filter(pl.col("verdict") != "passed").height]


async def test_a_finished_shard_is_not_sampled_again(measuring, problems, tmp_path):
    first = await profile(measuring, problems, folder=tmp_path)
    counting = CountingSampler(measuring.sampler)
    assert (await profile(measuring, problems, counting, folder=tmp_path)).equals(first)
    assert counting.calls == 0
    await profile(measuring, problems, counting, folder=tmp_path, seed=6)
    assert counting.calls == 3, "other settings are another measurement"


async def test_a_restart_samples_only_what_is_missing(measuring, problems, tmp_path):
    whole = await profile(measuring, problems)
    failing = CountingSampler(measuring.sampler, fail_from=2)
    with pytest.raises(InfraError):
        await profile(measuring, problems, failing, folder=tmp_path, concurrency=1)
    recorded = pl.read_parquet(tmp_path / "groups" / "00.parquet")
    counting = CountingSampler(measuring.sampler)
    resumed = await profile(measuring, problems, counting, folder=tmp_path)
    assert counting.calls == 1
    assert resumed.equals(whole), "the same seeds give the same samples"
    again = pl.read_parquet(tmp_path / "rollouts.parquet").filter(problem_id="one")
    assert again["completion_tokens"].equals(recorded["completion_tokens"])
    assert not (tmp_path / "groups").exists()


async def test_an_outage_of_the_sandbox_is_graded_again_without_sampling(measuring, problems, tmp_path):
    groups = GroupFiles(tmp_path / "groups")
    settings = replace(SETTINGS, num_samples=8)
    async with SandboxClient(["http://127.0.0.1:9"], attempts=1) as nowhere:
        with pytest.raises(InfraError, match=r"profile: \d+ of \d+ programs could not be graded"):
            await measure(problems, measuring.sampler, Judge(nowhere), measuring.renderer, settings, groups=groups)
    out = pl.concat(frame.select(ROLLOUT_SCHEMA.keys()) for _, frame in sorted(groups.read().items()))
    assert set(out["verdict"]) == {"infra_error", "format_error"}
    assert (
        out.filter(verdict="infra_error")["correctness_score"].null_count() == out.filter(verdict="infra_error").height
    )
    row = profile_frame(problems, out).row(0, named=True)
    assert row["infra_errors"] + row["n_samples"] == 8 and row["infra_errors"] > 0
    counting = CountingSampler(measuring.sampler)
    again = await measure(problems, counting, measuring.judge, measuring.renderer, settings, groups=groups)
    assert counting.calls == 0
    assert "infra_error" not in set(again["verdict"])
    assert again["completion_tokens"].equals(out["completion_tokens"])


async def test_a_prompt_without_room(measuring, make_problem):
    long = make_problem("long", "1", statement="word " * CONTEXT)
    short = make_problem("short", "1")
    kept, drops = drop_long_prompts([long, short], measuring.renderer, max_tokens=8, context=CONTEXT)
    assert kept == [short]
    assert [(d.problem_id, d.stage, d.reason) for d in drops] == [("long", "prompt", "prompt_too_long")]
    row = (await profile(measuring, [long], num_samples=2)).row(0, named=True)
    assert (row["n_correct"], row["truncated_rate"], row["format_rate"]) == (0, 1.0, 0.0)


def test_a_problem_that_could_not_be_graded_has_no_rates(problems):
    rows = [
        {"problem_id": "one", "completion_tokens": [1], "prompt_tokens": [1, 2], "stop_reason": "stop"}
        | {"verdict": "infra_error"}
    ]
    frame = profile_frame(problems[:1], pl.DataFrame(rows, schema=ROLLOUT_SCHEMA))
    row = frame.row(0, named=True)
    assert (row["n_samples"], row["infra_errors"], row["pass_rate"], row["difficulty"]) == (0, 1, None, None)
    assert (row["test_runs"], row["test_catches"]) == ([0], [0])
