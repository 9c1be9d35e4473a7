"""The embedded Prefect server: Prefect's own application behind a check of who asks for it.

Prefect checks the secret (`PREFECT_SERVER_API_AUTH_STRING`) and the CSRF token of API requests, but answers under any
name and to pages of any origin, which is how DNS rebinding and other pages in the user's browser reach a loopback
server. Here a request must name this server (Host), and come from no page at all or from one of its own (Origin).

`/coderl-login#SECRET` logs a browser in: the page puts the secret where Prefect's UI keeps it. A browser does not send
the fragment, so that no log holds the secret.
"""

import argparse
import gc

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOGIN_PATH = "/coderl-login"
POLICY_VIOLATION = 1008
# What follows is the UI's own: both of its versions keep the secret, base64-encoded, under this key.
LOGIN_PAGE = """<!doctype html><title>coderl</title><script>
localStorage.setItem("prefect-password", btoa(decodeURIComponent(location.hash.slice(1))));
location.replace("/");
</script>"""
LOGIN_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'unsafe-inline'",
    "Referrer-Policy": "no-referrer",
}


def own_origins(port: int) -> list[str]:
    """The origins of the pages of a server on this port of loopback."""
    return [f"http://127.0.0.1:{port}", f"http://localhost:{port}"]


class OwnRequestsOnly:
    """ASGI middleware that refuses (403) requests under another name or from a page of another origin. It also serves
    the login page, and forbids all pages to be shown inside other pages (clickjacking)."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app = app
        self._origins = own_origins(port)
        self._names = [origin.removeprefix("http://") for origin in self._origins]  # as requests have them (Host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif (refusal := self._refusal(Headers(scope=scope))) is not None:
            if scope["type"] == "websocket":  # closed before it is accepted: the handshake is answered with 403
                await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": refusal})
            else:
                await PlainTextResponse(f"{refusal}\n", status_code=403)(scope, receive, send)
        else:

            async def send_unframed(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", []), (b"x-frame-options", b"DENY")]
                await send(message)

            is_login = scope["type"] == "http" and scope["path"] == LOGIN_PATH
            app = HTMLResponse(LOGIN_PAGE, headers=LOGIN_HEADERS) if is_login else self._app
            await app(scope, receive, send_unframed)

    def _refusal(self, headers: Headers) -> str | None:
        names, origins = headers.getlist("host"), headers.getlist("origin")
        # Exactly one: of two, this check and the application behind it might each read another.
        if len(names) != 1 or names[0] not in self._names:
            return f"refused: this server is asked for as {self._names[0]}"
        if not all(origin in self._origins for origin in origins):
            return f"refused: only pages of {self._origins[0]} may ask"
        return None


def main() -> None:
    """Serves Prefect's API and UI on 127.0.0.1, on the port that the command line names, as Prefect's settings say."""
    gc.disable()  # the imports below create nothing that can be freed, and collecting takes a fifth of their time
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    gc.freeze()  # later collections do not look through what was imported
    gc.enable()

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    server = get_current_settings().server
    uvicorn.run(
        OwnRequestsOnly(create_app(final=True), port),  # final: this process makes no other app
        host="127.0.0.1",
        port=port,
        timeout_keep_alive=server.api.keepalive_timeout,
        ws_ping_interval=server.api.websocket_ping_interval,
        ws_ping_timeout=server.api.websocket_ping_timeout,
        log_level=server.logging_level.lower(),
    )


if __name__ == "__main__":
    main()
