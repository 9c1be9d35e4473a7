"""What the embedded sandbox costs: trivial programs a second through /run_code, beside bare ways to run them.

    python benchmarks/sandbox_throughput.py [programs=400] [concurrency=4] [queued=0]

Rows: a fork of a warm Python with no isolation at all, a cold `python -I -S`, a cold Python that imports numpy,
and the server with one client and with several; with `queued` (10000, say) also with as many in flight as a run sends,
one after the other until so many are answered. The bare rows run one after the other on one core: multiply by the
cores to compare rates.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

from coderl_tasks.services import DEFAULT_SANDBOX_CONCURRENCY

PROGRAM = "print(sum(map(int, '1 2 3'.split())))"
NUMPY_PROGRAM = "import numpy\nprint(numpy.arange(4).sum())"
SERVER = "from local_servers.sandbox.sandbox_server import serve; serve(0)"


def bare_fork() -> None:
    """Fork this interpreter, execute the program with its output in a pipe, wait."""
    read_end, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write_end, 1)
        exec(compile(PROGRAM, "program", "exec"), {"__name__": "__main__"})
        sys.stdout.flush()
        os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:  # noqa: PTH123 - a descriptor
        pipe.read()
    os.waitpid(pid, 0)


def cold(*command: str) -> None:
    subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)


def time_bare(run: Callable[[], None], count: int) -> list[float]:
    """Seconds of each of `count` runs."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return seconds


async def time_requests(send: Callable[[], Awaitable[None]], count: int, concurrency: int) -> tuple[list[float], float]:
    """(seconds of each of `count` requests, seconds for all of them) with `concurrency` in flight."""
    seconds: list[float] = []
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            started = time.perf_counter()
            await send()
            seconds.append(time.perf_counter() - started)

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(concurrency)))
    return seconds, time.perf_counter() - started


def row(name: str, seconds: list[float], total: float) -> None:
    ordered = sorted(seconds)
    percentile_99 = ordered[int(0.99 * (len(ordered) - 1))]
    print(
        f"{name:<42} {len(seconds) / total:9.1f} /s {1e3 * statistics.median(seconds):9.2f} ms "
        f"{1e3 * percentile_99:9.2f} ms"
    )


def family(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        # Of each thread those that it started.
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for thread in threads for child in (thread / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(member for child in children for member in family(int(child)))]


def resident_mib(pids: list[int]) -> float:
    """Memory of these processes together, shared pages counted once, in MiB."""
    total = 0
    for pid in pids:
        # The last run's processes may just be ending.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
    return total / 1024


async def through_the_server(url: str, count: int, concurrency: int, queued: int) -> None:
    async with aiohttp.ClientSession() as session:

        async def send(code: str) -> None:
            async with session.post(f"{url}/run_code", json={"code": code, "language": "python"}) as answer:
                body = await answer.json()
                if body["status"] != "Success":
                    raise RuntimeError(json.dumps(body))

        async with session.get(f"{url}/v1/info") as answer:
            info = await answer.json()
        for name, code in (("", PROGRAM), (", numpy", NUMPY_PROGRAM)):
            await time_requests(lambda code=code: send(code), 2 * info["concurrency"], info["concurrency"])  # type: ignore[misc]
            for clients in (1, concurrency):
                seconds, total = await time_requests(lambda code=code: send(code), count, clients)  # type: ignore[misc]
                row(f"sandbox ({info['isolation']}), {clients} in flight{name}", seconds, total)
        if queued:
            seconds, total = await time_requests(lambda: send(PROGRAM), queued, DEFAULT_SANDBOX_CONCURRENCY)
            row(f"{queued:,} queued, {DEFAULT_SANDBOX_CONCURRENCY} in flight", seconds, total)


def main(count: int, concurrency: int, queued: int) -> None:
    started = time.perf_counter()
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        url = server.stdout.readline().split()[1]
        print(f"cold start {time.perf_counter() - started:.2f} s, {len(os.sched_getaffinity(0))} cores, {url}")
        print(f"{'':<42} {'rate':>12} {'median':>12} {'99%':>12}")
        for name, run, runs in (
            ("bare fork + exec of the code, no isolation", bare_fork, count),
            ("cold python -I -S", lambda: cold("-I", "-S", "-c", PROGRAM), count // 10),
            ("cold python with numpy", lambda: cold("-c", NUMPY_PROGRAM), count // 20),
        ):
            seconds = time_bare(run, runs)
            row(name, seconds, sum(seconds))
        asyncio.run(through_the_server(url, count, concurrency, queued))
        idle = resident_mib(family(server.pid))
        print(f"memory of the idle server and all its processes: {idle:.0f} MiB")
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    options = dict(argument.split("=", 1) for argument in sys.argv[1:])
    main(int(options.get("programs", 400)), int(options.get("concurrency", 4)), int(options.get("queued", 0)))
