"""Chromium without a window, driven through two pipes (its DevTools protocol): no port is opened, no package needed."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PROGRAMS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
SECONDS = 150.0  # for everything, on a slow machine
IMAGES = "JSON.stringify([...document.images].map(i => [i.complete, i.naturalWidth, i.naturalHeight]))"
SHOWN = "JSON.stringify([...document.images].map(i => i.clientWidth))"
CLIPPED = "Math.max(0, ...[...document.querySelectorAll('.wide')].map(e => e.scrollWidth - e.clientWidth))"
WIDTH = "JSON.stringify([document.documentElement.scrollWidth, window.innerWidth])"
OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
    "--disable-background-networking", "--disable-component-update", "--window-size=1100,1400",
    "--remote-debugging-pipe",
)  # fmt: skip


class Opened(NamedTuple):
    """What a browser saw of a page.

    Attributes:
        images: (loaded, natural width, natural height) of each.
        complaints: errors and warnings in the console, and exceptions.
        requested: addresses that the page asked for, itself and data left out.
        text: of its body, as it is shown.
        width: of the page, and of the window.
        shown: width of each image as it is shown.
        clipped: how much wider the widest table is than its frame.
        screenshot: PNG.
    """

    images: list[tuple[bool, int, int]]
    complaints: list[str]
    requested: list[str]
    text: str
    width: tuple[int, int]
    shown: list[int]
    clipped: int
    screenshot: bytes


def find() -> str | None:
    """A browser of this family, or None."""
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


def open_page(program: str, page: Path, profile: Path, width: int = 1100) -> Opened:
    """Opens a file as a user would, in a window of so many pixels, and ends the browser."""
    with tab(program, page.resolve().as_uri(), profile, width) as opened:
        return Opened(
            list(map(tuple, json.loads(opened.value(IMAGES)))),
            opened.complaints(),
            opened.requested(),
            opened.value("document.body.innerText"),
            tuple(json.loads(opened.value(WIDTH))),
            json.loads(opened.value(SHOWN)),
            opened.value(CLIPPED),
            opened.screenshot(whole=True),
        )


@contextlib.contextmanager
def tab(program: str, address: str, profile: Path, width: int = 1100, height: int = 1400) -> Iterator[Tab]:
    """A browser with one page, which has loaded; it is ended behind it.

    Args:
        width, height: of the window, in CSS pixels; up to 500 wide it is a phone.
    """
    browser = _Browser(program, profile)
    try:
        opened = Tab(browser, address)
        opened.resize(width, height)
        opened.go()
        yield opened
    finally:
        browser.close()


class Tab:
    """A page in a browser.

    Args:
        address: what it is to show.
    """

    def __init__(self, browser: _Browser, address: str):
        self._browser, self._address = browser, address
        target = browser.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = browser.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Runtime", "Log", "Network", "Page"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.ask(method, self._session, **parameters)

    def go(self) -> None:
        self.ask("Page.navigate", url=self._address)
        self._browser.wait_for("Page.loadEventFired")  # which may be that of the blank page before
        self.wait_until("location.href !== 'about:blank' && document.readyState === 'complete'")

    def resize(self, width: int, height: int) -> None:
        phone = width <= 500
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if phone else 1,
            mobile=phone,
        )

    def value(self, expression: str) -> Any:
        """Of an expression, which may be a promise."""
        answer = self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_until(self, expression: str, seconds: float = SECONDS) -> None:
        """Until the expression is true, also of a page that takes this one's place. Raises TimeoutError."""
        end = time.monotonic() + seconds
        while not self._holds(expression):
            if time.monotonic() >= end:
                raise TimeoutError(f"{expression} is not true after {seconds:.0f} s: {self.complaints()}")
            time.sleep(0.05)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.value(f"Boolean({expression})"))
        except Gone:
            return False

    def screenshot(self, whole: bool = False) -> bytes:
        """PNG of what is seen, or of the whole page."""
        return base64.b64decode(self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"])

    def complaints(self) -> list[str]:
        return self._browser.complaints()

    def requested(self) -> list[str]:
        """Addresses that the page asked for, itself and data left out."""
        return self._browser.requested(self._address)


class Gone(AssertionError):
    """The page was left while it was asked."""


class _Browser:
    def __init__(self, program: str, profile: Path):
        (theirs_in, self._out), (self._in, theirs_out) = os.pipe(), os.pipe()
        high = [fcntl.fcntl(end, fcntl.F_DUPFD, 20) for end in (theirs_in, theirs_out)]  # 3 and 4 stay free
        script = f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]}'
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *OPTIONS, f"--user-data-dir={profile}"],
            pass_fds=high,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)},
        )
        for end in (theirs_in, theirs_out, *high):
            os.close(end)
        self._end, self._number, self._data = time.monotonic() + SECONDS, 0, b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._in, selectors.EVENT_READ)
        self.events: list[dict[str, Any]] = []

    def ask(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        message |= {"sessionId": session} if session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            pass
        if "error" in answer:
            raise (Gone if "navigated or closed" in answer["error"]["message"] else AssertionError)(
                method, answer["error"]
            )
        return answer["result"]

    def wait_for(self, event: str) -> None:
        while not any(one["method"] == event for one in self.events):
            self._next()

    def complaints(self) -> list[str]:
        found = []
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(json.dumps(params["args"]))
            elif method == "Runtime.exceptionThrown":
                found.append(params["exceptionDetails"]["text"])
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requested(self, page: str) -> list[str]:
        sent = [e["params"]["request"]["url"] for e in self.events if e["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if url != page and not url.startswith("data:")]

    def close(self) -> None:
        """Ends the browser with all its processes, which are a session of their own."""
        os.close(self._out)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5.0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(timeout=10.0)
        self._selector.close()
        os.close(self._in)

    def _next(self) -> dict[str, Any]:
        """The next message, which is kept if it is an event."""
        while b"\0" not in self._data:
            left = self._end - time.monotonic()
            if left <= 0 or not self._selector.select(left):
                raise TimeoutError(f"no answer from Chromium in {SECONDS:.0f} s")
            if not (data := os.read(self._in, 1 << 20)):
                raise ConnectionError(f"Chromium ended with status {self._process.poll()}")
            self._data += data
        line, _, self._data = self._data.partition(b"\0")
        message = json.loads(line)
        if "method" in message:
            self.events.append(message)
        return message
