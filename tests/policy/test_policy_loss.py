"""The losses in float64 by hand, against what the service makes of them, and over several optimizer steps."""

import math

import numpy as np
import polars as pl
import pytest
import tinker

from coderl_tasks.errors import DataError
from coderl_tasks.policy import clients
from coderl_tasks.policy.grpo import LOSS_RULES, PolicyLoss
from coderl_tasks.policy.update import (
    KL_SAMPLE,
    UpdateMethod,
    UpdateResult,
    adam_params,
    build_datums,
    kl_to_base,
    observed,
    penalised_advantages,
    trained_rollouts,
    update_policy,
    with_base_logprobs,
)
from coderl_tasks.settings import TrainSettings
from coderl_tasks.settings.families import LOSSES as KINDS
from coderl_tasks.settings.families import Loss, LossName
from tests.policy.tiny_rollouts import rollouts, start

LOSSES = {name: PolicyLoss(name, kind.config) for name, kind in KINDS.items()}
TRAINER, SAMPLER = [-1.0, -2.0, -0.5, -0.7], [-1.5, -1.4, -0.5, -0.8]
RATIOS = [math.exp(0.5), math.exp(-0.6), 1.0, math.exp(0.1)]  # above, below and twice within the thresholds


def by_hand(name: LossName, advantage: float) -> tuple[float, int | None]:
    """The loss, and how many tokens are cut, written out."""
    if name == "importance_sampling":
        return -advantage * math.fsum(RATIOS), None
    if name == "dro":
        penalty = 0.05 / 2 * (0.5**2 + 0.6**2 + 0.1**2)
        return 4.2 * advantage + penalty, None
    if name == "cispo":
        return -advantage * (1.2 * -1.0 + 0.8 * -2.0 + -0.5 + RATIOS[3] * -0.7), 2
    if name == "gspo":  # the mean gap is 0, and no threshold is reached
        return -advantage * 4, 0
    if advantage > 0:  # only what has grown too much is cut, or what has shrunk too much
        return -advantage * (1.2 + RATIOS[1] + 1.0 + RATIOS[3]), 1
    return -advantage * (RATIOS[0] + 0.8 + 1.0 + RATIOS[3]), 1


@pytest.mark.parametrize("advantage", [0.75, -0.25])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_by_hand(name: LossName, advantage: float) -> None:
    value, config = LOSS_RULES[name].value, LOSSES[name].config
    loss, ratios, clipped = value(np.array(TRAINER), np.array(SAMPLER), advantage, config)
    expected_loss, expected_clipped = by_hand(name, advantage)
    assert loss == pytest.approx(expected_loss, rel=1e-14)
    assert clipped == expected_clipped
    assert ratios == pytest.approx([1.0] * 4 if name == "gspo" else RATIOS, rel=1e-14)


def test_the_ratio_of_gspo_is_the_sequences() -> None:
    trainer, sampler = np.array([-1.0, -1.0]), np.array([-1.5, -1.3])
    value, config = LOSS_RULES["gspo"].value, LOSSES["gspo"].config
    loss, ratios, clipped = value(trainer, sampler, 0.5, config)
    assert ratios == pytest.approx([math.exp(0.4)] * 2, rel=1e-14)
    assert (loss, clipped) == (pytest.approx(-0.5 * 2 * 1.2), 2)
    assert value(trainer, sampler, -0.5, config)[2] == 0


def test_an_epoch_trains_on_all_and_the_rest_too() -> None:
    method = UpdateMethod(epochs=3, batch_size=10)
    batches = list(method.batches(24, seed=1))
    assert [(epoch, len(batch)) for epoch, batch in batches] == [(e, n) for e in range(3) for n in (10, 10, 4)]
    orders = [[index for of, batch in batches if of == epoch for index in batch] for epoch in range(3)]
    assert all(sorted(order) == list(range(24)) for order in orders)
    assert len(set(map(tuple, orders))) == 3
    assert list(method.batches(24, seed=1)) == batches != list(method.batches(24, seed=2))
    assert list(UpdateMethod(epochs=2, batch_size=24).batches(5, seed=1)) == [
        (0, [0, 1, 2, 3, 4]),
        (1, [0, 1, 2, 3, 4]),
    ]


