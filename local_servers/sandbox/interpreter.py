"""Which Python runs the submissions, what it has to see of the host, how the fork server is started with it, and the
server's folder for runs without a mount namespace."""

import contextlib
import fcntl
import functools
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from local_servers.sandbox.job_files import remove_tree
from local_servers.server_errors import SetupError

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
# The interpreter of the virtual environment's base, without site: only the standard library and, where there, numpy.
_BOOTSTRAP = """
import json, os, sys
arguments = json.load(sys.stdin)
arguments["library"] = list(filter(os.path.exists, sys.path))
python_path = [*sys.path, *arguments["site"]]
sys.path.insert(0, arguments["package_root"])
from local_servers.sandbox.fork_server import main
sys.exit(main(arguments, python_path))
"""
_PROBE_SECONDS = 60
_PREFIX = "coderl-sandbox-"
_END_SECONDS = 5


class Scratch:
    """A folder in the system's temporary folder, locked by the kernel for as long as the server lives: the next server
    removes the folders that are not."""

    def __init__(self) -> None:
        while True:
            self.path = tempfile.mkdtemp(prefix=_PREFIX)
            # Submissions of another user pass through, and list nothing.
            Path(self.path).chmod(0o711)
            self._lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if Path(self.path).exists():
                break
            # Another server swept it away before it was locked.
            os.close(self._lock)
        self._sweep()

    def _sweep(self) -> None:
        for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            # Another user's folder, or one that its own server is just removing, is not ours to judge.
            with contextlib.suppress(OSError):
                lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if folder.stat().st_uid == os.getuid():
                        remove_tree(str(folder))
                finally:
                    os.close(lock)

    def remove(self) -> None:
        """Remove the folder; its users, which must have been told to end, may still be clearing their own part."""
        deadline = time.monotonic() + _END_SECONDS
        while Path(self.path).exists() and time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                remove_tree(self.path)
            time.sleep(0.001)
        os.close(self._lock)


def numpy_folders() -> list[Path]:
    """Where numpy is installed; empty if submissions cannot import it."""
    spec = importlib.util.find_spec("numpy")
    if spec is None or spec.origin is None:
        return []
    package = Path(spec.origin).resolve().parent
    return [folder for folder in (package, package.with_name("numpy.libs")) if folder.is_dir()]


def command() -> list[str]:
    """The command line of the fork server, which reads `arguments_with` from standard input: every submission can read
    its command line."""
    base: str = getattr(sys, "_base_executable", None) or sys.executable
    # Without site: what a virtual environment or a user has installed is no part of a verdict.
    return [os.path.realpath(base), "-P", "-s", "-S", "-c", _BOOTSTRAP]


def arguments_with(arguments: dict[str, Any]) -> bytes:
    """`arguments` and this interpreter's paths, as JSON for `fork_server.main`."""
    packages = numpy_folders()
    paths = {"packages": list(map(str, packages)), "site": [str(folder.parent) for folder in packages[:1]]}
    return json.dumps(arguments | paths | {"package_root": _PACKAGE_ROOT}).encode()


def environment() -> dict[str, str]:
    """The whole environment of the fork server and, but for LD_BIND_NOW, of every submission: no variable of the
    server's reaches it. The hash seed is fixed so that a program which depends on the order of a set gets the same
    verdict every time."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        # Else each forked process looks up for itself where the functions of libraries are.
        "LD_BIND_NOW": "1",
    }


@functools.cache
def isolation_level() -> tuple[str | None, str]:
    """(level, reason): the level of isolation that works here, found by running a program under it (0.1 s, cached):
    "namespaces", "landlock", or None where the server would refuse to start; and why it is not a better one, empty for
    the best. SetupError if Python itself cannot be started for the trial."""
    scratch = Scratch()
    try:
        done = subprocess.run(
            command(),
            env=environment(),
            cwd="/",
            input=arguments_with({"probe": True, "scratch_folder": scratch.path}),
            capture_output=True,
            timeout=_PROBE_SECONDS,
        )
    finally:
        scratch.remove()
    if done.returncode != 0:
        last_words = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise SetupError(f"the sandbox's Python did not start: {last_words}")
    answer = json.loads(done.stdout)
    return answer["level"], answer["reason"]
