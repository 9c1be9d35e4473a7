"""The Prefect server a command reports to: the configured one, else one on port 4200, else an embedded one.

An empty `PREFECT_API_URL` asks for an embedded one, whatever answers elsewhere.

1. Only `coderl up` offers its embedded server on port 4200, for other commands to report to. Those of other commands
   take any free port, so that no command loses its server because another one ended.
2. They all keep one database under `CODERL_HOME`, so that `coderl up` shows the runs of earlier commands.
"""

import asyncio
import fcntl
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from coderl_tasks.errors import CoderlError, ConfigError, DataError, InfraError
from coderl_tasks.local import guard
from coderl_tasks.local.supervisor import EmbeddedServer, answers, free_port
from coderl_tasks.paths import PROJECT_ROOT, coderl_home, private_folder
from coderl_tasks.services import log_folder

DEFAULT_PORT = 4200
DEFAULT_API_URL = f"http://127.0.0.1:{DEFAULT_PORT}/api"
WORK_POOL = "local-pool"
QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_CLI_COLORS": "false",
    "PREFECT_LOGGING_LEVEL": "INFO",
}


def configured_api_url() -> str | None:
    """The API address that the environment or the active Prefect profile names; None if none, or `wants_embedded`."""
    from prefect.settings import PREFECT_API_URL

    return None if wants_embedded() else PREFECT_API_URL.value()


def wants_embedded() -> bool:
    """Whether `PREFECT_API_URL` is set but empty: an embedded server, whatever the profile or port 4200 offer."""
    return os.environ.get("PREFECT_API_URL") == ""


def is_up(api_url: str) -> bool:
    """Whether a Prefect server answers there."""
    return answers(f"{api_url.rstrip('/')}/health", "true")


@contextmanager
def prefect_server() -> Iterator[str]:
    """A Prefect server for the flows of this process, started if there is none; yields its API address."""
    with ExitStack() as stack:
        api_url = found_api_url() or stack.enter_context(embedded_prefect())
        stack.enter_context(used(api_url))
        yield api_url


@contextmanager
def shared_prefect_server(port: int | None = None) -> Iterator[str]:
    """A Prefect server that others find too: the one there is, else an embedded one, on port 4200 if that is free.

    With `port` it is an embedded one on that port in any case; `ConfigError` if the port is taken.
    """
    if port is not None and free_port(port) != port:
        raise ConfigError(f"port {port} is taken: name another one")
    with ExitStack() as stack:
        found = found_api_url() if port is None else None
        api_url = found or stack.enter_context(embedded_prefect(port or free_port(DEFAULT_PORT)))
        stack.enter_context(used(api_url))
        yield api_url


def found_api_url() -> str | None:
    """The API address of a Prefect server that need not be started: the configured one, or one on port 4200.

    None if there is neither, or `wants_embedded`.
    """
    if wants_embedded():
        return None
    return configured_api_url() or (DEFAULT_API_URL if is_up(DEFAULT_API_URL) else None)


@contextmanager
def embedded_prefect(port: int | None = None) -> Iterator[str]:
    """A `prefect server` on loopback, on a free port unless told, its database under `CODERL_HOME`; its API address."""
    home = coderl_home() / "prefect"
    private_folder(home)
    port = port or free_port()
    api_url = f"http://127.0.0.1:{port}/api"
    environment = QUIET | {"PREFECT_HOME": str(home), "PREFECT_SERVER_UI_API_URL": api_url, "PREFECT_API_URL": ""}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    log_file = log_folder() / "prefect.log"
    server = EmbeddedServer("Prefect", command, "/api/health", log_file, port=port, environment=environment)
    with ExitStack() as stack:
        with _one_at_a_time(home / "starting.lock"), _damage_named(home / "prefect.db"):
            stack.enter_context(server)
        yield api_url


@contextmanager
def _damage_named(database: Path) -> Iterator[None]:
    """Where the block fails to start a server, and that because its database is damaged, say so, and what to do."""
    try:
        yield
    except InfraError as error:
        if (damage := database_damage(database)) is not None:
            raise DataError(
                f"Prefect's database {database} is damaged ({damage}): move it, and what else begins with its name, "
                "away, and run the same command again for a new one; it holds what the UI shows of earlier flow runs, "
                "and no run, pool or checkpoint"
            ) from error
        raise


def database_damage(database: Path) -> str | None:
    """What is wrong with an SQLite file; None if nothing is, if it is missing, or in use so that it cannot be told."""
    if not database.is_file():
        return None
    try:
        with closing(sqlite3.connect(f"file:{quote(str(database))}?mode=ro", uri=True)) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError:  # locked, or not to be opened: not damaged
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else " ".join(str(found).split())


@contextmanager
def _one_at_a_time(file: Path) -> Iterator[None]:
    """Servers start one after the other: each brings the shared database up to date first."""
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def used(api_url: str) -> Iterator[None]:
    """Make this process (settings) and its children (environment) report to `api_url`."""
    from prefect.settings import PREFECT_API_URL, temporary_settings

    before = os.environ.get("PREFECT_API_URL")
    os.environ["PREFECT_API_URL"] = api_url
    try:
        with temporary_settings(updates={PREFECT_API_URL: api_url}):
            yield
    finally:
        os.environ.pop("PREFECT_API_URL")
        if before is not None:
            os.environ["PREFECT_API_URL"] = before


def ui_address(api_url: str) -> str:
    """Where a browser finds the UI of a server with this API address."""
    return api_url.removesuffix("/").removesuffix("/api")


def deploy_all() -> None:
    """Create the work pool if it is missing (one that exists may have been edited: it stays), and apply prefect.yaml.

    A `CoderlError` carries Prefect's words.
    """
    if not asyncio.run(_has_work_pool()):
        _prefect("work-pool", "create", WORK_POOL, "--type", "process")
    _prefect("--no-prompt", "deploy", "--all")


async def _has_work_pool() -> bool:
    from prefect import get_client
    from prefect.exceptions import ObjectNotFound

    async with get_client() as client:
        try:
            await client.read_work_pool(WORK_POOL)
        except ObjectNotFound:
            return False
    return True


def run_worker(stop: threading.Event) -> int:
    """Run a worker of the pool until it ends or `stop` is set; its exit code. It ends with this process."""
    command = [sys.executable, guard.__file__, sys.executable, "-m", "prefect", "worker", "start", "--pool", WORK_POOL]
    # Flow runs print their own progress; of Prefect's lines only errors add to it. All of them are in the UI.
    environment = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "ERROR", **os.environ, **QUIET}
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=PROJECT_ROOT)
    while worker.poll() is None and not stop.wait(0.2):
        continue
    assert worker.stdin is not None
    worker.stdin.close()
    return worker.wait()


def _prefect(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "prefect", *arguments],
        cwd=PROJECT_ROOT,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CoderlError(f"`prefect {' '.join(arguments)}` failed: {(done.stderr or done.stdout).strip()}")
