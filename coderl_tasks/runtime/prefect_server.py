"""The Prefect server a command reports to: the configured one, else ours on port 4200, else an embedded one.

An empty `PREFECT_API_URL` asks for an embedded one, whatever answers elsewhere. Anyone who may use a Prefect server can
run commands as the user whose worker serves it. So an embedded one asks for a secret, new at each start, which is kept
for this user's other commands in a file of mode 0600 while the server lives; and a server that nobody named is joined
only if it is a process of this user.

1. Only `coderl up` offers its embedded server on port 4200, for other commands to report to. Those of other commands
   take any free port, so that no command loses its server because another one ended.
2. They all keep one database under `CODERL_HOME`, so that `coderl up` shows the runs of earlier commands.
"""

import fcntl
import os
import secrets
import shlex
import sqlite3
import sys
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from coderl_tasks.errors import CoderlError, ConfigError, DataError, InfraError
from coderl_tasks.journal.atomic import path_in_errors, require_room
from coderl_tasks.paths import coderl_home, private_folder
from coderl_tasks.runtime.prefect_app import LOGIN_PATH, own_origins
from coderl_tasks.server_addresses import LOOPBACK, without_credentials
from coderl_tasks.services import log_folder
from coderl_tasks.services.supervisor import EmbeddedServer, answers, free_port, get, is_ours, listeners

DEFAULT_PORT = 4200
DEFAULT_API_URL = f"http://127.0.0.1:{DEFAULT_PORT}/api"
ANSWER_S = 20.0
EVENTS_KEPT = "PREFECT_SERVER_EVENTS_RETENTION_PERIOD"  # events: some 40 KB per training step, only for the UI's feed
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
    """A Prefect server that others find too: the one there is, else an embedded one, on the port of loopback that the
    configured address names, or on 4200 if free. With `port`, one on that port; ConfigError if it is taken."""
    with ExitStack() as stack:
        with _one_at_a_time():  # found or started: of two at once the second finds the first one's
            if port is not None and free_port(port) != port:
                raise ConfigError(f"port {port} is taken: name another one")
            found = found_api_url() if port is None else None
            # The configured address may be that of an earlier `coderl up`, exported, where nothing listens now: a
            # server is started there. `is_up`: /proc may lack what another container forwards.
            parts = urlsplit(found or "")
            is_local = parts.hostname in ("127.0.0.1", "localhost") and parts.port is not None
            is_http_api = (parts.scheme, parts.path.rstrip("/")) == ("http", "/api")
            if found is not None and is_local and is_http_api and not listeners(found) and not is_up(found):
                found, port = None, parts.port
            api_url = found or stack.enter_context(_started(port or free_port(DEFAULT_PORT)))
        stack.enter_context(used(api_url))
        yield api_url


def found_api_url() -> str | None:
    """The API address of a Prefect server that need not be started: the configured one, or ours on port 4200."""
    if wants_embedded():
        return None
    return configured_api_url() or (DEFAULT_API_URL if _may_join_default() else None)


def notice_of_unusable_server() -> str | None:
    """What listens on port 4200 though it is not joined, in one line; None if nothing does, or nothing looked there."""
    if wants_embedded() or configured_api_url() is not None:
        return None
    port, users = urlsplit(DEFAULT_API_URL).port, listeners(DEFAULT_API_URL)
    if not users or _may_join_default():
        return None
    if users != {os.getuid()}:
        return f"port {port} is another user's, and so not joined: PREFECT_API_URL=ADDRESS names a server to use"
    return f"what listens on port {port} is no Prefect server that lets this command in, and so not joined"


def _may_join_default() -> bool:
    """Whether a Prefect server of this user answers on port 4200, and lets this command in."""
    # In this order: nothing is sent to a process of another user's.
    return is_ours(DEFAULT_API_URL) and _status(DEFAULT_API_URL, auth_string(DEFAULT_API_URL)) == HTTPStatus.OK


