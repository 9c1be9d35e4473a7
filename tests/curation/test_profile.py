import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import tinker

from coderl_tasks.curation.profile import Prices, drop_long_prompts, profile_frame, profile_shard
from coderl_tasks.curation.stopping_rule import Band, StoppingRule
from coderl_tasks.errors import InfraError
from coderl_tasks.grading.client import SandboxClient
from coderl_tasks.grading.judge import Judge
from coderl_tasks.journal.ledger import profile_tokens
from coderl_tasks.journal.steps import GroupFiles
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems import Problem, Test
from coderl_tasks.problems.problem import SpilledTests
from coderl_tasks.problems.profile_columns import SHARD_SCHEMA
from coderl_tasks.rollouts.engine import RolloutEngine, RolloutSettings
from coderl_tasks.rollouts.rounds import Progress, SamplingPlan, sample_in_rounds
from tests.curation.conftest import MakeProblem, Measuring

CONTEXT = 256
SETTINGS = RolloutSettings("profile", "two answers", 1.0, 24, CONTEXT, seed=5)
FIXED = SamplingPlan(24, 24)


class CountingSampler:
    """A real sampling client that counts its calls and the tokens sampled, and fails them from a given one on."""

    def __init__(self, sampler: tinker.SamplingClient, fail_from: int | None = None) -> None:
        self.sampler = sampler
        self.calls = self.tokens = 0
        self.fail_from = fail_from

    async def sample(self, **arguments: Any) -> Any:
        self.calls += 1
        if self.fail_from is not None and self.calls > self.fail_from:
            raise InfraError("the service is gone")
        response = await self.sampler.sample(**arguments)
        self.tokens += sum(len(sequence.tokens) for sequence in response.sequences)
        return response


@pytest.fixture
def problems(make_problem: MakeProblem) -> list[Problem]:
    return [make_problem("one", "1"), make_problem("two", "2"), make_problem("three", "3")]


async def profile(
    measuring: Measuring,
    problems: list[Problem],
    sampler: Any = None,
    *,
    folder: Path | None = None,
    on_progress: Progress | None = None,
    sampling: SamplingPlan = FIXED,
    **changes: Any,
) -> pl.DataFrame:
    return await profile_shard(
        problems,
        sampler or measuring.sampler,
        RolloutEngine(measuring.judge, measuring.renderer, replace(SETTINGS, **changes)),
        sampling,
        folder=folder,
        on_progress=on_progress,
    )


async def test_pass_rates_of_a_known_policy(measuring: Measuring, problems: list[Problem], tmp_path: Path) -> None:
    seen = []
    frame = await profile(
        measuring, problems, folder=tmp_path / "shard", on_progress=lambda done, total: seen.append((done, total))
    )
    assert frame.schema == SHARD_SCHEMA
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


