"""A request that is not served: an HTTP status and a text that says what is wrong and what to do."""

from collections.abc import Iterator
from contextlib import contextmanager


class Refusal(Exception):
    """Answered as `status` with the JSON body `{"detail": message}`."""

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


def not_found(message: str) -> Refusal:
    """What the request names does not exist, here or on disk."""
    return Refusal(404, message)


def clash(message: str) -> Refusal:
    """The name is taken, or the thing is already in the state asked for."""
    return Refusal(409, message)


def gone(what: str) -> Refusal:
    """`what` lived in the memory of a server process that has ended, or of a session that has."""
    return Refusal(
        410,
        f"{what} is not known to this server: it was restarted, or the session has ended. "
        "Create a new ServiceClient and continue from a saved checkpoint.",
    )


def damaged(message: str) -> Refusal:
    """What is stored under the name cannot be used."""
    return Refusal(422, message)
