"""`coderl doctor`: what a run needs, one line per check: what was found, or what to do."""

import asyncio
import importlib.metadata
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from coderl_tasks.disk import GIB, MB, needed_by_states
from coderl_tasks.errors import CoderlError, ConfigError
from coderl_tasks.gguf_models import models_folder
from coderl_tasks.insight.record import tree_bytes
from coderl_tasks.journal.atomic import free_bytes
from coderl_tasks.journal.checkpoints import expiring_states, get_last_checkpoint
from coderl_tasks.journal.directory_lock import LEASE_S, DirectoryLock
from coderl_tasks.journal.recorded_json import CONFIG_FILE, recorded_config
from coderl_tasks.journal.run_directory import DEFAULT_ROOT
from coderl_tasks.paths import NANO_MODEL, SMOLLM2_MODEL, coderl_home, is_open_to_others, same_model, tinker_store
from coderl_tasks.runtime import prefect_server
from coderl_tasks.server_addresses import without_credentials
from coderl_tasks.services import (
    configured_sandboxes,
    embedded_sandbox,
    embedded_tinker,
    load_environment,
    require_local_model,
    tinker_credentials,
    uses_tinker_service,
    why_no_sandbox,
)
from coderl_tasks.services.supervisor import answers
from coderl_tasks.settings import TrainSettings
from coderl_tasks.settings.flow_settings import PresetName
from local_servers.interface import ServerError, checkpoints, isolation_level

if TYPE_CHECKING:  # the SDK takes seconds to import
    from tinker.types import SupportedModel

    from coderl_tasks.policy.probe import Probe

LOW_DISK_GIB, SHOWN_STATES = 5, 5
DEADLINE_S, PROBE_DEADLINE_S = 20.0, 600.0
TESTED_SDK = (0, 38)
"""The newest release of the tinker SDK that the tests passed with."""


@dataclass(frozen=True)
class Finding:
    """Whether a thing is as a run needs it, the words for people, and lines to print below them."""

    name: str
    ok: bool
    detail: str
    listing: tuple[str, ...] = ()


def doctor(options: Namespace) -> int:
    if not options.temperature > 0:
        raise ConfigError(f"--temperature {options.temperature:g} must be more than 0")
    if options.setting is not None:
        key, _, options.model = options.setting.partition("=")
        if key != "model_name" or not options.model:
            raise ConfigError(f"{options.setting}: doctor takes model_name=NAME alone")
    load_environment()
    findings = [check(options.model) for check in CHECKS]
    if options.probe:
        findings += probe_findings(options.model, options.temperature)
    for finding in findings:
        print(f"{'ok     ' if finding.ok else 'MISSING'}  {finding.name:<10} {finding.detail}")
        for line in finding.listing:
            print(f"{'':<19} {line}")
    return 0 if all(finding.ok for finding in findings) else 1


def check_python(_: str | None) -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    supported = (3, 11) <= sys.version_info[:2] <= (3, 14)
    return Finding("python", supported, version if supported else f"{version}: install Python 3.11 to 3.14")


def check_sdk(_: str | None) -> Finding:
    version = importlib.metadata.version("tinker")
    major, minor, *_rest = (int(number) for number in re.findall(r"\d+", f"{version}.0"))
    tested = ".".join(map(str, TESTED_SDK))
    newer = f", newer than the tested {tested}: if requests are refused, pip install 'tinker=={tested}.*'"
    return Finding("sdk", True, f"tinker {version}{newer if (major, minor) > TESTED_SDK else ''}")


def check_key(_: str | None) -> Finding:
    if not uses_tinker_service():
        return Finding("key", True, "TINKER_API_KEY not set: the embedded Tinker server is used")
    try:
        tinker_credentials()
    except CoderlError as error:
        return Finding("key", False, str(error))
    return Finding("key", True, "TINKER_API_KEY is set")