def auth_string(api_url: str) -> str | None:
    """What the client has to send to this server: the secret of an embedded server of this user's that listens there,
    else what the environment or the Prefect profile says; None if nothing."""
    from prefect.settings import PREFECT_API_AUTH_STRING

    if urlsplit(api_url).hostname in LOOPBACK and is_ours(api_url):
        file = secret_file(urlsplit(api_url).port)
        # Refused, it was left by a killed server. A server too busy to answer in time has refused nothing.
        if file.is_file() and _status(api_url, secret := file.read_text()) != HTTPStatus.UNAUTHORIZED:
            return secret
    return PREFECT_API_AUTH_STRING.value() or None


def _home() -> Path:  # what the embedded servers of this user keep: the database, their secrets and settings
    return coderl_home() / "prefect"


def secret_file(port: int | None) -> Path:
    """Where the secret of this user's embedded server on this port is, while it lives. No port, no file there."""
    return _home() / f"secret-{port}"


@contextmanager
def faults_explained(api_url: str) -> Iterator[None]:
    """Raises ConfigError or InfraError, with what to do, if the Prefect server at `api_url` makes the block fail."""
    try:
        yield
    except Exception as error:
        if (fault := _server_fault(error, api_url)) is None:
            raise
        raise fault from error


def _server_fault(error: Exception, api_url: str) -> CoderlError | None:
    """What an error of Prefect's client says of the server, and what to do; None if the server is not its cause."""
    import httpx
    from prefect.exceptions import PrefectHTTPStatusError

    if not isinstance(error, httpx.TransportError | PrefectHTTPStatusError | RuntimeError):
        return None
    address, answers_here = without_credentials(api_url), is_up(api_url)
    if not answers_here and is_up(f"{api_url.rstrip('/')}/api"):
        return ConfigError(f"the address of the Prefect server, {address}, lacks /api: add it to PREFECT_API_URL")
    answer = error.__cause__ if isinstance(error, RuntimeError) else error  # the client's check of versions wraps it
    status = answer.response.status_code if isinstance(answer, PrefectHTTPStatusError) else 0  # 0: no response
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return ConfigError(
            f"the Prefect server at {address} refuses this command (HTTP {status}): set PREFECT_API_AUTH_STRING to its "
            "secret (for Prefect Cloud: prefect cloud login), and run the command again"
        )
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:  # the server reports its own failure
        # Most often the disk is full, where its database is: then `require_room` raises.
        require_room([coderl_home()])
        return InfraError(
            f"the Prefect server at {address} failed (HTTP {status}): its log says why (an embedded one's is "
            f"{log_folder() / 'prefect.log'}); run the command again, what is recorded stays"
        )
    if str(error).startswith("Found incompatible versions"):
        return ConfigError(f"the Prefect server at {address} is of another version: {error}")
    # Prefect's client raises the others without a server too; while the server answers, they are the flow's own.
    if answers_here or isinstance(error, PrefectHTTPStatusError):
        return None
    return InfraError(
        f"no answer from the Prefect server at {address}: start it, or set PREFECT_API_URL= for an embedded one, and "
        "run the command again; what is recorded stays"
    )


def is_outage(error: BaseException) -> bool:
    """Whether an error of Prefect's client says that the server does not answer, and not that it answers something."""
    import httpx

    if isinstance(error, httpx.HTTPStatusError):
        return error.response.is_server_error
    # RuntimeError: what the client raises where it cannot find out which version the server has.
    return isinstance(error, httpx.TransportError | TimeoutError | RuntimeError | OSError)


def is_open(api_url: str) -> bool:
    """Whether the server answers requests for its data without any secret."""
    return _status(without_credentials(api_url), None) == HTTPStatus.OK


def _status(api_url: str, auth: str | None) -> int:
    """What the server answers to a request with this secret, or with none; 0 if it does not answer in time."""
    headers = {"Authorization": f"Basic {b64encode(auth.encode()).decode()}"} if auth else None
    return get(f"{api_url.rstrip('/')}/admin/version", ANSWER_S, headers)[0]


