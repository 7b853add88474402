"""
Size and speed of the story page: of a run, and of published shapes with random weights.

$ python docs/page_speed.py out/demo 1M 8M 33M   # prints a line for each; needs Chromium
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from playwright.sync_api import sync_playwright

from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.models import open_model
from nanostories.corpus.tokenizer import gpt2
from nanostories.generation.backends import LocalBackend, load_backend
from nanostories.pages.story_page import story_page

SHAPES = {"1M": (64, 8), "8M": (256, 8), "33M": (768, 4)}  # width, layers
TELL = """() => {
  $("beginning").value = "Once upon a time, there was a little fox";
  $("number").value = 7;
  $("tell").click();
}"""
INSPECT = """async () => {
  const start = performance.now();
  for (let i = 20; i < 40; i++) await ask("inspect", story.ids, i);
  return (performance.now() - start) / 20;
}"""


def backend_of(name: str) -> LocalBackend:
    if name not in SHAPES:
        return load_backend(open_model(name))
    width, n_layer = SHAPES[name]
    torch.manual_seed(0)
    shape = GPTNeoConfig(50257, block_size=2048, n_layer=n_layer, n_head=16, n_embd=width)
    return LocalBackend(GPTNeo(shape).eval(), gpt2(), [])


def measure(name: str, path: Path, browser) -> None:
    start = time.perf_counter()
    content, _ = story_page(name, backend_of(name), {})
    seconds = time.perf_counter() - start
    path.write_bytes(content)
    tab = browser.new_page()
    tab.goto(path.as_uri())
    tab.wait_for_selector("#tell:not([disabled])", timeout=120_000)
    tab.evaluate(TELL)
    tab.wait_for_timeout(1000)
    tab.wait_for_selector("#tell:not([disabled])", timeout=300_000)
    said = tab.inner_text("#status")
    milliseconds = tab.evaluate(INSPECT)
    heap = tab.evaluate("performance.memory.usedJSHeapSize") / 1e6
    figures = (
        f"{len(content) / 1e6:.1f} MB, made in {seconds:.0f} s; one inspect {milliseconds:.0f} ms"
    )
    print(f"{name}: {figures}; JS heap {heap:.0f} MB; {said}", flush=True)
    tab.close()


def main() -> None:
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as directory:
        program = shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for name in sys.argv[1:]:
            measure(name, Path(directory, "page.html"), browser)
        browser.close()


if __name__ == "__main__":
    main()
