"""The HTTP server of the embedded sandbox: Sandbox Fusion's /run_code and /v1/ping, and /v1/info of our own.

What it covers: Python programs, one run per request, files in and out, isolation by the kernel. What it does not: other
languages, Jupyter cells, data sets. When all slots are busy requests queue; a full queue answers 503 with Retry-After.
"""

import asyncio
import base64
import binascii
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web

from local_servers.admission import admission, check_exposure, http_logger, stop_signal
from local_servers.memory import OutOfMemory, as_out_of_memory, limit_own_memory_until, require_memory
from local_servers.sandbox.job_files import safe_parts
from local_servers.sandbox.rootfs import is_below
from local_servers.sandbox.worker_link import Job, Outcome, Unplaceable
from local_servers.sandbox.worker_pool import Busy, WorkerPool
from local_servers.server_errors import ServerError, SetupError

DEFAULT_TIMEOUT_S = 10.0
MAX_TIMEOUT_S = 3600.0
DEFAULT_MEMORY_MIB = 2048
MAX_MEMORY_MIB = 1 << 24
QUEUE_PER_SLOT: int = 32
MIN_QUEUE: int = 128
MAX_BODY_BYTES = 1 << 30
MAX_FILES = 10_000
MAX_NAME_BYTES = 1 << 20
"""Of all files' names together, those to fetch included."""
_RETRY_AFTER = {"Retry-After": "1"}  # seconds
# How often a body is in memory at a time: as bytes, text, decoded files, and twice as the message to the worker.
_BODY_COPIES = 5
Folders = Mapping[str, Path]  # by what they are called
_POOL = web.AppKey("pool", WorkerPool)
_CODE_BY_BODY_START = web.AppKey("code by body start", dict[bytes, str])
"""Programs that many requests bring, by the beginnings of such requests: to decode one takes longer than the rest."""


class BadRequest(ValueError):
    """A request that can never be run; the text says why."""


def _body(raw: bytes, code_by_start: dict[bytes, str]) -> Any:
    """What `raw` is as JSON. ValueError if it is none, RecursionError if it is nested too deeply."""
    for beginning, code in code_by_start.items():
        if raw.startswith(beginning):
            # Of two values under one name the last counts, here as to the parser.
            return {"code": code} | json.loads(b"{" + raw[len(beginning) :])
    return json.loads(raw)


def _number(body: dict[str, Any], name: str, default: float) -> float:
    value = body.get(name, default)
    # JSON's true is an int to Python, and NaN a number to its JSON parser. An int may be too large for a float.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -math.inf < value < math.inf:
        raise BadRequest(f"{name} must be a number")
    return float(max(-sys.float_info.max, min(value, sys.float_info.max)))


def _text(body: dict[str, Any], name: str) -> bytes:
    value = body.get(name) or ""
    if not isinstance(value, str):
        raise BadRequest(f"{name} must be a string")
    return value.encode("utf-8", "surrogatepass")


def parse_job(body: Any) -> Job:
    """The job in the JSON body of /run_code: a program, its stdin, `files` to put into its folder (base64 by name), and
    the names of files to return. BadRequest if it is malformed or in another language than Python."""
    if not isinstance(body, dict) or not isinstance(body.get("code"), str):
        raise BadRequest("the body must be a JSON object with the string `code`")
    if body.get("language") != "python":
        raise BadRequest(f"language {body.get('language')!r} is not available here, only 'python'")
    timeout_s = _number(body, "run_timeout", DEFAULT_TIMEOUT_S)
    if not 0 < timeout_s <= MAX_TIMEOUT_S:
        raise BadRequest(f"run_timeout must be over 0 and at most {MAX_TIMEOUT_S:g} seconds")
    memory_mib = int(_number(body, "memory_limit_MB", -1))
    if memory_mib > MAX_MEMORY_MIB:
        raise BadRequest(f"memory_limit_MB must be at most {MAX_MEMORY_MIB} (MiB); 0 or less is {DEFAULT_MEMORY_MIB}")
    files, fetch = body.get("files") or {}, body.get("fetch_files") or []
    if not isinstance(files, dict) or not isinstance(fetch, list) or not all(isinstance(f, str) for f in fetch):
        raise BadRequest("files must be an object and fetch_files a list of strings")
    if len(files) + len(fetch) > MAX_FILES or sum(map(len, [*files, *fetch])) > MAX_NAME_BYTES:
        raise BadRequest(f"at most {MAX_FILES} files, with names of {MAX_NAME_BYTES} characters together")
    contents = {}
    for name, content in files.items():
        if content is None:  # Sandbox Fusion allows null, for no file
            continue
        try:
            safe_parts(name, "/tmp")
            contents[name] = base64.b64decode(content, validate=True)
        except (ValueError, TypeError, binascii.Error) as error:
            raise BadRequest(f"file {name!r}: {error}") from error
    return Job(
        code=_text(body, "code"),
        stdin=_text(body, "stdin"),
        files=contents,
        fetch=list(dict.fromkeys(fetch)),
        timeout_s=timeout_s,
        memory_mib=memory_mib if memory_mib > 0 else DEFAULT_MEMORY_MIB,
    )


