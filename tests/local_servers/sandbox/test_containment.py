"""Programs that try to do harm are contained, and the next run finds everything as it was."""

import contextlib
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from local_servers.sandbox.interpreter import isolation_level
from tests.local_servers.sandbox.sandbox_servers import (
    KEY,
    PREPARED,
    Installation,
    Sandbox,
    await_end,
    refusing_namespaces,
    serving,
)

FORK_BOMB = """
import os, time
made = 0
try:
    while True:
        if os.fork() == 0:
            time.sleep(600)
        made += 1
except OSError:
    print(made < 400)
"""
DISK_FILL = """
import time
try:
    for n in range(8):
        with open(f"fill{n}", "wb") as file:
            for _ in range(40):
                file.write(bytes(1 << 20))
    time.sleep(600)
except OSError as error:
    print("full", error.errno)
"""
DAEMON = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
os.wait()
print("left")
"""
KILL_EVERYTHING = """
import os, signal
for pid in (*range(2, 3000), -1):
    if pid != os.getpid():
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
print("alone")
"""
MEMORY_BOMB = """
try:
    held = [bytearray(1 << 20) for _ in range(1000)]
except MemoryError:
    held = None
    print("refused")
"""
OUTPUT_FLOOD = "import os\nwhile True: os.write(1, b'x' * 65536)"
CLOSED_FOLDERS = "import os\nos.makedirs('a/b/c')\nos.chmod('a/b', 0)\nos.chmod('a', 0)"
DEEP_FOLDER = "import os, time\nfor _ in range(3000):\n    os.mkdir('d')\n    os.chdir('d')\ntime.sleep(0.3)"
FORK_CHAIN = "import os\nif os.fork() == 0:\n    os.setsid()\n    while True:\n        if os.fork(): os._exit(0)"
MUTE = "import os\nfor n in range(3): os.close(n)"


def test_files_of_the_host_cannot_be_locked(any_sandbox: Sandbox) -> None:
    code = (
        "import fcntl, os\n"
        "for take in (lambda f: fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB),\n"
        "             lambda f: fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)):\n"
        "    try:\n"
        "        take(open(os.__file__))\n"
        "        print('locked')\n"
        "    except OSError as error:\n"
        "        print(error.errno)\n"
        "fcntl.lockf(open('own', 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    )
    assert any_sandbox.stdout(code) == "1\n1\n"


def test_the_servers_own_memory_limit_is_not_the_programs(any_sandbox: Sandbox) -> None:
    limits = Path(f"/proc/{any_sandbox.info()['pid']}/limits")
    (limit,) = [line.split()[3] for line in limits.read_text().splitlines() if line.startswith("Max data size")]
    assert limit.isdigit()
    os.kill(any_sandbox.info()["fork_server_pids"][0], signal.SIGKILL)  # its successor inherits the limit
    for _ in range(3):
        code = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])"
        assert any_sandbox.stdout(code) == "-1\n"


@pytest.mark.parametrize("level", ["sandbox", "ordinary_sandbox"])
def test_the_command_line_names_no_path_of_the_host(level: str, request: pytest.FixtureRequest) -> None:
    code = "import sys\nprint(open('/proc/self/cmdline').read().strip('\\0'), sys.orig_argv[1:], len(sys.argv))"
    assert request.getfixturevalue(level).stdout(code) == "coderl-sandbox [] 1\n"


def test_a_fork_bomb_hits_its_limit(any_sandbox: Sandbox) -> None:
    assert any_sandbox.stdout(FORK_BOMB, run_timeout=30) == "True\n"
    assert any_sandbox.stdout("print(1)") == "1\n"


def test_memory_is_limited(any_sandbox: Sandbox) -> None:
    assert any_sandbox.stdout(MEMORY_BOMB, memory_limit_MB=128) == "refused\n"
    assert any_sandbox.stdout("print(len(bytearray(100 << 20)))", memory_limit_MB=128) == f"{100 << 20}\n"


def test_the_disk_is_limited(any_sandbox: Sandbox) -> None:
    answer = any_sandbox.run(DISK_FILL, run_timeout=30)
    assert answer["run_result"]["stdout"].startswith("full") or answer["run_result"]["return_code"] == -9
    assert any_sandbox.stdout("open('f', 'wb').write(bytes(1 << 20)); print(1)") == "1\n"


@pytest.mark.parametrize(
    ("processes", "before", "hold"),
    [
        (12, "", "held = b'x' * (100 << 20)"),
        (12, "import ctypes\nctypes.CDLL(None).prctl(4, 0)", "held = b'x' * (100 << 20)"),  # PR_SET_DUMPABLE
        (6, "import mmap", "held = mmap.mmap(-1, 100 << 20)\n        for _ in range(100): held.write(bytes(1 << 20))"),
    ],
    ids=["own", "hidden", "shared"],
)
def test_processes_together_cannot_hold_more_than_the_limit(
    any_sandbox: Sandbox, processes: int, before: str, hold: str
) -> None:
    code = (
        f"import os, time\n{before}\n"
        f"for _ in range({processes}):\n"
        "    if os.fork() == 0:\n"
        f"        {hold}\n"
        "        time.sleep(600)\n"
        "print(os.wait()[1] == 9)"
    )
    run = any_sandbox.run(code, memory_limit_MB=128, run_timeout=30)["run_result"]
    assert run["stdout"] == "True\n" or run["return_code"] == -9
    assert any_sandbox.stdout("print(1)") == "1\n"


def test_memory_that_processes_share_counts_once(any_sandbox: Sandbox) -> None:
    code = (
        "import mmap, os, time\n"
        "held = mmap.mmap(-1, 100 << 20)\n"
        "for _ in range(100): held.write(bytes(1 << 20))\n"
        "for _ in range(6):\n"
        "    if os.fork() == 0:\n"
        "        read = sum(held[::4096])\n"
        "        time.sleep(0.5)\n"  # the limit is checked every 0.1 s
        "        os._exit(0)\n"
        "print({os.wait()[1] for _ in range(6)})"
    )
    assert any_sandbox.stdout(code, memory_limit_MB=128, run_timeout=30) == "{0}\n"


def test_a_flood_of_output_is_drained_until_the_time_limit(any_sandbox: Sandbox) -> None:
    run = any_sandbox.run(OUTPUT_FLOOD, run_timeout=0.5)["run_result"]
    assert run["status"] == "TimeLimitExceeded"
    assert len(run["stdout"]) <= 16 << 20


def test_a_daemon_ends_with_the_run(any_sandbox: Sandbox) -> None:
    any_sandbox.stdout("print(1)")
    assert any_sandbox.run(DAEMON)["run_result"]["stdout"] == "left\n"
    assert any_sandbox.run(KILL_EVERYTHING)["run_result"]["status"] == "Finished"
    any_sandbox.wait_until(lambda info: info["running"] == 0)
    # Two fork servers and, for each of the two slots, at most two workers: no monitor, no submission.
    assert len(any_sandbox.descendants()) <= 2 + 2 * 2


def test_no_folder_stays_behind_nor_costs_the_run(any_sandbox: Sandbox) -> None:
    listing = "import os; print(sorted(os.listdir()))"
    before = any_sandbox.stdout(listing)
    for code in (CLOSED_FOLDERS, DEEP_FOLDER):
        for _ in range(2):
            run = any_sandbox.run(code)["run_result"]
            assert run["status"] == "Finished", run
    assert any_sandbox.stdout(listing) == before


@pytest.mark.parametrize("level", ["sandbox", "ordinary_sandbox"])
def test_a_program_cannot_interrupt_the_first_process_of_its_run(level: str, request: pytest.FixtureRequest) -> None:
    code = "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(1), signal.SIGINT)\nraise SystemExit(3)"
    assert request.getfixturevalue(level).run(code)["run_result"]["return_code"] == 3


def test_a_chain_of_forks_ends_with_the_run(any_sandbox: Sandbox) -> None:
    assert any_sandbox.run(FORK_CHAIN)["run_result"]["status"] == "Finished"
    any_sandbox.wait_until(lambda info: info["running"] == 0)
    assert len(any_sandbox.descendants()) <= 2 + 2 * 2


def test_a_program_that_stops_itself_is_sent_on(any_sandbox: Sandbox) -> None:
    assert any_sandbox.stdout("import os\nos.kill(os.getpid(), 19)\nprint('on')") == "on\n"


def test_a_program_that_closes_its_descriptors_still_ends(any_sandbox: Sandbox) -> None:
    assert any_sandbox.run(MUTE)["run_result"]["status"] == "Finished"


def test_the_server_survives_all_of_them_at_once(any_sandbox: Sandbox) -> None:
    programs = [FORK_BOMB, MEMORY_BOMB, DAEMON, KILL_EVERYTHING, OUTPUT_FLOOD, MUTE]
    with ThreadPoolExecutor(8) as threads:
        attacks = [threads.submit(any_sandbox.run, program, run_timeout=1, memory_limit_MB=128) for program in programs]
        honest = [threads.submit(any_sandbox.stdout, f"print({n})") for n in range(8)]
        assert [future.result() for future in honest] == [f"{n}\n" for n in range(8)]
        assert all(future.result()["status"] in ("Success", "Failed") for future in attacks)


def test_no_run_leaves_a_mount_or_a_folder_behind(sandbox: Sandbox) -> None:
    mounts = Path(f"/proc/{sandbox.process.pid}/mounts")
    before = mounts.read_text()
    for _ in range(10):
        sandbox.stdout("print(1)")
    assert mounts.read_text() == before


@pytest.mark.parametrize("attack", ["FORK_BOMB", "DAEMON", "KILL_EVERYTHING", "MEMORY_BOMB", "FORK_CHAIN", "MUTE"])
def test_the_prepared_program_is_contained_as_others_are(any_sandbox: Sandbox, attack: str) -> None:
    run = any_sandbox.run(PREPARED, stdin=globals()[attack], run_timeout=2, memory_limit_MB=128)["run_result"]
    assert run["status"] in ("Finished", "TimeLimitExceeded")
    any_sandbox.wait_until(lambda info: info["running"] == 0)
    assert len(any_sandbox.descendants()) <= 2 + 2 * 2
    assert any_sandbox.stdout(PREPARED, stdin="print(1)") == "1\n"


def test_a_fork_server_that_dies_costs_no_request(sandbox: Sandbox) -> None:
    code = "sum(range(20_000_000)); print('done')"
    with ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(sandbox.stdout, code) for _ in range(2)]
        sandbox.wait_until(lambda info: info["running"] == 2)
        pids = sandbox.info()["fork_server_pids"]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert [future.result() for future in futures] == ["done\n", "done\n"]
    assert not set(pids) & set(sandbox.info()["fork_server_pids"])


def test_no_two_workers_of_roots_servers_are_one_user(sandbox: Sandbox) -> None:
    if os.getuid() != 0:
        pytest.skip("only root's workers become other users")
    with serving("--concurrency=1") as other:
        for server in (sandbox, other):
            server.stdout("print(1)")
        users = [Path(f"/proc/{pid}").stat().st_uid for pid in sandbox.workers() | other.workers()]
    assert len(users) >= 2 and len(set(users)) == len(users)


def test_a_run_that_cannot_become_the_program_is_no_failure_of_the_program() -> None:
    options, installation = refusing_namespaces()
    options += ["--forbid-dropping", "--allow-unisolated", f"--key={KEY}", f"--prepared={PREPARED}"]
    with serving(*options, installation=installation) as server:
        for code in ("print(1)", PREPARED):
            answer = server.run(code)
            assert answer["status"] == "SandboxError" and "the worker died" in answer["message"]


def test_a_worker_that_dies_costs_no_request(sandbox: Sandbox) -> None:
    sandbox.stdout("print(1)")
    for pid in set(sandbox.descendants()) - set(sandbox.info()["fork_server_pids"]):
        with contextlib.suppress(ProcessLookupError):  # the last run, just ending
            os.kill(pid, signal.SIGKILL)
    with ThreadPoolExecutor(4) as threads:
        assert set(threads.map(lambda _: sandbox.stdout("print(1)"), range(8))) == {"1\n"}


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("forbidden", [False, True])
def test_everything_ends_with_a_server_that_is_killed(forbidden: bool, prepared: bool) -> None:
    options, installation = refusing_namespaces() if forbidden else ([], Installation())
    options += ["--concurrency=1", f"--prepared={PREPARED}"]
    with serving(*options, installation=installation) as server, ThreadPoolExecutor(1) as threads:
        code = "import os\nos.fork()\nos.fork()\nwhile True: pass"
        program, stdin = (PREPARED, code) if prepared else (code, "")
        future = threads.submit(server.run, program, stdin=stdin, run_timeout=600)
        server.wait_until(lambda info: info["running"] == 1)
        # Fork servers, worker, the killer or another first process of the run, and four processes of the program.
        while len(server.descendants()) < 2 + 1 + (forbidden or not prepared) + 4:
            time.sleep(0.005)
        pidfds = server.pidfds()
        server.process.kill()
        server.process.wait()
        await_end(pidfds)
        with pytest.raises(OSError):
            future.result()


def test_a_server_that_is_stopped_leaves_nothing() -> None:
    with serving("--concurrency=1") as server:
        server.stdout("print(1)")
        pidfds = server.pidfds()
    await_end(pidfds)


def test_without_isolation_it_refuses_unless_told() -> None:
    options, installation = refusing_namespaces()
    options.append("--forbid-landlock")
    done = subprocess.run(
        installation.command(*options),
        capture_output=True,
        text=True,
        cwd="/",
        env=installation.environment(),
        timeout=300,  # a process that it left behind would hold its streams open
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert "refused: no isolation for untrusted code here (no namespaces: " in done.stderr
    assert "--allow-unisolated" in done.stderr
    with serving(*options, "--allow-unisolated", f"--key={KEY}", installation=installation) as server:
        assert server.request("/v1/info", headers={})[0] == 401
        assert server.info()["isolation"] == "none"
        assert server.stdout("print(1)") == "1\n"


@pytest.mark.parametrize("which", ["the working directory", "a hidden folder"])
@pytest.mark.parametrize("forbidden", [False, True])
def test_a_folder_of_work_that_programs_could_read_is_refused(which: str, forbidden: bool) -> None:
    options, installation = refusing_namespaces() if forbidden else ([], Installation())
    library = subprocess.check_output([installation.python, "-c", "import json; print(json.__path__[0])"], text=True)
    is_hidden = which == "a hidden folder"
    done = subprocess.run(
        installation.command(*options, *([f"--hidden={library.strip()}"] if is_hidden else [])),
        capture_output=True,
        text=True,
        cwd="/" if is_hidden else library.strip(),
        env=installation.environment(),
    )
    assert done.returncode == 1
    assert f"refused: {which} ({library.strip()}) lies below " in done.stderr


def test_the_level_is_known_without_a_server(sandbox: Sandbox) -> None:
    info = sandbox.info()
    assert isolation_level() == (info["isolation"], info["isolation_reason"])
