"""What the embedded servers' logs say of requests that are no HTTP: nothing.

aiohttp logs a traceback for each. Whoever reaches the port could fill the disk with these, and
they would hide what the servers say of themselves.
"""

import logging

from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web import RequestPayloadError

logger = logging.getLogger("local_servers.http")
"""For `web.AppRunner`, in place of aiohttp's own, which other servers of the process may use."""
_NO_HTTP = (HttpProcessingError, RequestPayloadError)
logger.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], _NO_HTTP)))