def _reply(status: str, message: str = "", outcome: Outcome | None = None, http_status: int = 200) -> web.Response:
    run_result, files = None, {}
    if outcome is not None:
        run_result = {
            "status": "TimeLimitExceeded" if outcome.return_code is None else "Finished",
            "execution_time": outcome.execution_time,
            "return_code": outcome.return_code,
            "stdout": outcome.stdout.decode("utf-8", "replace"),
            "stderr": outcome.stderr.decode("utf-8", "replace"),
        }
        files = {name: base64.b64encode(content).decode() for name, content in outcome.files.items()}
    answer = {"status": status, "message": message, "compile_result": None, "run_result": run_result}
    return web.json_response(answer | {"executor_pod_name": None, "files": files}, status=http_status)


async def run_code(request: web.Request) -> web.Response:
    """POST /run_code: runs a program in a free slot and answers as Sandbox Fusion does. The program's own failure is
    an answer with status Failed; SandboxError means that it was not run."""
    try:
        # Before the body is read: a large one would have taken the memory by the time that it could be refused.
        require_memory(_BODY_COPIES * (request.content_length or 0), "the request")
        job = parse_job(_body(await request.read(), request.app[_CODE_BY_BODY_START]))
    # RecursionError: JSON that is nested too deeply; RequestPayloadError: the body is no HTTP
    except (ValueError, RecursionError, web.RequestPayloadError) as error:
        return _reply("SandboxError", str(error), http_status=400)
    except (OutOfMemory, MemoryError) as error:
        return _come_back(as_out_of_memory(error))
    try:
        outcome = await request.app[_POOL].run(job)
    except Unplaceable as error:
        return _reply("SandboxError", str(error), http_status=400)
    except Busy as error:
        return _come_back(error)
    except ServerError as error:
        # With 200, as Sandbox Fusion answers: its clients read the status and try again.
        return _reply("SandboxError", str(error))
    return _reply("Success" if outcome.return_code == 0 else "Failed", outcome=outcome)


def _come_back(why: object) -> web.Response:
    """Too much at a time: a client that waits is served."""
    return web.json_response({"detail": str(why)}, status=503, headers=_RETRY_AFTER)


async def ping(_: web.Request) -> web.Response:
    return web.json_response("pong")


async def info(request: web.Request) -> web.Response:
    return web.json_response(request.app[_POOL].info())


def _check_hidden(hidden: Folders, readable: list[str]) -> None:
    """SetupError where what a submission may read holds one of the `hidden` folders, or the working directory."""
    for name, folder in {"the working directory": Path.cwd(), **hidden}.items():
        for path in readable:
            if is_below(str(folder.resolve()), path):
                raise SetupError(
                    f"{name} ({folder}) lies below {path}, which programs in the sandbox may read, as Python needs it: "
                    "a pool or run there would show them the expected outputs. Use a folder outside of it"
                )


def serve(
    port: int,
    host: str = "127.0.0.1",
    concurrency: int | None = None,
    allow_unisolated: bool = False,
    *,
    key: str | None = None,
    prepared: Sequence[str] = (),
    hidden: Folders | None = None,
) -> None:
    """Run the sandbox server until SIGTERM or SIGINT; must be called in the main thread.

    `port` 0 takes any; `concurrency` is the number of programs run at once (default: one more than the cores this
    process may use, so that no core is free while the kernel takes a run's namespaces down). `key` is the one that
    callers need (None: none). `prepared` are the texts of trusted programs that many requests will run: what one
    defines is loaded once, a run calls its `main`. `hidden` are folders, by what they are called, that programs must
    not be able to read. Prints `ready http://HOST:PORT` as its only line on stdout. However the server ends, SIGKILL
    included, its processes end with it.

    SetupError where no isolation is possible and `allow_unisolated` is not set; without a key where that is set or
    `host` is not loopback; and where programs could read the working directory or a `hidden` folder."""
    check_exposure(host, key)
    if allow_unisolated and key is None:
        raise SetupError(
            "--allow-unisolated lets whoever reaches the port run programs as you: add --key FILE, so that only those "
            "who have the key are answered"
        )
    slots = concurrency or len(os.sched_getaffinity(0)) + 1

    async def serve_until_stopped() -> None:
        stopping = stop_signal()
        pool = WorkerPool(slots, max(MIN_QUEUE, QUEUE_PER_SLOT * slots), allow_unisolated, prepared)
        try:
            readable_paths = await pool.start()
            _check_hidden(hidden or {}, readable_paths)
            admit = admission(key, host, open_paths=("/v1/ping",))
            app = web.Application(middlewares=[admit], client_max_size=MAX_BODY_BYTES)
            app[_POOL] = pool
            # How the body of a request with a prepared program begins: its code then need not be decoded again.
            app[_CODE_BY_BODY_START] = {b'{"code": ' + json.dumps(code).encode() + b", ": code for code in prepared}
            app.add_routes([web.post("/run_code", run_code), web.get("/v1/ping", ping), web.get("/v1/info", info)])
            # A client that hangs up frees its slot.
            runner = web.AppRunner(
                app, handler_cancellation=True, access_log=None, logger=http_logger, shutdown_timeout=0.1
            )
            await runner.setup()
            try:
                await web.TCPSite(runner, host, port, backlog=1024).start()
                print("ready http://{}:{}".format(*runner.addresses[0]), flush=True)
                await limit_own_memory_until(stopping)
            finally:
                await runner.cleanup()
        finally:
            # Last: a request that is still being answered uses a worker.
            pool.stop()

    asyncio.run(serve_until_stopped())
