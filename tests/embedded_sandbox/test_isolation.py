"""What a program can see and reach, at each level of isolation."""

from pathlib import Path

import pytest

from tests.embedded_sandbox.sandbox_servers import PROJECT_ROOT, Sandbox

ATTEMPT = """
import os
def attempt(name, action):
    try:
        action()
    except (OSError, ValueError) as error:
        print(name, "refused")
    else:
        print(name, "DONE")
"""


def attempts(sandbox: Sandbox, **actions: str) -> dict[str, str]:
    """Which of the expressions a program could evaluate."""
    lines = [f"attempt({name!r}, lambda: {action})" for name, action in actions.items()]
    printed = sandbox.stdout(ATTEMPT + "\n".join(lines))
    outcomes: dict[str, str] = dict(map(str.split, printed.splitlines()))
    return outcomes


def test_the_levels_are_what_the_fixtures_say(
    sandbox: Sandbox, ordinary_sandbox: Sandbox, landlock_sandbox: Sandbox
) -> None:
    assert ordinary_sandbox.info()["isolation"] == "namespaces"
    assert landlock_sandbox.info()["isolation"] == "landlock"
    assert "no namespaces" in landlock_sandbox.info()["isolation_reason"]


def test_host_files_are_out_of_reach(any_sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    tmp_path.chmod(0o777)
    done = attempts(
        any_sandbox,
        project=f"open({str(PROJECT_ROOT / 'pyproject.toml')!r})",
        tests=f"os.listdir({str(PROJECT_ROOT / 'tests')!r})",
        temporary=f"open({str(tmp_path / 'secret')!r})",
        write=f"open({str(tmp_path / 'mine')!r}, 'w')",
        shadow="open('/etc/shadow')",
        home=f"os.listdir({str(Path.home())!r} + '/.ssh')",
        variable="os.listdir('/var')",
        sysfs="os.listdir('/sys/kernel')",
        root="open('/x', 'w')",
        usr="open('/usr/x', 'w')",
        etc="open('/etc/passwd', 'w')",
        stdlib="open(os.__file__, 'a')",
    )
    assert set(done.values()) == {"refused"}, done


def test_processes_of_the_host_are_out_of_reach(any_sandbox: Sandbox) -> None:
    server = any_sandbox.process.pid
    done = attempts(
        any_sandbox,
        kill=f"os.kill({server}, 0)",
        environment=f"open('/proc/{server}/environ').read()",
        monitor_memory="open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
        monitor_descriptors="os.listdir(f'/proc/{os.getppid()}/fd')",
        priority=f"os.setpriority(os.PRIO_PROCESS, {server}, 19)",
        limit=f"__import__('resource').prlimit({server}, 7, (10, 10))",
        affinity=f"os.sched_setaffinity({server}, {{0}})",
    )
    assert set(done.values()) == {"refused"}, done


def test_the_environment_holds_nothing_of_the_servers(any_sandbox: Sandbox) -> None:
    names = any_sandbox.stdout("import os; print(*sorted(os.environ))").split()
    expected = {"HOME", "LANG", "OPENBLAS_NUM_THREADS", "PATH", "PYTHONDONTWRITEBYTECODE", "PYTHONHASHSEED"}
    assert set(names) - {"TMPDIR"} == expected


def test_there_is_no_network(any_sandbox: Sandbox) -> None:
    port = int(any_sandbox.url.rpartition(":")[2])
    done = attempts(
        any_sandbox,
        loopback=f"__import__('socket').create_connection(('127.0.0.1', {port}))",
        internet="__import__('socket').socket()",
        datagram="__import__('socket').socket(type=2)",
        netlink="__import__('socket').socket(16, 3)",
        machine="__import__('socket').socket(40)",
    )
    assert set(done.values()) == {"refused"}, done


def test_dangerous_system_calls_are_refused(any_sandbox: Sandbox) -> None:
    calls = [
        "unshare(0x10000000)",
        "mount(b'x', b'/tmp', b'tmpfs', 0, None)",
        "umount2(b'/proc', 2)",
        "chroot(b'/tmp')",
        "setns(0, 0)",
        "ptrace(0, 0, 0, 0)",
        "process_vm_readv(1, None, 0, None, 0, 0)",
        "reboot(0)",
        "prctl(1, 0)",  # to outlive what the run is bound to
        "prctl(1, 15)",
    ]
    code = "import ctypes\nlibc = ctypes.CDLL(None)\n" + "\n".join(f"print(libc.{call})" for call in calls)
    assert set(any_sandbox.stdout(code).split()) == {"-1"}


def test_rights_cannot_be_regained(any_sandbox: Sandbox) -> None:
    code = (
        "import os, resource\n"
        "print(os.getuid() != 0, os.getgid() != 0, resource.getrlimit(resource.RLIMIT_CORE)[1])\n"
        "for change in (lambda: os.setuid(0), lambda: os.setgroups([0])):\n"
        "    try:\n        change()\n    except OSError:\n        print('refused')"
    )
    assert any_sandbox.stdout(code) == "True True 0\nrefused\nrefused\n"


def test_only_the_three_standard_descriptors_are_open(any_sandbox: Sandbox) -> None:
    code = (
        "import os\n"
        "for n in range(600):\n    try:\n        os.fstat(n)\n        print(n)\n    except OSError:\n        pass"
    )
    assert any_sandbox.stdout(code) == "0\n1\n2\n"


def test_runs_share_no_files(any_sandbox: Sandbox) -> None:
    listing = "import os; print(sorted(os.listdir('.')))"
    before = any_sandbox.stdout(f"{listing}\nos.mkdir('d'); open('d/left', 'w').write('x')")
    assert "__main__.py" in before and "'d'" not in before
    assert any_sandbox.stdout(listing) == before


def test_runs_share_no_shared_memory(any_sandbox: Sandbox) -> None:
    code = "import ctypes\nprint(ctypes.CDLL(None, use_errno=True).shmget(4242, 4096, {flags}))"
    any_sandbox.stdout(code.format(flags=0o1600))
    assert any_sandbox.stdout(code.format(flags=0o600)) == "-1\n"


def test_random_numbers_differ_between_runs(sandbox: Sandbox) -> None:
    assert sandbox.stdout("import random; print(random.random())") != sandbox.stdout(
        "import random; print(random.random())"
    )


def test_the_order_of_a_set_is_the_same_in_every_run(sandbox: Sandbox) -> None:
    code = "print(list({str(n) for n in range(50)}))"
    assert sandbox.stdout(code) == sandbox.stdout(code)


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("import numpy; print(numpy.linalg.det(numpy.eye(3)), len(numpy.fft.fft([1.0, 2.0])))", "1.0 2\n"),
        ("n = 'num' + 'py'; print(__import__(n).arange(3).sum())", "3\n"),
        ("import threading\nthreading.Thread(target=print, args=('hi',)).start()", "hi\n"),
        ("import subprocess, sys\nprint(subprocess.check_output([sys.executable, '-c', 'print(1)']))", "b'1\\n'\n"),
        ("print(open('/dev/stdin').read(), open(0).read())", "abc abc\n"),
        ("import sys; print(sys.stdin.buffer.read())", "b'abc'\n"),
        (
            "import sys; sys.setrecursionlimit(10**6)\n"
            "def f(n): return 0 if n == 0 else 1 + f(n - 1)\nprint(f(100_000))",
            "100000\n",
        ),
        ("import os; print(open('/dev/null', 'w').write('x'), len(os.urandom(4)))", "1 4\n"),
        ("import asyncio\nasync def main(): return 5\nprint(asyncio.run(main()))", "5\n"),
        ("import decimal, bz2, sqlite3, ssl, unicodedata\nprint(1)", "1\n"),
    ],
)
def test_honest_programs_find_what_they_need(any_sandbox: Sandbox, code: str, printed: str) -> None:
    assert any_sandbox.stdout(code, stdin="abc") == printed