async def test_a_finished_shard_is_not_sampled_again(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    first = await profile(measuring, problems, folder=tmp_path)
    counting = CountingSampler(measuring.sampler)
    assert (await profile(measuring, problems, counting, folder=tmp_path)).equals(first)
    assert counting.calls == 0
    await profile(measuring, problems, counting, folder=tmp_path, seed=6)
    assert counting.calls == 3, "other settings are another measurement"


async def test_a_shard_of_another_chat_format_is_another_measurement(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    await profile(measuring, problems, folder=tmp_path)
    counting = CountingSampler(measuring.sampler)
    request = json.loads((tmp_path / "request.json").read_text())
    assert request["renderer"] == "qwen3_instruct"
    (tmp_path / "request.json").write_text(json.dumps(request | {"renderer": "chat_template thinking=on"}))
    await profile(measuring, problems, counting, folder=tmp_path)
    assert counting.calls == 3


async def test_a_problem_that_is_corrected_under_its_id_is_another_measurement(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    await profile(measuring, problems, folder=tmp_path)
    counting, one = CountingSampler(measuring.sampler), problems[0]
    others = (
        replace(one, tests=(Test("", "2\n"),)),
        replace(one, statement="Print 1."),
        replace(one, time_limit_s=3.0),
    )
    for corrected in others:
        before = counting.calls
        frame = await profile(measuring, [corrected, *problems[1:]], counting, folder=tmp_path)
        assert counting.calls == before + 3, corrected
        assert frame.equals(await profile(measuring, [corrected, *problems[1:]])), corrected
    keep = SpilledTests(tmp_path).keep  # as in evaluations, whose tests are in a file
    for tests, calls in ((one.tests, 3), (one.tests, 0), (others[0].tests, 3)):
        before = counting.calls
        spilled = [keep(each) for each in (replace(one, tests=tests), *problems[1:])]
        await profile(measuring, spilled, counting, folder=tmp_path / "spilled")
        assert counting.calls == before + calls


async def test_another_time_limit_grades_what_is_recorded_again(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    few, many = SamplingPlan(16, 4, StoppingRule(Band(0.1, 0.9))), SamplingPlan(16, 4)
    slower = replace(measuring, judge=Judge(measuring.judge.client, 20.0))
    whole = await profile(measuring, problems, sampling=many)
    failing = CountingSampler(measuring.sampler, fail_from=6)

    def spoil_grades() -> None:
        for file in tmp_path.rglob("*.parquet"):
            grades = {"verdict": pl.lit("time_limit"), "correctness_score": pl.lit(0.0)}
            pl.read_parquet(file).with_columns(**grades).write_parquet(file)

    with pytest.raises(InfraError):
        await profile(measuring, problems, failing, folder=tmp_path, concurrency=1, sampling=many)
    spoil_grades()
    counting = CountingSampler(measuring.sampler)
    assert (await profile(slower, problems, counting, folder=tmp_path, sampling=many)).equals(whole)
    assert counting.calls == 12 - 6
    spoil_grades()
    # Of the finished shard too, whether a rule needs them at once or later.
    again = await profile(measuring, problems, counting, folder=tmp_path, sampling=few)
    assert again["n_samples"].sum() < whole["n_samples"].sum()
    assert again.equals(await profile(measuring, problems, sampling=few))
    assert (await profile(measuring, problems, counting, folder=tmp_path, sampling=many)).equals(whole)
    assert counting.calls == 12 - 6
    # As a kill leaves it while rounds are graded again: beside those of the shard, in groups/.
    spent, request = profile_tokens(str(tmp_path)), json.loads((tmp_path / "request.json").read_text())
    groups = GroupFiles(tmp_path / "groups")
    groups.write(0, pl.read_parquet(tmp_path / "rollouts.parquet"))
    for turns, times in (({}, 1), ({"max_turns": 2}, 2)):  # where replies depended on the limit, they are other samples
        (tmp_path / "request.json").write_text(json.dumps(request | turns))
        (groups.folder / "request.json").write_text(json.dumps(request | turns | {"timeout_s": 9.0}))
        assert profile_tokens(str(tmp_path)).counted == times * spent.counted


async def test_a_restart_samples_only_what_is_missing(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
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


async def test_an_outage_of_the_sandbox_is_graded_again_without_sampling(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    groups = GroupFiles(tmp_path / "groups")
    eight = SamplingPlan(8, 8)
    async with SandboxClient(["http://127.0.0.1:9"], attempts=1) as nowhere:
        with pytest.raises(InfraError, match=r"profile: \d+ of \d+ programs could not be graded"):
            engine = RolloutEngine(Judge(nowhere), measuring.renderer, SETTINGS)
            await sample_in_rounds(problems, measuring.sampler, engine, eight, groups=groups)
    out = pl.concat(frame.select(ROLLOUT_SCHEMA.keys()) for _, frame in sorted(groups.read().items()))
    assert set(out["verdict"]) == {"infra_error", "format_error"}
    assert (
        out.filter(verdict="infra_error")["correctness_score"].null_count() == out.filter(verdict="infra_error").height
    )
    row = profile_frame(problems, out).row(0, named=True)
    assert row["infra_errors"] + row["n_samples"] == 8 and row["infra_errors"] > 0
    counting: Any = CountingSampler(measuring.sampler)
    engine = RolloutEngine(measuring.judge, measuring.renderer, SETTINGS)
    again = await sample_in_rounds(problems, counting, engine, eight, groups=groups)
    assert counting.calls == 0
    assert "infra_error" not in set(again["verdict"])
    assert again["completion_tokens"].equals(out["completion_tokens"])


async def test_a_prompt_without_room(measuring: Measuring, make_problem: MakeProblem) -> None:
    long = make_problem("long", "1", statement="word " * CONTEXT)
    short = make_problem("short", "1")
    kept, drops = drop_long_prompts([long, short], measuring.renderer, max_tokens=8, context=CONTEXT)
    assert kept == [short]
    assert [(d.problem_id, d.stage, d.reason) for d in drops] == [("long", "prompt", "prompt_too_long")]
    row = (await profile(measuring, [long], sampling=SamplingPlan(2))).row(0, named=True)
    assert (row["n_correct"], row["truncated_rate"], row["format_rate"]) == (0, 1.0, 0.0)


def test_a_problem_that_could_not_be_graded_has_no_rates(problems: list[Problem]) -> None:
    rows = [
        {"problem_id": "one", "completion_tokens": [1], "prompt_tokens": [1, 2], "stop_reason": "stop"}
        | {"verdict": "infra_error"}
    ]
    frame = profile_frame(problems[:1], pl.DataFrame(rows, schema=ROLLOUT_SCHEMA))
    row = frame.row(0, named=True)
    assert (row["n_samples"], row["infra_errors"], row["pass_rate"], row["difficulty"]) == (0, 1, None, None)
    assert (row["test_runs"], row["test_catches"]) == ([0], [0])


def correct_in_order(frame: pl.DataFrame, name: str) -> list[bool]:
    return (frame.filter(problem_id=name).sort("sample_index")["correctness_score"] == 1.0).to_list()


async def test_adaptive_sampling_sees_the_fixed_plans_samples_and_stops_by_the_rule(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    fixed, adaptive = SamplingPlan(16, 4), SamplingPlan(16, 4, StoppingRule(Band(0.1, 0.9)))
    await profile(measuring, problems, folder=tmp_path / "fixed", sampling=fixed)
    all_samples = pl.read_parquet(tmp_path / "fixed" / "rollouts.parquet")
    frame = await profile(measuring, problems, folder=tmp_path / "adaptive", sampling=adaptive)
    samples = pl.read_parquet(tmp_path / "adaptive" / "rollouts.parquet")
    for row in frame.iter_rows(named=True):
        draws = correct_in_order(all_samples, row["problem_id"])
        n = next(n for n in (4, 8, 12, 16) if adaptive.is_enough(sum(draws[:n]), n))
        assert (row["n_samples"], row["n_correct"], row["rounds"]) == (n, sum(draws[:n]), n // 4)
        mine = samples.filter(problem_id=row["problem_id"])
        assert mine["attempt"].to_list() == [place // 4 for place in range(n)]
        assert row["completion_tokens_spent"] == mine["completion_tokens"].list.len().sum()
        assert row["prompt_tokens_spent"] == row["prompt_tokens"] * n // 4
        programs = mine.drop_nulls("code").unique("code")
        assert row["test_runs"] == [programs.height], "the same program of two rounds counts once"
        assert row["test_catches"] == [programs.filter(pl.col("verdict") != "passed").height]
    together = all_samples.join(samples, on=["problem_id", "sample_index"], suffix="_adaptive")
    assert together.height == samples.height == frame["n_samples"].sum()
    assert together["completion_tokens"].equals(together["completion_tokens_adaptive"], check_names=False)
    assert frame.filter(problem_id="three")["n_samples"].item() == 12, "nothing of 12"


async def test_a_restart_goes_on_in_the_middle_of_a_problem(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    plan = SamplingPlan(16, 4, StoppingRule(Band(0.1, 0.9)))
    counting = CountingSampler(measuring.sampler)
    whole = await profile(measuring, problems, counting, sampling=plan)
    asked = 0
    for _ in range(counting.calls):
        one_more = CountingSampler(measuring.sampler, fail_from=1)
        try:
            resumed = await profile(measuring, problems, one_more, folder=tmp_path, concurrency=1, sampling=plan)
        except InfraError:
            asked += 1
        else:
            asked += one_more.calls
            break
    assert asked == counting.calls, "each round was sampled once"
    assert resumed.equals(whole)


async def test_rounds_wait_for_what_could_not_be_graded_and_nothing_is_sampled_twice(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    plan = SamplingPlan(16, 4, StoppingRule(Band(0.1, 0.9)))
    whole = await profile(measuring, problems, sampling=plan)
    async with SandboxClient(["http://127.0.0.1:9"], attempts=1) as nowhere:
        counting = CountingSampler(measuring.sampler)
        broken = replace(measuring, judge=Judge(nowhere))
        with pytest.raises(InfraError, match="could not be graded"):
            await profile(broken, problems, counting, folder=tmp_path, sampling=plan)
    assert counting.calls < whole["rounds"].sum(), "what comes next hangs on the grades"
    again = CountingSampler(measuring.sampler)
    resumed = await profile(measuring, problems, again, folder=tmp_path, sampling=plan)
    assert resumed.equals(whole)
    assert again.calls + counting.calls == whole["rounds"].sum()
    assert not (tmp_path / "groups").exists()


async def test_another_stopping_rule_uses_what_is_recorded(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    plan = SamplingPlan(16, 4, StoppingRule(Band(0.1, 0.9)))
    first = await profile(measuring, problems, folder=tmp_path, sampling=plan)
    counting = CountingSampler(measuring.sampler)
    fixed = await profile(measuring, problems, counting, folder=tmp_path, sampling=SamplingPlan(16, 4))
    assert counting.calls == 3 * 4 - first["rounds"].sum()
    assert fixed.equals(await profile(measuring, problems, sampling=SamplingPlan(16, 4)))
    everything = (tmp_path / "rollouts.parquet").read_bytes()
    back = await profile(measuring, problems, counting, folder=tmp_path, sampling=plan)
    assert back.equals(first)
    assert counting.calls == 3 * 4 - first["rounds"].sum(), "nothing is sampled for less"
    assert (tmp_path / "rollouts.parquet").read_bytes() == everything, "and nothing recorded is lost"


async def test_what_was_sampled_with_other_settings_stays_counted(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    paid = 0
    for seed, fail_from in ((1, None), (2, 2), (2, None), (3, 1), (1, None)):
        sampler = CountingSampler(measuring.sampler, fail_from)
        with suppress(InfraError):
            await profile(measuring, problems, sampler, folder=tmp_path, sampling=SamplingPlan(2, 2), seed=seed)
        assert sampler.tokens > 0
        paid += sampler.tokens
        assert profile_tokens(str(tmp_path)).completion == paid


async def test_samples_for_labels_survive_a_kill_and_the_first_pass_that_follows(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    """Of three problems one is sampled on, to all 16, after a profile by the rule."""
    first = SamplingPlan(16, 4, StoppingRule(Band(0.1, 0.9)))
    everywhere = frozenset((k, n) for n in (4, 8, 12) for k in range(n + 1))
    rules = {"one": StoppingRule(Band(0.1, 0.9), doubtful=everywhere)}
    then = replace(first, rules=rules)
    profiled = await profile(measuring, problems, sampling=first)
    whole = await profile(measuring, problems, sampling=then)
    assert whole[0]["n_samples"].item() == 16 and whole[1:].equals(profiled[1:])
    assert (await profile(measuring, problems, folder=tmp_path, sampling=first)).equals(profiled)
    asked = 0
    for _ in range(4):  # each start profiles, as a killed curation does, and comes one round further
        again = CountingSampler(measuring.sampler)
        assert (await profile(measuring, problems, again, folder=tmp_path, sampling=first)).equals(profiled)
        assert again.calls == 0
        one_more = CountingSampler(measuring.sampler, fail_from=1)
        try:
            resumed = await profile(measuring, problems, one_more, folder=tmp_path, sampling=then)
        except InfraError:
            asked += 1
        else:
            asked += one_more.calls
            break
    assert resumed.equals(whole)
    assert asked == int(whole["rounds"].sum()) - int(profiled["rounds"].sum()), "each round was sampled once"
    assert not (tmp_path / "groups").exists()
    assert (await profile(measuring, problems, folder=tmp_path, sampling=first)).equals(profiled)


async def test_what_is_sampled_of_a_shard_grows_from_pass_to_pass(
    measuring: Measuring, problems: list[Problem], tmp_path: Path
) -> None:
    """As profile_mode=screen goes: each pass samples what it adds, and sees what it would have seen alone."""
    whole = await profile(measuring, problems, sampling=SamplingPlan(2, 2))
    passes = [frozenset({"two"}), frozenset({"two", "three"}), frozenset({"one", "two", "three"})]
    seen: list[tuple[int, int]] = []
    for _ in range(2):  # and a curation that is started again does all passes again
        for sampled, calls in zip(passes, (1, 1, 1) if not seen else (0, 0, 0), strict=True):
            counting = CountingSampler(measuring.sampler)
            plan = SamplingPlan(2, 2, sampled=sampled)
            frame = await profile(
                measuring,
                problems,
                counting,
                folder=tmp_path,
                sampling=plan,
                on_progress=lambda done, total: seen.append((done, total)),
            )
            assert frame.equals(whole.filter(pl.col("problem_id").is_in(sampled)))
            assert counting.calls == calls
            assert seen[-1] == (len(sampled), len(sampled))
    # Another mode takes up what is recorded.
    counting = CountingSampler(measuring.sampler)
    assert (await profile(measuring, problems, counting, folder=tmp_path, sampling=SamplingPlan(4, 2))).height == 3
    assert counting.calls == 3


async def test_costs_are_tokens_by_price(measuring: Measuring, problems: list[Problem]) -> None:
    work = (problems[:1], measuring.sampler, RolloutEngine(measuring.judge, measuring.renderer, SETTINGS))
    free = await profile_shard(*work, SamplingPlan(2))
    assert free["cost"].to_list() == [None]
    row = (await profile_shard(*work, SamplingPlan(2), prices=Prices(2.0, 5.0))).row(0, named=True)
    spent = 2.0 * row["prompt_tokens_spent"] + 5.0 * row["completion_tokens_spent"]
    assert row["cost"] == pytest.approx(spent / 1e6)
