"""`coderl serve`, `up` and `view`: servers until they are stopped. Each imports only what it needs itself."""

import os
import signal
import threading
from argparse import Namespace

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.paths import (
    NANO_MODEL,
    coderl_home,
    local_model_folder,
    local_model_path,
    private_folder,
    tinker_store,
)
from local_servers.interface import ServerError, SetupError, read_key, serve_sandbox, serve_tinker

NICENESS = 10


def serve(options: Namespace) -> int:
    """`coderl serve`: runs an embedded Tinker or sandbox server in this process until it is stopped."""
    try:
        key = None if options.key is None else read_key(options.key)  # None: the server asks for no key
        if options.server == "tinker":
            names = options.model or [NANO_MODEL]
            for name in names:
                local_model_folder(name)  # converts a GGUF file now: a client's request may not start that
            serve_tinker(
                options.port,
                options.host,
                names,
                folder_of=local_model_path,
                root=private_folder(tinker_store()),
                key=key,
                device=options.device,
                dtype=options.dtype,
            )
        else:
            from coderl_tasks.sandbox_programs import PRELOADED

            hidden = {"CODERL_HOME": coderl_home()}  # programs must not read this folder
            isolation = options.concurrency, options.allow_unisolated
            serve_sandbox(options.port, options.host, *isolation, key=key, prepared=PRELOADED, hidden=hidden)
    except SetupError as error:  # a mistake in the options, or a machine that cannot isolate
        raise ConfigError(str(error)) from error
    except ServerError as error:
        raise InfraError(str(error)) from error
    return 0


def view(options: Namespace) -> int:
    """Shows runs and pools in the browser until it is stopped."""
    from coderl_tasks.journal.run_names import record_path  # a second of imports, which no server of ours needs

    records = [record_path(record) for record in options.records]
    from coderl_tasks.view.library import Library  # which takes seconds to import
    from coderl_tasks.view.view_server import first_page, prepare

    library = Library(records)
    address, serve = prepare(library, _view_key(), options.port, first_page(library, records))
    print(address, flush=True)
    os.nice(NICENESS)  # the run that somebody looks at comes first
    serve()
    return 0


def _view_key() -> str:
    """The key of this user's viewers, made at the first start: addresses that were shared stay good."""
    try:
        return read_key(str(private_folder(coderl_home()) / "view.key"))
    except SetupError as error:
        raise ConfigError(str(error)) from error


def up(options: Namespace) -> int:
    """Runs a Prefect server (unless one runs), a worker for flows and the viewer until interrupted. With `--jobs FILE`
    (a job template) only deploys to a Kubernetes work pool. Returns the worker's exit code, or 0."""
    from coderl_tasks.runtime import prefect_server
    from coderl_tasks.services import load_environment
    from coderl_tasks.view.library import Library
    from coderl_tasks.view.view_server import prepare

    load_environment()  # before Prefect is imported, which reads its settings then
    from coderl_tasks.runtime.worker import JOBS_POOL, deploy_all, deploy_jobs, run_worker, runs_at_once

    if options.jobs is not None:
        if (api_url := prefect_server.configured_api_url()) is None:
            raise ConfigError("--jobs needs a Prefect server that the cluster reaches: set PREFECT_API_URL")
        with prefect_server.used(api_url), prefect_server.faults_explained(api_url):
            deploy_jobs(options.jobs)
        print(f"work pool {JOBS_POOL} and its deployments are at {api_url}", flush=True)
        return 0
    port: int | None = options.port
    # Without --port a Prefect server on the default port is used. If it cannot be, the notice says why.
    if port is None and (notice := prefect_server.notice_of_unusable_server()) is not None:
        print(notice, flush=True)
    with prefect_server.shared_prefect_server(port) as api_url:
        if prefect_server.is_open(api_url):
            print(
                f"warning: {api_url} asks for no secret: whoever reaches it, a web page in your browser too, can run "
                "commands as you while this worker serves it; stop it, and coderl up starts one that asks",
                flush=True,
            )
        print(f"Prefect UI: {prefect_server.ui_address(api_url)}", flush=True)
        address, serve = prepare(Library(), _view_key(), None, "/")
        threading.Thread(target=serve, name="view", daemon=True).start()
        print(f"runs and pools: {address}", flush=True)
        with prefect_server.faults_explained(api_url):
            deploy_all()
        print("deployments: curate, profile-shard, train, evaluate, pipeline, each /local", flush=True)
        print(f"in another terminal: {prefect_server.exports(api_url)}", flush=True)
        print("                     prefect deployment run curate/local --watch", flush=True)
        # Until here Ctrl-C ends the command at once. From here on it asks the worker to finish first.
        stop = threading.Event()
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signal_number, lambda *_: stop.set())
        code = run_worker(stop, options.limit or runs_at_once())
    return 0 if stop.is_set() else code
