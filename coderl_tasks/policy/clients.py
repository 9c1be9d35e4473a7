"""Clients of the Tinker service, the real one or the embedded one: the same calls for both.

The coroutines can be cancelled at any moment. The SDK waits for ever on a server that is gone, so whoever supervises
the server cancels the phase and starts again with a new `connect`.
"""

import asyncio
import difflib
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import TypeVar

import tinker
from tinker.types import SupportedModel

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.paths import local_model_folder
from coderl_tasks.policy.reachable import PATIENCE_S, SDK_PATIENCE_S, named_address, notice, require_answer
from coderl_tasks.policy.sdk_errors import status_code, tinker_errors
from coderl_tasks.policy.selection import seed_for

KEY_PREFIX = "tml-"
SHOWN = 6
AnswerT = TypeVar("AnswerT")


async def connect(base_url: str | None = None, api_key: str | None = None) -> tinker.ServiceClient:
    """A session with the service. None for either argument leaves it to the SDK (TINKER_BASE_URL, TINKER_API_KEY).

    Raises ConfigError for a key that is malformed or refused, InfraError if no answer comes for five minutes.
    """
    if api_key is not None and not api_key.startswith(KEY_PREFIX):
        raise ConfigError(f"a Tinker API key starts with {KEY_PREFIX}: check TINKER_API_KEY")
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    # The SDK opens its session on first use and blocks meanwhile.
    with tinker_errors("opening a session"), notice(base_url):
        await _in_daemon_thread(lambda: service.holder)
    return service


async def disconnect(service: tinker.ServiceClient) -> None:
    """End the session, so that the server can drop its models; what is saved stays."""
    with tinker_errors("closing the session"):
        await service.close("success")


async def supported_models(
    base_url: str | None = None, api_key: str | None = None, *, patience_s: float = SDK_PATIENCE_S
) -> dict[str, SupportedModel]:
    """The models that the service offers, by name. Opens no session.

    Raises InfraError, naming the address, if no answer comes for `patience_s`: the SDK itself waits for ever.
    """
    # The SDK makes REST clients one at a time under a lock of the process: one that is made for an address where
    # nothing answers would block those of every other address, long after its caller was cancelled.
    await require_answer(base_url, patience_s=min(patience_s, PATIENCE_S))
    with tinker_errors("asking for the models it has"), notice(base_url, patience_s):
        try:
            async with asyncio.timeout(patience_s):
                rest = await rest_client(base_url, api_key)
                models = (await rest.get_server_capabilities()).supported_models
        except TimeoutError:
            where = named_address(base_url)
            raise InfraError(
                f"no answer from Tinker at {where} in {patience_s:g} s: check the address and the network"
            ) from None
    return {model.model_name: model for model in models if model.model_name is not None}


async def context_length(base_url: str | None, api_key: str | None, model_name: str) -> int | None:
    """The context of `model_name` in tokens as the service states it, None if it states none.

    Raises ConfigError, naming models that it offers, if the service does not offer this one.
    """
    offered = await supported_models(base_url, api_key)
    if model_name not in offered:
        raise ConfigError(f"model_name is {not_offered(model_name, offered)}")
    return offered[model_name].max_context_length


def not_offered(model_name: str, offered: Iterable[str]) -> str:
    """The words that say so of a model, with those `offered` whose names are near, else with some others."""
    names = {name.lower(): name for name in offered}
    near = [names[key] for key in difflib.get_close_matches(model_name.lower(), names, n=3)]
    there_are = f"near ones that it offers: {', '.join(near)}" if near else f"it offers: {some_of(names.values())}"
    local = "; the embedded server, which is used without TINKER_API_KEY and TINKER_BASE_URL, serves that folder"
    is_local = local_model_folder(model_name) is not None
    return f"{model_name}, which the Tinker service does not offer ({there_are}{local if is_local else ''})"


def some_of(names: Iterable[str]) -> str:
    """Some of the models, for one line, and how many more there are."""
    ordered = sorted(names)
    shown, more = ordered[:SHOWN], len(ordered) - SHOWN
    others = f" and {more} more (coderl doctor lists them)" if more > 0 else ""
    return f"{', '.join(shown) or 'none'}{others}"


async def create_training_client(
    service: tinker.ServiceClient, model_name: str, *, lora_rank: int, seed: int
) -> tinker.TrainingClient:
    """A new LoRA on a base model. The same `seed` gives the same initial weights."""
    with tinker_errors(f"creating a LoRA of rank {lora_rank} on {model_name}", missing_is_fatal=True):
        return await service.create_lora_training_client(
            base_model=model_name, rank=lora_rank, seed=seed_for(seed, "lora")
        )


async def restore_training_client(service: tinker.ServiceClient, state_path: str) -> tinker.TrainingClient:
    """The training client saved at `state_path`, with the optimizer's moments."""
    with tinker_errors(f"restoring {state_path}", missing_is_fatal=True):
        return await service.create_training_client_from_state_with_optimizer(state_path)


async def create_sampling_client(
    service: tinker.ServiceClient, *, sampler_path: str | None = None, base_model: str | None = None
) -> tinker.SamplingClient:
    """A client that samples from saved sampler weights, or from a base model: exactly one of them."""
    if (sampler_path is None) == (base_model is None):
        raise ValueError("give either sampler_path or base_model")
    with tinker_errors(f"creating a sampler for {sampler_path or base_model}", missing_is_fatal=True):
        return await service.create_sampling_client(model_path=sampler_path, base_model=base_model)


async def rest_client(base_url: str | None = None, api_key: str | None = None) -> tinker.RestClient:
    """A client of what the service has stored. Opens no session; all of one address and key share their connections."""
    return await _in_daemon_thread(lambda: tinker.RestClient(base_url=base_url, api_key=api_key))


async def stored_checkpoints(rest: tinker.RestClient, training_run: str) -> set[str]:
    """The paths of the checkpoints that the service has of a training run; none where it has no such run."""
    try:
        with tinker_errors(f"listing the checkpoints of {training_run}", missing_is_fatal=True):
            return {item.tinker_path for item in (await rest.list_checkpoints(training_run)).checkpoints}
    except ConfigError as error:
        if status_code(error) == 404:
            return set()
        raise


async def delete_checkpoint(rest: tinker.RestClient, path: str) -> None:
    """Delete the checkpoint at a tinker:// path. No error if there is none: it may have expired."""
    try:
        with tinker_errors(f"deleting {path}", missing_is_fatal=True):
            await rest.delete_checkpoint_from_tinker_path(path)
    except ConfigError as error:
        if status_code(error) != 404:
            raise


def training_run_of(path: str) -> str:
    """The id of the training run that a checkpoint's tinker:// path names."""
    return path.removeprefix("tinker://").partition("/")[0]


async def _in_daemon_thread(call: Callable[[], AnswerT]) -> AnswerT:
    """`call()` in a thread of its own. Unlike asyncio's, it does not delay the exit if its caller is cancelled."""
    future: Future[AnswerT] = Future()

    def run() -> None:
        # Once it is running nobody can cancel the future any more, so that setting its result cannot fail.
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(call())
        except BaseException as error:
            # Whatever it is: an error that stayed in this thread would leave the caller waiting for ever.
            future.set_exception(error)

    threading.Thread(target=run, name="tinker connect", daemon=True).start()
    return await asyncio.wrap_future(future)