def check_tinker(model_name: str | None) -> Finding:
    """Whether the Tinker service offers the model (None: the one that a run takes if none is named). Without a key:
    whether the embedded server can be started with it, which needs its packages and a local model folder."""
    listing: tuple[str, ...] = ()  # empty if the service gives no list
    try:
        if not uses_tinker_service():
            needed = ("torch", "safetensors")
            if missing := [package for package in needed if importlib.util.find_spec(package) is None]:
                raise ConfigError(f"{', '.join(missing)} not installed: pip install 'coderl[local]', or set a key")
            folder = require_local_model(model_name or NANO_MODEL)
            later = "" if folder.is_dir() else ", made of a GGUF file when it is first used"
            return Finding("tinker", True, f"embedded, serving {folder}{later}")
        from coderl_tasks.planning.early_checks import choose_model  # with the SDK: seconds to import
        from coderl_tasks.policy.clients import not_offered, supported_models

        url, key = tinker_credentials()
        offered = asyncio.run(supported_models(url, key, patience_s=DEADLINE_S))
        listing = _model_lines(offered)
        if model_name in offered:
            return Finding("tinker", True, f"the service offers {model_name}", listing)
        if model_name is not None:
            return Finding("tinker", False, f"the model is {not_offered(model_name, offered)}", listing)
        chosen, reason = choose_model(offered)
    except CoderlError as error:
        return Finding("tinker", False, str(error), listing)
    return Finding("tinker", True, f"{chosen} is taken where no model is named ({reason})", listing)


def _model_lines(offered: "Mapping[str, SupportedModel]") -> tuple[str, ...]:
    from coderl_tasks.prompts.tokenizer import recommended_renderer

    rows = [("offered", "renderer", "context")]
    for name, model in sorted(offered.items()):
        try:
            renderer = recommended_renderer(name)
        except CoderlError as error:
            renderer = str(error)
        context = f"{model.max_context_length:,} tokens" if model.max_context_length else "not stated"
        rows.append((name, renderer, context if model.trainable is not False else f"{context}, not trainable"))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    return tuple(f"{name:<{widths[0]}}  {renderer:<{widths[1]}}  {context}" for name, renderer, context in rows)


def check_sandbox(_: str | None) -> Finding:
    try:
        urls = configured_sandboxes()
    except CoderlError as error:
        return Finding("sandbox", False, str(error))
    if not urls:
        return Finding("sandbox", True, f"embedded ({why_no_sandbox()})")
    if silent := [without_credentials(url) for url in urls if not answers(f"{url}/v1/ping", "pong")]:
        return Finding("sandbox", False, f"no answer from {', '.join(silent)}: start it, or unset SANDBOX_URL")
    return Finding("sandbox", True, ", ".join(map(without_credentials, urls)))


def check_programs(_: str | None) -> Finding:
    from coderl_tasks.grading.trial import try_programs

    try:
        with ExitStack() as stack:
            urls = configured_sandboxes() or (stack.enter_context(embedded_sandbox()).address,)
            trials = asyncio.run(try_programs(urls))
    except CoderlError as error:
        return Finding("programs", False, f"not tried: {error}")
    return Finding("programs", not any(trial.fault for trial in trials), "; ".join(map(str, trials)))


def check_isolation(_: str | None) -> Finding:
    try:
        level, reason = isolation_level()
    except ServerError as error:
        level, reason = None, str(error)
    if level is not None:
        return Finding("isolation", True, f"{level} ({reason})" if reason else level)
    with suppress(CoderlError):  # a sandbox that is named badly: its own check says so
        if not configured_sandboxes():
            return Finding("isolation", False, f"{reason}; or set SANDBOX_URL to use another sandbox")
    return Finding("isolation", True, f"none here, and none needed without the embedded sandbox ({reason})")


def check_prefect(_: str | None) -> Finding:
    url = prefect_server.configured_api_url()
    if url is None:
        nothing = f"no PREFECT_API_URL set, nothing on port {prefect_server.DEFAULT_PORT}"
        empty = "PREFECT_API_URL is empty" if prefect_server.wants_embedded() else None
        why = empty or prefect_server.notice_of_unusable_server() or nothing
        return Finding("prefect", True, prefect_server.found_api_url() or f"embedded ({why})")
    with prefect_server.used(url):
        fault = asyncio.run(_prefect_fault())
    if fault is None:
        return Finding("prefect", True, url)
    words = " ".join(str(fault).split()) or type(fault).__name__
    return Finding("prefect", False, f"{url}: {words}: start it, log in, or set PREFECT_API_URL= for an embedded one")


