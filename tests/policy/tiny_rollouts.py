"""Rollouts of the tiny model, rewarded, and a policy to train on them."""

import polars as pl
import tinker

from coderl_tasks.policy import clients
from coderl_tasks.policy.grpo import with_advantages
from coderl_tasks.policy.rollout import GRADED_SCHEMA, ROLLOUT_SCHEMA, SAMPLED_SCHEMA
from coderl_tasks.policy.sampling import GroupRequest, group_frame, in_order, sample_group
from coderl_tasks.policy.selection import seed_for


def rewarded(sampled: pl.DataFrame) -> pl.DataFrame:
    """Scored by a rule the tiny model can follow: even tokens are good. Group 0 gets the same reward throughout."""
    good = pl.col("completion_tokens").list.eval(pl.element() % 2 == 0).list.mean()
    reward = pl.when(pl.col("group_index") == 0).then(1.0).otherwise(good)
    values = {"reward": reward, "verdict": pl.lit("passed"), "trained": pl.lit(False)}
    columns = [values.get(name, pl.lit(None)).cast(kind).alias(name) for name, kind in GRADED_SCHEMA.items()]
    return with_advantages(sampled.with_columns(columns).select(list(ROLLOUT_SCHEMA)))


async def rollouts(sampler: tinker.SamplingClient, step: int) -> pl.DataFrame:
    requests = [
        GroupRequest(
            *(index, f"p{index}", "taco", [5, 6, 10 + index], 4, 12, seed_for(0, step, index), 1.0, step),
            sampler_step=step - 1,
        )
        for index in range(4)
    ]
    frames = [
        group_frame(
            request,
            await sample_group(
                sampler, request.prompt_tokens, num_samples=4, max_tokens=12, temperature=1.0, seed=request.seed
            ),
            decode=str,
        )
        for request in requests
    ]
    return rewarded(in_order(reversed(frames), SAMPLED_SCHEMA))


async def start(service: tinker.ServiceClient, model: str, seed: int = 0) -> tinker.TrainingClient:
    return await clients.create_training_client(service, model, lora_rank=4, seed=seed)
