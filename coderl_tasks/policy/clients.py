"""Clients of the Tinker service, the real one or the embedded one: the same calls, and the same failures, for both.

The coroutines can be cancelled at any moment. The SDK waits for ever on a server that is gone: whoever supervises the
server asks the address now and then (`lost`), cancels the phase and starts again with a new `connect`.

Which failures are retryable (`tinker_errors`). The SDK retries on its own, and hides some status errors inside a
ValueError or a RuntimeError ("poisoned" client): the whole chain of causes is looked at.

| seen in the chain                                                    | verdict                         |
|----------------------------------------------------------------------|---------------------------------|
| 400, 401, 402, 403, 413, 422; a failed request of category `user`    | fatal: ConfigError              |
| 404 while a client is being created: no such model or path           | fatal: ConfigError              |
| 404 from a client that was good before: evicted                      | retryable: InfraError           |
| 408, 409, 410, 429, 5xx, connection, time-out, expired promise, rest | retryable: InfraError           |
"""

import asyncio
import difflib
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal, NoReturn, TypeVar
from urllib.parse import urlsplit

import httpx
import tinker
from tinker.lib.base_url import resolve_base_url
from tinker.types import RequestErrorCategory, SupportedModel

from coderl_tasks.errors import CoderlError, ConfigError, InfraError
from coderl_tasks.paths import local_model_path
from coderl_tasks.policy.selection import seed_for
from coderl_tasks.server_addresses import LOOPBACK, without_credentials

logger = logging.getLogger(__name__)
AnswerT = TypeVar("AnswerT")
KEY_PREFIX = "tml-"
SHOWN = 6
PATIENCE_S = 30.0
SDK_PATIENCE_S = 300.0
"""The SDK's own, of which it says nothing."""
NOTICE_S = 10.0
CONNECT_S = 10.0
ANSWER_S = 60.0
"""So long one answer may take. A service that is slow is not silent: its work goes on, and so does the run."""
PAUSE_S = 1.0
PROBE_EVERY_S = 20.0
OUTAGE_S = 600.0
_ACCOUNT_STATUS = frozenset({401, 402, 403})
# Without 404, which means a wrong name or an evicted client: only the caller knows which (`missing_is_fatal`).
_FATAL_STATUS = _ACCOUNT_STATUS | {400, 413, 422}
_BUGS = (TypeError, AttributeError, LookupError, AssertionError, NameError)
_HINTS = {
    401: "check TINKER_API_KEY",
    402: "check the account's billing",
    403: "this key may not do that: check TINKER_API_KEY",
}
Kind = Literal["state", "sampler", "both"]
_certificates = cache(httpx.create_ssl_context)
"""The trusted authorities, which take longer to read than the question that is asked with them."""


async def connect(base_url: str | None = None, api_key: str | None = None) -> tinker.ServiceClient:
    """Opens a session with the service. The SDK fills in an argument that is None (TINKER_BASE_URL, TINKER_API_KEY).
    Raises ConfigError for a key that is malformed or refused, InfraError if no answer comes for five minutes."""
    if api_key is not None and not api_key.startswith(KEY_PREFIX):
        raise ConfigError(f"a Tinker API key starts with {KEY_PREFIX}: check TINKER_API_KEY")
    service = tinker.ServiceClient(base_url=base_url, api_key=api_key)
    opened, abandoned = threading.Event(), threading.Event()

    def close_abandoned() -> None:
        # The thread and a cancelled caller both come here, and the last one closes: an open session sends heartbeats.
        if opened.is_set() and abandoned.is_set():
            service.close("interrupted")

    def open_session() -> None:
        assert service.holder  # the SDK opens its session on first use, here, and blocks meanwhile
        opened.set()
        close_abandoned()

    with tinker_errors("opening a session"), warning_if_slow(base_url):
        try:
            await _in_daemon_thread(open_session)
        except BaseException:
            abandoned.set()
            close_abandoned()
            raise
    return service


