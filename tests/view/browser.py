"""Debian's Chromium, driven over the DevTools protocol: what of a browser the tests need, and no more."""

import base64
import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from websockets.sync.client import connect

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
PATIENCE_S = 120.0
SETTLED_MS = 150
SPECIAL = {"Enter": ("\r", 13), "Escape": ("", 27)}
"""Keys that are no letters: the text that they give, and their number."""


class Browser:
    """One page of a headless browser. `requests` are the addresses that it asked for, `dialogs` the alerts that came
    up, `errors` what its console reported."""

    def __init__(self, width: int = 1280, height: int = 900) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        options = ("--headless=new", "--remote-debugging-port=0", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
        size = (f"--window-size={width},{height}", f"--user-data-dir={self._folder.name}")
        self._process = subprocess.Popen(
            [CHROMIUM, *options, *quiet, "--disable-dev-shm-usage", *size, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._session: str | None = None  # of the page, once there is one
        self._number, self.requests, self.dialogs, self.errors = 0, [], [], []  # type: ignore[var-annotated]
        port_file = Path(self._folder.name) / "DevToolsActivePort"
        until(lambda: port_file.is_file() and "\n" in port_file.read_text())
        port, path = port_file.read_text().split("\n")[:2]
        self._socket = connect(f"ws://127.0.0.1:{port}{path}", max_size=None, open_timeout=PATIENCE_S)
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._ask("Emulation.setDeviceMetricsOverride", metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def _ask(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters or {}}
        if self._session is not None:
            message["sessionId"] = self._session
        self._socket.send(json.dumps(message))
        while True:
            answer = json.loads(self._socket.recv(timeout=PATIENCE_S))
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _note(self, event: dict[str, Any]) -> None:
        method, values = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(values["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(values["message"])
        elif method == "Log.entryAdded" and values["entry"]["level"] == "error":
            self.errors.append(values["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(values["exceptionDetails"]["text"])

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page, as JSON has it."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self._ask("Runtime.evaluate", asked)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def open(self, address: str) -> None:
        self._ask("Page.navigate", {"url": address})
        self.loaded()

    def loaded(self) -> None:
        """Waits until the page is there."""
        time.sleep(SETTLED_MS / 1000)  # a click that leads away has to begin to
        until(lambda: self.run("document.readyState") == "complete")

    def click(self, selector: str) -> None:
        """Clicks the middle of the first element that the selector finds, as a mouse does."""
        place = self.run(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        assert place is not None, f"nothing on the page is {selector}"
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            where = {"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1}
            self._ask("Input.dispatchMouseEvent", where)
        self.loaded()

    def press(self, *keys: str) -> None:
        for key in keys:
            text, number = SPECIAL.get(key, (key, 0))
            pressed: dict[str, Any] = {"key": key, "windowsVirtualKeyCode": number}
            self._ask("Input.dispatchKeyEvent", pressed | {"type": "keyDown", "text": text})
            self._ask("Input.dispatchKeyEvent", pressed | {"type": "keyUp"})
        self.loaded()

    @property
    def path(self) -> str:
        return str(self.run("location.pathname + location.search"))

    def theme(self, name: str) -> None:
        """What the system asks pages for: light or dark."""
        self._ask("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": name}]})

    def screenshot(self, file: Path) -> None:
        answer = self._ask("Page.captureScreenshot", {"format": "png"})
        file.write_bytes(base64.b64decode(answer["data"]))


def until(condition: Callable[[], Any], patience_s: float = PATIENCE_S) -> None:
    """Waits until the condition holds; AssertionError if it does not in time."""
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.03)


@contextmanager
def browsing(width: int = 1280, height: int = 900) -> Iterator[Browser]:
    with Browser(width, height) as browser:
        yield browser


def addresses(browser: Browser, own: str) -> Sequence[str]:
    """What the browser asked for that is not the server's own."""
    return [url for url in browser.requests if not url.startswith((own, "about:", "data:", "chrome:"))]
