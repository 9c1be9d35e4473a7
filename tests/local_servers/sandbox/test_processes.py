"""A worker finds all processes of its run, without looking at those of the host."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FAMILY = """
import json, os, signal, sys, threading, time
from local_servers.sandbox import kernel, processes

kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
read, write = os.pipe()


def born():
    pid = os.fork()
    if pid == 0:
        os.write(write, f"{os.getpid()}\\n".encode())
    return pid


if born() == 0:
    if born() == 0:  # becomes an orphan, in a session of its own
        os.setsid()
        time.sleep(600)
    os._exit(0)
os.wait()


def child_of_a_thread():
    if born() == 0:
        born()
        time.sleep(600)
    time.sleep(600)


threading.Thread(target=child_of_a_thread, daemon=True).start()
told = b""
while told.count(b"\\n") < 4:
    told += os.read(read, 100)
expected = sorted(map(int, told.split()[1:]))  # the first one has ended
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
found = sorted(processes.descendants())
looked_at = sorted({int(path.split("/")[2]) for path in opened if path.startswith("/proc/")} - {os.getpid()})
exists, os.path.exists = os.path.exists, lambda _: False  # as on a kernel that lists no children
scanned = sorted(processes.descendants())
os.path.exists = exists
processes.kill_all()
left = processes.descendants()
print(json.dumps([expected, found, scanned, looked_at, left]))
"""


def test_descendants_are_found_wherever_they_went_and_nothing_else_is_read() -> None:
    if not Path(f"/proc/self/task/{Path('/proc/self').readlink()}/children").exists():
        pytest.skip("this kernel lists no children")
    ran = subprocess.run([sys.executable, "-c", FAMILY], capture_output=True, text=True, check=True, timeout=60)
    expected, found, scanned, looked_at, left = json.loads(ran.stdout)
    assert len(expected) == 3 and found == scanned == looked_at == expected
    assert left == []
