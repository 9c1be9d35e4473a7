"""The embedded Tinker server: the HTTP API that the `tinker` SDK speaks, on one machine, for local models.

What it does differently from the service:

1. Whoever is admitted (`admission`) may do everything, without a key of the server's own with any key of the
   right form (tml-...); nothing leaves the machine, telemetry is dropped.
2. Runs and checkpoints are kept on disk; sessions, live models, unnamed sampler weights and answers are not. What a
   restarted server does not know is answered 410.
3. LoRA with Adam and token inputs only; the losses are those of `LOSSES`. A custom loss runs at the client.
4. Of a request's optional extras it refuses, in words, what it does not offer; it never ignores one.
"""

import asyncio
import itertools
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from aiohttp.typedefs import Handler

from local_servers.admission import JSON_BODY, admission, check_exposure, http_logger, refused, stop_signal
from local_servers.memory import keep_freed_memory, limit_own_memory_until
from local_servers.server_errors import SetupError
from local_servers.server_keys import KEY_PREFIX
from local_servers.tinker import rest_routes, sampling_routes, service_routes, training_routes
from local_servers.tinker.checkpoint_store import CheckpointStore
from local_servers.tinker.engines import EnginePool
from local_servers.tinker.promises import PROTOBUF, status_and_text
from local_servers.tinker.refusal import Refusal
from local_servers.tinker.state import STATE, SamplerRegistry, ServerState

KEEP_ALIVE_S = 3600.0
"""Idle connections stay open longer than any client keeps them, so that none is closed under a request."""
MAX_BODY_BYTES = 512 * 2**20
HOUSEKEEPING_S = 60.0
SWEEP_EVERY = 10  # rounds of housekeeping from one sweep of the store to the next
_OPEN_PATHS = ("/api/v1/healthz", "/download/")  # a download's address holds a key of its own
_FREE_PATHS = (*_OPEN_PATHS, "/stats")
_KEY_FORMS = (KEY_PREFIX, "eyJ")
logger = logging.getLogger(__name__)


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every refusal is JSON whose `detail` says what is wrong."""
    try:
        return await handler(request)
    # In words: an SDK that is newer than this server asks for what it does not have.
    except web.HTTPNotFound:
        return refused(404, f"the embedded Tinker server does not offer {request.method} {request.path}")
    except web.HTTPException as error:
        return refused(error.status, error.reason)
    # The body is no HTTP, or the client has hung up in it, and nobody reads the answer.
    except (web.RequestPayloadError, ConnectionResetError) as error:
        return refused(400, " ".join(str(error).split()))
    except Exception as error:
        return refused(*status_and_text(error, f"{request.method} {request.path}"))


@web.middleware
async def key_of_right_form(request: web.Request, handler: Handler) -> web.StreamResponse:
    """A key has to be there and look like one, as the service demands; which one it is does not matter."""
    if not request.path.startswith(_FREE_PATHS):
        key = request.headers.get("X-API-Key")
        if key is None:
            raise Refusal(401, "the X-API-Key header is missing: set TINKER_API_KEY (any tml-... text will do here)")
        if not key.startswith(_KEY_FORMS):
            raise Refusal(401, "the API key does not start with tml-")
    return await handler(request)


async def _housekeeping(state: ServerState) -> None:
    for number in itertools.count():
        for session in state.sessions.silent():
            logger.warning("session %s was silent for too long and is ended", session.session_id)
            session.finished = {"type": "cancelled", "detail": "silent for too long"}
            # Its models and snapshots hold memory, and a client that was killed says no goodbye.
            state.end_session(session.session_id, "its client was silent for too long")
        if number % SWEEP_EVERY == 0:
            try:
                await asyncio.to_thread(state.store.sweep)
            except (OSError, Refusal) as error:  # a disk that fails now may be swept next time
                logger.warning("expired checkpoints were not removed: %s", error)
        await asyncio.sleep(HOUSEKEEPING_S)


@asynccontextmanager
async def running(
    port: int, host: str, engines: EnginePool, root: Path, *, key: str | None = None
) -> AsyncIterator[str]:
    """The server inside this event loop; yields its URL. Port 0 takes a free one; `root` holds runs and checkpoints;
    `key` is the one that callers need (None: any of the right form). Raises SetupError for a port in use, and for
    another host than loopback without a key."""
    check_exposure(host, key)
    store = CheckpointStore(root)
    state = ServerState(engines, store, SamplerRegistry(store))
    for served in engines.hosts.values():
        logger.info("%s runs on %s in %s", served.name, served.device, served.dtype)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise SetupError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    admit = admission(key, host, bodies=(JSON_BODY, PROTOBUF), open_paths=_OPEN_PATHS)
    app = web.Application(middlewares=[admit, errors_as_json, key_of_right_form], client_max_size=MAX_BODY_BYTES)
    app[STATE] = state
    for module in (service_routes, training_routes, sampling_routes, rest_routes):
        app.add_routes(module.routes)
    runner = web.AppRunner(
        app, access_log=None, logger=http_logger, keepalive_timeout=KEEP_ALIVE_S, shutdown_timeout=0.5
    )
    await runner.setup()
    # Many groups are asked for at once: a connection beyond a short backlog would be dropped, and tried again only a
    # second later.
    await web.SockSite(runner, listener, backlog=1024).start()
    housekeeping = asyncio.create_task(_housekeeping(state))
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    finally:
        housekeeping.cancel()
        # What waits is answered before the connections go: its clients then read why, and not a reset.
        for model in state.models.values():
            model.close("the server is stopping")
        await runner.cleanup()
        state.engines.close()


def serve(port: int, host: str, engines: EnginePool, root: Path, key: str | None) -> None:
    """Run the server until SIGTERM or SIGINT. Prints one line, `ready http://HOST:PORT`, once it serves; stderr says on
    which device the models run."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="tinker server: %(levelname)s %(message)s")
    logger.setLevel(logging.INFO)
    keep_freed_memory()

    async def until_signal() -> None:
        stop = stop_signal()
        async with running(port, host, engines, root, key=key) as url:
            print(f"ready {url}", flush=True)
            await limit_own_memory_until(stop)

    asyncio.run(until_signal())
    sys.stdout.flush()
    sys.stderr.flush()
    # A training pass cannot be interrupted and its result has nobody left to go to: leave without waiting for it.
    os._exit(0)
