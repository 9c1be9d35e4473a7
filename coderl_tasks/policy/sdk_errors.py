"""Which failures of the Tinker SDK are retryable.

The SDK retries and polls on its own, so what reaches us has outlasted that. It hides some status errors inside a
ValueError or a RuntimeError ("poisoned" client): the whole chain of causes is looked at.

| seen in the chain                                                    | verdict                         |
|----------------------------------------------------------------------|---------------------------------|
| 400, 401, 402, 403, 413, 422; a failed request of category `user`    | fatal: ConfigError              |
| 404 while a client is being created: no such model or path           | fatal: ConfigError              |
| 404 from a client that was good before: evicted                      | retryable: InfraError           |
| 408, 409, 410, 429, 5xx, connection, time-out, expired promise, rest | retryable: InfraError           |
"""

from collections.abc import Iterator
from contextlib import contextmanager

import tinker
from tinker.types import RequestErrorCategory

from coderl_tasks.errors import CoderlError, ConfigError, InfraError

_ACCOUNT_STATUS = frozenset({401, 402, 403})
# Without 404, which means a wrong name or an evicted client: only the caller knows which (`missing_is_fatal`).
_FATAL_STATUS = _ACCOUNT_STATUS | {400, 413, 422}
_BUGS = (TypeError, AttributeError, LookupError, AssertionError, NameError)
_HINTS = {
    401: "check TINKER_API_KEY",
    402: "check the account's billing",
    403: "this key may not do that: check TINKER_API_KEY",
}


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
    for cause in causes(error):
        if isinstance(cause, tinker.APIStatusError):
            return int(cause.response.status_code)
    return None


def is_fatal(error: BaseException, *, missing_is_fatal: bool = False) -> bool:
    """Whether retrying `error` cannot help. `missing_is_fatal` says what a 404 means."""
    # Judged already, deeper down.
    if any(isinstance(cause, ConfigError) for cause in causes(error)):
        return True
    for cause in causes(error):
        # A request that was accepted and failed later has a category and no HTTP status.
        if isinstance(cause, tinker.RequestFailedError) and cause.category is RequestErrorCategory.User:
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
    if status is None:
        return text
    hint = f" ({_HINTS[status]})" if status in _HINTS else ""
    return f"{text}{hint}" if str(status) in text else f"{status}: {text}{hint}"


@contextmanager
def tinker_errors(action: str, *, missing_is_fatal: bool = False) -> Iterator[None]:
    """Turn what the SDK raises inside the block into ConfigError (fatal) or InfraError (worth a retry).

    `action` is what was being done, as in "creating the sampling client". Errors of our own pass unchanged, and so do
    those that can only be a mistake in a program (TypeError and the like): a retry would hide them.
    """
    try:
        yield
    except (CoderlError, *_BUGS):
        raise
    except Exception as error:
        kind = ConfigError if is_fatal(error, missing_is_fatal=missing_is_fatal) else InfraError
        raise kind(f"Tinker, {action}: {describe(error)}") from error