async def _prefect_fault() -> Exception | None:
    """Why the configured server does not answer; asked by its own client, which has Prefect Cloud's credentials."""
    from httpx import HTTPStatusError
    from prefect import get_client

    try:
        async with asyncio.timeout(DEADLINE_S), get_client() as client:
            fault = await client.api_healthcheck()
            if fault is None:  # which asks for no credentials
                await client.read_flows(limit=1)
            return fault
    except (TimeoutError, RuntimeError, HTTPStatusError) as error:
        return error


def check_checkpoints(_: str | None) -> Finding:
    """Lists the runs whose last steps are saved only in Tinker states that expire, with the dates that the Tinker
    service or the embedded server's store has. Never a failure, as a resume can repeat the steps."""
    newest: dict[str, tuple[str, int]] = {}  # by the state's path: the run's name, the step
    for run in sorted(file.parent for file in Path(DEFAULT_ROOT).expanduser().glob(f"*/{CONFIG_FILE}")):
        try:
            states = expiring_states(run, recorded_config(run) or {})[:1]  # only the newest matters to a resume
            last = get_last_checkpoint(run)
        except CoderlError:
            continue  # `coderl runs` says what is wrong with it
        # A run's checkpoint does not expire: only the states of steps after it can.
        newest |= {state.path: (run.name, state.step) for state in states if last is None or state.step > last["step"]}
    try:
        expiries: dict[str, datetime] = {}
        if newest and uses_tinker_service():
            expiries = asyncio.run(asyncio.wait_for(_service_expiries(), DEADLINE_S))
        elif newest:
            dates = ((saved.path, saved.expires_at) for saved in checkpoints(tinker_store()))
            expiries = {path: datetime.fromtimestamp(date, UTC) for path, date in dates if date is not None}
    except (CoderlError, TimeoutError) as error:
        # Not a failure here: the service has a check of its own, which reports it.
        return Finding("weights", True, f"dates not known: {error or 'no answer'}")
    # A state without a date is gone already, or does not expire.
    dated = sorted((expiries[path], path) for path in newest if path in expiries)
    if not dated:
        return Finding("weights", True, "no run depends on a state that expires")
    lines = []
    for expires, path in dated[:SHOWN_STATES]:
        name, step = newest[path]
        keeps = f"; tinker checkpoint set-ttl {path} --remove keeps it" if uses_tinker_service() else ""
        exports = f"coderl export {shlex.quote(name)} --step {step} --out DIR takes it away"
        lines.append(f"{name}, step {step}: expires {expires:%Y-%m-%d %H:%M} UTC; {exports}{keeps}")
    summary = f"the last steps of {len(dated)} runs are in states that expire"
    return Finding("weights", True, f"{summary}; a later resume repeats them from its records", tuple(lines))


async def _service_expiries() -> dict[str, datetime]:
    from coderl_tasks.policy.clients import require_answer, rest_client, tinker_errors

    url, key = tinker_credentials()
    await require_answer(url, patience_s=DEADLINE_S)
    with tinker_errors("listing the checkpoints"):
        listed = (await (await rest_client(url, key)).list_user_checkpoints(limit=1000)).checkpoints
    return {one.tinker_path: one.expires_at for one in listed if one.expires_at is not None}


def check_disk(model_name: str | None) -> Finding:
    folders = (Path(DEFAULT_ROOT).expanduser(), coderl_home())
    free = {folder: free_bytes(folder) / GIB for folder in folders}
    words = ", ".join(f"{gib:.0f} GiB free at {folder}" for folder, gib in free.items())
    model_name = model_name or NANO_MODEL
    of_presets: dict[str, PresetName] = {NANO_MODEL: "nano", SMOLLM2_MODEL: "smollm2"}
    preset = next((preset for model, preset in of_presets.items() if same_model(model_name, model)), None)
    settings = TrainSettings(preset=preset, model_name=model_name)
    needed = None if uses_tinker_service() else needed_by_states(settings)
    listing: tuple[str, ...] = () if needed is None else (f"states, with the embedded Tinker server: {needed[1]}",)
    if (made := models_folder()).is_dir():
        size = f"{tree_bytes(made) / MB:,.0f} MB"
        listing += (f"models made of GGUF files: {size} in {made} (coderl clean --models removes them)",)
    if min(free.values()) < LOW_DISK_GIB:
        words += f": make {LOW_DISK_GIB} GiB free, or set CODERL_HOME and log_path"
        return Finding("disk", False, words, listing)
    advice = "other users of this machine can read {0}: chmod 700 {0}, unless that is meant"
    return Finding("disk", True, words, (*listing, *map(advice.format, filter(is_open_to_others, folders))))


