"""Memory of an embedded server: what is free, what a request may take, and what it is called when it is not there.

Three things stand between a request that is too large and the kernel, which would end some process of the machine:

1. What can be foreseen is refused before it is allocated (`require_memory`).
2. The server may hold what it holds and what is free (RLIMIT_DATA, set anew every minute; unlike RLIMIT_AS it leaves
   out what is only mapped, with PyTorch gigabytes). Beyond it an allocation fails, and its request.
3. Should others have taken the memory meanwhile, the kernel ends the server first (oom_score_adj), which is started
   again, and not somebody's editor.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from local_servers.server_errors import ServerError

SHARE = 0.9  # of what is free now, what one request may take: the estimates are no more than that
SMALL_BYTES = 16 << 20  # what is taken without looking, which costs a millisecond
_MALLOC_OPTIONS = {  # of mallopt(3), by their numbers in malloc.h
    -8: 1,  # M_ARENA_MAX: threads share one heap; one of their own would be made of parts of 64 MB
    -4: 0,  # M_MMAP_MAX: no block is a mapping of its own
    -1: -1,  # M_TRIM_THRESHOLD: the heap does not shrink by itself
    -2: 64 << 20,  # M_TOP_PAD: and grows in large parts
}
_OOM_SCORE_ADJ = 500
_LIMIT_EVERY_S = 60.0
_HEADROOM_BYTES = 256 << 20  # what serving itself may take where nothing is free for a moment
CGROUPS = Path("/sys/fs/cgroup")
_LIMIT_FILES = {  # by controller: (limit, usage, the page cache's key in memory.stat)
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "": ("memory.max", "memory.current", "inactive_file"),
}
logger = logging.getLogger(__name__)


class OutOfMemory(ServerError):
    """What was asked for needs more memory than there is."""

    def __init__(self, what: str) -> None:
        self._what = what
        super().__init__(
            f"the embedded server is out of memory: {what}. Ask for less at a time (batch_size, max_tokens, lora_rank, "
            "sample_concurrency), serve the model with --dtype bfloat16, or end other programs of this machine"
        )

    def __reduce__(self) -> tuple[type["OutOfMemory"], tuple[str]]:
        return OutOfMemory, (self._what,)  # from one process to another


def keep_freed_memory() -> None:
    """Has glibc, where that is the C library, keep what is freed for what is allocated next: the system clears every
    page that it gives, which with SmolLM2-135M is a quarter of the time of a training request. To be called before
    other threads allocate: a heap of their own stays theirs."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _MALLOC_OPTIONS.items():
            mallopt(option, value)


def return_freed_memory() -> None:
    """Gives what was freed back to the system, where the C library can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class _WithoutOptional(PathFinder):
    """Finds modules as `PathFinder` does, but not what transformers uses where it is there and no server needs."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return None if fullname in ("accelerate", "scipy") else super().find_spec(fullname, path, target)


@contextlib.contextmanager
def fast_imports() -> Iterator[None]:
    """For a block that imports large libraries: nothing is collected in it, what it made, which stays, is never looked
    at again, and packages for what no server does are left out (`_WithoutOptional`). That saves up to a third of the
    seconds that PyTorch and transformers take to import, and time at each full collection."""
    gc.disable()
    before = sys.meta_path
    sys.meta_path = [_WithoutOptional if finder is PathFinder else finder for finder in before]
    try:
        yield
    finally:
        sys.meta_path = before
        gc.freeze()
        gc.enable()


def available_bytes() -> int:
    """What can be allocated now: the machine's free memory, or less where a control group limits it."""
    free: float = _meminfo("/proc/meminfo", "MemAvailable")
    for controller, own in own_groups().items():
        if controller not in _LIMIT_FILES:
            continue
        # The groups above it too: the tightest limit holds, whoever set it.
        for folder in (own, *own.parents):
            if folder.is_relative_to(CGROUPS):
                free = min(free, _group_bytes(folder, *_LIMIT_FILES[controller]))
    return max(int(free), 0)


def own_groups() -> dict[str, Path]:
    """The folder of this process's own control group for each v1 controller, and under "" for v2, mounted or not."""
    groups: dict[str, Path] = {}
    file = Path("/proc/self/cgroup")
    for line in file.read_text().splitlines() if file.exists() else ():
        _, controllers, path = line.split(":", 2)
        groups |= {controller: CGROUPS / controller / path.lstrip("/") for controller in controllers.split(",")}
    return groups


def require_memory(need_bytes: int, what: str, device: str = "cpu") -> None:
    """Raises OutOfMemory, with the numbers, if `what` needs more than there is. Of another device's memory this knows
    nothing: its allocator fails, which `as_out_of_memory` gives the same name."""
    if need_bytes <= SMALL_BYTES or device != "cpu":
        return
    free = available_bytes()
    if need_bytes > SHARE * free:
        raise OutOfMemory(f"{what} needs {need_bytes / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free")


def as_out_of_memory(error: BaseException) -> OutOfMemory | None:
    """`error` by its name if it is an allocation that failed, in Python, numpy or torch."""
    if isinstance(error, OutOfMemory):
        return error
    # torch's class for an accelerator, by its name: the sandbox has no torch
    if type(error).__name__ == "OutOfMemoryError":
        return OutOfMemory(". ".join(str(error).split(". ")[:2]).rstrip("."))
    # torch has no class of its own for the CPU's
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error)):
        said = " ".join(str(error).split()).rpartition("DefaultCPUAllocator: ")[2]
        return OutOfMemory(said.rstrip(".") or "an allocation failed")
    return None


def limit_own_memory() -> None:
    """Points 2 and 3 of the above, for this process; those that it starts inherit them."""
    limit = _meminfo("/proc/self/status", "VmData") + max(available_bytes(), _HEADROOM_BYTES)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
    # Only ever raised: lowering it takes a privilege, and who started this process may have set it higher.
    score = Path("/proc/self/oom_score_adj")
    with contextlib.suppress(OSError):  # read-only in some containers: there the kernel goes by size alone
        score.write_text(str(max(int(score.read_text()), _OOM_SCORE_ADJ)))


async def limit_own_memory_until(stopping: asyncio.Event) -> None:
    warned = False
    while not stopping.is_set():
        try:
            limit_own_memory()
        except OSError as error:  # out of file descriptors, say: until the next round the last limit holds
            if not warned:
                logger.warning("the limit on this server's memory was not renewed: %s", error)
            warned = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LIMIT_EVERY_S):
                await stopping.wait()


def _meminfo(file: str, name: str) -> int:
    for line in Path(file).read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) << 10
    raise ServerError(f"{file} has no {name}: the embedded servers need Linux")


def _group_bytes(folder: Path, limit: str, usage: str, cache: str) -> float:
    """What the group may still take; infinity where it has no limit. Its page cache counts as free."""
    try:
        allowed = (folder / limit).read_text().strip()
        if not allowed.isdigit():  # "max"
            return float("inf")
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return int(allowed) - int((folder / usage).read_text()) + int(stat.get(cache, 0))
    except OSError:  # the root has none, under a namespace the path is another, and a container may hide them
        return float("inf")
