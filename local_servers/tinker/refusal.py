"""A request that is not served: an HTTP status and a text that says what is wrong and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager


class Refusal(Exception):
    """Answered as `status` with the JSON body `{"detail": message}`. 404: what the request names does not exist. 409:
    the name is taken, or the thing is in the state asked for already. 410: see `gone`. 422: what is stored under the
    name cannot be used."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class BadRequest(Refusal):
    """The request itself is wrong: sending it again cannot help."""

    def __init__(self, message: str) -> None:
        super().__init__(400, message)


@contextmanager
def about_datum(number: int) -> Iterator[None]:
    """Says in a BadRequest which datum of the request it is about."""
    try:
        yield
    except BadRequest as error:
        raise BadRequest(f"datum {number}: {error}") from error


def gone(what: str) -> Refusal:
    """`what` lived in the memory of a server process that has ended, or of a session that has."""
    return Refusal(
        410,
        f"{what} is not known to this server: it was restarted, or the session has ended. "
        "Create a new ServiceClient and continue from a saved checkpoint.",
    )
