"""Starting embedded sandbox servers for the tests, and talking to them."""

import atexit
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local_servers.server_keys import new_key

PROJECT_ROOT = Path(__file__).resolve().parents[3]
LAUNCHER = Path(__file__).with_name("launch_server.py")
# What the server imports, and numpy for the programs that it runs.
SERVER_PACKAGES = (
    *("aiohttp", "aiohappyeyeballs", "aiosignal", "attr", "frozenlist", "idna", "multidict", "propcache"),
    *("typing_extensions", "yarl", "numpy", "numpy.libs"),
)
DEADLINE_S = 60
KEY = new_key()
"""Of the servers that have one."""
PREPARED = """
import os, sys

runs = []

def main():
    runs.append(os.getpid())
    exec(sys.stdin.read(), globals())

if __name__ == "__main__":
    main()
"""
"""The prepared program of the servers in conftest.py: does what standard input says."""


@dataclass(frozen=True)
class Sandbox:
    """A running server: its address and its process."""

    url: str
    process: subprocess.Popen[str]

    def request(
        self, path: str, body: Any = None, headers: Mapping[str, str] = {"X-API-Key": KEY}
    ) -> tuple[int, dict[str, str], Any]:
        """(HTTP status, headers, JSON) of a GET, or of a POST where there is a body (bytes: as they are)."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        asked = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
                return answer.status, dict(answer.headers), json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers), json.load(error)

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        """The answer to /run_code."""
        status, _, answer = self.request("/run_code", {"code": code, "language": "python"} | fields)
        assert status == 200, answer
        return answer

    def stdout(self, code: str, **fields: Any) -> str:
        """What a program that has to succeed prints."""
        answer = self.run(code, **fields)
        assert answer["status"] == "Success", answer
        return answer["run_result"]["stdout"]

    def info(self) -> dict[str, Any]:
        return self.request("/v1/info")[2]

    def wait_until(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Ask /v1/info until `condition` holds."""
        for _ in range(20_000):
            if condition(self.info()):
                return
            time.sleep(0.005)
        raise AssertionError(f"never came about: {self.info()}")

    def descendants(self) -> list[int]:
        """The pids of all processes below the server."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except (FileNotFoundError, ProcessLookupError):
                    continue
        below = {self.process.pid}
        while more := {pid for pid, parent in parents.items() if parent in below} - below:
            below |= more
        return sorted(below - {self.process.pid})

    def workers(self) -> set[int]:
        """The pids of the workers: whatever is right below a fork server."""
        lists = (Path(f"/proc/{pid}/task/{pid}/children").read_text() for pid in self.info()["fork_server_pids"])
        return {int(pid) for pids in lists for pid in pids.split()}

    def pidfds(self) -> list[int]:
        """A descriptor for each process below the server; those that end meanwhile are left out."""
        opened = []
        for pid in self.descendants():
            with suppress(ProcessLookupError):
                opened.append(os.pidfd_open(pid))
        return opened


def await_end(pidfds: list[int]) -> None:
    """Wait until all these processes have ended."""
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], DEADLINE_S)[0], "a process is still there"
        os.close(pidfd)


@dataclass(frozen=True)
class Installation:
    """What a server is started with: a Python, the launcher in a copy of the project, and the packages it borrows."""

    python: Path = Path(sys.executable)
    launcher: Path = LAUNCHER
    packages: Path = Path(sysconfig.get_path("purelib"))

    def command(self, *options: str) -> list[str]:
        return [str(self.python), str(self.launcher), *options]

    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": "/tmp",
            "A_SECRET": "hunter2",
            "TEST_SITE_PACKAGES": str(self.packages),
        }


@contextmanager
def serving(*options: str, installation: Installation = Installation()) -> Iterator[Sandbox]:
    """A server started by launch_server.py with `options`; it must end by SIGTERM with status 0 if it still runs."""
    process = subprocess.Popen(
        installation.command(*options), stdout=subprocess.PIPE, text=True, cwd="/", env=installation.environment()
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("ready http://127.0.0.1:"):
        raise RuntimeError(f"the server did not start (exit {process.wait()}): {line}")
    try:
        yield Sandbox(line.split()[1], process)
    finally:
        if process.poll() is None:
            process.terminate()
            assert process.wait(DEADLINE_S) == 0
        process.stdout.close()


def is_open(folder: Path) -> bool:
    """Whether any user may enter `folder`."""
    resolved = folder.resolve()
    return all(part.stat().st_mode & 0o001 for part in (resolved, *resolved.parents))


@functools.cache
def installation_for_anyone() -> Installation:
    """One that any user can run, wherever this one lies: a copy, and of Python too where that is closed to others.

    Skips the test where there is no folder that all users may enter.
    """
    parents = [folder for folder in (tempfile.gettempdir(), "/tmp", "/var/tmp") if is_open(Path(folder))]
    if not parents:
        pytest.skip("no temporary folder that an ordinary user may enter")
    copy = tempfile.TemporaryDirectory(prefix="coderl-", dir=parents[0])
    atexit.register(copy.cleanup)
    folder, own = Path(copy.name), Installation()
    launcher = folder / LAUNCHER.relative_to(PROJECT_ROOT)
    shutil.copytree(
        PROJECT_ROOT / "local_servers", folder / "local_servers", ignore=shutil.ignore_patterns("__pycache__")
    )
    launcher.parent.mkdir(parents=True)
    shutil.copyfile(LAUNCHER, launcher)
    for name in SERVER_PACKAGES:
        if (own.packages / name).is_dir():
            shutil.copytree(own.packages / name, folder / "packages" / name)
        elif (own.packages / f"{name}.py").exists():
            shutil.copyfile(own.packages / f"{name}.py", folder / "packages" / f"{name}.py")
    base = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    python = base if is_open(Path(sys.base_prefix)) else copied_python(base, folder / "python")
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o755)
    return Installation(python, launcher, folder / "packages")


def copied_python(executable: Path, prefix: Path) -> Path:
    """The executable of a copy of this Python without what no server needs."""
    source = Path(sys.base_prefix)
    library = Path(sysconfig.get_path("stdlib")).relative_to(source)
    unneeded = shutil.ignore_patterns("test", "site-packages", "config-*", "idlelib", "ensurepip", "tkinter")
    shutil.copytree(source / library, prefix / library, ignore=unneeded)
    for shared in (source / "lib").glob("libpython*.so*"):
        shutil.copyfile(shared, prefix / "lib" / shared.name)
    (prefix / "bin").mkdir()
    # It looks for its library where it was installed, which the user may not enter: let it look beside itself.
    installed_at, beside = f"{source}/lib".encode(), b"$ORIGIN/../lib"
    copy = prefix / "bin" / executable.name
    copy.write_bytes(
        executable.read_bytes().replace(installed_at + b"\0", beside.ljust(len(installed_at), b"\0") + b"\0")
    )
    return copy


def refusing_namespaces() -> tuple[list[str], Installation]:
    """(options, installation) of a server that runs as an ordinary user where user namespaces are forbidden."""
    if os.getuid() != 0:
        return ["--forbid-namespaces"], Installation()
    return ["--forbid-namespaces", "--as-ordinary-user"], installation_for_anyone()