def test_a_method_is_what_was_recorded_of_it() -> None:
    method = UpdateMethod(LOSSES["gspo"], 2, 32)
    assert UpdateMethod.recorded(method.record()) == method
    assert UpdateMethod().record() == {} and UpdateMethod.recorded({}) == UpdateMethod()
    before_it = {key: value for key, value in method.record().items() if key != "kl_penalty_coef"}
    assert UpdateMethod.recorded(before_it) == method, "a run recorded before there was a setting had its default"


def test_each_loss_has_a_meaning_and_a_value() -> None:
    assert list(LOSS_RULES) == list(KINDS) == TrainSettings.model_json_schema()["properties"]["loss_fn"]["enum"]
    told = [f"{name}: {kind.meaning}" for name, kind in KINDS.items()]
    assert all(part in str(TrainSettings.model_fields["loss_fn"].description) for part in told)
    assert str(Loss.model_fields["clip_low"].description).startswith("ppo, cispo, gspo: smallest importance ratio")
    assert str(Loss.model_fields["beta"].description).endswith("; by default 0.05")


@pytest.fixture
async def scored(service: tinker.ServiceClient, tiny_model: str) -> pl.DataFrame:
    return await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)


async def trained(
    service: tinker.ServiceClient, model: str, scored: pl.DataFrame, method: UpdateMethod, rate: float = 1e-2
) -> UpdateResult:
    return await update_policy(await start(service, model), scored, adam_params(rate), method, seed=3)


@pytest.mark.parametrize("name", LOSSES)
async def test_the_service_computes_the_same_loss(
    service: tinker.ServiceClient, tiny_model: str, scored: pl.DataFrame, name: LossName
) -> None:
    result = await trained(service, tiny_model, scored, UpdateMethod(LOSSES[name], epochs=3))
    first, *_, last = result.steps
    assert len(result.steps) == 3 and result.n_datums == first.n_datums == 12
    assert first.ratio_sum == pytest.approx(first.n_tokens, rel=1e-4), "on policy every ratio is 1"
    assert abs(last.gap) > 1e-2, "the log-probabilities of the sampler stay"
    # dro's penalty is on the prompt too, from where the policy was before the update on.
    for step in (first,) if name == "dro" else (first, last):
        assert step.loss == pytest.approx(step.service_metrics["loss:sum"], rel=1e-4, abs=1e-3)
    assert result.grad_norm is not None and result.grad_norm > 0
    assert (result.clipped_share is None) == (name in ("importance_sampling", "dro"))


async def test_ppo_on_policy_is_importance_sampling(
    service: tinker.ServiceClient, tiny_model: str, scored: pl.DataFrame
) -> None:
    methods = (UpdateMethod(), UpdateMethod(LOSSES["ppo"]))
    plain, ppo = [await trained(service, tiny_model, scored, method) for method in methods]
    assert (ppo.loss, ppo.grad_norm) == (pytest.approx(plain.loss, rel=1e-6), pytest.approx(plain.grad_norm, rel=1e-6))
    assert ppo.clipped_share == 0
    assert plain.ratio_max == ppo.ratio_max == pytest.approx(1.0, abs=1e-4)


def test_the_kl_is_observed_on_some_completions_whatever_their_order(scored: pl.DataFrame) -> None:
    some = pl.concat([scored.with_columns(group_index=pl.lit(index, pl.Int32)) for index in range(20)])
    keys = ("group_index", "sample_index")
    drawn = some.filter(observed(some, 1)).select(keys)
    assert drawn.height == KL_SAMPLE < some.height
    turned = some.reverse()
    assert turned.filter(observed(turned, 1)).select(keys).sort(keys).equals(drawn.sort(keys))
    assert not some.filter(observed(some, 2)).select(keys).equals(drawn)
    assert drawn["group_index"].n_unique() == KL_SAMPLE, "of 20 groups none gives two"
    few = some.filter(pl.col("group_index") < 3)
    assert few.height > KL_SAMPLE
    assert sorted(few.filter(observed(few, 1))["group_index"].value_counts()["count"]) == [5, 5, 6]
    without = few.with_columns(logprobs=pl.when(pl.col("group_index") == 0).then(None).otherwise("logprobs"))
    assert sorted(without.filter(observed(without, 1))["group_index"].value_counts()["count"]) == [8, 8]