def check_compiler(_: str | None) -> Finding:
    """Whether checkers in C++ can be compiled. Few data sets have any, so that nothing is missing without."""
    from coderl_tasks.grading.judge_programs import cpp_compiler

    command = cpp_compiler()
    without = f"{command} is not there: problems with a checker in C++ cannot be graded (install g++, or set CXX)"
    return Finding("compiler", True, shutil.which(command) or without)


def check_locks(_: str | None) -> Finding:
    """Whether a run's lock keeps another process out, on the file system of the runs."""
    root = Path(DEFAULT_ROOT).expanduser()
    there = next(folder for folder in (root, *root.parents) if folder.is_dir())
    code = "import sys; from pathlib import Path; from coderl_tasks.journal.directory_lock import held_by; "
    code += "print(held_by(Path(sys.argv[1])))"
    try:
        with TemporaryDirectory(prefix=".coderl-doctor-", dir=there) as folder, DirectoryLock(Path(folder)):
            asked = subprocess.run([sys.executable, "-c", code, folder], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return Finding("locks", False, f"no lock can be tried in {there} ({error}): set log_path to another place")
    if asked.stdout.strip() == "None":
        return Finding("locks", False, f"a lock in {there} is not seen by others: set log_path to another file system")
    return Finding("locks", True, f"runs in {there} are locked; a host that is gone holds one for {LEASE_S:.0f} s")


def probe_findings(model_name: str | None, temperature: float) -> list[Finding]:
    """Finds out by a few requests how the Tinker service (without a key: an embedded server started for this) samples
    and scores: a finding of success or fault, also of a service that fails or is late, then one per warning."""
    from coderl_tasks.planning.early_checks import choose_model
    from coderl_tasks.policy.clients import supported_models

    try:
        with ExitStack() as stack:  # stops the embedded server
            if uses_tinker_service():
                url, key = tinker_credentials()
                name = model_name or choose_model(asyncio.run(supported_models(url, key, patience_s=DEADLINE_S)))[0]
            else:
                name = model_name or NANO_MODEL
                server = stack.enter_context(embedded_tinker(name))
                url, key = server.url, server.key
            probe = asyncio.run(asyncio.wait_for(_probe_model(url, key, name, temperature), PROBE_DEADLINE_S))
    except CoderlError as error:
        return [Finding("probe", False, str(error))]
    except TimeoutError:
        late = f"no end after {PROBE_DEADLINE_S:g} s: try again, or ask the service's operator"
        return [Finding("probe", False, late)]
    fault = probe.fault()
    findings = [Finding("probe", fault is None, f"{probe.summary()}{f': {fault}' if fault else ''}")]
    return findings + [Finding("probe", True, f"warning: {warning}") for warning in probe.warnings()]


async def _probe_model(url: str | None, key: str, model_name: str, temperature: float) -> "Probe":
    from coderl_tasks.policy.clients import connect, create_training_client, disconnect, service_address, tinker_errors
    from coderl_tasks.policy.probe import probe_service
    from coderl_tasks.prompts.tokenizer import model_renderer

    renderer = await asyncio.to_thread(model_renderer, model_name)
    service = await connect(url, key)
    try:
        trainer = await create_training_client(service, model_name, lora_rank=8, seed=0)
        with tinker_errors("saving the sampler's weights"):
            sampler = await trainer.save_weights_and_get_sampling_client()
        address = service_address(url)
        return await probe_service(
            sampler, trainer, renderer, service=address, model=model_name, temperature=temperature
        )
    finally:
        await disconnect(service)


CHECKS: tuple[Callable[[str | None], Finding], ...] = (
    check_python, check_sdk, check_key, check_tinker, check_sandbox, check_isolation, check_programs, check_prefect,
    check_compiler, check_disk, check_locks, check_checkpoints,
)  # fmt: skip