async def disconnect(service: tinker.ServiceClient) -> None:
    """End the session, so that the server can drop its models; what is saved stays."""
    with tinker_errors("closing the session"):
        await service.close("success")


async def supported_models(
    base_url: str | None = None, api_key: str | None = None, *, patience_s: float = SDK_PATIENCE_S
) -> dict[str, SupportedModel]:
    """The models that the service offers, by name. Opens no session. InfraError, naming the address, if no answer comes
    for `patience_s`: the SDK itself waits for ever."""
    # The SDK makes REST clients one at a time under a lock of the process, also for an address where nothing answers:
    # one made there would block those of every other address, long after its caller was cancelled.
    await require_answer(base_url, patience_s=min(patience_s, PATIENCE_S))
    with tinker_errors("asking for the models it has"), warning_if_slow(base_url, patience_s):
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
    """The context of `model_name` in tokens, None if the service states none. ConfigError, naming models that it
    offers, if the service does not offer this one."""
    offered = await supported_models(base_url, api_key)
    if model_name not in offered:
        raise ConfigError(f"model_name is {not_offered(model_name, offered)}")
    return offered[model_name].max_context_length


def not_offered(model_name: str, offered: Iterable[str]) -> str:
    """The words that say so of a model, with those `offered` whose names are near, else with some others."""
    names = {name.lower(): name for name in offered}
    near = [names[key] for key in difflib.get_close_matches(model_name.lower(), names, n=3)]
    others = f"near ones that it offers: {', '.join(near)}" if near else f"it offers: {some_of(names.values())}"
    if local_model_path(model_name) is not None:
        others += "; the embedded server, which is used without TINKER_API_KEY and TINKER_BASE_URL, serves it"
    return f"{model_name}, which the Tinker service does not offer ({others})"


def some_of(names: Iterable[str]) -> str:
    ordered = sorted(names)
    more = len(ordered) - SHOWN
    return (", ".join(ordered[:SHOWN]) or "none") + (f" and {more} more (coderl doctor lists them)" if more > 0 else "")


async def create_training_client(
    service: tinker.ServiceClient, model_name: str, *, lora_rank: int, seed: int
) -> tinker.TrainingClient:
    """A new LoRA on a base model. The same `seed` gives the same initial weights."""
    seed = seed_for(seed, "lora")
    with tinker_errors(f"creating a LoRA of rank {lora_rank} on {model_name}", missing_is_fatal=True):
        return await service.create_lora_training_client(base_model=model_name, rank=lora_rank, seed=seed)


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
    """A client of what the service has stored. Opens no session."""
    return await _in_daemon_thread(lambda: tinker.RestClient(base_url=base_url, api_key=api_key))


async def stored_checkpoints(rest: tinker.RestClient, training_run: str) -> set[str]:
    """The paths of the checkpoints that the service has of a training run; none where it has no such run."""
    with _unless_missing(f"listing the checkpoints of {training_run}"):
        return {item.tinker_path for item in (await rest.list_checkpoints(training_run)).checkpoints}
    return set()


async def delete_checkpoint(rest: tinker.RestClient, path: str) -> None:
    """Delete the checkpoint at a tinker:// path. No error if there is none: it may have expired."""
    with _unless_missing(f"deleting {path}"):
        await rest.delete_checkpoint_from_tinker_path(path)


def training_run_of(path: str) -> str:
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


def named_address(base_url: str | None) -> str:
    """The service's address with the variable that sets it, if one does."""
    named = " (TINKER_BASE_URL)" if os.environ.get("TINKER_BASE_URL") else ""
    return f"{service_address(base_url)}{named}"


def service_address(base_url: str | None) -> str:
    """The service's address (None: the SDK's own) as it is shown and recorded: without a user name and password."""
    return without_credentials(resolve_base_url(base_url))


