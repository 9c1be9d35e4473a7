"""Rollout frames: the join with grades, advantages per group, what is trained on, and the step's numbers."""

import random
from pathlib import Path

import polars as pl
import pytest
import tinker

from coderl_tasks.errors import CoderlError, InfraError
from coderl_tasks.grading.scoring import Grade, ScoredCompletion, Verdict, score
from coderl_tasks.journal.atomic import write_parquet
from coderl_tasks.journal.steps import read_frame
from coderl_tasks.policy.grpo import as_graded, groups_without_signal, masked, with_advantages
from coderl_tasks.policy.rollout import GRADED_SCHEMA, ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.sampling import (
    MISSING,
    Completion,
    GroupRequest,
    first_failures,
    graded_group,
    group_frame,
    in_order,
    require_graded,
    require_sampled,
)
from coderl_tasks.policy.step_metrics import rollout_metrics
from coderl_tasks.policy.update import build_datums, trained_rollouts
from coderl_tasks.settings import TrainSettings

LETTERS = {
    "P": Verdict.PASSED,
    "W": Verdict.WRONG_ANSWER,
    "F": Verdict.FORMAT_ERROR,
    "I": Verdict.INFRA_ERROR,
    "C": Verdict.CHECKER_ERROR,
    "T": Verdict.TIME_LIMIT,
}


def sampled_group(
    index: int, size: int, *, empty: frozenset[int] = frozenset(), bad: frozenset[int] = frozenset()
) -> pl.DataFrame:
    request = GroupRequest(index, f"p{index}", "taco", [1, 2, 3], size, 8, index, 1.0, step=2, sampler_step=1)
    completions = [
        Completion([], [], "length")
        if i in empty
        else Completion([10 + i, 1], None if i in bad else [-0.5, -0.25], "stop")
        for i in range(size)
    ]
    return group_frame(request, completions, decode=lambda tokens: f"text {tokens}")


def scored_group(verdicts: str) -> list[ScoredCompletion | None]:
    scored: list[ScoredCompletion | None] = []
    for letter in verdicts:
        if letter == "-":
            scored.append(None)
            continue
        grade = Grade(LETTERS[letter], int(letter == "P"), 1, 5, 0 if letter == "W" else None, 0.5)
        code = None if letter == "F" else "print(1)"
        scored.append(score(code, grade))
    return scored


def step_frame(*groups: str) -> pl.DataFrame:
    graded = (graded_group(sampled_group(index, len(text)), scored_group(text)) for index, text in enumerate(groups))
    return with_advantages(in_order(graded, ROLLOUT_SCHEMA))


def test_a_sampled_frame_is_in_group_and_sample_order() -> None:
    frame = in_order([sampled_group(1, 2), sampled_group(0, 2)], SAMPLED_SCHEMA)
    assert frame.schema == pl.Schema(SAMPLED_SCHEMA)
    assert frame.select("group_index", "sample_index").rows() == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert frame["completion"][1] == "text [11, 1]"
    assert set(frame["step"]) == {2} and set(frame["sampler_step"]) == {1}
    assert in_order([], SAMPLED_SCHEMA).is_empty()


def test_grades_are_joined_and_not_yet_trained_on() -> None:
    first, second = (
        graded_group(sampled_group(0, 1), scored_group("P")),
        graded_group(sampled_group(1, 4), scored_group("PWFI")),
    )
    graded = in_order([second, first], ROLLOUT_SCHEMA)
    assert graded.schema == pl.Schema(ROLLOUT_SCHEMA)
    assert graded["verdict"].to_list() == ["passed", "passed", "wrong_answer", "format_error", "infra_error"]
    assert graded["reward"].to_list() == [1.0, 1.0, 0.0, -0.1, None]
    assert graded["format_score"].to_list() == [0.0, 0.0, 0.0, -1.0, None]
    assert graded["correctness_score"].to_list() == [1.0, 1.0, 0.0, 0.0, None]
    assert graded["code"].to_list() == ["print(1)", "print(1)", "print(1)", None, "print(1)"]
    assert graded["first_failed"].to_list() == [None, None, 0, None, None]
    assert graded["advantage"].null_count() == 5 and not graded["trained"].any()


@pytest.mark.parametrize("scored", ["", "P", "PPP"])
def test_a_group_is_scored_whole(scored: str) -> None:
    with pytest.raises(ValueError, match=f"{len(scored)} of 2 completions of a group were scored"):
        graded_group(sampled_group(0, 2), scored_group(scored))


