"""Work in a process of its own, which a deadline and a SIGKILL end. This text stands above those of the programs that
use it (`sandbox_programs.py`); it is standard library, Python 3.10 or later."""

import os
import select
import signal
import time
from collections.abc import Callable


def in_forked_process(
    work: Callable[[int], object], wall_s: float, most_bytes: int = 1 << 40
) -> tuple[bytes, bool, int]:
    """Runs `work` in a forked process, for at most `wall_s`. Returns the first bytes that it writes to its argument, a
    descriptor; whether that was closed in time; and the exit code of the process (negative: a signal). At the end the
    process is killed, with what it has started in its group."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        status = 125
        try:
            os.close(reading)
            work(writing)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)  # else reading would not end with the process
    data, end = b"", time.monotonic() + wall_s
    while True:
        in_time = bool(select.select([reading], [], [], max(0.0, end - time.monotonic()))[0])
        part = os.read(reading, 1 << 16) if in_time else b""
        if not part:
            break
        data = (data + part)[:most_bytes]
    os.close(reading)
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:  # it has no group of its own, or has not got as far
        os.kill(process, signal.SIGKILL)
    return data, in_time, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
