"""The keys of embedded servers (`admission`): made, and read from a file or standard input.

Apart from what checks them: who starts a server, as every command does, need not import what serves.
"""

import os
import re
import secrets
import sys
from pathlib import Path

from local_servers.server_errors import SetupError

KEY_PREFIX = "tml-"
"""What the Tinker SDK demands of a key; the sandbox takes the same, so that one file serves both servers."""
_KEY = re.compile(rf"{KEY_PREFIX}[A-Za-z0-9_-]{{16,200}}")
_OTHERS_RIGHTS = 0o077


def new_key() -> str:
    return f"{KEY_PREFIX}{secrets.token_urlsafe(24)}"


def read_key(source: str) -> str:
    """The key in the file `source`, which is made with a random one if it is not there; "-" is a line of standard
    input. SetupError for what is no key, and for a file that others may read."""
    if source == "-":
        return _checked(sys.stdin.readline().strip(), "standard input")
    path = Path(source).expanduser()
    try:
        # Made with its mode, and only if it is not there: between a check and a chmod others could open it.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        about = path.stat()
        if about.st_mode & _OTHERS_RIGHTS or about.st_uid != os.getuid():
            raise SetupError(
                f"--key {source}: others may read this file, or own it: chmod 600 {source}, or name another"
            ) from None
        return _checked(path.read_text(errors="replace").strip(), source)
    except OSError as error:
        raise SetupError(f"--key {source}: no key can be written there: {error.strerror}") from error
    key = new_key()
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{key}\n")
    return key


def _checked(key: str, source: str) -> str:
    if not _KEY.fullmatch(key):
        raise SetupError(
            f"--key: {source} holds no key: {KEY_PREFIX} and 16 to 200 letters, digits, - or _ "
            "(a file that does not exist yet gets a random one)"
        )
    return key
