"""Completions in several turns are trained on as what was sampled, behind what it was sampled behind."""

import math
from typing import Any, get_args

import numpy as np
import polars as pl
import pytest
import tinker

from coderl_tasks.journal.ledger import frame_tokens
from coderl_tasks.policy import clients
from coderl_tasks.policy.grpo import PolicyLoss, with_advantages
from coderl_tasks.policy.rollout import ROLLOUT_SCHEMA
from coderl_tasks.policy.turn_credit import TurnCredit, with_turn_advantages
from coderl_tasks.policy.update import (
    TrainedSequence,
    UpdateMethod,
    adam_params,
    build_datums,
    sequences,
    token_advantages,
    trained_rollouts,
    update_policy,
    with_base_logprobs,
)
from coderl_tasks.settings.families import LOSSES
from tests.policy.tiny_rollouts import rollouts, start

SAID = [20, 21, 22]
FIRST = 3
"""Tokens of the first answer; the second has the rest."""


def turn(kept: int, n_tokens: int, *, said: list[int] | None = None, is_split: bool = False) -> dict[str, Any]:
    texts = {"environment_text": "", "text": "", "stop_reason": "stop", "check": "wrong_answer"}
    return {"environment_tokens": said or [], "kept": kept, "is_split": is_split, "n_tokens": n_tokens, **texts}


@pytest.fixture
async def scored(service: tinker.ServiceClient, tiny_model: str) -> pl.DataFrame:
    """Rollouts in two turns, with the log-probabilities of the base model; every other completion is split."""
    sampler = await clients.create_sampling_client(service, base_model=tiny_model)
    rows = (await rollouts(sampler, 0)).to_dicts()
    for number, row in enumerate(rows):
        prompt, n_tokens, is_split = len(row["prompt_tokens"]), len(row["completion_tokens"]), bool(number % 2)
        first = min(FIRST, n_tokens)
        kept = prompt - 1 if is_split else prompt + first
        row["turns"] = [turn(prompt, first), turn(kept, n_tokens - first, said=SAID, is_split=is_split)]
    frame = pl.DataFrame(rows, schema=ROLLOUT_SCHEMA)
    asked = await with_base_logprobs(sampler, frame, 4, pl.Series([True] * frame.height))
    return asked.with_columns(logprobs="base_logprobs")


def marks(sequence: TrainedSequence) -> list[bool]:
    return sequence.sampled.tolist()


def test_the_sequences_of_a_completion() -> None:
    row = {"prompt_tokens": [5, 6], "completion_tokens": [1, 2, 3, 4, 5], "turns": None}
    schema = {name: ROLLOUT_SCHEMA[name] for name in row}
    ((tokens, whole),) = sequences(pl.DataFrame([row], schema=schema), 0)
    assert (tokens.tolist(), whole.prompt_len, whole.sampled.tolist()) == ([5, 6, 1, 2, 3, 4, 5], 2, [True] * 5)
    turns = [turn(2, 2), turn(4, 1, said=[9]), turn(1, 2, said=[8, 7], is_split=True)]
    one, other = sequences(pl.DataFrame([row | {"turns": turns}], schema=schema), 0)
    assert one[0].tolist() == [5, 6, 1, 2, 9, 3] and marks(one[1]) == [True, True, False, True]
    assert other[0].tolist() == [5, 8, 7, 4, 5] and marks(other[1]) == [True, True]
    assert (one[1].prompt_len, one[1].first, one[1].last) == (2, 0, 3)
    assert (other[1].prompt_len, other[1].first, other[1].last) == (3, 3, 5)
    values = np.arange(5) + 10
    assert one[1].spread(values).tolist() == [10, 11, 0, 12] and other[1].spread(values).tolist() == [13, 14]
    assert one[1].spread(values)[one[1].sampled].tolist() == [10, 11, 12]


async def test_log_probabilities_are_of_each_answer_behind_its_own_prompt(
    service: tinker.ServiceClient, tiny_model: str, scored: pl.DataFrame
) -> None:
    sampler = await clients.create_sampling_client(service, base_model=tiny_model)
    for row in (scored.row(0, named=True), scored.row(1, named=True)):
        prompt, completion = row["prompt_tokens"], row["completion_tokens"]
        before = [*prompt, *completion[:FIRST]]
        last = [*before[: row["turns"][1]["kept"]], *SAID]
        expected = []
        for head, answer in ((prompt, completion[:FIRST]), (last, completion[FIRST:])):
            scores = await sampler.compute_logprobs(tinker.ModelInput.from_ints([*head, *answer]))
            expected += scores[len(head) :]
        assert row["base_logprobs"] == pytest.approx(expected, abs=1e-5)
    lengths = scored.select(pl.col("prompt_tokens", "completion_tokens").list.len()).rows()
    again = sum(0 if number % 2 == 0 else lengths[number][0] - 1 for number in range(len(lengths)))
    assert (
        frame_tokens(scored.drop("trained"), epochs=1).training
        == sum(map(sum, lengths)) + len(SAID) * len(lengths) + again
    )


@pytest.mark.parametrize("name", LOSSES)
async def test_the_service_computes_the_same_loss(
    service: tinker.ServiceClient, tiny_model: str, scored: pl.DataFrame, name: Any
) -> None:
    method = UpdateMethod(PolicyLoss(name, LOSSES[name].config), epochs=2)
    result = await update_policy(await start(service, tiny_model), scored, adam_params(1e-2), method, seed=3)
    first, last = result.steps
    assert first.n_datums > scored["trained"].sum(), "what is split is two datums"
    assert first.ratio_sum == pytest.approx(first.n_tokens, rel=1e-3), "on policy every ratio is 1"
    for step in (first,) if name == "dro" else (first, last):
        assert step.loss == pytest.approx(step.service_metrics["loss:sum"], rel=1e-4, abs=1e-3)
    assert abs(last.gap) > 1e-3