@pytest.mark.parametrize(
    ("verdicts", "advantages", "trained"),
    [
        ("PWWW", [0.75, -0.25, -0.25, -0.25], True),
        ("PWIF", [0.7, -0.3, None, -0.4], True),
        ("PPPP", [0.0] * 4, False),
        ("FFFF", [0.0] * 4, False),
        ("PIII", [None] * 4, False),
        ("IIII", [None] * 4, False),
        ("PPII", [0.0, 0.0, None, None], False),
    ],
)
def test_advantages(verdicts: str, advantages: list[float | None], trained: bool) -> None:
    frame = step_frame(verdicts)
    assert frame.schema == pl.Schema(ROLLOUT_SCHEMA)
    assert [None if value is None else round(value, 9) for value in frame["advantage"]] == advantages
    assert frame["trained"].to_list() == [trained and value is not None for value in advantages]
    assert frame["trained"].sum() == len(datums_of(frame))


def test_groups_do_not_mix() -> None:
    frame = step_frame("PW", "PPPP", "IW")
    assert frame["advantage"].to_list() == [0.5, -0.5, 0.0, 0.0, 0.0, 0.0, None, None]


def test_groups_of_which_nothing_can_be_learned() -> None:
    # In the fourth and fifth nobody knows what the lost completions were worth.
    frame = step_frame("PWWW", "PPPP", "FFFF", "WI", "-W", "W")
    assert groups_without_signal(frame) == [1, 2, 5]
    cut = frame.with_columns(stop_reason=pl.when(pl.col("reward") == 1).then(pl.lit("length")).otherwise("stop_reason"))
    assert groups_without_signal(cut, masked) == [0, 1, 2, 5], "by the rewards that count"
    for count in (as_graded, masked):  # and where all are known these are the groups that are skipped
        of = with_advantages(cut.filter(pl.col("group_index") < 3), count=count)
        skipped = of.group_by("group_index").agg(pl.col("trained").any()).filter(~pl.col("trained"))["group_index"]
        assert sorted(skipped) == [index for index in groups_without_signal(cut, count) if index < 3]


def test_an_empty_completion_counts_in_its_group_but_is_not_trained_on() -> None:
    sampled = sampled_group(0, 3, empty=frozenset({2}))
    frame = with_advantages(graded_group(sampled, scored_group("PWF")))
    assert frame["advantage"].null_count() == 0
    assert frame["trained"].to_list() == [True, True, False]
    assert len(datums_of(frame)) == 2


def test_a_sample_without_log_probabilities_is_left_out_of_its_group() -> None:
    sampled = sampled_group(0, 4, bad=frozenset({1}))
    graded = graded_group(sampled, scored_group("P-WW"))
    assert graded.schema == pl.Schema(ROLLOUT_SCHEMA)
    row = graded.row(1, named=True)
    assert row["completion_tokens"] == [11, 1] and row["logprobs"] is None
    assert [name for name in GRADED_SCHEMA if row[name] is not None] == ["trained"] and not row["trained"]
    frame = with_advantages(graded)
    assert frame["advantage"].round(9).to_list() == [0.666666667, None, -0.333333333, -0.333333333]
    assert frame["trained"].to_list() == [True, False, True, True] and len(datums_of(frame)) == 3
    metrics = rollout_metrics(frame)
    assert (metrics["samples_skipped"], metrics["infra_errors"], metrics["mean_reward"]) == (1, 0, pytest.approx(1 / 3))
    require_graded(frame, "step 2")


def test_a_sample_that_never_came_counts_for_nothing_else() -> None:
    request = GroupRequest(0, "p", "taco", [1], 3, 8, seed=0, temperature=1.0)
    completions = [Completion([10, 11, 1], [-0.5] * 3, "stop"), Completion([12], [-0.5], "length"), MISSING]
    sampled = group_frame(request, completions, decode=str)
    metrics = rollout_metrics(with_advantages(graded_group(sampled, scored_group("PW-"))))
    assert (metrics["samples_skipped"], metrics["truncated_rate"], metrics["mean_completion_tokens"]) == (1, 0.5, 2.0)


def test_over_a_tenth_of_bad_samples_is_an_outage() -> None:
    require_sampled(sampled_group(0, 10, bad=frozenset({3})), "step 2")
    with pytest.raises(InfraError, match="step 2: 2 of 10 samples came without a finite log-probability"):
        require_sampled(sampled_group(0, 10, bad=frozenset({3, 4})), "step 2")


def datums_of(scored: pl.DataFrame) -> list[tinker.Datum]:
    rows = trained_rollouts(scored)
    return build_datums(rows, list(rows["advantage"]))[0]


