"""The submission's process: takes on the limits, gives up every right, then runs the code as `__main__`.

It descends from the fork server, so Python and the usual modules are there already. What follows `exec` imitates the
end of an ordinary interpreter: exit codes, tracebacks, non-daemon threads, exit handlers, flushing. One thing differs:
globals are not destroyed one by one at exit, so a `__del__` of an object still alive then does not run.
"""

import _signal  # `signal` turns every number into an enum and back
import atexit
import builtins
import contextlib
import gc
import itertools
import marshal
import os
import resource
import sys
import types
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from local_servers.sandbox import kernel, landlock, seccomp
from local_servers.sandbox.job_files import Terms

MAIN_FILE = "__main__.py"
_MIB = 1 << 20
_STACK_BYTES = 120 * _MIB  # the kernel leaves 128 MiB below the main stack, whatever the limit was at exec
_MAX_PROCESSES = 128
_MAX_FILE_BYTES = 128 * _MIB
_MAX_DESCRIPTORS = 512
_LAST_DESCRIPTOR = 4096  # the fork server starts with three and its socket; far more than it ever holds


class Confinement(NamedTuple):
    """How a submission is confined. `uid` is the user it becomes, None to stay as it is; `ruleset` is Landlock's (None
    where a root file system of its own takes that part) and `devices` are the paths it leaves open for writing;
    `base_bytes` is the address space that the warm interpreter already uses; `shares_user` says that the process limit
    counts its user's other processes too, and `base_processes`, set anew for each run, how many those are."""

    uid: int | None
    ruleset: int | None
    devices: Sequence[str]
    seccomp_filter: seccomp.Filter | None
    base_bytes: int
    shares_user: bool
    base_processes: int = 0


def prepared(source: str) -> types.ModuleType:
    """A trusted program with all that it defines, for runs that call its `main`. Calls its `warm_up`, if it has one.
    What it does at the end, `if __name__ == "__main__"`, it has not done."""
    module = types.ModuleType("prepared")
    exec(_compiled_apart(source), module.__dict__)
    if hasattr(module, "warm_up"):
        module.warm_up()
    return module


