"""A page in a real headless Chromium, driven through its DevTools protocol over a pair of pipes.

Nothing is needed but the program itself, under one of the usual names or where EASYR1_CHROMIUM says.
"""

import base64
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMEOUT_S = 60.0


def find_chromium():
    """The program's path, or None."""
    named = os.environ.get("EASYR1_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


class Chromium:
    """One browser with one tab. What the page logs, throws and requests is kept in lists."""

    def __init__(self, program):
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        options = "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars"
        command = (
            f'exec "$0" {options} --remote-debugging-pipe --user-data-dir="$1" about:blank 3<&{to_read} 4>&{to_write}'
        )
        self._process = subprocess.Popen(
            ["bash", "-c", command, program, self._profile],
            pass_fds=(to_read, to_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer, self._id, self._session = b"", 0, None
        self.errors, self.requests = [], []
        tabs = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        self._session = self.call("Target.attachToTarget", targetId=tabs[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """One command of the protocol; its result."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next()
            if reply.get("id") == self._id:
                assert "error" not in reply, reply
                return reply["result"]

    def open(self, path, width=1280, height=900, dark=False):
        """Show a file and wait until its script is done."""
        self.errors, self.requests = [], []
        self.look(width, height, dark)
        self.call("Page.navigate", url=Path(path).absolute().as_uri())
        self.wait("document.readyState === 'complete'")

    def look(self, width=1280, height=900, dark=False):
        """The size of the window, and whether the reader likes it dark."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def run(self, script):
        """The value of an expression in the page."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def wait(self, condition):
        end = time.monotonic() + TIMEOUT_S
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)

    def press(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key)

    def screenshot(self, path, whole=True):
        data = self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        Path(path).write_bytes(base64.b64decode(data))

    def close(self):
        os.killpg(self._process.pid, signal.SIGKILL)  # the group that was made for it above
        self._process.wait()
        os.close(self._to)
        os.close(self._from)
        shutil.rmtree(self._profile, ignore_errors=True)

    def _next(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], TIMEOUT_S)
            assert ready, "Chromium does not answer"
            part = os.read(self._from, 1 << 20)
            assert part, "Chromium has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method, event):
        if method == "Runtime.exceptionThrown":
            self.errors.append(event["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "warning", "assert"):
            self.errors.append(event["args"])
        elif method == "Log.entryAdded" and event["entry"]["level"] in ("error", "warning"):
            self.errors.append(event["entry"])
        elif method == "Network.requestWillBeSent" and not event["request"]["url"].startswith("data:"):
            self.requests.append(event["request"]["url"])
