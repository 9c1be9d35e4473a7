"""Whom the embedded servers answer. Loopback is no border: other users of the machine reach it, and so does every web
page that its owner opens.

| request                                    | answer | keeps out                                                  |
|--------------------------------------------|--------|------------------------------------------------------------|
| `Host` other than localhost or 127.0.0.1   | 400    | a page whose own name was made to resolve to this machine  |
| `Origin`, whatever it says                 | 403    | a page: browsers send it with every POST                   |
| no key or another, where there is one      | 401    | other users, other machines                                |
| a body of a type that the server reads not | 415    | forms and `text/plain`, which a page may send unasked      |

A server that a run starts for itself has a key (`EmbeddedServer`). One that a user starts on loopback is open to
all of the machine until `--key` closes it; for other machines, and for a sandbox without isolation, it must.
Here too is what else both HTTP servers have in common: what they log of requests, and what ends them.
"""

import asyncio
import base64
import contextlib
import ipaddress
import logging
import secrets
import signal
import sys
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler, Middleware

from local_servers.server_errors import SetupError

JSON_BODY = "application/json"

http_logger = logging.getLogger("local_servers.http")
"""For `web.AppRunner`, in place of aiohttp's own, which other servers of the process may use. Of requests that are no
HTTP it says nothing: aiohttp logs a traceback for each, with which whoever reaches the port could fill the disk."""
_NO_HTTP = (HttpProcessingError, web.RequestPayloadError)
http_logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _NO_HTTP)))


@lru_cache(maxsize=64)  # asked for each request
def is_loopback(host: str) -> bool:
    """Whether a host name or address means this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, key: str | None) -> None:
    """Refuse to listen for other machines without a key; with one, say on stderr what it means."""
    if is_loopback(host):
        return
    if key is None:
        raise SetupError(
            f"--host {host} lets other machines in, and whoever reaches the port would run programs and train as you: "
            "add --key FILE, so that only those who have the key are answered"
        )
    print(
        f"listening on {host}, for other machines: whoever has the key is served as you are. Requests, the key among "
        "them, are not encrypted: on a network that you share, let them come through an SSH tunnel or a TLS proxy",
        file=sys.stderr,
        flush=True,
    )


def admission(
    key: str | None, host: str, *, bodies: Collection[str] = (JSON_BODY,), open_paths: tuple[str, ...] = ()
) -> Middleware:
    """Returns the middleware that refuses requests of web pages, without the `key` (None: none is asked for), or with a
    body of a content type outside `bodies`. The server listens on `host`; paths that begin with one of `open_paths`
    need no key."""

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        # Against DNS rebinding, by which a web page reaches a local server under a name of its own. A server for other
        # machines is not checked: it always has a key, which a page cannot know, and does not know its own names.
        if is_loopback(host) and not is_loopback(_host_name(request)):
            name = request.headers.get("Host", "")
            return refused(400, f"this server answers to localhost and 127.0.0.1 only, not to the name {name!r}")
        if "Origin" in request.headers:  # only browsers send it
            return refused(403, "requests of web pages (with an Origin header) are not answered")
        if key is not None and not request.path.startswith(open_paths) and not _shows(request, key):
            return refused(
                401,
                "this server wants its key: as TINKER_API_KEY (the X-API-Key header), "
                "or in SANDBOX_URL (http://coderl:KEY@host:port)",
            )
        if request.body_exists and request.content_type not in bodies:
            return refused(415, f"Content-Type is {request.content_type}; it has to be {' or '.join(bodies)}")
        return await handler(request)

    return admit


def stop_signal() -> asyncio.Event:
    """What SIGTERM and SIGINT set, of the running event loop."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    return stopping


def refused(status: int, detail: str) -> web.Response:
    return web.json_response({"detail": detail}, status=status)


def _host_name(request: web.Request) -> str:
    """The name in the Host header, without its port; empty if there is none."""
    try:
        return urlsplit(f"//{request.headers.get('Host', '')}").hostname or ""
    except ValueError:  # a bracket without its other half
        return ""


def _shows(request: web.Request, key: str) -> bool:
    # A token that the Tinker server gave out ends in the key, where others have a signature.
    shown = [request.headers.get("X-API-Key", "").rpartition(".")[2]]
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        shown.append(value)
    elif scheme.lower() == "basic":
        with contextlib.suppress(ValueError):  # neither base64 nor text
            shown.append(base64.b64decode(value, validate=True).decode().partition(":")[2])
    # Not ==, whose time says how much of a guess is right.
    return any(secrets.compare_digest(each.encode(errors="surrogateescape"), key.encode()) for each in shown)
