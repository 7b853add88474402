"""
The page of export.py in headless Chromium, pinned to one core, beside sample.py --stream on the same core: tokens per
second of one story of 200 tokens; and the size of the page beside an int8 export to ONNX, where that is installed.

$ python bench.py export           # for the sizes: pip install onnx onnxruntime onnxscript
"""

import os
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from benches.chromium import Chromium
from benches.measure import alternating_medians
from browser.pack_model import pack_storyteller
from browser.quantize import logits_by_pytorch
from corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from generation.backends import LocalBackend
from generation.generation_loop import generate
from model import GPTNeo, GPTNeoConfig
from pages.story_page import story_page

SHAPES = {  # with 10,000 ids, and with the 50,257 and 2,048 positions of the published models
    "1M shape": dict(n_embd=64),
    "8M shape": dict(n_embd=256),
    "published 1M": dict(n_embd=64, vocab_size=GPT2_VOCAB_SIZE, block_size=2048),
    "published 8M": dict(n_embd=256, vocab_size=GPT2_VOCAB_SIZE, block_size=2048),
}
NEW_TOKENS, TOP_K = 200, 50


def in_the_page() -> str:
    """The script that tells a story there."""
    return f"""(async () => {{
      const ids = [1, 2, 3], settings = {{ temperature: 1, top_k: {TOP_K}, top_p: 1 }};
      while (ids.length < 3 + {NEW_TOKENS}) ids.push((await ask("next", ids, settings, uniform(1, ids.length))).id);
      await ask("read", [0]);
    }})()"""


def page_of(model: GPTNeo, name: str, path: Path) -> Path:
    tokenizer = cut(np.zeros(GPT2_VOCAB_SIZE), model.config.vocab_size)
    facts, weights = pack_storyteller(f"hf:{name}", LocalBackend(model, tokenizer, []), "int8", [])
    path.write_bytes(story_page(name, "", facts, weights))
    return path


def we_stream(model: GPTNeo):
    (completion,) = generate(model, [[1, 2, 3]], NEW_TOKENS, top_k=TOP_K, batch_size=1)
    assert len(completion.tokens) == NEW_TOKENS


def onnx_int8_bytes(model: GPTNeo, directory: Path) -> int:
    """Size of a graph of the whole sequence, without a cache, with its matrices in int8."""
    from onnxruntime.quantization import quantize_dynamic  # a peer, not a dependency

    class Logits(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, tokens):
            return logits_by_pytorch(model, tokens)

    torch.onnx.export(Logits(), (torch.zeros(1, 8, dtype=torch.int64),), directory / "model.onnx", dynamo=False)
    quantize_dynamic(directory / "model.onnx", directory / "int8.onnx")
    return (directory / "int8.onnx").stat().st_size


def bench(rounds: int) -> tuple[dict, dict]:
    ratios, figures = {}, {}
    threads, cores = torch.get_num_threads(), os.sched_getaffinity(0)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(cores)})  # Chromium inherits it
    with tempfile.TemporaryDirectory() as directory, Chromium(Path(directory, "profile")) as chromium:
        for name, shape in SHAPES.items():
            torch.manual_seed(0)
            model = GPTNeo(GPTNeoConfig(**shape)).eval()
            page = page_of(model, name, Path(directory, "story.html"))
            chromium.open(page)
            chromium.wait_for("document.getElementById('status').textContent === 'Ready.'")
            contestants = {
                "page": partial(chromium.run, in_the_page()),
                "sample.py --stream": partial(we_stream, model),
            }
            for who, seconds in alternating_medians(contestants, rounds).items():
                figures[f"{name}: {who}, tokens/s"] = NEW_TOKENS / seconds
            ratios[f"{name}, of sample.py's speed"] = (
                figures[f"{name}: page, tokens/s"] / figures[f"{name}: sample.py --stream, tokens/s"]
            )
            figures[f"{name}: page, bytes per parameter"] = page.stat().st_size / model.num_params()
            if find_spec("onnxruntime") and find_spec("onnx"):
                size = onnx_int8_bytes(model, Path(directory))
                figures[f"{name}: ONNX in int8, bytes per parameter"] = size / model.num_params()
            else:
                print("skipping the size of ONNX: pip install onnx onnxruntime onnxscript", file=sys.stderr)
    torch.set_num_threads(threads)
    os.sched_setaffinity(0, cores)
    return ratios, figures
