"""What a program can see and reach, at each level of isolation."""

import os
from pathlib import Path

import pytest

from tests.local_servers.sandbox.sandbox_servers import PROJECT_ROOT, Sandbox

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


def test_of_the_system_and_of_pythons_prefix_only_what_python_needs_can_be_read(any_sandbox: Sandbox) -> None:
    code = (
        "import os, sys, zoneinfo\nlibrary = os.path.dirname(os.__file__)\nread = []\n"
        "for top in ('/usr', '/bin', '/lib', '/lib64', '/etc', '/opt', '/home', '/var', sys.prefix, library):\n"
        "    for folder, _, names in os.walk(top):\n"
        "        for path in (os.path.join(folder, name) for name in names):\n"
        "            try:\n                open(path, 'rb').close()\n                read.append(path)\n"
        "            except OSError: pass\n"
        "assert zoneinfo.ZoneInfo('Europe/Paris') and not os.system('exit 0')\n"
        "known = (library, '/usr/share/zoneinfo', '/usr/lib/locale', sys.prefix + '/share/zoneinfo', '/etc/')\n"
        "print([path for path in read if '.so' not in path and os.access(path, os.R_OK) and '-packages/' in path])\n"
        "print([path for path in read if '.so' not in path and not os.path.realpath(path).startswith(known)\n"
        "       and os.path.realpath(path) not in (os.path.realpath('/bin/sh'), os.path.realpath(sys.executable))\n"
        "       and not path.endswith('gconv-modules.cache')])"
    )
    assert any_sandbox.stdout(code, run_timeout=60) == "[]\n[]\n"


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
        "shmget(0, 4096, 0o1600)",  # no limit counts it while no process maps it
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


FILE = "import fcntl, mmap, os\nf = open(os.path.dirname(os.__file__) + '/this.py', 'rb')\n"
IN_CACHE = "print(os.preadv(f.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT))"
MINCORE = (
    "import ctypes\nm = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ, flags=mmap.MAP_PRIVATE)\nv = ctypes.c_ubyte()\n"
    "libc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
    "at = libc.mmap(None, ctypes.c_size_t(1), 1, 2, f.fileno(), ctypes.c_long(0))\n"
    "print(libc.mincore(ctypes.c_void_p(at), ctypes.c_size_t(1), ctypes.byref(v)), v.value)"
)
EVICT = "os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)"
HINT = "import struct\nfcntl.fcntl(f, 1036, struct.pack('Q', {}))"
MARKS = {
    "evicted from the page cache": ("f.read()", EVICT, IN_CACHE),
    "evicted from the page cache, by mincore": ("f.read()", EVICT, MINCORE),
    "a hint about writing": (HINT.format(0), HINT.format(3), "print(fcntl.fcntl(f, 1035, bytes(8)))"),
    "the time of a device": (
        "os.utime('/dev/null')",
        "os.utime('/dev/null')",
        "print(os.stat('/dev/null').st_mtime_ns)",
    ),
}
"""Marks that a program may leave on what other programs see too: take it off, put it on, look for it."""


@pytest.mark.parametrize("mark", MARKS)
def test_a_run_leaves_no_mark_for_another(any_sandbox: Sandbox, mark: str) -> None:
    def printed(action: str) -> str:
        return any_sandbox.stdout(
            f"{FILE}try:\n    {action.replace(chr(10), chr(10) + '    ')}\nexcept OSError as e: print(e.errno)"
        )

    off, on, look = MARKS[mark]
    printed(off)
    before = printed(look)
    printed(on)
    assert printed(look) == before


def test_runs_do_not_see_what_others_read(any_sandbox: Sandbox) -> None:
    code = (
        "import ctypes, os\nlibc = ctypes.CDLL(None)\nn = libc.inotify_init()\nfolder = os.path.dirname(os.__file__)\n"
        "print(libc.inotify_add_watch(n, folder.encode(), 0xfff), libc.fcntl(os.open(folder, 0), 1026, 1))"
    )
    assert any_sandbox.stdout(code) == "-1 -1\n"


def test_what_belongs_to_the_servers_user_stays_as_it_is(any_sandbox: Sandbox) -> None:
    server = any_sandbox.process.pid
    before = os.getpriority(os.PRIO_PROCESS, server)
    code = (
        "import os\nfor path in ('..', os.__file__, '/dev/null'):\n"
        "    before = os.stat(path).st_mode, os.stat(path).st_mtime_ns\n"
        "    for change in (lambda: os.chmod(path, 0o777), lambda: os.utime(path), lambda: os.setpriority(2, 0, 19)):\n"
        "        try: change()\n        except OSError: pass\n"
        "    print(before == (os.stat(path).st_mode, os.stat(path).st_mtime_ns))"
    )
    assert any_sandbox.stdout(code) == "True\nTrue\nTrue\n"
    assert os.getpriority(os.PRIO_PROCESS, server) == before


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
