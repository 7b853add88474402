"""
The page of export.py in headless Chromium, pinned to one core, beside sample.py --stream on the same core: tokens per
second of one story of 200 tokens, and the size of the page.

$ python bench.py export           # needs an installed Chromium, and playwright: pip install -r requirements-dev.txt
"""

import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from benches.measure import ROOT, alternating_medians
from benches.models import export_our_model, our_model
from corpus.tokenizer import GPT2_VOCAB_SIZE
from generation.generation_loop import generate

SHAPES = {  # with 10,000 ids, and with the 50,257 and 2,048 positions of the published models
    "1M shape": dict(n_embd=64),
    "8M shape": dict(n_embd=256),
    "published 1M": dict(n_embd=64, vocab_size=GPT2_VOCAB_SIZE, block_size=2048),
    "published 8M": dict(n_embd=256, vocab_size=GPT2_VOCAB_SIZE, block_size=2048),
}
NEW_TOKENS = 200
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


STORY = """async n => {
  const ids = [1, 2, 3];
  while (ids.length < 3 + n) ids.push((await ask("next", ids, 1, Math.random())).id);
  await ask("read", [0]);
}"""


def stream(model) -> None:
    (completion,) = generate(model, [[1, 2, 3]], NEW_TOKENS, batch_size=1)
    assert len(completion.tokens) == NEW_TOKENS


def chromium() -> str:
    if program := next(filter(None, map(shutil.which, PROGRAMS)), None):
        return program
    raise ValueError(f"none of {', '.join(PROGRAMS)} is installed")


def bench(rounds: int = 3) -> tuple[dict, dict]:
    from playwright.sync_api import sync_playwright  # for this bench only

    ratios, figures = {}, {}
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})  # Chromium inherits it
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, shape in SHAPES.items():
            export_our_model(Path(directory, "model"), **shape)
            path = Path(directory, "story.html")
            command = [sys.executable, ROOT / "export.py", f"hf:{directory}/model", "--html", path]
            subprocess.run(command, check=True, stdout=2)
            model, page = our_model(**shape), browser.new_page()
            page.goto(path.as_uri())
            page.get_by_text("Ready.").wait_for()
            contestants = {
                "page": partial(page.evaluate, STORY, NEW_TOKENS),
                "sample.py --stream": partial(stream, model),
            }
            for who, seconds in alternating_medians(contestants, rounds).items():
                figures[f"{name}: {who}, tokens/s"] = NEW_TOKENS / seconds
            page.close()
            ratios[name] = figures[f"{name}: page, tokens/s"] / figures[f"{name}: sample.py --stream, tokens/s"]
            figures[f"{name}: page, bytes per parameter"] = path.stat().st_size / model.num_params()
        browser.close()
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, cores)
    return ratios, figures