def test_datums_follow_the_frame() -> None:
    first, second = datums_of(step_frame("PW").reverse())
    assert first.model_input.to_ints() == [1, 2, 3, 10]
    assert first.loss_fn_inputs["target_tokens"].tolist() == [2, 3, 10, 1]
    assert first.loss_fn_inputs["logprobs"].tolist() == [0, 0, -0.5, -0.25]
    assert first.loss_fn_inputs["advantages"].tolist() == [0, 0, 0.5, 0.5]
    assert second.loss_fn_inputs["advantages"].tolist() == [0, 0, -0.5, -0.5]


def test_metrics_are_means_over_graded_completions() -> None:
    metrics = rollout_metrics(step_frame("PWFI", "PPPP", "IIII"))
    assert metrics["mean_reward"] == pytest.approx((1 + 0 - 0.1 + 4) / 7)
    assert metrics["mean_correct"] == pytest.approx(5 / 7)
    assert metrics["format_rate"] == pytest.approx(6 / 7)
    assert (metrics["groups_total"], metrics["groups_skipped"], metrics["infra_errors"]) == (3, 2, 5)
    assert metrics["truncated_rate"] == 0.0
    assert metrics["mean_completion_tokens"] == 2.0


def test_metrics_without_a_graded_completion_are_none() -> None:
    metrics = rollout_metrics(step_frame("II"))
    assert (metrics["mean_reward"], metrics["mean_correct"], metrics["format_rate"]) == (None, None, None)


def partial_group(passed_of_15: list[int]) -> list[ScoredCompletion | None]:
    scored: list[ScoredCompletion | None] = []
    for passed in passed_of_15:
        verdict, failed = (Verdict.PASSED, None) if passed == 15 else (Verdict.WRONG_ANSWER, passed)
        grade = Grade(verdict, passed, 15, 15, failed, 0.5)
        scored.append(score(f"print({passed})", grade, fraction=True))
    return scored


def test_fractions_of_the_reward() -> None:
    graded = [
        graded_group(sampled_group(0, 4), partial_group([15, 14, 1, 0])),
        graded_group(sampled_group(1, 7), partial_group([1] * 7)),
    ]
    frame = with_advantages(in_order(graded, ROLLOUT_SCHEMA))
    assert frame["correctness_score"].to_list()[:4] == [1.0, 14 / 15, 1 / 15, 0.0]
    assert [round(value, 9) for value in frame["advantage"][:4]] == [0.5, round(13 / 30, 9), round(-13 / 30, 9), -0.5]
    assert frame["trained"].to_list() == [True] * 4 + [False] * 7, "equal fractions are no signal, rounded or not"
    metrics = rollout_metrics(frame)
    assert metrics["mean_correct"] == pytest.approx(1 / 11), "only a pass of all tests is correct"
    assert metrics["mean_reward"] == pytest.approx((2 + 7 / 15) / 11)
    assert (metrics["groups_skipped"], metrics["groups_total"]) == (1, 2)


def test_metrics_are_the_same_to_the_bit_in_memory_and_read_again(tmp_path: Path) -> None:
    """A run that was killed between scoring and update reads what an undisturbed one has in memory."""
    passed = [[(7 * group + 3 * index) % 16 for index in range(4)] for group in range(40)]
    graded = [graded_group(sampled_group(index, 4), partial_group(counts)) for index, counts in enumerate(passed)]
    scored = with_advantages(in_order(graded, ROLLOUT_SCHEMA))
    write_parquet(tmp_path / "scored.parquet", scored)
    read = read_frame(tmp_path / "scored.parquet", ROLLOUT_SCHEMA)
    assert read is not None and read.equals(scored)
    assert rollout_metrics(scored) == rollout_metrics(read)


def test_metrics_are_the_same_to_the_bit_in_whatever_pieces_the_rollouts_lie() -> None:
    draw = random.Random(0)
    groups = []
    for index in range(40):
        counts = [draw.randrange(16) for _ in range(4)]
        lists = [[-0.1 * draw.random() for _ in range(draw.randint(1, 64))] for _ in counts]
        columns = {
            "completion_tokens": pl.Series([[1]] * 4, dtype=SAMPLED_SCHEMA["completion_tokens"]),
            "logprobs": pl.Series(lists, dtype=SAMPLED_SCHEMA["logprobs"]),
        }
        groups.append(graded_group(sampled_group(index, 4), partial_group(counts)).with_columns(**columns))
    scored = with_advantages(in_order(groups, ROLLOUT_SCHEMA))
    metrics = rollout_metrics(scored)
    assert metrics["duplicate_rate"] > 0.1  # all completions are the same: a sum of many terms
    for seed in range(20):
        order = random.Random(seed).sample(range(scored.height), scored.height)
        assert rollout_metrics(pl.concat([scored[row] for row in order], rechunk=seed % 2 == 0)) == metrics


