"""`coderl doctor`: what a run needs, checked one by one: a line says what was found, or what to do."""

import asyncio
import importlib.metadata
import importlib.util
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from coderl_tasks.errors import CoderlError
from coderl_tasks.journal.run_directory import DEFAULT_ROOT
from coderl_tasks.local.supervisor import answers
from coderl_tasks.orchestration import DEFAULT_PORT, configured_api_url, found_api_url, wants_embedded
from coderl_tasks.paths import NANO_MODEL, coderl_home, local_model_folder
from coderl_tasks.services import (
    DEFAULT_SANDBOX_URL,
    configured_sandboxes,
    load_environment,
    tinker_credentials,
    uses_tinker_service,
)

GIB = 2**30
LOW_DISK_GIB = 5
DEADLINE_S = 20.0
LOCAL_PACKAGES = ("torch", "safetensors")
TESTED_SDK = (0, 38)
"""The newest release of the tinker SDK that the tests passed with."""

EMBEDDED_REASON = f"no PREFECT_API_URL set, nothing on port {DEFAULT_PORT}"


@dataclass(frozen=True)
class Finding:
    """One checked thing: whether it is as a run needs it, and the words for people."""

    name: str
    ok: bool
    detail: str


def report(model_name: str | None) -> int:
    """Print a line for every check; 1 if something needed is missing, else 0."""
    load_environment()
    findings = [check(model_name) for check in CHECKS]
    for finding in findings:
        print(f"{'ok     ' if finding.ok else 'MISSING'}  {finding.name:<10} {finding.detail}")
    return 0 if all(finding.ok for finding in findings) else 1


def check_python(_: str | None) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = (3, 11) <= sys.version_info[:2] <= (3, 13)
    return Finding("python", supported, version if supported else f"{version}: install Python 3.11 to 3.13")


def check_sdk(_: str | None) -> Finding:
    version = importlib.metadata.version("tinker")
    major, minor, *_rest = (int(number) for number in re.findall(r"\d+", f"{version}.0"))
    tested = ".".join(map(str, TESTED_SDK))
    if (major, minor) <= TESTED_SDK:
        return Finding("sdk", True, f"tinker {version}")
    advice = f"if requests are refused, pip install 'tinker=={tested}.*'"
    return Finding("sdk", True, f"tinker {version}, newer than the tested {tested}: {advice}")


def check_key(_: str | None) -> Finding:
    if not uses_tinker_service():
        return Finding("key", True, "TINKER_API_KEY not set: the embedded Tinker server is used")
    try:
        tinker_credentials()
    except CoderlError as error:
        return Finding("key", False, str(error))
    return Finding("key", True, "TINKER_API_KEY is set")


def check_tinker(model_name: str | None) -> Finding:
    if uses_tinker_service():
        return _check_tinker_service(model_name)
    name = model_name or NANO_MODEL
    missing = [package for package in LOCAL_PACKAGES if importlib.util.find_spec(package) is None]
    if missing:
        return Finding(
            "tinker", False, f"{', '.join(missing)} not installed: pip install 'coderl[local]', or set a key"
        )
    if local_model_folder(name) is None:
        return Finding("tinker", False, f"{name} is not a local model folder: set TINKER_API_KEY, or take {NANO_MODEL}")
    return Finding("tinker", True, f"embedded, serving {local_model_folder(name)}")


def _check_tinker_service(model_name: str | None) -> Finding:
    from coderl_tasks.policy.clients import supported_models

    try:
        url, key = tinker_credentials()
        # The SDK itself waits for ever on a service that does not answer.
        models = asyncio.run(asyncio.wait_for(supported_models(url, key), DEADLINE_S))
    except CoderlError as error:
        return Finding("tinker", False, str(error))
    except TimeoutError:
        where = url or "the Tinker service"
        return Finding("tinker", False, f"no answer from {where} in {DEADLINE_S:g} s: check TINKER_BASE_URL, network")
    if model_name is not None and model_name not in models:
        return Finding("tinker", False, f"no model {model_name!r}; there are: {', '.join(sorted(models))}")
    return Finding("tinker", True, f"the service answers, {len(models)} models")


def check_sandbox(_: str | None) -> Finding:
    try:
        urls = configured_sandboxes()
    except CoderlError as error:
        return Finding("sandbox", False, str(error))
    if not urls:
        return Finding("sandbox", True, f"embedded (SANDBOX_URL not set, nothing at {DEFAULT_SANDBOX_URL})")
    silent = [url for url in urls if not answers(f"{url}/v1/ping", "pong")]
    if silent:
        return Finding("sandbox", False, f"no answer from {', '.join(silent)}: start it, or unset SANDBOX_URL")
    return Finding("sandbox", True, ", ".join(urls))


def check_isolation(_: str | None) -> Finding:
    from coderl_tasks.local.sandbox.interpreter import isolation_level

    try:
        level, reason = isolation_level()
    except CoderlError as error:
        level, reason = None, str(error)
    if level is not None:
        return Finding("isolation", True, f"{level} ({reason})" if reason else level)
    if _has_configured_sandbox():
        return Finding("isolation", True, f"none here, and none needed without the embedded sandbox ({reason})")
    return Finding("isolation", False, f"{reason}; or set SANDBOX_URL to use another sandbox")


def _has_configured_sandbox() -> bool:
    try:
        return bool(configured_sandboxes())
    except CoderlError:  # named, if badly: the sandbox's own check says so
        return True


def check_prefect(_: str | None) -> Finding:
    url = configured_api_url()
    if url is None:
        why = "PREFECT_API_URL is empty" if wants_embedded() else EMBEDDED_REASON
        return Finding("prefect", True, found_api_url() or f"embedded ({why})")
    fault = asyncio.run(_prefect_fault())
    if fault is None:
        return Finding("prefect", True, url)
    words = " ".join(str(fault).split()) or type(fault).__name__
    return Finding("prefect", False, f"{url}: {words}: start it, log in, or set PREFECT_API_URL= for an embedded one")


async def _prefect_fault() -> Exception | None:
    """Why the configured server does not answer; asked by its own client, which has Prefect Cloud's credentials."""
    from prefect import get_client

    try:
        async with asyncio.timeout(DEADLINE_S), get_client() as client:
            return await client.api_healthcheck()
    except (TimeoutError, RuntimeError) as error:
        return error


def check_disk(_: str | None) -> Finding:
    free = {
        folder: shutil.disk_usage(_existing(folder)).free / GIB
        for folder in (Path(DEFAULT_ROOT).expanduser(), coderl_home())
    }
    words = ", ".join(f"{gib:.0f} GiB free at {folder}" for folder, gib in free.items())
    if min(free.values()) < LOW_DISK_GIB:
        return Finding("disk", False, f"{words}: make {LOW_DISK_GIB} GiB free, or set CODERL_HOME and log_path")
    return Finding("disk", True, words)


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.exists())


CHECKS: tuple[Callable[[str | None], Finding], ...] = (
    check_python,
    check_sdk,
    check_key,
    check_tinker,
    check_sandbox,
    check_isolation,
    check_prefect,
    check_disk,
)
