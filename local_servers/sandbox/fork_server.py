"""The fork server: a Python with the usual modules loaded, from which everything else here is forked.

    server --control socket--> fork server --fork--> worker, one per slot --clone--> run --fork--> its program

It holds nothing secret and never sees a job. Each loaded module slows every fork: its memory is copied page by page as
it is written to, and a compiled one adds five mappings. So there are two fork servers: one with what most programs and
a grading driver use (USUAL), and one that has as well what takes long to import and few programs use (RARE).
`threading` is in neither: its work at every fork costs too much.
"""

import gc
import importlib.machinery
import importlib.util
import json
import os
import re
import resource
import signal
import site
import sys
from _socket import CMSG_LEN, socket
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any

from local_servers.sandbox import isolation, processes, rootfs, submission, worker

USUAL = """
    __future__ atexit binascii bisect builtins collections collections.abc contextlib copy errno functools gc heapq io
    itertools json math operator os re resource select signal stat string struct sys time types typing warnings weakref
""".split()  # noqa: SIM905

RARE = "array cmath dataclasses datetime decimal fractions numpy random statistics".split()  # noqa: SIM905

_IMPORTS_RARE = re.compile(rb"\b(?:import|from)\b[^\n]{0,100}\b(?:" + "|".join(RARE).encode() + rb")\b")


@lru_cache(maxsize=4)  # a grading driver comes with every request, and looking through it takes 0.2 ms
def imports_rare(text: bytes) -> bool:
    """Whether a program seems to import one of RARE; a wrong answer costs the time of an import, nothing else."""
    return _IMPORTS_RARE.search(text) is not None


def warm_up(import_rare: bool) -> None:
    """Prepare this interpreter to be forked for submissions (untrusted programs), which then start without imports of
    their own: load USUAL, and if `import_rare` also RARE modules; define the names that an interpreter started without
    `site` lacks (exit, quit, help); share memory with the forks."""
    for name in (*USUAL, *(RARE if import_rare else ())):
        if importlib.util.find_spec(name) is not None:  # numpy need not be there
            importlib.import_module(name)
    site.setquit()
    site.setcopyright()
    site.sethelper()
    # Lists the folder now: Landlock lets a submission into numpy, but not list what else is installed beside it.
    importlib.machinery.PathFinder.find_spec("numpy")
    # A submission sees neither the server's command line nor a variable set for the server alone.
    sys.orig_argv[:] = sys.orig_argv[:1]
    os.environ.pop("LD_BIND_NOW", None)
    # Submissions must not import the server's modules; functions that run keep what they use of them.
    for name in [name for name in sys.modules if name.partition(".")[0] == "local_servers"]:
        del sys.modules[name]
    # A collection writes to the header of every object, and so would copy every page that forks share. The submission
    # enables it again for its own objects.
    gc.collect()
    gc.disable()
    gc.freeze()


def fork_workers(level: str, setting: isolation.Setting, control: socket, prepared: Sequence[ModuleType]) -> None:
    """Fork a worker for each message on the socket `control`, until that closes. A message has three sockets of the new
    worker attached (jobs in, replies and open files out). The worker isolates itself by `level` and serves the jobs
    that come over the first until that closes; `prepared` are the trusted programs that are loaded already."""
    # Ignored, so that the kernel collects dead workers; the server notices their end by their sockets.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, rights, _, _ = control.recvmsg(4096, CMSG_LEN(worker.DESCRIPTORS.size))
        if not message:
            return
        [(_, _, descriptors)] = rights
        first, second, third = worker.DESCRIPTORS.unpack(descriptors)
        ends = (socket(fileno=first), socket(fileno=second), socket(fileno=third))
        parent = os.getpid()
        if os.fork() == 0:
            try:
                control.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                confinement, scratch = isolation.enter_worker(level, setting)
                isolation.die_with(parent, isolation.ending(level))  # here: a change of user forgets it
                ends[1].send(json.dumps({"pid": os.getpid()}).encode())
                worker.serve(worker.Slot(confinement, scratch, *ends, prepared))
            except BaseException as error:
                print(f"sandbox: a worker failed: {error!r}", file=sys.stderr, flush=True)
            finally:
                os._exit(0)
        for end in ends:
            end.close()


def main(arguments: dict[str, Any], python_path: list[str]) -> int:
    """The fork server's process: choose the best level of isolation that works here, say so on the control socket, load
    what submissions need, and fork workers until the socket closes. Returns the exit status. `python_path` is the
    module search path for submissions. `arguments` come from the server as JSON:

    library, packages   Python's search path and numpy's folders, which submissions may read
    scratch_folder      where workers make the working directories of runs that have no file system of their own
    probe               if true, the level is printed, and nothing is forked; then none of the following is there
    parent, control     the server's pid, and this process's end of the control socket
    allow_unisolated    whether to go on where no isolation works
    prepared_sources    trusted programs that are loaded here once, so that runs can call their `main`
    import_rare         whether to load also what few submissions import (numpy)"""
    # Before anything is imported for submissions: they must not find the server's own packages.
    sys.path[:] = python_path
    readable = rootfs.readable_paths(arguments["library"], arguments["packages"])
    setting = isolation.Setting(readable, arguments["scratch_folder"])
    level, reason = isolation.choose(setting)
    if arguments.get("probe"):
        print(json.dumps({"level": level, "reason": reason}))
        return 0
    processes.set_command_line(b"coderl-sandbox")
    # Undo the memory limit that the server sets itself by what is free: a verdict must not depend on that.
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    isolation.die_with(arguments["parent"], signal.SIGKILL)
    control = socket(fileno=arguments["control"])
    if level is None and arguments["allow_unisolated"]:
        level = isolation.UNISOLATED
    if level is None:
        control.send(json.dumps({"level": None, "reason": reason}).encode())
        return 1
    # Before `isolation.enter`, which may replace the file system by one that has only what submissions may read.
    prepared = [submission.prepared(source) for source in arguments["prepared_sources"]]
    warm_up(arguments["import_rare"])
    isolation.enter(level, setting)
    control.send(json.dumps({"level": level, "reason": reason, "readable_paths": readable}).encode())
    fork_workers(level, setting, control, prepared)
    return 0
