"""One call of a user's grade function: `python function_worker.py MODULE:FUNCTION`, with the call as JSON on stdin.

What is graded may run in the process that grades it, and may kill it, its parent and its group. So this process only
waits: it is the parent that such a program sees. A child of it imports the module and calls the function. Whatever the
call leaves behind becomes this process's own child (PR_SET_CHILD_SUBREAPER) and is killed at the end.

The verdict is a line on descriptor `descriptor` that begins with a word which only this call knows: a program that
writes to all descriptors forges none by chance. With `"check": true` the function is looked up and not called. Standard
library only, and loaded from its file, so that a call begins in a few milliseconds.
"""

import asyncio
import ctypes
import importlib
import inspect
import json
import math
import numbers
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
MOST_DATA, MOST_FILE = 4 << 30, 256 << 20
"""Bytes of memory and of a file: what a program that floods its grader may take of this machine."""
_float, _isinstance, _type, _isfinite, _write = float, isinstance, type, math.isfinite, os.write
"""As they are before a program in this process can replace them."""


def called(target: str, call: dict[str, Any]) -> tuple[float | None, str]:
    """What the function answers to this call: the reward (None: no verdict) and the fault ("": none)."""
    name, _, function_name = target.partition(":")
    sys.path.insert(0, call["folder"])
    try:
        function = getattr(importlib.import_module(name), function_name)
    except Exception as error:  # whatever a user's module raises
        return None, f"cannot import {target}: {type(error).__name__}: {error}"
    if not callable(function):
        return None, f"{target} is no function"
    if call["check"]:
        return None, ""
    try:
        value = function(call["problem"], call["completion"])
        if inspect.isawaitable(value):
            value = asyncio.run(_awaited(value))
    except Exception as error:  # whatever a user's function raises: no verdict
        return None, f"{_type(error).__name__}: {error}"[:300]
    if value is None:
        return None, ""
    if _isinstance(value, numbers.Real) and _isfinite(value):
        return _float(value), ""
    shown = f"{value}" if _isinstance(value, numbers.Real) else f"a {_type(value).__name__}"
    return None, f"returned {shown}, which is no reward"


async def _awaited(value: Any) -> Any:
    return await value


def _kill_children() -> None:
    """Kills and collects all children, those too that become children as their parents end."""
    folder = Path("/proc/self/task") / str(os.getpid()) / "children"
    while children := folder.read_text().split():
        for child in children:
            with suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGKILL)
        for child in children:
            with suppress(ChildProcessError):
                os.waitpid(int(child), 0)


def _end(*_: object) -> None:
    _kill_children()
    os._exit(1)


def main(target: str) -> None:
    call = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    most_of = {resource.RLIMIT_DATA: MOST_DATA, resource.RLIMIT_FSIZE: MOST_FILE, resource.RLIMIT_CORE: 0}
    for kind, most in most_of.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        token, descriptor = call.pop("token"), call.pop("descriptor")
        reward, fault = called(target, call)
        _write(descriptor, f"{token} {reward!r} {fault!r}\n".encode(errors="backslashreplace"))
        os._exit(0)
    signal.signal(signal.SIGTERM, _end)  # the call takes too long
    os.close(call["descriptor"])
    os.waitpid(child, 0)
    _kill_children()


if __name__ == "__main__":
    main(sys.argv[1])
