"""
An installed Chromium, headless and offline, driven by playwright.

>>> browser = Browser("/usr/bin/chromium")
>>> browser.open(Path("out/demo/story.html"), width=360, dark=True)
>>> browser.run("document.title"), browser.messages
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from playwright.sync_api import sync_playwright

# The text of the least contrast, as WCAG 2 defines it.
CONTRAST = """(() => {
  const channels = (color) => color.match(/[\\d.]+/g).map(Number);
  const light = (color) => color.slice(0, 3).map((x) => x / 255)
    .map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4))
    .reduce((sum, x, i) => sum + x * [0.2126, 0.7152, 0.0722][i], 0);
  const under = (node) => {
    if (!node) return [255, 255, 255];
    const [r, g, b, alpha = 1] = channels(getComputedStyle(node).backgroundColor);
    const below = alpha < 1 ? under(node.parentElement) : [0, 0, 0];
    return [r, g, b].map((x, i) => alpha * x + (1 - alpha) * below[i]);
  };
  const worst = { contrast: 99 };
  for (const node of document.querySelectorAll("body *")) {
    const hasText = [...node.childNodes].some((child) => child.nodeType === 3 && child.data.trim());
    if (!hasText || !node.checkVisibility()) continue;
    const [a, b] = [light(channels(getComputedStyle(node).color)), light(under(node))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < worst.contrast) Object.assign(worst, { contrast, node: node.outerHTML.slice(0, 200) });
  }
  return worst;
})()"""  # noqa: E501


class Browser:
    """messages: what console and scripts have said since the page was opened. All of playwright's
    calls are made in one thread of their own: it keeps an event loop running there, which other
    tests could not share."""

    def __init__(self, program: str):
        self.messages = []
        self.page = None
        self.thread = ThreadPoolExecutor(1)
        self.playwright = self.call(lambda: sync_playwright().start())
        launch = self.playwright.chromium.launch
        self.browser = self.call(launch, executable_path=program, args=["--no-sandbox"])

    def call(self, function, *args, **settings):
        return self.thread.submit(function, *args, **settings).result()

    def close(self) -> None:
        self.call(self.browser.close)
        self.call(self.playwright.stop)
        self.thread.shutdown()

    def open(self, page: Path, width=1400, dark=False, before="") -> None:
        """before: JavaScript that runs before the page's own."""
        self.size = {"width": width, "height": 1000}
        self.call(self._open, page.resolve().as_uri(), dark, before)

    def _open(self, address: str, dark: bool, before: str) -> None:
        if self.page:
            self.page.close()
        self.messages.clear()
        scheme = "dark" if dark else "light"
        self.page = self.browser.new_page(offline=True, viewport=self.size, color_scheme=scheme)
        self.page.add_init_script(before)
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.devtools = self.page.context.new_cdp_session(self.page)
        self.page.goto(address)

    def run(self, script: str):
        """The value of this JavaScript in the page; a promise is awaited. RuntimeError if it
        throws."""
        settings = {"expression": script, "awaitPromise": True, "returnByValue": True}
        result = self.call(self.devtools.send, "Runtime.evaluate", settings)
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"]["exception"].get("description", script))
        return result["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """TimeoutError if this JavaScript does not become true within a minute."""
        loop = f"""(async () => {{
          const end = Date.now() + 60_000;
          while (!({condition}) && Date.now() < end) await new Promise(requestAnimationFrame);
          return Boolean({condition});
        }})()"""
        if not self.run(loop):
            raise TimeoutError(f"still not true after a minute: {condition}")

    def check_screen(self) -> None:
        """Nothing went wrong, the page is no wider than the screen, and all of it can be read."""
        assert self.messages == []
        assert self.run("document.documentElement.scrollWidth") <= self.size["width"]
        worst = self.run(CONTRAST)
        assert worst["contrast"] >= 4.5, worst

    def press(self, *keys: str) -> None:
        for key in keys:
            self.call(self.page.keyboard.press, key)
