"""Addresses of servers as people write them in the environment: checked here, and brought into one form."""

import re
from base64 import b64encode
from collections.abc import Iterable
from urllib.parse import SplitResult, unquote, urlsplit

from coderl_tasks.errors import ConfigError

SANDBOX_VARIABLE = "SANDBOX_URL"
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_DEFAULT_PORTS = {"http": 80, "https": 443}
_CREDENTIALS = re.compile(r"(?<=//)[^/?#]*@")
_ANY_CREDENTIALS = re.compile(r"^.*@", re.DOTALL)
_ESCAPES = "in a user name or password write , / ? # @ as %2C %2F %3F %23 %40"


def sandbox_addresses(texts: Iterable[str]) -> tuple[str, ...]:
    """The distinct sandbox servers that `texts` name, in order. A text is one http(s) address, or several separated by
    commas; `/run_code`, which Sandbox Fusion's clients append, and a trailing slash are cut off. Raises ConfigError,
    naming `SANDBOX_URL`, if one is not an address."""
    found: dict[str, str] = {}
    urls = [url for text in texts for url in filter(None, map(str.strip, text.split(",")))]
    if any("@" in url and "//" not in url for url in urls):  # a password with a comma was split, and must not be shown
        raise ConfigError(f"{SANDBOX_VARIABLE}: '...' is cut by a comma: {_ESCAPES}")
    for url in urls:
        parts = check_address(SANDBOX_VARIABLE, url)
        if parts.query or parts.fragment:
            raise ConfigError(f"{SANDBOX_VARIABLE}: {without_credentials(url)!r} ends in a query: leave it out")
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else str(parts.hostname)
        port = "" if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{parts.port}"
        credentials, at, _ = parts.netloc.rpartition("@")
        path = parts.path.rstrip("/").removesuffix("/run_code").rstrip("/")
        address = f"{parts.scheme}://{credentials}{at}{host}{port}{path}"
        found.setdefault(without_credentials(address), address)
    return tuple(found.values())


def check_address(variable: str, url: str) -> SplitResult:
    """Returns the parts of an http(s) address. Raises ConfigError, naming the `variable` that holds it, otherwise."""
    # In a malformed address the end of the password is unknown, so errors show nothing before the last @.
    has_credentials = "@" in url
    shown = f"{variable}: {_ANY_CREDENTIALS.sub('...@', url)!r}"
    try:
        parts = urlsplit(url)
        # Check the raw text: urlsplit drops line breaks. No library accepts control characters or lone surrogates.
        valid = parts.scheme in _DEFAULT_PORTS and bool(parts.hostname) and " " not in url and url.isprintable()
        port = parts.port
        if valid:
            str(parts.hostname).encode("idna")  # name resolution does the same
    except ValueError as error:  # a bad port, bracket or host name
        # With credentials the error may quote part of the password; an unescaped character in it is the likely cause.
        why = _ESCAPES if has_credentials else f"{str(error)[:1].lower()}{str(error)[1:]}"
        raise ConfigError(f"{shown} is not an address: {why}") from None
    if "@" in parts.path + parts.query + parts.fragment:  # an unescaped / ? or # has cut the password
        raise ConfigError(f"{shown} is not an address: {_ESCAPES}")
    if not valid:
        raise ConfigError(f"{shown} is not an http(s) address such as http://localhost:8080")
    if port == 0:
        raise ConfigError(f"{shown} is not an address: nothing can listen on port 0")
    return parts


def without_credentials(url: str) -> str:
    """The address as it may be shown and logged: without a user name and password."""
    return _CREDENTIALS.sub("", url)


def authorization(url: str) -> dict[str, str]:
    """The header that carries the address's user name and password; empty where it has none."""
    parts = urlsplit(url)
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Authorization": f"Basic {b64encode(pair.encode()).decode()}"}
