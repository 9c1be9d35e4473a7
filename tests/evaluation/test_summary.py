import json
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import DataError, InfraError
from coderl_tasks.evaluation.paired import compared, paired_difference, paired_outcomes, side_text, unlike
from coderl_tasks.evaluation.pass_at_1 import evaluation_subset, summarize
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems import Problem, Test
from coderl_tasks.stats import paired_proportion_difference, wilson_interval

VERDICTS = {"passed": 1.0, "wrong_answer": 0.0, "format_error": 0.0, "infra_error": None}


def rollouts(outcomes: dict[str, str], split: str = "lcbv5") -> pl.DataFrame:
    """One completion a problem; `outcomes` are verdicts by problem_id."""
    rows = [
        {
            "problem_id": problem_id,
            "split": split,
            "stop_reason": "length" if verdict == "format_error" else "stop",
            "verdict": verdict,
            "correctness_score": VERDICTS[verdict],
            "format_score": None if verdict == "infra_error" else -1.0 if verdict == "format_error" else 0.0,
        }
        for problem_id, verdict in outcomes.items()
    ]
    return pl.DataFrame(rows, schema=ROLLOUT_SCHEMA)


def test_the_summary_has_the_agreed_keys() -> None:
    frame = pl.concat(
        [
            rollouts({"a": "passed", "b": "wrong_answer", "c": "format_error", "d": "infra_error"}),
            rollouts({"e": "passed"}, split="codeforces"),
            rollouts({"f": "infra_error"}, split="other"),
        ]
    )
    summary = summarize(frame, temperature=0.0, max_tokens=128, policy="tinker://x/y")
    whole, part = wilson_interval(2, 4), wilson_interval(1, 3)
    assert summary == {
        "n": 4,
        "pass_at_1": 0.5,
        "ci_low": whole.low,
        "ci_high": whole.high,
        "by_split": {
            "lcbv5": {"n": 3, "pass_at_1": 1 / 3, "ci_low": part.low, "ci_high": part.high},
            "codeforces": {"n": 1, "pass_at_1": 1.0, "ci_low": wilson_interval(1, 1).low, "ci_high": 1.0},
        },
        "format_rate": 0.75,
        "truncated_rate": 1 / 6,
        "infra_errors": 2,
        "temperature": 0.0,
        "max_tokens": 128,
        "policy": "tinker://x/y",
    }
    assert json.loads(json.dumps(summary)) == summary


def test_nothing_graded_is_an_infra_error() -> None:
    with pytest.raises(InfraError, match="none of 1"):
        summarize(rollouts({"a": "infra_error"}), temperature=0.0, max_tokens=1, policy="p")


def test_comparison_is_paired_and_leaves_infra_errors_out() -> None:
    before = rollouts({"a": "passed", "b": "wrong_answer", "c": "wrong_answer", "d": "infra_error", "e": "passed"})
    after = rollouts({"e": "infra_error", "d": "passed", "c": "passed", "b": "passed", "a": "passed", "z": "passed"})
    pairs = paired_outcomes(before, after)
    assert pairs["problem_id"].to_list() == ["a", "b", "c"]
    expected = paired_proportion_difference(1, 0, 2, 0)
    sides = (
        summarize(before, temperature=0.0, max_tokens=64, policy="data/nano") | {"step": -1},
        summarize(after, temperature=0.8, max_tokens=64, policy="tinker://x/y") | {"step": 9},
    )
    assert compared(before, after, to="baseline", sides=sides)["compare"] == {
        "to": "baseline",
        "difference": pytest.approx(2 / 3),
        "ci_low": expected.low,
        "ci_high": expected.high,
        "n": 3,
        "before": {"policy": "data/nano", "step": -1, "temperature": 0.0, "max_tokens": 64, "n": 4},
        "after": {"policy": "tinker://x/y", "step": 9, "temperature": 0.8, "max_tokens": 64, "n": 5},
    }


