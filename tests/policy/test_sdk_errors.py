"""Which SDK failures are worth a retry."""

import httpx
import pytest
import tinker
from tinker.lib.retryable_exception import RetryableException
from tinker.types import RequestErrorCategory

from coderl_tasks.errors import CoderlError, ConfigError, InfraError
from coderl_tasks.policy.clients import tinker_errors

REQUEST = httpx.Request("POST", "http://127.0.0.1:9/api/v1/asample")


def status_error(status: int, message: str = "no") -> tinker.APIStatusError:
    return tinker.APIStatusError(message, response=httpx.Response(status, request=REQUEST), body=None)


def caught(error: Exception, *, missing_is_fatal: bool = False) -> CoderlError:
    with pytest.raises(CoderlError) as info, tinker_errors("sampling", missing_is_fatal=missing_is_fatal):
        raise error
    return info.value


@pytest.mark.parametrize("status", [400, 401, 402, 403, 413, 422])
def test_refusals_are_fatal(status: int) -> None:
    error = caught(status_error(status))
    assert isinstance(error, ConfigError)
    assert str(status) in str(error)


@pytest.mark.parametrize("status", [404, 408, 409, 410, 429, 500, 502, 503])
def test_passing_troubles_are_retried(status: int) -> None:
    assert isinstance(caught(status_error(status)), InfraError)


def test_a_lost_connection_names_the_address() -> None:
    error = caught(tinker.APIConnectionError(request=REQUEST))
    assert isinstance(error, InfraError)
    assert "Connection error. (http://127.0.0.1:9: check TINKER_BASE_URL" in str(error)


def test_missing_model_is_fatal_when_a_client_is_created() -> None:
    assert isinstance(caught(status_error(404), missing_is_fatal=True), ConfigError)


@pytest.mark.parametrize(
    "error",
    [
        tinker.APIConnectionError(request=REQUEST),
        tinker.APITimeoutError(request=REQUEST),
        RetryableException("promise expired"),
        TimeoutError(),
        ConnectionRefusedError("refused"),
        tinker.RequestFailedError("out of memory", "r1", RequestErrorCategory.Server),
    ],
)
def test_transport_and_server_failures_are_retried(error: Exception) -> None:
    assert isinstance(caught(error), InfraError)


def test_failed_request_of_the_user_is_fatal() -> None:
    assert isinstance(caught(tinker.RequestFailedError("bad", "r1", RequestErrorCategory.User)), ConfigError)


def test_the_cause_inside_a_wrapper_decides() -> None:
    def wrapped(inner: Exception) -> Exception:
        try:
            try:
                raise inner
            except Exception as error:
                raise ValueError("Error retrieving result") from error
        except ValueError as error:
            return error

    error = caught(wrapped(status_error(401, "invalid key")))
    assert isinstance(error, ConfigError)
    assert "TINKER_API_KEY" in str(error) and "invalid key" in str(error)
    assert isinstance(caught(wrapped(status_error(410))), InfraError)


def test_own_errors_and_mistakes_pass_unchanged() -> None:
    for error in (ConfigError("mine"), InfraError("mine"), TypeError("a bug"), KeyError("a bug")):
        with pytest.raises(type(error)) as info, tinker_errors("sampling"):
            raise error
        assert info.value is error
