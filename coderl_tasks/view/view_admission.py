"""Whom the viewer answers, and what its pages may do.

It listens on loopback, which other users of the machine and every web page that its owner opens reach too. So a request
needs the key, given once in the address and then kept in a cookie, names this server (`Host`), reads only (GET) and
comes from no page of another site. A page may load nothing but this server's own script, style and picture: a text that
got through as markup could still do nothing.
"""

import ipaddress
import secrets
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from coderl_tasks.untrusted_text import printable_lines

HOST = "127.0.0.1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer: the server adds them."""


class Admission:
    """ASGI middleware that answers those who have `key`. The cookie is named after the `port`: browsers send one
    server's cookies to those on other ports too."""

    def __init__(self, app: ASGIApp, key: str, port: int) -> None:
        self._app, self._key, self._cookie = app, key, f"coderl-view-{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            answer = self._refusal(scope) or self._app
            await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> ASGIApp | None:
        """The answer in place of the page's, None if the request is admitted. With the key in the address it sets the
        cookie, and redirects to the address without the key."""
        headers = Headers(scope=scope)
        name = headers.get("host", "")
        if not _is_loopback(name):  # another site's name that was made to resolve to this machine (DNS rebinding)
            return _refused(400, f"this server answers to localhost and {HOST} only, not to the name {name!r}")
        if scope["method"] not in ("GET", "HEAD"):
            return _refused(405, "this server only shows: it takes GET requests")
        # Another site's page may have a link to here that a person follows, but may request nothing else.
        is_link = headers.get("sec-fetch-mode", "navigate") == "navigate" and "origin" not in headers
        if not is_link and headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return _refused(403, "requests of other sites' pages are not answered")
        if headers.get("origin", f"http://{name}") != f"http://{name}":
            return _refused(403, "requests of other sites' pages are not answered")
        query = QueryParams(scope["query_string"])
        if self._is_key(query.get("key")):
            return self._admitted(scope["path"], query)
        if not self._is_key(cookie_parser(headers.get("cookie", "")).get(self._cookie)):
            return _refused(401, "this server wants its key: open the address that `coderl view` printed, with ?key=")
        return None

    def _is_key(self, given: str | None) -> bool:
        # Not ==, whose time says how much of a guess is right.
        return given is not None and secrets.compare_digest(given.encode(errors="replace"), self._key.encode())

    def _admitted(self, path: str, query: QueryParams) -> Response:
        """Puts the key into a cookie and out of the address, which people share."""
        rest = "&".join(f"{quote(name)}={quote(value)}" for name, value in query.multi_items() if name != "key")
        answer = RedirectResponse(f"/{quote(path.lstrip('/'))}" + (f"?{rest}" if rest else ""), status_code=303)
        answer.set_cookie(self._cookie, self._key, httponly=True, samesite="lax", max_age=30 * 86_400)
        return answer


def _is_loopback(host: str) -> bool:
    try:
        name = urlsplit(f"//{host}").hostname or ""
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _refused(status: int, why: str) -> ASGIApp:
    return PlainTextResponse(f"{printable_lines(why)}\n", status_code=status)
