"""A browser without a window, driven over Chrome's DevTools protocol by a pipe: nothing but the standard library.

Chromium or Chrome is looked for on the PATH, or where ROUNDROUND_BROWSER says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = ("--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--no-first-run", "--disable-background-networking", "--hide-scrollbars",
         "--host-resolver-rules=MAP * ~NOTFOUND")  # fmt: skip
SECONDS = 30  # for one answer


def browser() -> str | None:
    """The program, None where there is none."""
    given = os.environ.get("ROUNDROUND_BROWSER")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page in the browser. `errors` collects what the console was told as an error, and refused requests."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.to_browser, self.from_browser = to_browser, from_browser
        self.rest, self.n_sent, self.session = b"", 0, None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask, and wait for the answer; events that come before it are kept."""
        self.n_sent += 1
        message = {"id": self.n_sent, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        end, answer = time.monotonic() + SECONDS, {}
        while answer.get("id") != self.n_sent:
            self.hear(answer)
            while b"\0" not in self.rest:
                assert time.monotonic() < end, "the browser does not answer"
                self.rest += os.read(self.from_browser, 1 << 20)
            text, _, self.rest = self.rest.partition(b"\0")
            answer = json.loads(text)
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def hear(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(params["exceptionDetails"])[:400])
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(params["args"])[:400])
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"][:200])

    def open(self, path: Path) -> None:
        """Open a file, and wait until its scripts have run."""
        self.send("Page.navigate", url=path.absolute().as_uri())
        while self.ask("document.readyState") != "complete" or self.ask("location.href") == "about:blank":
            time.sleep(0.02)

    def ask(self, expression: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def centre(self, selector: str) -> tuple[float, float]:
        """Where an element is, scrolled into view."""
        box = self.ask(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center', inline: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        return box[0], box[1]

    def hover(self, selector: str) -> None:
        x, y = self.centre(selector)
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, selector: str) -> None:
        x, y = self.centre(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def size(self, width: int, height: int, *, dark: bool = False) -> None:
        """The window, and which colours the system asks for."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])


@contextmanager
def tab() -> Iterator[Tab]:
    """A browser with one tab; it is gone at the end, and its folder too."""
    program = browser()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        read_end, to_browser = os.pipe()
        from_browser, write_end = os.pipe()

        def take_pipes() -> None:  # the browser reads from 3 and writes to 4
            read_copy, write_copy = os.dup(read_end), os.dup(write_end)
            os.dup2(read_copy, 3)
            os.dup2(write_copy, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={folder}"],
            preexec_fn=take_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(read_end)
        os.close(write_end)
        try:
            yield Tab(to_browser, from_browser)
        finally:
            process.kill()
            process.wait()
            os.close(to_browser)
            os.close(from_browser)