def _compiled_apart(source: str) -> types.CodeType:
    """Compiles a trusted program in a forked process, whose code object comes over a pipe: the compiler's leftovers
    would scatter the code over megabytes of memory, and every later fork of this process would copy more pages."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    process = os.fork()
    if process == 0:
        status = 1
        try:
            with open(writing, "wb") as file:
                marshal.dump(compile(source, MAIN_FILE, "exec", dont_inherit=True), file)
            status = 0
        except BaseException:
            sys.__excepthook__(*sys.exc_info())  # pyrefly: ignore[bad-argument-type]
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as file:
        data = file.read()
    _, status = os.waitpid(process, 0)
    if status != 0:
        raise RuntimeError("a prepared program was not compiled")
    code: types.CodeType = marshal.loads(data)
    return code


def become(confinement: Confinement, limits: Terms, workdir: str, streams: tuple[int, int, int], notes: int) -> None:
    """Turn this freshly forked process into a submission's: own session, three descriptors, limits, no rights.
    `streams` become its stdin, stdout and stderr; the descriptor `notes` stays open, for the caller to close. The order
    matters: changing the user needs capabilities, which are dropped later; /proc is written before Landlock closes it;
    Landlock and seccomp come last and, without capabilities, need no_new_privs."""
    # Its own session: signals to its group reach its own processes only.
    os.setsid()
    for target, descriptor in enumerate(streams):
        os.dup2(descriptor, target)
    # Nothing of the server's, not its sockets nor another run's pipes, may be reached from the submission.
    kept = {notes} if confinement.ruleset is None else {notes, confinement.ruleset}  # Landlock's, needed below
    for below, above in itertools.pairwise((2, *sorted(kept), _LAST_DESCRIPTOR)):
        os.closerange(below + 1, above)
    os.chdir(workdir)
    os.umask(0o022)
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    if confinement.uid is not None:
        kernel.become_user(confinement.uid)
    # Its own /proc/self and /dev/stdin belong to it only while it is dumpable.
    kernel.prctl(kernel.PR_SET_DUMPABLE, 1)
    # If memory runs out, the kernel is to kill this process first. Where /proc is empty it chooses by size alone.
    with contextlib.suppress(FileNotFoundError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(b"1000")
    _set_limits(confinement, limits)
    kernel.drop_capabilities()
    if confinement.ruleset is not None:
        landlock.restrict(confinement.ruleset, confinement.devices, workdir)
    if confinement.seccomp_filter is not None:
        confinement.seccomp_filter.install()


def _set_limits(confinement: Confinement, limits: Terms) -> None:
    # A backstop above the wall clock's limit: whoever measures CPU time, as a grading driver does, comes first.
    cpu_seconds = int(limits.timeout_s) + 2
    wanted = {
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_AS: confinement.base_bytes + limits.memory_mib * _MIB,
        resource.RLIMIT_FSIZE: _MAX_FILE_BYTES,
        resource.RLIMIT_NPROC: confinement.base_processes + _MAX_PROCESSES,
        resource.RLIMIT_NOFILE: _MAX_DESCRIPTORS,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_MEMLOCK: 64 * 1024,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_STACK: _STACK_BYTES,
    }
    for kind, value in wanted.items():
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        # Programs ask for a larger stack, which gains them nothing: what lies below it ends it.
        resource.setrlimit(kind, (allowed, hard if kind == resource.RLIMIT_STACK else allowed))


def _fresh_interpreter(workdir: str, main_path: str, main: types.ModuleType) -> None:
    """Make this interpreter, a fork of one that has run before, look like one that was just started with the program at
    `main_path` as the module `main`."""
    _signal.signal(_signal.SIGCHLD, _signal.SIG_DFL)
    _signal.signal(_signal.SIGTERM, _signal.SIG_DFL)
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
    _signal.signal(_signal.SIGPIPE, _signal.SIG_IGN)
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    if os.environ["HOME"] != workdir:
        os.environ.update(HOME=workdir, TMPDIR=workdir)
    sys.argv = [main_path]
    sys.path.insert(0, workdir)
    main.__dict__.update(__name__="__main__", __file__=main_path, __builtins__=builtins, __cached__=None)
    sys.modules["__main__"] = main
    # As an interpreter opens them for pipes.
    stream = partial(open, encoding="utf-8", closefd=False)
    sys.stdin = sys.__stdin__ = stream(0, "r", errors="strict")  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = stream(1, "w", errors="strict")  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = stream(2, "w", 1, errors="backslashreplace")  # type: ignore[misc]
    # The fork server turned it off for its own objects, which are frozen and stay shared.
    gc.enable()


def run_main(workdir: str, program: bytes | types.ModuleType) -> int:
    """Execute a program (its source, or the module of a prepared one, whose `main` is called) as the main program of
    this process, as `python FILE` would: with exit handlers, a last flush, and a traceback on stderr. Returns the exit
    status that such an interpreter would end with."""
    main_path = os.path.join(workdir, MAIN_FILE)
    main = types.ModuleType("__main__") if isinstance(program, bytes) else program
    _fresh_interpreter(workdir, main_path, main)
    status = 0
    try:
        if isinstance(program, bytes):
            exec(compile(program, main_path, "exec", dont_inherit=True), main.__dict__)
        else:
            program.main()
    except SystemExit as leaving:  # as CPython, which prints what is no number
        if leaving.code is None or isinstance(leaving.code, int):
            status = (leaving.code or 0) & 0xFF
        else:
            status = 1
            print(leaving.code, file=sys.stderr)
    except BaseException as error:
        status = 1
        # Without the first frame of the traceback, which is this function.
        own = error.__traceback__
        error.__traceback__ = None if own is None else own.tb_next
        sys.excepthook(type(error), error, error.__traceback__)
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()  # waits for threads that are no daemons
        atexit._run_exitfuncs()
    except BaseException:
        sys.__excepthook__(*sys.exc_info())  # pyrefly: ignore[bad-argument-type]
    # At the very end, as CPython does: exit handlers and threads may still have written.
    for stream in (sys.stdout, sys.stderr):
        if stream is None or getattr(stream, "closed", False):
            continue
        try:
            stream.flush()
        except BaseException:
            # The status CPython ends with when the last flush fails.
            status = 120
    return status