SIDE = {"policy": "data/nano", "step": -1, "temperature": 0.0, "max_tokens": 64, "n": 50}


@pytest.mark.parametrize(
    ("changes", "n", "said"),
    [
        ({"policy": "tinker://x/y", "step": 9}, 50, None),
        ({"n": 30}, 30, None),
        ({"n": 50}, 48, None),
        ({"temperature": 0.8}, 50, "temperature 0 against 0.8"),
        ({"temperature": 0.8, "max_tokens": 128}, 50, "temperature 0 against 0.8; max_tokens 64 against 128"),
        ({"n": 30}, 20, "20 problems in common of 50 and 30"),
    ],
)
def test_evaluations_that_differ_in_more_than_the_policy_are_called_unlike(
    changes: dict[str, Any], n: int, said: str | None
) -> None:
    found = unlike(SIDE, SIDE | changes, n)
    assert found == (said and f"the evaluations are unlike in more than the policy: {said}")


def test_a_side_is_named_with_its_settings_as_far_as_they_are_recorded() -> None:
    assert side_text(SIDE) == "data/nano, not trained, temperature 0, max_tokens 64, n=50"
    assert (
        side_text(SIDE | {"policy": "tinker://x", "temperature": 0.8})
        == "tinker://x, temperature 0.8, max_tokens 64, n=50"
    )
    assert side_text({"n": 3, "policy": "tinker://x", "step": 2}) == "tinker://x, step 2, n=3"
    assert side_text({"n": 3}) == "n=3"


def test_several_completions_a_problem_are_compared_by_their_share() -> None:
    before = pl.concat([rollouts({"a": "passed", "b": "wrong_answer"}), rollouts({"a": "wrong_answer", "b": "passed"})])
    after = rollouts({"a": "passed", "b": "passed"})
    found = compared(before, after, to="x", sides=(SIDE, SIDE))
    assert found["compare"]["difference"] == pytest.approx(0.5)
    assert found == compared(before, after, to="x", sides=(SIDE, SIDE))


def test_without_a_pair_there_is_no_comparison() -> None:
    before, after = rollouts({"a": "passed"}), rollouts({"b": "passed"})
    assert compared(before, after, to="x", sides=(SIDE, SIDE)) == compared(None, after, to="x", sides=({}, SIDE)) == {}
    with pytest.raises(DataError, match="share"):
        paired_difference(paired_outcomes(before, after))


def problem(problem_id: str, split: str) -> Problem:
    return Problem(problem_id, split, "s", "", "stdin", "", (Test("", ""),), 1, 1, None, (), 0)


PROBLEMS = [problem(f"c{i}", "codeforces") for i in range(40)] + [problem(f"l{i}", "lcbv5") for i in range(20)]


def test_a_subset_is_seeded_and_in_proportion() -> None:
    subset = evaluation_subset(PROBLEMS, 10, seed=1)
    assert [p.split for p in subset] == ["codeforces"] * 7 + ["lcbv5"] * 3
    assert [PROBLEMS.index(p) for p in subset] == sorted(PROBLEMS.index(p) for p in subset)
    assert evaluation_subset(PROBLEMS, 10, seed=1) == subset
    shuffled = evaluation_subset(PROBLEMS[::-1], 10, seed=1)
    assert {p.problem_id for p in shuffled} == {p.problem_id for p in subset}
    assert evaluation_subset(PROBLEMS, 10, seed=2) != subset
    for limit in range(1, 60):
        assert len(evaluation_subset(PROBLEMS, limit, seed=0)) == limit


def test_a_subset_can_be_all() -> None:
    assert evaluation_subset(PROBLEMS, -1, seed=0) == PROBLEMS
    assert evaluation_subset(PROBLEMS, 1000, seed=0) == PROBLEMS
    with pytest.raises(ValueError):
        evaluation_subset(PROBLEMS, 0, seed=0)
