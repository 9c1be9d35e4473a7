"""The update against the embedded server: numbers, determinism, and going on from a saved state."""

import asyncio
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import tinker

from coderl_tasks.errors import ConfigError
from coderl_tasks.journal.checkpoints import get_last_checkpoint, save_checkpoint, save_checkpoint_async
from coderl_tasks.policy import clients
from coderl_tasks.policy.grpo import UpdateRefusedError, train_step
from coderl_tasks.policy.rollout import ORDER
from coderl_tasks.policy.update import adam_params, build_datums, trained_rollouts, update_policy
from tests.policy.tiny_rollouts import rollouts, start

ADAM = adam_params(1e-2)


def datums_of(scored: pl.DataFrame) -> list[tinker.Datum]:
    rows = trained_rollouts(scored)
    return build_datums(rows, list(rows["advantage"]))[0]


async def test_the_first_update_is_on_policy(service: tinker.ServiceClient, tiny_model: str) -> None:
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    result = await update_policy(await start(service, tiny_model), scored, ADAM)
    assert result.n_datums == scored["trained"].sum() == len(datums_of(scored)) == 12
    trained = scored.filter(pl.col("trained"))
    assert result.n_tokens == trained["completion_tokens"].list.len().sum()
    assert result.kl_sample_train == pytest.approx(0.0, abs=1e-4)
    lengths = trained["completion_tokens"].list.len()
    assert result.loss == pytest.approx(-(trained["advantage"] * lengths).sum(), abs=1e-2)
    assert result.loss == pytest.approx(result.steps[-1].service_metrics["loss:sum"], rel=1e-4)


async def test_a_second_update_on_the_same_rollouts_is_off_policy_and_raises_the_good_tokens(
    service: tinker.ServiceClient, tiny_model: str
) -> None:
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    training = await start(service, tiny_model)
    first = await update_policy(training, scored, ADAM)
    second = await update_policy(training, scored, ADAM)
    assert first.loss is not None and second.loss is not None and second.loss < first.loss
    assert second.kl_sample_train is not None and abs(second.kl_sample_train) > 1e-4
    for result in (first, second):
        assert result.trainer_logprobs is not None
        rows = scored.filter("trained").join(result.trainer_logprobs, on=ORDER, how="full", validate="1:1")
        gaps = rows.select("logprobs", "trainer_logprobs").explode("logprobs", "trainer_logprobs").cast(pl.Float64)
        assert len(gaps) == result.n_tokens and gaps.null_count().sum_horizontal().item() == 0
        mean = (gaps["logprobs"] - gaps["trainer_logprobs"]).mean()
        assert mean == pytest.approx(result.kl_sample_train, abs=1e-7)


async def test_the_order_of_rows_does_not_matter(service: tinker.ServiceClient, tiny_model: str) -> None:
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    results = []
    for frame in (scored, scored.reverse()):
        training = await start(service, tiny_model)
        await update_policy(training, frame, ADAM)
        results.append(await update_policy(training, frame, ADAM))
    assert results[0] == results[1]


async def test_without_signal_nothing_is_done(service: tinker.ServiceClient, tiny_model: str) -> None:
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    same = scored.filter(pl.col("group_index") == 0)
    result = await update_policy(await start(service, tiny_model), same, ADAM)
    assert result.n_datums == 0
    assert result.loss is None and result.kl_sample_train is None


async def test_a_run_goes_on_bit_for_bit_from_its_checkpoint(
    service: tinker.ServiceClient, tiny_model: str, tmp_path: Path
) -> None:
    training = await start(service, tiny_model)
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    await update_policy(training, scored, ADAM)
    assert get_last_checkpoint(tmp_path) is None
    for _ in range(2):  # a save repeated after a crash
        row = await save_checkpoint_async(training, "step-000000", tmp_path, {"step": 0, "dataset_offset": 4})
    assert list(row) == ["name", "step", "dataset_offset", "state_path", "sampler_path"]
    assert get_last_checkpoint(tmp_path) == row

    restored = await clients.restore_training_client(service, row["state_path"])
    sampler = await clients.create_sampling_client(service, sampler_path=row["sampler_path"])
    following = await rollouts(sampler, 1)
    for _ in range(2):
        results = [await update_policy(client, following, ADAM) for client in (training, restored)]
        assert results[0] == results[1]
    assert results[0].kl_sample_train != 0


