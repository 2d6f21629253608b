"""A headless Chromium driven over its debugging pipe: what a page does in a real browser, without another package."""

import base64
import json
import os
import pathlib
import subprocess
import tempfile
from typing import Any

CHROMIUM = pathlib.Path("/usr/bin/chromium")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-component-update"),
    *("--disable-background-networking", "--disable-sync", "--remote-debugging-pipe", "--hide-scrollbars"),
)


class Browser:
    """One browser with one page; `complaints` are its console errors, warnings and uncaught exceptions."""

    def __init__(self) -> None:
        self.complaints: list[str] = []
        self._home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        theirs, self._out = os.pipe()
        self._in, replies = os.pipe()
        # The browser reads commands from descriptor 3 and writes to 4.
        launch = f'exec "$0" "$@" 3<&{theirs} 4>&{replies}'
        arguments = [str(CHROMIUM), *FLAGS, f"--user-data-dir={self._home.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["/bin/bash", "-c", launch, *arguments], pass_fds=(theirs, replies), stderr=subprocess.DEVNULL
        )
        os.close(theirs), os.close(replies)
        self._buffer, self._number, self._session = b"", 0, ""
        page = next(t for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self._session = ""
        self.call("Browser.close")
        self._process.wait(timeout=30)
        os.close(self._in), os.close(self._out)
        self._home.cleanup()

    def call(self, method: str, **params: Any) -> Any:
        """Send one command and return its result; what the page says meanwhile is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            reply = self.read()
            if reply.get("id") == self._number:
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]

    def read(self) -> dict:
        """The browser's next message, waited for; what it says of the page is noted."""
        while b"\0" not in self._buffer:
            block = os.read(self._in, 1 << 20)
            assert block, "the browser is gone"
            self._buffer += block
        message, _, self._buffer = self._buffer.partition(b"\0")
        reply = json.loads(message)
        if reply.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(reply["params"]["exceptionDetails"])[:600])
        elif reply.get("method") == "Log.entryAdded":
            self.complaints.append(reply["params"]["entry"]["text"])
        elif reply.get("method") == "Runtime.consoleAPICalled" and reply["params"]["type"] in ("error", "warning"):
            self.complaints.append(json.dumps(reply["params"]["args"])[:600])
        return reply

    def open(self, path: pathlib.Path | str, width: int = 1280, dark: bool = False, scripts: bool = True) -> None:
        """Load a file or an address at a width in CSS pixels, in a light or a dark scheme; wait until it is drawn."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        still = {"name": "prefers-reduced-motion", "value": "reduce"}  # a page that still scrolls shows other places
        self.call("Emulation.setEmulatedMedia", features=[scheme, still])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Page.navigate", url=path if isinstance(path, str) else path.resolve().as_uri())
        while self.read().get("method") != "Page.loadEventFired":
            pass
        if scripts:
            self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def run(self, script: str) -> Any:
        """The value of an expression of the page; a promise is waited for."""
        reply = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, reply["exceptionDetails"]
        return reply["result"].get("value")

    def press(self, key: str, code: int) -> None:
        """Press and release a key, as a person would."""
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    def photograph(self, path: pathlib.Path) -> None:
        """Write the whole page as a PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 16000), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(shot["data"]))
