"""
An installed Chromium, headless and offline, driven by playwright.

>>> with Browser("/usr/bin/chromium") as browser:
...     browser.open(Path("out/demo/story.html"), width=360, dark=True)
...     browser.run("document.title"), browser.messages
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import sync_playwright


class Browser:
    """messages: what console and scripts have said since the page was opened. All of playwright's
    calls are made in one thread of their own: it keeps an event loop running there, which other
    tests could not share."""

    def __init__(self, program: str):
        self.messages, self.page, self.thread = [], None, ThreadPoolExecutor(1)
        self.playwright = self.thread.submit(lambda: sync_playwright().start()).result()
        settings = dict(executable_path=program, args=["--no-sandbox"])
        self.browser = self.thread.submit(
            lambda: self.playwright.chromium.launch(**settings)
        ).result()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.thread.submit(lambda: (self.browser.close(), self.playwright.stop())).result()
        self.thread.shutdown()

    def open(self, page: Path, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        settings = dict(
            viewport=dict(width=width, height=height), color_scheme="dark" if dark else "light"
        )
        self.thread.submit(self._open, page.resolve().as_uri(), settings).result()

    def _open(self, address: str, settings: dict) -> None:
        if self.page:
            self.page.context.close()
        self.messages.clear()
        self.page = self.browser.new_context(offline=True, **settings).new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.devtools = self.page.context.new_cdp_session(self.page)
        self.page.goto(address)

    def run(self, script: str):
        """The value of this JavaScript in the page; a promise is awaited. RuntimeError if it
        throws."""
        settings = dict(expression=script, awaitPromise=True, returnByValue=True)
        result = self.thread.submit(self.devtools.send, "Runtime.evaluate", settings).result()
        if "exceptionDetails" in result:
            raise RuntimeError(
                result["exceptionDetails"]
                .get("exception", {})
                .get("description", "the script failed")
            )
        return result["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            if time.monotonic() > end:
                raise TimeoutError(f"still not true after {seconds} s: {condition}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        self.thread.submit(lambda: self.page.keyboard.press(key)).result()