async def require_answer(base_url: str | None, *, patience_s: float = PATIENCE_S, notice_s: float = NOTICE_S) -> None:
    """Return as soon as the address (None: the SDK's own) answers anything. InfraError, naming the address, if nothing
    does for `patience_s`, ConfigError if it is no address."""
    fault: str | None = "nothing came back"  # said if the time runs out within the first request
    try:
        with warning_if_slow(base_url, patience_s, after_s=notice_s):
            async with asyncio.timeout(patience_s):
                while (fault := await _fault(base_url)) is not None:
                    await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise InfraError(
            f"no answer from Tinker at {named_address(base_url)} in {patience_s:g} s ({fault}): check the address and "
            "the network (coderl doctor), then run the same command again"
        ) from None
    except httpx.InvalidURL as error:
        raise ConfigError(f"{named_address(base_url)} is not an address: {error}") from error


async def served_by(base_url: str | None, api_key: str | None, model_name: str) -> str:
    """Identifies what serves a model: coderl's own server by its engine and weights (with its host, if that is another
    machine; its port may change), any other service by its address. Raises InfraError if nothing answers."""
    address = service_address(base_url)
    try:
        # Not through the SDK: it drops `served`, a field that only coderl's server sends.
        answer = await _get(base_url, "get_server_capabilities", api_key or "")
    except httpx.TransportError as error:
        raise InfraError(f"no answer from Tinker at {named_address(base_url)}: {error}") from error
    try:
        models = answer.json()["supported_models"] if answer.status_code == httpx.codes.OK else []
        served = next((model.get("served") for model in models if model["model_name"] == model_name), None)
    except (ValueError, TypeError, KeyError, AttributeError):  # an answer of another shape
        served = None
    if not isinstance(served, str):  # any other service, or not this model
        return address
    host = urlsplit(address).hostname
    return served if host in LOOPBACK else f"{served}, at {host}"


async def lost(base_url: str | None, *, outage_s: float = OUTAGE_S, every_s: float = PROBE_EVERY_S) -> NoReturn:
    """Ask the address every so many seconds; raises InfraError once nothing has answered for `outage_s`."""
    silent_since: float | None = None
    while True:
        await asyncio.sleep(every_s)
        fault = await _fault(base_url)
        if fault is None:
            if silent_since is not None:
                logger.warning("%s answers again", named_address(base_url))
            silent_since = None
        elif silent_since is None:
            # One lost request is no outage: it starts the clock, and any answer stops it.
            silent_since = time.monotonic()
            logger.warning("no answer from Tinker at %s (%s): waiting", named_address(base_url), fault)
        elif time.monotonic() - silent_since >= outage_s:
            raise InfraError(f"no answer from Tinker at {named_address(base_url)} for {outage_s:g} s ({fault})")


async def _fault(base_url: str | None) -> str | None:
    """Why the address does not answer now; None if it answers anything."""
    try:
        # Without a key: a refusal is an answer too, and means that somebody is there.
        await _get(base_url, "healthz")
    except httpx.TransportError as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


async def _get(base_url: str | None, path: str, api_key: str | None = None) -> httpx.Response:
    headers = {} if api_key is None else {"X-API-Key": api_key}
    timeout = httpx.Timeout(ANSWER_S, connect=CONNECT_S)
    async with httpx.AsyncClient(timeout=timeout, verify=_certificates(), headers=headers) as client:
        return await client.get(f"{resolve_base_url(base_url)}/api/v1/{path}")


