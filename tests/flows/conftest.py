"""Flows as people run them: the command in its own process, on a real Prefect server and the embedded servers."""

import fcntl
import inspect
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from prefect.logging.handlers import APILogWorker

from coderl_tasks.cli import main
from coderl_tasks.errors import ConfigError
from coderl_tasks.services import Services
from tests import warm_start
from tests.flows.run_records import ENDS, TINY

Coderl = Callable[..., "subprocess.CompletedProcess[str]"]
Refused = Callable[..., str]


@pytest.fixture(scope="session")
def flow_environment(embedded: Services, prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The session's servers as a user would name them, and a home of the tests' own."""
    assert embedded.tinker_url is not None
    assert embedded.tinker_api_key is not None
    return {
        **os.environ,
        "HOME": str(tmp_path_factory.mktemp("home")),
        "PREFECT_API_URL": prefect_api,
        "TINKER_BASE_URL": embedded.tinker_url,
        "TINKER_API_KEY": embedded.tinker_api_key,
        "SANDBOX_URL": ",".join(embedded.sandbox_urls),
    }


@pytest.fixture(scope="session")
def coderl(flow_environment: dict[str, str]) -> Coderl:
    """Runs `coderl ARGUMENTS` to its end."""
    return partial(warm_start.run, flow_environment)


@pytest.fixture
async def servers(flow_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """The session's servers, for flows run in this process."""
    for name in ("TINKER_BASE_URL", "TINKER_API_KEY", "SANDBOX_URL"):
        monkeypatch.setitem(os.environ, name, flow_environment[name])
    yield
    drained = APILogWorker.drain_all(timeout=30)  # while the server they go to is there
    if inspect.isawaitable(drained):
        await drained


@pytest.fixture
def refused(
    flow_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Refused:
    """`refused(*arguments, **variables)`: the one line with which `coderl ARGUMENTS` ends before anything is started.

    It runs in this process, which is enough where nothing is started, and saves six seconds of imports each time.
    """
    names = ("PREFECT_API_URL", "TINKER_BASE_URL", "TINKER_API_KEY", "SANDBOX_URL")
    servers = {name: flow_environment[name] for name in names}

    def run(*arguments: object, **variables: str) -> str:
        before = signal.getsignal(signal.SIGTERM)
        capsys.readouterr()
        try:
            with monkeypatch.context() as patch:
                for name, value in (servers | variables).items():
                    patch.setenv(name, value)
                code = main([str(word) for word in arguments])
        finally:
            signal.signal(signal.SIGTERM, before)
        said = capsys.readouterr()
        assert (code, said.out) == (ConfigError.exit_code, ""), said.err
        assert said.err.count("\n") == 1
        return said.err

    return run


@contextmanager
def making(folder: Path) -> Iterator[bool]:
    """Whether `folder` is still to be made, in the block: workers share what each of them needs."""
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        yield not lock.read()
        lock.write("made")


@pytest.fixture(scope="session")
def pool(coderl: Coderl, common: Path) -> Path:
    """A small pool, curated by the command; the band takes all, so that its size is known."""
    folder = common / "pools" / "small"
    with making(folder) as missing:
        if missing:
            sizes = ("limit=12", "profile_samples=2", "shard_size=8", "max_tests=3")
            done = coderl("curate", "preset=nano", *sizes, "band_low=0", "band_high=1", f"name={folder}")
            assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="session")
def run(coderl: Coderl, pool: Path, common: Path) -> Path:
    """A run of three steps that nothing disturbed."""
    path = common / "runs" / "undisturbed"
    with making(path) as missing:
        if missing:
            done = coderl("train", "preset=nano", f"pool={pool}", f"log_path={path}", "max_steps=3", *TINY, ENDS)
            assert done.returncode == 0, done.stderr
            assert f"coderl train log_path={path}" in done.stdout
    return path
