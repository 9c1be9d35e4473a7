"""Fixtures that several rooms share: one of each server for the whole session, on loopback, with a home of its own.

The processes of a session (`pytest -n`) share the servers: the first one that needs a server starts it.
"""

import asyncio
import fcntl
import gc
import importlib.util
import json
import logging
import os
import shutil
import socket
import sqlite3
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from aiohttp import web

from coderl_tasks.paths import NANO_MODEL
from coderl_tasks.runtime.prefect_server import embedded_prefect, used
from coderl_tasks.services import (
    DEFAULT_SANDBOX_CONCURRENCY,
    Services,
    embedded_sandbox,
    embedded_tinker,
)
from coderl_tasks.services.supervisor import free_port

Serve = Callable[[web.Application], str]
Found = Any
"""What JSON holds: what a worker has to know of a server that another one started."""
Share = Callable[[str, Callable[[ExitStack], Found]], AbstractContextManager[Found]]

EMPTY = "empty-prefect.db"
# Tests talk to their own servers, never to a user's. Empty rather than unset: a `.env` fills in only what is unset.
COLLECTOR = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER")
for variable in ("TINKER_API_KEY", "TINKER_BASE_URL", "SANDBOX_URL", "PREFECT_API_URL", *COLLECTOR):
    os.environ[variable] = ""
# Prefect, which nothing above imports, reads its profiles when it is imported.
prefect_home = tempfile.TemporaryDirectory(prefix="prefect-home-")
os.environ["PREFECT_HOME"] = prefect_home.name
os.environ["PREFECT_PROFILE"] = "ephemeral"
# No test speaks TLS, and each client of Prefect would read all certificates: 25 ms of CPU time. One is enough. Where
# there is no Prefect, on the other Pythons, there is no certifi either.
if importlib.util.find_spec("certifi"):
    import certifi

    certificate = Path(prefect_home.name) / "certificate.pem"
    one, end, _ = Path(certifi.where()).read_text().partition("-----END CERTIFICATE-----\n")
    certificate.write_text(one + end)
    os.environ["SSL_CERT_FILE"] = str(certificate)
os.environ["DO_NOT_TRACK"] = "1"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
# The UI's list of block types, which nothing here uses: a third of the CPU time that a new database takes.
os.environ["PREFECT_SERVER_REGISTER_BLOCKS_ON_START"] = "false"
os.environ["TINKER_TELEMETRY"] = "0"
# No test fails for the time it takes, on a machine that others share.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")
# What collection imports and makes stays. To look for garbage in it is a sixth of the CPU time that it takes.
gc.disable()


LONGEST = (
    *("flows/test_training_kills.py", "flows/test_deployments.py", "test_wheel.py", "grading/test_programs.py"),
    *("flows/test_train.py", "flows/test_stopping.py", "flows/test_curation_kills.py", "filtering/test_stages.py"),
)
"""The files that take longest. They come first, the longest in front: were one of them begun last, one worker would be
at it long after the other has ended."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST)}
    assert all(file.is_file() for file in places)
    items.sort(key=lambda item: places.get(item.path, len(places)))


def pytest_collection_finish() -> None:
    """From here on garbage is collected again, but never looked for in what is there by now."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    prefect_home.cleanup()


started: list[tuple[Path, ExitStack]] = []
"""What this worker started for all of them: the file that each user holds a lock of, and what ends it."""


@pytest.hookimpl(trylast=True)  # after the fixtures have ended, which after Ctrl-C they do in the same hook
def pytest_sessionfinish() -> None:
    """End what this worker started once no worker uses it. By now it holds no lock itself: none waits for another."""
    for file, running in started:
        with file.open() as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            file.with_suffix(".json").unlink()
            running.close()


@contextmanager
def shared(file: Path, start: Callable[[ExitStack], Found]) -> Iterator[Found]:
    """What `start` returns, which the first worker that needs it starts; `file` says who uses it."""
    with file.open("a") as users:
        with file.with_suffix(".starting").open("w") as starting:
            fcntl.flock(starting, fcntl.LOCK_EX)
            fcntl.flock(users, fcntl.LOCK_SH)
            record = file.with_suffix(".json")
            if not record.exists():
                with ExitStack() as running:
                    found = start(running)
                    started.append((file, running.pop_all()))
                record.write_text(json.dumps(found))
            found = json.loads(record.read_text())
        yield found


