"""The smoke-test protocol, trends, hints and paired comparisons."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coderl_tasks.insight.diagnosis import (
    check_format,
    check_pass_at_1,
    check_reward_trend,
    compare_evals,
    compared_lines,
    comparison_table,
    smoke_checks,
    trend,
)
from coderl_tasks.insight.plots import pass_at_1_plot
from coderl_tasks.insight.record import EvalRecord, RunRecord, load_run
from coderl_tasks.insight.tables import Estimate
from coderl_tasks.insight.warning_signs import hints


def metrics(n: int = 30, **columns: Any) -> pl.DataFrame:
    return pl.DataFrame({"step": range(n), **columns})


def run_of(frame: pl.DataFrame) -> RunRecord:
    return RunRecord(Path("run"), {}, frame, {}, [], [])


def test_a_learning_run_passes_all_checks(run_dir: Path) -> None:
    checks = smoke_checks(load_run(run_dir))
    assert [check.passed for check in checks] == [True, True, True]
    assert "paired over 240 problems" in checks[2].explanation


def test_checks_of_a_short_run_are_undecided() -> None:
    frame = metrics(3, mean_reward=[0.1, 0.2, 0.3], format_rate=[1.0, 1.0, 1.0])
    assert [check.passed for check in smoke_checks(run_of(frame))] == [None, None, None]


def test_format_check_leaves_out_the_first_steps_only() -> None:
    assert check_format(metrics(format_rate=[0.0] * 5 + [0.99] * 25)).passed is True
    assert check_format(metrics(format_rate=[0.0] * 10 + [0.99] * 20)).passed is False


def test_flat_and_falling_rewards_fail_the_trend_check() -> None:
    draw = random.Random(1)
    noise = [draw.gauss(0.5, 0.1) for _ in range(30)]
    assert check_reward_trend(metrics(mean_reward=noise)).passed is False
    assert check_reward_trend(metrics(mean_reward=[0.5] * 30)).passed is False
    assert check_reward_trend(metrics(mean_reward=[1 - i / 30 for i in range(30)])).passed is False
    rising = [value + i * 0.02 for i, value in enumerate(noise)]
    assert check_reward_trend(metrics(mean_reward=rising)).passed is True


def test_a_short_run_that_does_not_rise_yet_has_not_failed() -> None:
    level = [0.5, 0.6, 0.4, 0.5, 0.6, 0.4, 0.55, 0.5]
    found = check_reward_trend(metrics(8, mean_reward=level))
    assert found.passed is None and "not decided before 30 steps" in found.explanation
    assert check_reward_trend(metrics(32, mean_reward=level * 4)).passed is False
    assert check_reward_trend(metrics(8, mean_reward=[0.5] * 8)).passed is None, "equal ones do not fall"
    assert check_reward_trend(metrics(8, mean_reward=[0.5 - i / 20 for i in range(8)])).passed is False
    assert check_reward_trend(metrics(8, mean_reward=[0.1 + i / 20 for i in range(8)])).passed is True


def test_a_difference_within_chance_has_not_failed(run_dir: Path) -> None:
    run = load_run(run_dir)
    assert run.baseline is not None and run.final is not None
    swapped = EvalRecord("final", 9, run.baseline.summary | {"compare": {}}, run.baseline.rollouts)
    before = EvalRecord("baseline", -1, run.final.summary, run.final.rollouts)
    worse = replace(run, evals={"baseline": before, "final": swapped})
    assert check_pass_at_1(worse).passed is False
    same = replace(run, evals={"baseline": run.baseline, "final": replace(swapped, rollouts=run.baseline.rollouts)})
    assert check_pass_at_1(same).passed is None


def test_mann_kendall_by_hand() -> None:
    """n = 5, rising but for one swap: S = 8, variance 50/3, z = 7 / sqrt(50/3)."""
    slope, p_up = trend([1.0, 2.0, 4.0, 3.0, 5.0])
    assert slope == pytest.approx(1.0)
    assert p_up == pytest.approx(0.04321, abs=1e-4)


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=30))
def test_a_reversed_series_has_the_opposite_trend(values: list[float]) -> None:
    (forward, p_up), (backward, _) = trend(values), trend(values[::-1])
    assert forward == pytest.approx(-backward)
    assert 0 <= p_up <= 1


def test_false_alarms_of_the_trend_test_are_as_rare_as_it_says() -> None:
    draw = random.Random(0)
    alarms = sum(trend([draw.gauss(0, 1) for _ in range(20)])[1] < 0.05 for _ in range(1000))
    assert 25 <= alarms <= 75


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"groups_skipped": [7] * 30, "groups_total": [8] * 30, "groups_all_zero": [0.8] * 30}, "too hard"),
        ({"groups_skipped": [7] * 30, "groups_total": [8] * 30, "groups_all_one": [0.8] * 30}, "too easy"),
        ({"kl_sample_train": [0.3] * 30}, "sampler and trainer disagree"),
        ({"truncated_rate": [0.4] * 30}, "max_tokens"),
        ({"infra_errors": [0] * 29 + [2]}, "could not be graded"),
        ({"samples_skipped": [0] * 29 + [2]}, "2 samples in 1 steps came without log-probabilities"),
        ({"duplicate_rate": [0.5] * 30}, "repeat another of their group"),
        ({"format_rate": [0.1] * 30}, "renderer"),
        ({"mean_reward": [0.7] * 20 + [0.1] * 10}, "diverged"),
    ],
)
def test_each_bad_state_has_its_hint(columns: dict[str, list[float]], words: str) -> None:
    found = hints(run_of(metrics(30, **columns)))
    assert any(words in hint for hint in found)


def test_a_healthy_run_has_no_hints() -> None:
    frame = metrics(mean_reward=[0.4] * 30, format_rate=[0.99] * 30, kl_sample_train=[1e-4] * 30, infra_errors=[0] * 30)
    assert hints(run_of(frame)) == []


def test_comparison_pairs_problems_and_takes_the_recorded_interval(run_dir: Path) -> None:
    run = load_run(run_dir)
    assert run.baseline is not None and run.final is not None
    found = compare_evals(run.baseline, run.final)
    assert found is not None
    compare = run.final.summary["compare"]
    assert (found.overall.ci_low, found.overall.ci_high) == (compare["ci_low"], compare["ci_high"])
    changed = found.overall.changed
    assert found.overall.difference == pytest.approx((changed["gained"] - changed["lost"]) / found.overall.n)
    assert set(found.results) == {"all", "codeforces", "lcbv5"}
    assert all(part.ci_low < part.difference < part.ci_high for part in found.results.values())


def test_comparison_with_a_subset_uses_shared_problems_only(run_dir: Path) -> None:
    run = load_run(run_dir)
    assert run.baseline is not None
    found = compare_evals(run.baseline, run.evals["step-000009"])
    assert found is not None and found.overall.n == 80 < run.baseline.summary["n"]
    pairs, own = found.pairs, run.evals["step-000009"].summary
    assert found.overall.before.value == pytest.approx(pairs["before"].mean()) != run.baseline.pass_at_1
    assert found.overall.after == Estimate(own["pass_at_1"], own["ci_low"], own["ci_high"])
    for result in found.results.values():
        assert result.after.value - result.before.value == pytest.approx(result.difference)
        assert result.before.low < result.before.value < result.before.high
    assert f"n=240, Pass@1 on all of these {run.baseline.pass_at_1:.1%} [" in found.sides[0]
    assert "on all of these" not in found.sides[1]
    table = comparison_table(found)
    assert [column.value(table.rows[0]) for column in table.columns[2:4]] == [found.overall.before, found.overall.after]
    assert f"{found.overall.before.value:.1%}" in pass_at_1_plot(found.rates).svg()


def test_seeds_that_differ_in_more_than_the_policy_are_warned_of_once(runs_dir: Path) -> None:
    runs = [load_run(runs_dir / f"run-{seed}") for seed in range(2)]
    before, after = ([run.evals[name] for run in runs] for name in ("baseline", "final"))
    assert not any(line.startswith("warning") for line in compared_lines([before, after]))
    in_turns = [replace(record, summary={**record.summary, "max_turns": 2}) for record in after]
    for side in (before, before[:1]):
        *_, means, warning = compared_lines([side, in_turns])
        assert means.startswith("B - A, seed by seed: ")
        assert warning == "warning: the evaluations are unlike in more than the policy: max_turns 1 against 2"


def test_evaluations_without_shared_problems_are_not_compared(run_dir: Path, runs_dir: Path) -> None:
    run, other = load_run(run_dir), load_run(runs_dir / "run-0")
    assert compare_evals(run.baseline, None) is None
    validation = EvalRecord("step-000000", 0, {}, other.path / "steps" / "000000" / "scored.parquet")
    assert compare_evals(run.baseline, validation) is None