def test_first_failures_count_each_program_of_a_group_once() -> None:
    groups = {0: scored_group("PWFI"), 1: partial_group([3, 3, 5, 15]), 2: scored_group("I")}
    graded = [graded_group(sampled_group(index, len(scored)), scored) for index, scored in groups.items()]
    # Both programs of scored_group are print(1): the first one is kept.
    assert first_failures(in_order(graded, ROLLOUT_SCHEMA)) == {"p0": [None], "p1": [3, 5, None]}


@pytest.mark.parametrize("verdicts", ["I", "IF", "IFFFFFFFFFFF", "IIPW", "I" + 8 * "P", "IF" + 8 * "W"])
def test_what_an_outage_left_is_no_sample(verdicts: str) -> None:
    with pytest.raises(InfraError, match=f"step 3: {verdicts.count('I')} of {len(verdicts.replace('F', ''))} programs"):
        require_graded(graded_group(sampled_group(0, len(verdicts)), scored_group(verdicts)), "step 3")


@pytest.mark.parametrize("verdicts", ["", "F", "PWF", "I" + 9 * "P", "II" + 20 * "W"])
def test_a_few_infra_errors_are_left_out(verdicts: str) -> None:
    require_graded(graded_group(sampled_group(0, len(verdicts)), scored_group(verdicts)), "step 3")


def test_over_a_tenth_of_checker_errors_is_the_problems_fault_which_no_retry_cures() -> None:
    few, many = ("C" * errors + "P" * (20 - errors) + "F" * 12 for errors in (2, 3))  # "F": no program to grade
    require_graded(graded_group(sampled_group(7, len(few)), scored_group(few)), "step 3")
    with pytest.raises(CoderlError, match=r"step 3: .* on 3 of 20 programs, .* first on problem p7: ") as stopped:
        require_graded(graded_group(sampled_group(7, len(many)), scored_group(many)), "step 3")
    assert not isinstance(stopped.value, InfraError)


def test_groups_of_one_reward_are_counted_by_their_own_rewards() -> None:
    """Half of each has the mean reward of a step that learns."""
    metrics = rollout_metrics(step_frame("PPPP", "WWWW", "FFFF", "PPPI", "PW", "FW", "IIII", "PPPP"))
    assert (metrics["groups_all_zero"], metrics["groups_all_one"]) == (2 / 8, 3 / 8)
    fractions = with_advantages(graded_group(sampled_group(0, 3), partial_group([5, 5, 5])))
    assert (rollout_metrics(fractions)["groups_all_zero"], rollout_metrics(fractions)["groups_all_one"]) == (0, 0)


def test_entropy_lengths_and_spread_by_hand() -> None:
    lengths = list(range(1, 101))
    sampled = sampled_group(0, 100).with_columns(
        completion_tokens=pl.Series([[1] * n for n in lengths], dtype=SAMPLED_SCHEMA["completion_tokens"]),
        logprobs=pl.Series([[-1.0 / n] * n for n in lengths], dtype=SAMPLED_SCHEMA["logprobs"]),
    )
    metrics = rollout_metrics(with_advantages(graded_group(sampled, scored_group("P" * 50 + "W" * 40 + "T" * 10))))
    assert [metrics[f"completion_tokens_p{percent}"] for percent in (50, 90, 99)] == [50, 90, 99]
    # Over tokens, not over completions: each of them sums to one nat.
    assert metrics["entropy"] == pytest.approx(100 / sum(lengths))
    assert metrics["advantage_std"] == pytest.approx(0.5)
    assert metrics["time_limit_rate"] == pytest.approx(0.1)


def test_metrics_know_the_settings() -> None:
    frame, sizes = step_frame("PWFI", "PPPP", "PW"), {"group_size": 2, "batch_size": 8}
    plain, twice, refilled, begun = (
        rollout_metrics(frame, TrainSettings.model_validate(sizes | settings))
        for settings in ({}, {"epochs_per_rollout_batch": 2, "loss_fn": "ppo"}, {"refill": 2}, {"first_completions": 2})
    )
    assert plain == rollout_metrics(frame) and plain["groups_refilled"] is None
    assert twice == plain | {"tokens_training": 2 * plain["tokens_training"]} != plain
    assert refilled == begun == plain | {"groups_refilled": 1}


def test_metrics_of_nothing_are_none() -> None:
    metrics = rollout_metrics(pl.DataFrame(schema=ROLLOUT_SCHEMA))
    of_nothing = ("entropy", "completion_tokens_p50", "advantage_std", "groups_all_zero", "time_limit_rate")
    assert [metrics[name] for name in of_nothing] == [None] * len(of_nothing)
