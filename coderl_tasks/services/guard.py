"""Runs a command that must not outlive its starter: `python guard.py [-i] COMMAND ARG ...`, with a pipe on stdin.

The starter holds the pipe's other end. When that closes (a clean stop, a crash, a SIGKILL), the command's process group
gets SIGTERM and, if it is still there `GRACE_S` later, SIGKILL. A guard that is itself killed takes the command along
(PR_SET_PDEATHSIG; it fires with the creating thread, so the command is started from the main thread, which lives as
long as the guard). With -i the command's standard input is what the starter writes; else it is empty. Standard library
only, so that it starts in a few milliseconds.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

GRACE_S = 8.0
PR_SET_PDEATHSIG = 1


def _prepare_child() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # ignored signals are inherited, and the command has to hear SIGTERM
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _signal_group(process: "subprocess.Popen[bytes]", number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def _stop_when_pipe_closes(process: "subprocess.Popen[bytes]") -> None:
    while words := os.read(0, 4096):
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has ended, or wants no more
                process.stdin.write(words)
    _signal_group(process, signal.SIGTERM)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        _signal_group(process, signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run `command` until it ends or standard input closes; its exit code, 128 + n after signal n."""
    # The pipe alone decides: Ctrl-C reaches the starter too, which closes it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    stdin = subprocess.DEVNULL
    if command[0] == "-i":
        command, stdin = command[1:], subprocess.PIPE
    # A session of its own: the terminal's Ctrl-C must not end a server that its starter still needs to stop in order.
    process = subprocess.Popen(command, bufsize=0, stdin=stdin, start_new_session=True, preexec_fn=_prepare_child)
    threading.Thread(target=_stop_when_pipe_closes, args=(process,), daemon=True).start()
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
