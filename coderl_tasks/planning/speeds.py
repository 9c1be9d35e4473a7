"""How fast a model samples and trains on the Tinker server in use: by the last steps of a run here, else by a probe.

What a run took per completion has its prompts, its grading and all between requests in it. A probe has none of that,
and fewer requests at a time than a step: what it says is rough.
"""

import asyncio
import math
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import polars as pl

from coderl_tasks.environments import environment_of
from coderl_tasks.errors import DataError
from coderl_tasks.journal.ledger import Tokens
from coderl_tasks.journal.recorded_json import CONFIG_FILE, recorded_config
from coderl_tasks.journal.run_directory import metrics_rows
from coderl_tasks.journal.run_names import runs_root
from coderl_tasks.paths import same_model
from coderl_tasks.policy.clients import (
    connect,
    create_sampling_client,
    create_training_client,
    disconnect,
    service_address,
)
from coderl_tasks.policy.grpo import make_datum, train_step
from coderl_tasks.policy.sampling import Completion, sample_group
from coderl_tasks.policy.update import adam_params
from coderl_tasks.prompts.tokenizer import model_renderer
from coderl_tasks.services import embedded_tinker, tinker_credentials, uses_tinker_service
from coderl_tasks.settings import FlowSettings, TrainSettings

LAST_STEPS = 20
PROBED, TRAINED = (32, 16), 4
"""Completions of a probe, the tokens of each at most, and the completions that it trains on."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Completion tokens sampled, and tokens (with prompts) trained on, per second; `by` says how that is known."""

    sampling: float
    training: float
    by: str

    def seconds(self, tokens: Tokens) -> float:
        return tokens.completion / self.sampling + tokens.training / self.training

    def __str__(self) -> str:
        training = f", {self.training:,.0f} trained on" if math.isfinite(self.training) else ""
        return f"{self.sampling:,.0f} tokens/s sampled{training}, by {self.by}"


async def known_speed(settings: FlowSettings, probe: bool | None = None) -> Speed | None:
    """The recorded speed, else a probe's: asked for by `probe`, by default where the server is embedded."""
    recorded = None if probe else recorded_speed(settings)
    if recorded is not None or probe is False or (probe is None and uses_tinker_service()):
        return recorded
    return await probed_speed(settings)


def recorded_speed(settings: FlowSettings) -> Speed | None:
    """Of the newest run here of this model on this server, one with the same max_tokens before others."""
    address = service_address(tinker_credentials()[0]) if uses_tinker_service() else None
    files = [(file.stat().st_mtime_ns, file.parent) for file in runs_root().glob(f"*/{CONFIG_FILE}")]
    other_lengths = None
    for _, folder in sorted(files, reverse=True):
        try:
            config = recorded_config(folder) or {}
            server = (config.get("probe") or {}).get("service")
            if server != address or not same_model(str(config.get("model_name")), settings.model_name):
                continue
            speed = _speed_of(metrics_rows(folder / "metrics.jsonl"), f"run {folder.name!r}")
        except DataError:  # of a damaged run there is nothing to learn, and naming it says what is wrong
            continue
        if speed is not None and config.get("max_tokens") == settings.max_tokens:
            return speed
        other_lengths = other_lengths or speed
    return other_lengths


def _speed_of(rows: list[dict[str, Any]], by: str) -> Speed | None:
    # Not of steps that an earlier process had sampled in part.
    steps = [row for row in rows if row.get("tokens_completion") and row.get("time_sample_s")][-LAST_STEPS:]
    trained = [row for row in steps if row.get("tokens_training") and row.get("time_train_s")]
    sampling_s = math.fsum(max(row["time_sample_s"], row["time_step_s"] - row["time_train_s"]) for row in steps)
    if not trained:
        return None
    training = sum(row["tokens_training"] for row in trained) / math.fsum(row["time_train_s"] for row in trained)
    return Speed(sum(row["tokens_completion"] for row in steps) / sampling_s, training, by)


async def probed_speed(settings: FlowSettings) -> Speed:
    """Samples a few hundred tokens now and, for a training, times an update on some. Raises as sampling does."""
    renderer = model_renderer(settings.model_name, settings.renderer_name, settings.thinking)
    prompt = renderer.prompt_tokens([{"role": "user", "content": "Write a Python program that sorts its input. " * 8}])
    stop, (count, length) = environment_of(settings).stop(renderer), PROBED
    with ExitStack() as stack:
        if uses_tinker_service():
            url, key = tinker_credentials()
        else:
            server = stack.enter_context(embedded_tinker(settings.model_name))
            url, key = server.url, server.key
        service = await connect(url, key)
        try:
            sampler = await create_sampling_client(service, base_model=settings.model_name)

            async def sampled(samples: int, max_tokens: int, seed: int) -> list[Completion]:
                sizes = {"num_samples": samples, "max_tokens": max_tokens}
                return await sample_group(sampler, prompt, **sizes, temperature=1.0, seed=seed, stop=stop)

            await sampled(2, 2, 0)  # the first request loads and compiles
            started = time.monotonic()
            completions = await sampled(count, length, 1)
            sampling = sum(len(each.tokens) for each in completions) / (time.monotonic() - started)
            training = math.inf  # without an update: costs no time
            usable = [each for each in completions if each.logprobs]
            if isinstance(settings, TrainSettings) and usable:
                trainer = await create_training_client(
                    service, settings.model_name, lora_rank=settings.lora_rank, seed=settings.seed
                )
                datums = [
                    make_datum([*prompt, *each.tokens], pl.Series(each.logprobs).to_numpy(), len(prompt), 1.0)
                    for each in usable[:TRAINED]
                ]
                started = time.monotonic()
                await asyncio.to_thread(train_step, trainer, datums, adam_params(settings.learning_rate))
                tokens = sum(datum.model_input.length for datum in datums)
                training = tokens / (time.monotonic() - started)
        finally:
            await disconnect(service)
    return Speed(sampling, training, f"a probe of {sum(len(each.tokens) for each in completions)} tokens")
