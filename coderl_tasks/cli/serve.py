"""`coderl serve`: a local server until it is stopped. Each imports only what it needs itself."""

from argparse import Namespace

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.paths import (
    GRADING_DRIVER,
    NANO_MODEL,
    coderl_home,
    local_model_folder,
    private_folder,
    tinker_store,
)
from local_servers.interface import ServerError, SetupError, read_key, serve_sandbox, serve_tinker


def serve(options: Namespace) -> int:
    try:
        key = None if options.key is None else read_key(options.key)
        if options.server == "tinker":
            serve_tinker(
                options.port,
                options.host,
                options.model or [NANO_MODEL],
                folder_of=local_model_folder,
                root=private_folder(tinker_store()),
                key=key,
                device=options.device,
                dtype=options.dtype,
            )
        else:
            serve_sandbox(
                options.port,
                options.host,
                options.concurrency,
                options.allow_unisolated,
                key=key,
                prepared=GRADING_DRIVER.read_text(),
                hidden={"CODERL_HOME": coderl_home()},
            )
    except SetupError as error:
        raise ConfigError(str(error)) from error
    except ServerError as error:
        raise InfraError(str(error)) from error
    return 0
