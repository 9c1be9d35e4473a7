"""The supervisor over a real little HTTP server: readiness, restart on the same port, and nothing left behind."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from coderl_tasks.errors import InfraError
from coderl_tasks.services.supervisor import EmbeddedServer, answers, json_answer

SERVER = """
import http.server, os, pathlib, sys
pathlib.Path(sys.argv[1]).open("a").write(f"{os.getpid()}\\n")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), http.server.SimpleHTTPRequestHandler).serve_forever()
"""


def server_in(folder: Path) -> EmbeddedServer:
    return EmbeddedServer("test", [sys.executable, "-c", SERVER, str(folder / "pids")], "/", folder / "log.txt")


def pids(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "pids").read_text().split()]


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "did not happen in 30 s"
        time.sleep(0.02)


def test_serves_inside_the_block_and_is_gone_after_it(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        assert answers(server.url)
    assert not answers(server.url)
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_a_killed_server_comes_back_on_its_port(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        wait_until(lambda: len(pids(tmp_path)) == 2 and answers(server.url))
    assert len(pids(tmp_path)) == 2
    assert not any(alive(pid) for pid in pids(tmp_path))


def test_a_restart_makes_the_log_folder_again_and_without_one_the_server_is_down(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    command = [sys.executable, "-c", SERVER, str(tmp_path / "pids")]
    with EmbeddedServer("test", command, "/", logs / "log.txt") as server:
        shutil.rmtree(logs)
        os.kill(pids(tmp_path)[0], signal.SIGKILL)
        wait_until(lambda: len(pids(tmp_path)) == 2 and answers(server.url))
    with EmbeddedServer("test", command, "/", logs / "log.txt") as server:
        shutil.rmtree(logs)
        logs.write_text("no folder")
        os.kill(pids(tmp_path)[2], signal.SIGKILL)
        assert server.down.wait(30)
        assert "the embedded test server could not be restarted: [Errno 20] Not a directory" in server.fault


def test_a_server_that_cannot_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    server = EmbeddedServer("test", [sys.executable, "-c", "raise SystemExit('no luck')"], "/", tmp_path / "log.txt")
    with pytest.raises(InfraError, match="no luck"), server:
        pass


def test_a_stranger_that_answers_on_the_port_is_not_the_server(tmp_path: Path) -> None:
    with server_in(tmp_path) as stranger:
        command = [sys.executable, "-c", SERVER, str(tmp_path / "own")]
        server = EmbeddedServer("test", command, "/", tmp_path / "own.txt", port=stranger.port)
        with pytest.raises(InfraError, match="Address already in use"), server:
            pass


@pytest.mark.parametrize("url", ["myhost/api/health", "http://[::1/api", "http://127.0.0.1:1/"])
def test_nothing_answers_at_what_is_no_address(url: str) -> None:
    assert not answers(url) and json_answer(url) == {}


def test_killing_the_starter_ends_the_server(tmp_path: Path) -> None:
    starter = f"""
import signal, sys, pathlib
sys.path.insert(0, {str(Path(__file__).parent)!r})
from test_supervisor import server_in
with server_in(pathlib.Path({str(tmp_path)!r})):
    print("up", flush=True)
    signal.pause()
"""
    process = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.kill()
    process.wait()
    wait_until(lambda: not alive(pids(tmp_path)[0]))


def test_killing_the_guard_ends_the_server(tmp_path: Path) -> None:
    with server_in(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not alive(pids(tmp_path)[0]))
        wait_until(lambda: len(pids(tmp_path)) == 2 and answers(server.url))
