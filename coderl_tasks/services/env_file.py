"""Reads a `.env`, which may be that of a checkout of someone else.

python-dotenv parses it; the variables in its values (`${NAME}`) are filled in here, since python-dotenv gives them any
length, and any secret of the environment.
"""

import os
import re
from collections import ChainMap
from io import StringIO
from pathlib import Path

from dotenv import dotenv_values
from dotenv.variables import Variable, parse_variables

from coderl_tasks.errors import ConfigError
from coderl_tasks.untrusted_text import printable

LARGEST_FILE, LARGEST_VALUE = 64 * 1024, 32 * 1024
"""Bytes and characters: Linux starts no program with a variable of over 128 KiB."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)


def read_env_file(file: Path) -> dict[str, str]:
    """The variables that `file` sets, as they are meant beside those of the environment; none where it is missing.

    Raises ConfigError for what is no such file, and for a value that would hold a secret of the environment: an address
    could carry it away.
    """
    if not (file.is_file() or file.is_fifo()):  # a virtual environment may have the name
        return {}
    with file.open("rb") as opened:
        data = opened.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{file} has more than {LARGEST_FILE // 1024} KiB, and is no file of settings: remove it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8 text ({error.reason} at byte {error.start}): mend or remove it"
        ) from error
    values: dict[str, str] = {}
    for name, value in dotenv_values(stream=StringIO(text), interpolate=False).items():
        if value is None:  # a name alone sets nothing
            continue
        if not name or "=" in name or "\0" in name + value:
            raise ConfigError(f"{file} sets {printable(name)!r}, which cannot be a variable: mend or remove the line")
        values[name] = _filled_in(file, name, value, values)
    return values


def _filled_in(file: Path, name: str, value: str, earlier: dict[str, str]) -> str:
    """`value` with what its variables stand for: the environment's come first, as everywhere."""
    known = ChainMap(os.environ, earlier)
    filled = ""
    for part in parse_variables(value):
        if isinstance(part, Variable) and part.name in os.environ and _SECRET.search(part.name):
            raise ConfigError(
                f"{file} puts {printable(part.name)} of the environment into {printable(name)}: coderl takes no secret "
                "into another variable. Remove it there, or export it in the shell"
            )
        filled += part.resolve(known)
        if len(filled) > LARGEST_VALUE:
            raise ConfigError(f"{file} gives {printable(name)} more than {LARGEST_VALUE:,} characters: remove the line")
    return filled
