"""Memory of the embedded servers: what is known before, what a limit does, and how it is called."""

import gc
import subprocess
import sys

import pytest

from local_servers.memory import OutOfMemory, as_out_of_memory, available_bytes, fast_imports, require_memory

LIMITED = """
from local_servers.memory import as_out_of_memory, available_bytes, limit_own_memory
free = available_bytes()
limit_own_memory()
try:
    bytearray(free + (1 << 30))
except MemoryError as error:
    print(as_out_of_memory(error))
print(open("/proc/self/oom_score_adj").read())
"""
WITHOUT_DESCRIPTORS = """
import asyncio, resource
from local_servers.memory import limit_own_memory_until

async def serve():
    stopping = asyncio.Event()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    asyncio.get_running_loop().call_soon(stopping.set)
    await limit_own_memory_until(stopping)

asyncio.run(serve())
"""


def test_what_is_too_much_is_refused_with_the_numbers() -> None:
    with pytest.raises(OutOfMemory, match=r"out of memory: a test needs 1048576\.0 GiB, and [0-9.]+ GiB are free"):
        require_memory(1 << 50, "a test")
    require_memory(available_bytes() // 2, "half of what is free")


def test_an_allocation_that_fails_has_a_name() -> None:
    import numpy as np
    import torch

    for allocate in (lambda: bytearray(1 << 60), lambda: np.empty(1 << 57), lambda: torch.empty(1 << 57)):
        with pytest.raises((MemoryError, RuntimeError)) as caught:
            allocate()
        assert "out of memory" in str(as_out_of_memory(caught.value)), caught.value
    assert as_out_of_memory(RuntimeError("something else")) is None


def test_a_server_cannot_take_more_than_was_free_and_is_ended_first() -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    named, score = done.stdout.split("\n")[:2]
    assert named.startswith("the embedded server is out of memory")
    assert int(score) >= 500


def test_a_server_without_free_file_descriptors_goes_on() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT_DESCRIPTORS], capture_output=True, text=True, check=True)
    assert "memory was not renewed: [Errno 24] Too many open files" in done.stderr


def test_an_accelerator_that_is_full_has_the_same_name() -> None:
    import torch

    # As its allocator words it; the class is the real one.
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.11 GiB of which 3.00 GiB is "
        "free. Process 1 has 76.00 GiB memory in use."
    )
    named = str(as_out_of_memory(error))
    assert "Tried to allocate 20.00 GiB. Ask for less" in named and "--dtype bfloat16" in named
    require_memory(1 << 50, "what is not the CPU's", "cuda")


def test_garbage_is_looked_for_again_after_an_import_that_failed() -> None:
    with pytest.raises(ImportError), fast_imports():
        assert not gc.isenabled()
        raise ImportError
    try:
        assert gc.isenabled()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
