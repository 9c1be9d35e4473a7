"""What the judge and the driver say to each other: the request put together, the report taken apart.

Expected outputs are no part of it. The report was within the program's reach, so it is parsed strictly: anything but
a well-formed report of plausible size counts as none.
"""

import base64
import binascii
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coderl_tasks.grading.run_code import RunRequest, RunResult
from coderl_tasks.problems.problem import Kind

_DRIVER = Path(__file__).with_name("driver.py").read_text()
_MIB = 1 << 20
_STACK_AND_LIBRARIES_MB = 768  # address space that a test needs besides what it allocates
_DRIVER_MB = 256
_SLOW_IMPORTS = ("numpy", "scipy", "pandas", "sympy", "networkx", "sortedcontainers")
DRIVER_FAILED = "the driver failed"
_VERSION = re.compile(r"\d{1,3}(\.\d{1,3}){2}")
_ENDINGS = ("exit", "signal", "cpu", "wall", "output")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one test: CPU seconds, wall seconds (of sleeping), MiB of memory, bytes of output."""

    cpu_s: float
    wall_s: float
    memory_mb: int
    output_bytes: int


@dataclass(frozen=True, slots=True)
class TestRecord:
    """What the driver says of one test.

    `ended`: exit (`code` is the exit status), signal (`code` is its number), cpu, wall or output (the limit it broke).
    `answer` is the standard output, or for a call the JSON of {"value": ...}; `stderr` the end of the error output.
    """

    ended: str
    code: int
    cpu_s: float
    rss_kb: int
    answer: bytes
    stderr: str


@dataclass(frozen=True, slots=True)
class Report:
    """The records of the first tests of a request (at least one), or why the program does not compile.

    `python` is the version of the interpreter that ran it and `request_id` that of the request which it answers, each
    "" where the report has none.
    """

    records: tuple[TestRecord, ...]
    compile_error: str | None = None
    python: str = ""
    request_id: str = ""


def build_request(
    code: str,
    kind: Kind,
    entry_point: str,
    inputs: list[str],
    limits: Limits,
    run_timeout_s: float,
    stop: bool,
    request_id: str = "",
) -> RunRequest:
    """The request that runs a program on `inputs`, in order; with `stop`, up to the first that does not end well.

    The report names `request_id`, by which the answer to another request is told.
    """
    tests = {
        "id": request_id,
        "kind": kind,
        "entry_point": entry_point,
        "inputs": inputs,
        "preload": [name for name in _SLOW_IMPORTS if name in code],
        "cpu_limit_s": limits.cpu_s,
        "wall_limit_s": limits.wall_s,
        "run_timeout_s": run_timeout_s,
        "memory_bytes": (limits.memory_mb + _STACK_AND_LIBRARIES_MB) * _MIB,
        "output_limit": limits.output_bytes,
        "total_output_limit": 2 * limits.output_bytes,
        "stop_on_failure": stop,
    }
    return RunRequest(
        code=_DRIVER,
        files={"solution.py": code.encode("utf-8", "surrogatepass"), "tests.json": json.dumps(tests).encode()},
        fetch_files=("results.json",),
        run_timeout_s=run_timeout_s,
        memory_limit_mb=limits.memory_mb + _STACK_AND_LIBRARIES_MB + _DRIVER_MB,
    )


def parse_report(result: RunResult, n_inputs: int, limits: Limits) -> Report | None:
    """The driver's report on `n_inputs` tests, or None where it is missing or not one that the driver writes."""
    data = result.files.get("results.json")
    if data is None or len(data) > 8 * limits.output_bytes + _MIB:
        return None
    try:
        report = json.loads(data)
        python = str(report.get("python"))
        python = python if _VERSION.fullmatch(python) else ""
        request_id = str(report.get("id") or "")
        if isinstance(report.get("compile_error"), str):
            return Report((), report["compile_error"][:300], python, request_id)
        tests = report["tests"]
        if not isinstance(tests, list) or not 0 < len(tests) <= n_inputs:
            return None
        records = tuple(_parse_record(test, limits) for test in tests)
        return Report(records, None, python, request_id)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error):
        return None


def answered_request(result: RunResult) -> str:
    """The id of the request that an answer without a fitting report is to, as far as it says; else ""."""
    try:
        return str(json.loads(result.files["results.json"])["id"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _parse_record(test: dict[str, Any], limits: Limits) -> TestRecord:
    ended, code, cpu_s, rss_kb = test["ended"], test["code"], test["cpu_s"], test["rss_kb"]
    answer = base64.b64decode(test["answer"], validate=True)
    if ended not in _ENDINGS or type(code) is not int or type(rss_kb) is not int or len(answer) > limits.output_bytes:
        raise ValueError("not a record of the driver")
    if type(cpu_s) not in (int, float) or not math.isfinite(cpu_s) or not 0 <= cpu_s < 1e6:
        raise ValueError("not a record of the driver")
    stderr = base64.b64decode(test["stderr"], validate=True)[-1000:].decode("utf-8", "replace")
    return TestRecord(ended, code, float(cpu_s), rss_kb, answer, stderr)
