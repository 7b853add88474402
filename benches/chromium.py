"""
A headless Chromium, driven over a pipe (its DevTools protocol): for benches, and for tests of pages whose security
policy lets no script in.

>>> with Chromium(profile_directory) as chromium:
...     chromium.open(Path("out/demo/story.html"))
...     chromium.run("document.title")
"""

import contextlib
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


class Chromium:
    """messages: what the console and the browser's log have said since the page was opened."""

    def __init__(self, profile: Path):
        self.number, self.messages, self.buffer = 0, [], b""
        self.profile, self.program = profile, next(filter(None, map(shutil.which, PROGRAMS)), None)
        if self.program is None:
            raise FileNotFoundError(f"none of {', '.join(PROGRAMS)} is installed")

    def __enter__(self):
        theirs_in, self.to = os.pipe()
        self.from_, theirs_out = os.pipe()
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--remote-debugging-pipe",
            f"--user-data-dir={self.profile}",
        ]

        def as_3_and_4():  # where Chromium expects the pipe; via high numbers, as either may be 3 or 4 already
            high = [os.dup2(theirs_in, 100), os.dup2(theirs_out, 101)]
            for target, source in zip((3, 4), high):
                os.dup2(source, target)

        self.process = subprocess.Popen(
            [self.program, *flags, "about:blank"], preexec_fn=as_3_and_4, close_fds=False, stderr=subprocess.DEVNULL
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError, EOFError):
            self.session = None
            self.call("Browser.close")
        for end in (self.to, self.from_):
            os.close(end)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def call(self, method: str, **params) -> dict:
        """One call of the protocol -> its result."""
        self.number += 1
        message = dict(id=self.number, method=method, params=params)
        message |= dict(sessionId=self.session) if self.session else {}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data) :]
        while (answer := self.receive()).get("id") != self.number:
            self.note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def receive(self) -> dict:
        while b"\0" not in self.buffer:
            if not (data := os.read(self.from_, 1 << 20)):
                raise EOFError("Chromium has ended")
            self.buffer += data
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def note(self, event: dict) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.consoleAPICalled":
            self.messages.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif event.get("method") == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.messages.append(details.get("exception", {}).get("description", details["text"]))
        elif event.get("method") == "Log.entryAdded":
            self.messages.append(params["entry"]["text"])

    def open(self, page: Path, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        self.messages.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = dict(name="prefers-color-scheme", value="dark" if dark else "light")
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=page.resolve().as_uri())
        self.wait_for("document.readyState === 'complete'")

    def run(self, script: str):
        """The value of this JavaScript in the page; a promise is awaited. RuntimeError if it throws."""
        result = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", "the script failed"))
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"still not true after {seconds} s: {condition}")
            time.sleep(0.02)

    def press(self, key: str, text: str = "") -> None:
        """A key as from the keyboard."""
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, text=text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)
