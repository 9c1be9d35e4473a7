"""A test server that answers as a stock Sandbox Fusion server with isolation "none" does.

The code runs as a plain Python process of this user in a temporary directory. Its known trouble is kept: output is
only read after the process has ended, so about 190 KB of it becomes a time-out, and what is not UTF-8 is replaced by
a message. At a time-out only the process itself is killed. Run as a script it serves on --port, for clients of others.
"""

import argparse
import asyncio
import base64
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from aiohttp import web

PYTHON = web.AppKey("python", tuple[str, ...])
"""The command that runs programs; applications that borrow `run_code` may leave it out."""


async def run_code(request: web.Request) -> web.Response:
    body = await request.json()
    around = Path(tempfile.mkdtemp(prefix="stock-sandbox-"))  # goes whole, however the program renames its folder
    folder = around / "run"
    folder.mkdir()
    try:
        for path, data in body["files"].items():
            if data is not None:
                (folder / path).write_bytes(base64.b64decode(data))
        program = folder / "tmpcode.py"
        program.write_text(body["code"])
        run_result = await run([*request.app.get(PYTHON, (sys.executable,)), str(program)], folder, body)
        fetched = {}
        for path in body.get("fetch_files", []):
            target = (folder / path).resolve()
            if target.is_file():
                fetched[path] = base64.b64encode(target.read_bytes()).decode()
    finally:
        shutil.rmtree(around, ignore_errors=True)
    passed = run_result["status"] == "Finished" and run_result["return_code"] == 0
    answer = {
        "status": "Success" if passed else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": run_result,
        "executor_pod_name": None,
        "files": fetched,
    }
    return web.json_response(answer)


async def run(command: list[str], folder: Path, body: dict[str, Any]) -> dict[str, Any]:
    started = time.monotonic()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=folder, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdin.write((body.get("stdin") or "").encode())
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), body["run_timeout"])
    except TimeoutError:
        process.kill()
        return {"status": "TimeLimitExceeded", "execution_time": body["run_timeout"], "return_code": None}
    return {
        "status": "Finished",
        "execution_time": time.monotonic() - started,
        "return_code": process.returncode,
        "stdout": decoded(await process.stdout.read()),
        "stderr": decoded(await process.stderr.read()),
    }


def decoded(output: bytes) -> str:
    try:
        return output.decode()
    except UnicodeDecodeError as error:
        return f"[DecodeError] {error}"


async def ping(_: web.Request) -> web.Response:
    return web.Response(text="pong")


def stock_app(*options: str) -> web.Application:
    """The server as an application to be run with `aiohttp.web.AppRunner`; `options` are Python's."""
    app = web.Application(client_max_size=1 << 30)
    app[PYTHON] = (sys.executable, *options)
    app.router.add_post("/run_code", run_code)
    app.router.add_get("/v1/ping", ping)
    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    web.run_app(stock_app(), host="127.0.0.1", port=parser.parse_args().port)