@pytest.fixture(scope="session")
def common(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the workers of this session have in common."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder


@pytest.fixture(scope="session")
def share(common: Path) -> Share:
    """`share(name, start)`: what `start` returns, once for the workers of this session."""
    return lambda name, start: shared(common / f"{name}.users", start)


@pytest.fixture(scope="session", autouse=True)
def coderl_home(common: Path) -> Iterator[Path]:
    """A cache of the session's own, for its processes and every server they start."""
    home = common / "coderl-home"
    home.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CODERL_HOME", str(home))
        yield home


@pytest.fixture(scope="session")
def embedded(share: Share) -> Iterator[Services]:
    """The embedded Tinker server on the nano model and the embedded sandbox, started as a run starts them."""

    def start(running: ExitStack) -> Found:
        # Started by themselves: `services` would take a sandbox that a developer runs on port 8080.
        servers = [running.enter_context(server) for server in (embedded_tinker(NANO_MODEL), embedded_sandbox())]
        return [{"port": server.port, "url": server.url, "key": server.key} for server in servers]

    with share("embedded", start) as found:
        tinker, sandbox = servers = embedded_tinker(NANO_MODEL), embedded_sandbox()
        for server, values in zip(servers, found, strict=True):
            vars(server).update(values)
        yield Services(
            tinker.url,
            tinker.key,
            (sandbox.address,),
            DEFAULT_SANDBOX_CONCURRENCY,
            (f"Tinker: embedded server, {tinker.url}", f"Sandbox: embedded server, {sandbox.url}"),
            servers,
        )


@pytest.fixture(scope="session")
def serve() -> Iterator[Serve]:
    """Serves applications on loopback, in a loop and a thread of its own; returns their addresses."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(app: web.Application) -> str:
        runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield lambda app: asyncio.run_coroutine_threadsafe(start(app), loop).result()
    for runner in runners:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed() -> str:
    """An address where nothing listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture(scope="session")
def prefect_api(coderl_home: Path, share: Share) -> Iterator[str]:
    """A real Prefect server with a database of its own; flows of this process report to it."""

    def start(running: ExitStack) -> Found:
        api_url = running.enter_context(embedded_prefect())
        database = coderl_home / "prefect" / "prefect.db"
        with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(coderl_home / EMPTY)) as copy:
            source.backup(copy)
        return api_url

    with share("prefect", start) as api_url, used(api_url):
        yield api_url


@pytest.fixture(scope="session")
def with_database(coderl_home: Path, prefect_api: str) -> Callable[[Path], None]:
    """Gives another CODERL_HOME a Prefect database without flow runs: to make a new one takes a Prefect server nine
    seconds of CPU time, as it took that of the session."""

    def give(home: Path) -> None:
        (home / "prefect").mkdir(parents=True, mode=0o700)
        shutil.copyfile(coderl_home / EMPTY, home / "prefect" / "prefect.db")

    return give


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real S3 server on loopback: the address of a bucket in it. It is the S3 of this process, and of those started
    with its environment."""
    import fsspec
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # it logs each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            host, port = server.get_host_and_port()
            patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
            patch.setenv("AWS_ACCESS_KEY_ID", "test")
            patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
            patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
            patch.setenv("AWS_CONFIG_FILE", str(tmp_path_factory.mktemp("aws") / "config"))
            fsspec.filesystem("s3").mkdir("bucket")
            yield "s3://bucket"
    finally:
        server.stop()


@pytest.fixture(scope="session")
def random_qwen3() -> Callable[..., Any]:
    """`random_qwen3(vocabulary, context, end, width=..., **config)`: a random model of two layers, always the same.

    `end` is the token that ends a completion, `width` the hidden size.
    """
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    def make(vocabulary: int, context: int, end: int, *, width: int, **config: Any) -> Qwen3ForCausalLM:
        torch.manual_seed(0)
        shape: dict[str, Any] = {
            "vocab_size": vocabulary,
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": width // 4,
            "max_position_embeddings": context,
            "tie_word_embeddings": True,
            "bos_token_id": None,
            "eos_token_id": end,
        }
        return Qwen3ForCausalLM(Qwen3Config(**(shape | config)))

    return make
