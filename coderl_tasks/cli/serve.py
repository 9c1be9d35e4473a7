"""`coderl serve`: an embedded server until it is stopped. Each imports only what it needs itself."""

from argparse import Namespace

from coderl_tasks.embedded.memory import importing
from coderl_tasks.embedded.server_keys import read_key
from coderl_tasks.paths import GRADING_DRIVER, NANO_MODEL


def serve(options: Namespace) -> int:
    key = None if options.key is None else read_key(options.key)
    if options.server == "tinker":
        with importing():
            from coderl_tasks.embedded.tinker.tinker_server import (
                serve as serve_tinker,  # needs PyTorch, which may be missing
            )

        models = options.model or [NANO_MODEL]
        serve_tinker(options.port, options.host, models, key=key, device=options.device, dtype=options.dtype)
    else:
        from coderl_tasks.embedded.sandbox.sandbox_server import serve as serve_sandbox

        serve_sandbox(
            options.port,
            options.host,
            options.concurrency,
            options.allow_unisolated,
            key=key,
            prepared=GRADING_DRIVER.read_text(),
        )
    return 0