@contextmanager
def embedded_prefect() -> Iterator[str]:
    """A `prefect server` on a free port of loopback, its database under `CODERL_HOME`; yields its API address. Raises
    InfraError where the database has no room, DataError where it is damaged."""
    with ExitStack() as stack:
        with _one_at_a_time():
            api_url = stack.enter_context(_started(free_port()))
        yield api_url


@contextmanager
def _started(port: int) -> Iterator[str]:
    require_room([_home()])  # without it the server would end at its start, and could not log why
    api_url = f"http://127.0.0.1:{port}/api"
    with ExitStack() as stack:
        with _damage_named(_home() / "prefect.db"):
            environment = QUIET | {
                "PREFECT_HOME": str(_home()),
                "PREFECT_SERVER_UI_API_URL": api_url,
                "PREFECT_API_URL": "",
                "PREFECT_SERVER_API_AUTH_STRING": stack.enter_context(_secret(port)),
                "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
                "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": ",".join(own_origins(port)),
                EVENTS_KEPT: os.environ.get(EVENTS_KEPT) or "PT6H",
            }
            command = [sys.executable, "-m", "coderl_tasks.runtime.prefect_app"]
            log_file = log_folder() / "prefect.log"
            server = EmbeddedServer("Prefect", command, "/api/health", log_file, port=port, environment=environment)
            stack.enter_context(server)
        yield api_url


@contextmanager
def _secret(port: int) -> Iterator[str]:
    """A new secret for the server on this port, in its file while the block runs."""
    file, secret = secret_file(port), f"coderl:{secrets.token_urlsafe(24)}"
    file.unlink(missing_ok=True)  # a killed server's, whatever its mode
    try:
        # Its mode from the start, and a new file: at no moment can anyone else open it.
        with path_in_errors(file), os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as opened:
            opened.write(secret)
        yield secret
    finally:
        file.unlink(missing_ok=True)


@contextmanager
def _damage_named(database: Path) -> Iterator[None]:
    """Raises DataError, which says what to do, if the block cannot start a server because its database is damaged."""
    try:
        yield
    except InfraError as error:
        if (damage := database_damage(database)) is None:
            raise
        raise DataError(
            f"Prefect's database {database} is damaged ({damage}): move it, and what else begins with its name, away, "
            "and run the same command again for a new one; it holds what the UI shows of earlier flow runs, and no "
            "run, pool or checkpoint"
        ) from error


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
def _one_at_a_time() -> Iterator[None]:
    """Servers start one after the other: each brings the shared database up to date first."""
    with (private_folder(_home()) / "starting.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def used(api_url: str) -> Iterator[None]:
    """Make this process (settings) and its children (environment) report to `api_url`, with the secret it asks for."""
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    updates: dict[Any, str] = {PREFECT_API_URL: api_url}
    if auth := auth_string(api_url):
        updates[PREFECT_API_AUTH_STRING] = auth
    # Both: Prefect read its settings when it was imported, and flow runs in other processes read the environment.
    before = {setting.name: os.environ.get(setting.name) for setting in updates}
    os.environ.update({setting.name: value for setting, value in updates.items()})
    try:
        with temporary_settings(updates=updates):
            yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def ui_address(api_url: str) -> str:
    """Where a browser finds the UI of a server with this API address; of ours with the secret that logs it in."""
    address = api_url.removesuffix("/").removesuffix("/api")
    if not secret_file(urlsplit(api_url).port).is_file() or (auth := auth_string(api_url)) is None:
        return address
    return f"{address}{LOGIN_PATH}#{auth}"


def exports(api_url: str) -> str:
    """The shell's line after which `prefect` commands use this server; the secret itself is not in it."""
    line, file = f"export PREFECT_API_URL={api_url}", secret_file(urlsplit(api_url).port)
    return f'{line} PREFECT_API_AUTH_STRING="$(cat {shlex.quote(str(file))})"' if file.is_file() else line
