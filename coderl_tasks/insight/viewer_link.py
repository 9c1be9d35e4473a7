"""Addresses of the viewer's pages, for what leads to them: `coderl watch`, reports, artifacts. A viewer of all runs and
pools writes its port to a file and keeps that locked while it lives. Links are without the viewer's key, as reports are
passed on: a browser that has opened the address that the viewer printed keeps the key in a cookie."""

import fcntl
import shlex
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from coderl_tasks.journal.run_names import runs_root
from coderl_tasks.paths import POOLS, coderl_home, private_folder, shown

_PORT_FILE = "view.port"
_ATTEMPTS, _BETWEEN_S = 3, 0.05  # whoever asks for the address holds the lock for an instant


@contextmanager
def announced(port: int) -> Iterator[None]:
    """Lets others know of a viewer of all runs and pools on `port` of this machine. Of several the first is known."""
    with (private_folder(coderl_home()) / _PORT_FILE).open("a+") as file:
        for _ in range(_ATTEMPTS):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                file.truncate(0)
                file.write(f"{port}\n{runs_root().resolve()}\n")
                file.flush()
                break
            time.sleep(_BETWEEN_S)
        yield


def page_link(record: Path, *parts: str) -> str | None:
    """The address of the page of a run or a pool, or of `parts` below it; None if no viewer at work shows it."""
    try:
        with (coderl_home() / _PORT_FILE).open() as file:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return None  # the viewer has ended, which freed the lock
            port, runs = file.read().splitlines()
    except (OSError, ValueError):
        return None
    folders = {Path(runs): "run", POOLS.resolve(): "pool"}
    kind = folders.get(record.resolve().parent)
    path = "/".join(quote(part, safe="~") for part in (kind or "", shown(record.resolve().name), *parts))
    return f"http://127.0.0.1:{port}/{path}" if kind and port.isdecimal() else None


def view_command(record: Path) -> str:
    return f"coderl view {shlex.quote(str(record))}"


def query_command(record: Path, sql: str) -> str:
    """The command that runs `sql`. In double quotes where the shell takes all of it as it is: people read it."""
    quoted = shlex.quote(sql) if set(sql) & set('"$`\\!') else f'"{sql}"'
    return f"coderl query {shlex.quote(str(record))} {quoted}"


def commands(record: Path, queries: Iterable[str], sql: str) -> list[str]:
    """The commands that a report ends with: one opens the viewer, others run the named `queries` and `sql`."""
    named = (f"coderl query {shlex.quote(str(record))} --name {name}" for name in queries)
    return [view_command(record), *named, query_command(record, sql)]


def where_to_look(record: Path) -> str:
    return page_link(record) or view_command(record)


def in_markdown(record: Path, *parts: str) -> str:
    """A link to a page of the viewer, or the command that starts one."""
    link = page_link(record, *parts)
    return f"[{link}]({link})" if link else f"`{view_command(record)}`"