async def test_importance_ratios_by_hand(service: tinker.ServiceClient, tiny_model: str, scored: pl.DataFrame) -> None:
    # As sampled by another policy: log-probabilities that are off by a different number for each token.
    off = scored.with_columns(
        logprobs=pl.Series(
            [[value - 0.01 * place for place, value in enumerate(each)] for each in scored["logprobs"]],
            dtype=ROLLOUT_SCHEMA["logprobs"],
        )
    )
    result = await update_policy(await start(service, tiny_model), off, adam_params(0.0), UpdateMethod())
    rows = trained_rollouts(off)
    ratios, loss = [], 0.0
    for row in rows.to_dicts():
        for own, sampler in zip(row["base_logprobs"], row["logprobs"], strict=True):
            ratios.append(math.exp(own - sampler))
            loss -= ratios[-1] * row["advantage"]
    assert result.ratio_mean == pytest.approx(math.fsum(ratios) / len(ratios), rel=1e-5)
    assert result.ratio_max == pytest.approx(max(ratios), rel=1e-5)
    assert result.loss == pytest.approx(loss, rel=1e-3, abs=1e-4)
    assert result.n_tokens == len(ratios)


def test_what_the_environment_says_has_no_advantage_and_no_log_probability(scored: pl.DataFrame) -> None:
    rows = trained_rollouts(scored)
    datums = iter(build_datums(rows, token_advantages(rows), "gspo")[0])
    for row in range(rows.height):
        for tokens, part in sequences(rows, row):
            if part.first == part.last:
                continue
            inputs = {name: value.to_numpy() for name, value in next(datums).loss_fn_inputs.items()}
            assert part.sampled is not None
            is_sampled = np.concatenate([np.zeros(part.prompt_len - 1, bool), part.sampled])
            assert inputs["target_tokens"].tolist() == tokens[1:].tolist()
            assert not inputs["advantages"][~is_sampled].any() and not inputs["logprobs"][~is_sampled].any()
            assert (inputs["advantages"][is_sampled] == np.float32(rows["advantage"][row])).all()
            assert (inputs["sequence_ratio_mask"] == is_sampled).all()
    assert next(datums, None) is None


def graded_row(advantage: float | None, verdict: str, *checks: str) -> dict[str, Any]:
    turns = [turn(0, 2) | {"check": check} for check in checks] + [turn(0, 3) | {"check": None}]
    return dict.fromkeys(ROLLOUT_SCHEMA) | {"advantage": advantage, "verdict": verdict, "turns": turns}


GROUP = [graded_row(0.75, "passed", "wrong_answer"), graded_row(-0.25, "wrong_answer", "runtime_error"),
         graded_row(0.5, "passed"), graded_row(None, "infra_error", "wrong_answer")]  # fmt: skip


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        ("last", [[0.0, 0.75], [0.0, -0.25], [0.5], None]),
        ("discounted", [[0.3, 0.75], [-0.1, -0.25], [0.5], None]),
        # First turns gain 0, 0 and 1, second ones 1 and 0.
        ("per_turn", [[0.75 - 1 / 3, 0.75 + 0.5], [-0.25 - 1 / 3, -0.25 - 0.5], [0.5 + 2 / 3], None]),
    ],
)
def test_the_credit_of_turns(credit: TurnCredit, expected: list[list[float] | None]) -> None:
    found = with_turn_advantages(pl.DataFrame(GROUP, schema=ROLLOUT_SCHEMA), credit)["turn_advantages"].to_list()
    assert [each and [round(value, 9) for value in each] for each in found] == [
        each and [round(value, 9) for value in each] for each in expected
    ]
    single = pl.DataFrame([row | {"turns": None} for row in GROUP], schema=ROLLOUT_SCHEMA)
    assert with_turn_advantages(single, credit)["turn_advantages"].null_count() == len(GROUP)
    others, group = {*get_args(TurnCredit)} - {"trajectory"}, pl.DataFrame(GROUP, schema=ROLLOUT_SCHEMA)
    by_credit = {str(with_turn_advantages(group, each)["turn_advantages"].to_list()) for each in others}
    assert len(by_credit) == len(others) == 3  # each has a rule of its own
    graded = pl.DataFrame([row | {"reward": row["advantage"]} for row in GROUP], schema=ROLLOUT_SCHEMA)
    assert with_advantages(graded, credit="trajectory")["turn_advantages"].null_count() == len(GROUP)


def test_an_advantage_per_turn_is_one_of_each_of_its_tokens(scored: pl.DataFrame) -> None:
    rows = trained_rollouts(with_turn_advantages(scored, "last"))
    for advantages, row in zip(token_advantages(rows), rows.to_dicts(), strict=True):
        n_tokens = len(row["completion_tokens"])
        assert isinstance(advantages, np.ndarray)
        assert advantages.tolist() == [0.0] * FIRST + [row["advantage"]] * (n_tokens - FIRST)
    values = [datum.loss_fn_inputs["advantages"].to_numpy() for datum in build_datums(rows, token_advantages(rows))[0]]
    assert sum(bool(each.any()) for each in values) == rows.height
