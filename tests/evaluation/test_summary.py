import json
from typing import Any

import polars as pl
import pytest

from coderl_tasks.errors import DataError, InfraError
from coderl_tasks.evaluation.paired import (
    compared,
    over_seeds,
    paired_difference,
    paired_outcomes,
    sampling_noise,
    side_text,
    unlike,
)
from coderl_tasks.evaluation.pass_at_1 import evaluation_subset, summarize
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.problems import Problem, Test
from coderl_tasks.stats import clustered_bootstrap, crossed_interval, paired_proportion_difference, wilson_interval

REWARDS = {"passed": 1.0, "wrong_answer": 0.0, "format_error": -0.1, "infra_error": None}
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
            "reward": REWARDS[verdict],
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
        "mean_reward": (1.0 - 0.1 + 1.0) / 4,
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
        "gained": 2,
        "lost": 0,
        "mcnemar_p": 0.5,
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


@pytest.mark.parametrize(("before", "after", "difference"), [("PW", "PW", 0.0), ("PWWW", "PPPW", 0.5)])
def test_equal_differences_of_several_completions_leave_doubt(before: str, after: str, difference: float) -> None:
    sides = [several({str(number): letters for number in range(30)}) for letters in (before, after)]
    found = paired_difference(paired_outcomes(*sides))
    assert found.estimate == difference and -1 <= found.low < difference < found.high <= 1
    # Of no difference at all it is the interval of as many problems that neither side solves.
    if not difference:
        assert (found.low, found.high) == pytest.approx(paired_proportion_difference(0, 0, 0, 30)[1:])


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


def several(outcomes: dict[str, str], split: str = "lcbv5") -> pl.DataFrame:
    """`outcomes` are letters per completion by problem_id: P passed, W wrong, I not graded."""
    letters = {"P": "passed", "W": "wrong_answer", "I": "infra_error"}
    parts = [
        rollouts({problem_id: letters[graded[number]] for problem_id, graded in outcomes.items()}, split).with_columns(
            sample_index=pl.lit(number, ROLLOUT_SCHEMA["sample_index"])
        )
        for number in range(len(next(iter(outcomes.values()))))
    ]
    return pl.concat(parts)


def test_several_completions_are_problems_first_and_pass_at_k() -> None:
    frame = several({"a": "PPPP", "b": "PWWW", "c": "WWWW", "d": "PWII", "e": "IIII"})
    summary = summarize(frame, temperature=0.7, max_tokens=128, policy="tinker://x/y")
    shares = [1.0, 0.25, 0.0, 0.5]
    assert (summary["n"], summary["n_samples"], summary["infra_errors"]) == (4, 4, 6)
    assert summary["pass_at_1"] == pytest.approx(sum(shares) / 4)
    interval = clustered_bootstrap(shares)
    assert (summary["ci_low"], summary["ci_high"]) == (max(0.0, interval.low), min(1.0, interval.high))
    found = summary["pass_at_k"]
    assert list(found) == ["1", "2", "4"]
    assert found["2"]["estimate"] == pytest.approx((1 + 0.5 + 0 + 1) / 4) and found["2"]["n"] == 4
    assert found["4"]["estimate"] == pytest.approx((1 + 1 + 0) / 3) and found["4"]["n"] == 3, "d has two graded ones"
    assert json.loads(json.dumps(summary)) == summary


@pytest.mark.parametrize(("verdict", "passed"), [("P", 10), ("W", 0)])
def test_problems_that_are_all_alike_leave_doubt(verdict: str, passed: int) -> None:
    frame = several({str(number): 4 * verdict for number in range(10)})
    summary = summarize(frame, temperature=0.7, max_tokens=128, policy="tinker://x/y")
    for found in (summary, summary["pass_at_k"]["4"]):
        assert (found["ci_low"], found["ci_high"]) == wilson_interval(passed, 10)


def test_what_changed_is_counted_and_tested() -> None:
    before = rollouts({str(number): "wrong_answer" if number < 9 else "passed" for number in range(20)})
    after = rollouts({str(number): "wrong_answer" if number in (8, 19) else "passed" for number in range(20)})
    sides = ({"policy": "a", "n": 20}, {"policy": "b", "n": 20, "n_samples": 1})
    found = compared(before, after, to="x", sides=sides)["compare"]
    assert (found["gained"], found["lost"]) == (8, 1)
    assert found["mcnemar_p"] == pytest.approx(2 * (1 + 9) / 2**9)
    shares = compared(before, several({str(number): "PW" for number in range(20)}), to="x", sides=sides)["compare"]
    assert (shares["gained"], shares["lost"], shares.get("mcnemar_p")) == (9, 11, None)
    assert shares["difference"] == pytest.approx(0.5 - 11 / 20) and shares["ci_low"] < 0 < shares["ci_high"]


def test_other_samples_and_cut_offs_are_said() -> None:
    one, other = {"temperature": 0.7, "max_tokens": 64, "n": 9}, {"temperature": 0.7, "max_tokens": 64, "n": 9}
    said = unlike(one, other | {"n_samples": 4, "top_p": 0.9, "max_turns": 2}, 9)
    assert said is not None and "n_samples 1 against 4; top_p 1 against 0.9; max_turns 1 against 2" in said
    assert side_text(other | {"top_p": 0.9}).endswith("top_p 0.9, n=9")
    several_turns, tools = one | {"max_turns": 2}, one | {"max_tool_calls": 4}
    assert unlike(several_turns, several_turns, 9) is None
    frame = rollouts({"a": "passed"})
    assert compared(frame, frame, to="x", sides=(several_turns, tools))["compare"]["before"]["max_turns"] == 2
    assert (unlike(several_turns, tools, 9) or "").endswith("max_turns 2 against 1; max_tool_calls 0 against 4")


def test_seeds_of_one_configuration_are_summarised_together() -> None:
    befores = [rollouts({"a": "passed", "b": "wrong_answer", "c": "wrong_answer", "d": "infra_error"})] * 3
    afters = [
        rollouts({"a": "passed", "b": "passed", "c": verdict, "d": "passed"})
        for verdict in ("passed", "wrong_answer", "passed")
    ]
    alone = over_seeds(afters)
    assert alone.n == 4 and alone.by_seed == [1.0, 0.75, 1.0]
    assert alone.mean == crossed_interval([[1, 1, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1]])
    against = over_seeds(afters, befores)
    assert against.n == 3 and against.mean.estimate == pytest.approx((2 + 1 + 2) / 9)
    with pytest.raises(DataError, match="two or more evaluations"):
        over_seeds(afters[:1])


def test_the_noise_of_an_evaluation_is_measured_where_it_can_be() -> None:
    measured = sampling_noise(several({"a": "PPWW", "b": "PPPP", "c": "WWWI"}))
    assert measured.problems == 3 and measured.within == pytest.approx((2 * 2 / (4 * 3) + 0 + 0) / 3)
    single = rollouts({"a": "passed", "b": "passed", "c": "infra_error"})
    assert sampling_noise(single).within == pytest.approx(0.75 * 0.25)
    assert "the most it can be" in sampling_noise(single).explanation
    compared_with = sampling_noise(single, {"gained": 5, "lost": 2, "n": 58, "to": "x"})
    assert (compared_with.within, compared_with.losses) == (0.0, 0.05) and measured.losses is None
    with pytest.raises(DataError):
        sampling_noise(rollouts({"a": "infra_error"}))