@contextmanager
def warning_if_slow(
    base_url: str | None, patience_s: float = SDK_PATIENCE_S, *, after_s: float = NOTICE_S
) -> Iterator[None]:
    """Logs a warning if the block lasts longer than `after_s`: what is waited for, and until when."""
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + patience_s))
    line = f"no answer yet from {named_address(base_url)}; still trying until {until}"
    timer = asyncio.get_running_loop().call_later(after_s, logger.warning, "%s", line)
    try:
        yield
    finally:
        timer.cancel()


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and what caused it, outermost first."""
    # An exception that is kept and raised again can make the chain a cycle.
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def status_code(error: BaseException) -> int | None:
    """The HTTP status at the root of `error`, None if no answer came back."""
    answers = (cause for cause in causes(error) if isinstance(cause, tinker.APIStatusError))
    return next((int(answer.response.status_code) for answer in answers), None)


def is_fatal(error: BaseException, *, missing_is_fatal: bool = False) -> bool:
    """Whether retrying `error` cannot help. `missing_is_fatal` says what a 404 means."""
    for cause in causes(error):
        # A ConfigError was judged already, deeper down. A request that was accepted and failed later has no status.
        is_users = isinstance(cause, tinker.RequestFailedError) and cause.category is RequestErrorCategory.User
        if is_users or isinstance(cause, ConfigError):
            return True
    status = status_code(error)
    return status in _FATAL_STATUS or (missing_is_fatal and status == 404)


def is_about_the_account(error: BaseException) -> bool:
    """Whether the key, its rights or the billing is at fault, and not what the request named."""
    return status_code(error) in _ACCOUNT_STATUS


def describe(error: BaseException) -> str:
    """One line on the root of `error`, with what to do where that is known."""
    # What wraps it says only which call failed.
    root = next((cause for cause in causes(error) if isinstance(cause, tinker.TinkerError)), error)
    text = " ".join(str(root).split()) or type(root).__name__
    status = status_code(error)
    if isinstance(root, tinker.APIConnectionError):
        url = root.request.url
        return f"{text} ({url.scheme}://{url.netloc.decode()}: check TINKER_BASE_URL and the network, coderl doctor)"
    hint = f" ({_HINTS[status]})" if status in _HINTS else ""
    return f"{text}{hint}" if status is None or str(status) in text else f"{status}: {text}{hint}"


@contextmanager
def tinker_errors(action: str, *, missing_is_fatal: bool = False) -> Iterator[None]:
    """Turn what the SDK raises inside the block into ConfigError (fatal) or InfraError (worth a retry). Errors of our
    own pass unchanged, and so do those that can only be a mistake in a program: a retry would hide them."""
    try:
        yield
    # First: a bug of ours inside the block would else be retried for minutes as the service's.
    except (CoderlError, *_BUGS):
        raise
    except Exception as error:
        kind = ConfigError if is_fatal(error, missing_is_fatal=missing_is_fatal) else InfraError
        raise kind(f"Tinker, {action}: {describe(error)}") from error


@contextmanager
def _unless_missing(action: str) -> Iterator[None]:
    """As `tinker_errors`, but the block ends at a 404 without an error."""
    try:
        with tinker_errors(action, missing_is_fatal=True):
            yield
    except ConfigError as error:
        if status_code(error) != 404:
            raise


async def save_weights(
    training_client: tinker.TrainingClient, name: str, *, kind: Kind = "both", ttl_seconds: int | None = None
) -> dict[str, str]:
    """Save the current weights and return `state_path` and/or `sampler_path`, without recording them. `ttl_seconds` is
    how long the service keeps them (3600 or more; None: always)."""
    with tinker_errors(f"saving checkpoint {name}"):
        pending = submit_weights(training_client, name, kind, ttl_seconds)
        return {key: (await future).path for key, future in pending.items()}


def submit_weights(
    training_client: tinker.TrainingClient, name: str, kind: Kind, ttl_seconds: int | None
) -> dict[str, tinker.APIFuture[Any]]:
    """Both saves under way at once, by the key their path goes under."""
    pending: dict[str, tinker.APIFuture[Any]] = {}
    if kind in ("state", "both"):
        # Without overwrite a repeated save is answered with a 409, which the SDK retries five times in vain.
        pending["state_path"] = training_client.save_state(name, ttl_seconds=ttl_seconds, overwrite=True)
    if kind in ("sampler", "both"):
        # A save that is repeated after a crash would clash with its own first try: these cannot be overwritten.
        unique = f"{name}-{secrets.token_hex(4)}"
        pending["sampler_path"] = training_client.save_weights_for_sampler(unique, ttl_seconds=ttl_seconds)
    return pending