def test_the_same_without_a_running_loop(tinker_url: str, tiny_model: str, tmp_path: Path) -> None:
    async def prepare() -> tuple[tinker.ServiceClient, tinker.TrainingClient, pl.DataFrame]:
        service = await clients.connect(tinker_url, "tml-test")
        sampler = await clients.create_sampling_client(service, base_model=tiny_model)
        return service, await start(service, tiny_model), await rollouts(sampler, 0)

    service, training, scored = asyncio.run(prepare())
    output = train_step(training, datums_of(scored), ADAM)
    assert output is not None and len(output.forward_backward.loss_fn_outputs) == 12
    row = save_checkpoint(training, "a", tmp_path, {"step": 0, "dataset_offset": 4}, kind="state")
    assert "sampler_path" not in row
    assert get_last_checkpoint(tmp_path) == row
    assert get_last_checkpoint(tmp_path, required_key="sampler_path") is None
    asyncio.run(clients.disconnect(service))


async def test_a_refused_datum_is_an_error_with_its_reason(service: tinker.ServiceClient, tiny_model: str) -> None:
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    bad = scored.with_columns(pl.lit([9999], dtype=pl.List(pl.Int32)).alias("prompt_tokens"))
    with pytest.raises(UpdateRefusedError, match="9999"):
        await update_policy(await start(service, tiny_model), bad, ADAM)


async def test_a_datum_that_is_refused_in_a_later_chunk_ends_the_update(
    service: tinker.ServiceClient, tiny_model: str
) -> None:
    """The SDK sends a chunk of 1,024 datums, and the rest before it."""
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    many = pl.concat([scored.filter("trained")] * 90).with_columns(group_index=pl.int_range(pl.len()))
    bad = pl.lit([9999], dtype=pl.List(pl.Int32))
    last = many.with_columns(prompt_tokens=pl.when(pl.col("group_index") < 1024).then("prompt_tokens").otherwise(bad))
    async with asyncio.timeout(60):
        with pytest.raises(UpdateRefusedError, match="9999"):
            await update_policy(await start(service, tiny_model), last.cast(scored.schema), ADAM)


async def test_a_missing_checkpoint_is_named(service: tinker.ServiceClient) -> None:
    with pytest.raises(ConfigError, match="no-such-run"):
        await clients.restore_training_client(service, "tinker://no-such-run/weights/a")


class Diverged:
    """A training client whose policy answers NaN."""

    def forward_backward(self, data: list[tinker.Datum], loss_fn: str, loss_fn_config: None) -> SimpleNamespace:
        outputs = [
            {"logprobs": tinker.TensorData.from_numpy(np.full(datum.model_input.length, np.nan, np.float32))}
            for datum in data
        ]
        answer = tinker.ForwardBackwardOutput(loss_fn_output_type="", loss_fn_outputs=outputs)
        return self.answered(answer)

    def optim_step(self, adam: tinker.AdamParams) -> SimpleNamespace:
        return self.answered(tinker.types.OptimStepResponse())

    def answered(self, answer: object) -> SimpleNamespace:
        async def coroutine() -> object:
            return answer

        return SimpleNamespace(coroutine=coroutine, future=Future)


async def test_divergence_is_said(service: tinker.ServiceClient, tiny_model: str) -> None:
    scored = await rollouts(await clients.create_sampling_client(service, base_model=tiny_model), 0)
    with pytest.raises(UpdateRefusedError, match=r"diverged.*learning_rate"):
        await update_policy(Diverged(), scored, ADAM)  # type: ignore[arg-type]