def test_both_estimates_of_the_kl_are_means_over_tokens() -> None:
    rows = pl.DataFrame(
        {"logprobs": [[-1.0, -2.0], [-0.5], [-3.0]], "base_logprobs": [[-1.5, -1.0], [-0.5], None]},
        schema={"logprobs": pl.List(pl.Float32), "base_logprobs": pl.List(pl.Float32)},
    )
    found = kl_to_base(rows)
    assert found is not None and found[0] == pytest.approx((0.5 - 1.0 + 0.0) / 3)
    assert found[1] == pytest.approx(((math.exp(-0.5) - 1 + 0.5) + (math.e - 1 - 1.0)) / 3)
    assert kl_to_base(rows[2:]) is None
    impossible = rows[:1].with_columns(logprobs=pl.Series([[-9999.0, -1.0]], dtype=pl.List(pl.Float32)))
    found = kl_to_base(impossible)
    assert found is not None and found[0] < -4000 and 1e30 < found[1] < math.inf


async def test_the_penalty_on_leaving_the_base_model(
    service: tinker.ServiceClient, tiny_model: str, scored: pl.DataFrame
) -> None:
    policy = await start(service, tiny_model)
    await update_policy(policy, scored, adam_params(1e-1))
    moved = await rollouts(await policy.save_weights_and_get_sampling_client(), 1)
    base = await clients.create_sampling_client(service, base_model=tiny_model)
    asked = await with_base_logprobs(base, moved, concurrency=4, which=moved["trained"])
    rows = trained_rollouts(asked)
    assert asked.filter(~pl.col("trained"))["base_logprobs"].null_count() == 4
    # By hand: the mean over all tokens, from which each token's own gap is taken.
    gaps = [
        [float(q) - float(b) for q, b in zip(*pair, strict=True)]
        for pair in rows.select("logprobs", "base_logprobs").iter_rows()
    ]
    tokens = [gap for each in gaps for gap in each]
    mean = math.fsum(tokens) / len(tokens)
    advantages = [[a + 0.5 * (mean - gap) for gap in each] for a, each in zip(rows["advantage"], gaps, strict=True)]
    datums, _ = build_datums(rows, penalised_advantages(rows, 0.5))
    for datum, expected in zip(datums, advantages, strict=True):
        found = datum.loss_fn_inputs["advantages"].to_numpy()
        assert found[-len(expected) :] == pytest.approx(expected, rel=1e-6) and not found[: -len(expected)].any()
    result = await update_policy(policy, asked, adam_params(1e-2), UpdateMethod(LOSSES["ppo"], 2, None, 0.5))
    assert result.kl_base is not None and result.kl_base[0] == pytest.approx(mean) and abs(mean) > 1e-3
    k3 = math.fsum(math.exp(-gap) - 1 + gap for gap in tokens) / len(tokens)
    assert result.kl_base[1] == pytest.approx(k3) and k3 > 1e-4
    for step in result.steps:
        assert step.loss == pytest.approx(step.service_metrics["loss:sum"], rel=1e-4, abs=1e-3)
    with pytest.raises(DataError, match="lack the base model's"):
        penalised_advantages(trained_rollouts(moved), 0.5)


async def test_mini_batches_are_optimizer_steps_and_repeat_themselves(
    service: tinker.ServiceClient, tiny_model: str, scored: pl.DataFrame
) -> None:
    method = UpdateMethod(LOSSES["ppo"], epochs=2, batch_size=5)
    first, again = [await trained(service, tiny_model, scored, method, rate=5e-2) for _ in range(2)]
    assert first == again
    assert [step.n_datums for step in first.steps] == [5, 5, 2, 5, 5, 2]
    assert first.n_tokens == scored.filter(pl.col("trained"))["completion_tokens"].list.len().sum()
    assert first.n_tokens == sum(step.n_tokens for step in first.steps if step.epoch == 1)
    assert first.clipped_share is not None and 0 < first.clipped_share < 1
    assert first.ratio_max is not None and first.ratio_max > 1.2
