"""Whether anything answers at the Tinker service's address, and a log line for those who wait for it.

The SDK retries for five minutes in silence. That suits a service that comes back, but not a mistyped address: so when a
run starts the address is asked first, with less patience. For an answer under way the SDK waits without end: so the
address is asked now and then meanwhile.
"""

import asyncio
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import httpx
from tinker.lib.base_url import resolve_base_url

from coderl_tasks.errors import ConfigError, InfraError
from coderl_tasks.server_addresses import without_credentials

PATIENCE_S = 30.0
SDK_PATIENCE_S = 300.0
NOTICE_S = 10.0
CONNECT_S = 10.0
ANSWER_S = 60.0
"""So long one answer may take. A service that is slow is not silent: its work goes on, and so does the run."""
PAUSE_S = 1.0
PROBE_EVERY_S = 20.0
OUTAGE_S = 600.0
logger = logging.getLogger(__name__)


def named_address(base_url: str | None) -> str:
    """The service's address as people are told it, with the variable that sets it, if one does."""
    named = " (TINKER_BASE_URL)" if os.environ.get("TINKER_BASE_URL") else ""
    return f"{service_address(base_url)}{named}"


def service_address(base_url: str | None) -> str:
    """The service's address (None: the SDK's own) as it is shown and recorded: without a user name and password."""
    return without_credentials(resolve_base_url(base_url))


async def require_answer(base_url: str | None, *, patience_s: float = PATIENCE_S, notice_s: float = NOTICE_S) -> None:
    """Return as soon as the address (None: the SDK's own) answers anything; what it answers is for the SDK to judge.

    Raises InfraError, naming the address, if nothing does for `patience_s`, and ConfigError if it is no address.
    """
    # Said if the time runs out within the first request.
    fault: str | None = "nothing came back"
    try:
        with notice(base_url, patience_s, after_s=notice_s):
            async with asyncio.timeout(patience_s):
                while (fault := await _fault(base_url)) is not None:
                    await asyncio.sleep(PAUSE_S)
    except TimeoutError:
        raise InfraError(
            f"no answer from Tinker at {named_address(base_url)} in {patience_s:g} s ({fault}): check the address and "
            "the network (coderl doctor), then run the same command again"
        ) from None
    except httpx.InvalidURL as error:
        raise ConfigError(f"{named_address(base_url)} is not an address: {error}") from error


async def lost(base_url: str | None, *, outage_s: float = OUTAGE_S, every_s: float = PROBE_EVERY_S) -> NoReturn:
    """Ask the address every so many seconds; raises InfraError once nothing has answered for `outage_s`.

    The log says when it falls silent, and when it answers again.
    """
    silent_since: float | None = None
    while True:
        await asyncio.sleep(every_s)
        fault = await _fault(base_url)
        if fault is None:
            if silent_since is not None:
                logger.warning("%s answers again", named_address(base_url))
            silent_since = None
        elif silent_since is None:
            # One lost request is no outage: it starts the clock, and any answer stops it.
            silent_since = time.monotonic()
            logger.warning("no answer from Tinker at %s (%s): waiting", named_address(base_url), fault)
        elif time.monotonic() - silent_since >= outage_s:
            raise InfraError(f"no answer from Tinker at {named_address(base_url)} for {outage_s:g} s ({fault})")


async def _fault(base_url: str | None) -> str | None:
    """Why the address does not answer now; None if it answers anything."""
    try:
        async with httpx.AsyncClient(timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S)) as client:
            await client.get(f"{resolve_base_url(base_url)}/api/v1/healthz")
    except httpx.TransportError as error:
        return " ".join(str(error).split()) or type(error).__name__
    return None


@contextmanager
def notice(base_url: str | None, patience_s: float = SDK_PATIENCE_S, *, after_s: float = NOTICE_S) -> Iterator[None]:
    """Say, if the block lasts longer than `after_s`, what is waited for, and until when."""
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + patience_s))
    line = f"no answer yet from {named_address(base_url)}; still trying until {until}"
    timer = asyncio.get_running_loop().call_later(after_s, logger.warning, "%s", line)
    try:
        yield
    finally:
        timer.cancel()
