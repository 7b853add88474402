"""
Seconds and memory of interpret.py by stage, and the ratios of its limits to the totals (180 s, 4 GiB): 12 layers x 512,
4 heads, random weights, 200 validation stories, real ones if data/sample exists (docs/data.md).

$ python bench.py interpret --rounds 1
"""

import argparse
import contextlib
import sys
import tempfile
from pathlib import Path

import torch

from benches.measure import DEVICE, alone, medians, peak_mib
from corpus.preparation import prepare_builtin
from corpus.token_files import load_meta
from corpus.tokenizer import Tokenizer
from generation.backends import LocalBackend
from interpret import Stopwatch, interpret, validation_texts
from kernels import compile_cpp
from model import GPTNeo, GPTNeoConfig

ROOT = Path(__file__).parent.parent
SHAPE = dict(block_size=512, n_layer=12, n_head=4, n_embd=512)
LIMITS = dict(seconds=180, MiB=4096)


class Stages(Stopwatch):
    """Seconds of each stage, and its peak memory in MiB."""

    def __init__(self):
        super().__init__()
        self.peaks = {}

    @contextlib.contextmanager
    def __call__(self, stage: str):
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        else:
            Path("/proc/self/clear_refs").write_text("5")  # Linux: reset the peak
        with super().__call__(stage):
            yield
        self.peaks[stage] = max(peak_mib(), self.peaks.get(stage, 0))


def interpret_here(corpus: Path, out_dir: Path) -> dict[str, float]:
    """Runs interpret.py on a model with random weights -> figures of each stage, and of all."""
    compile_cpp.keep_freed_memory()
    tokenizer = Tokenizer(load_meta(corpus)["gpt2_ids"])
    torch.manual_seed(0)
    model = GPTNeo(GPTNeoConfig(vocab_size=tokenizer.vocab_size, **SHAPE)).eval()
    backend = LocalBackend(model.to(DEVICE), tokenizer, [tokenizer.end_of_text])
    args, stages = argparse.Namespace(text=None, layer=None, head=None, ablate=None), Stages()
    with contextlib.redirect_stdout(sys.stderr):  # stdout is for our table
        interpret(out_dir, "random weights", backend, validation_texts(corpus, 200), args, stages)
    figures = {f"{stage}, seconds": value for stage, value in stages.seconds.items()}
    figures |= {f"{stage}, peak MiB": value for stage, value in stages.peaks.items()}
    return figures | {"all, seconds": sum(stages.seconds.values()), "all, peak MiB": max(stages.peaks.values())}


def bench(rounds: int) -> tuple[dict, dict]:
    with tempfile.TemporaryDirectory() as directory:
        corpus = ROOT / "data" / "sample"
        if not corpus.exists():
            corpus = Path(directory, "builtin")
            prepare_builtin(corpus, n_stories=5000, vocab_size=10_000)
        figures = medians([alone(interpret_here, corpus, Path(directory)) for _ in range(rounds)])
    ratios = dict(time=LIMITS["seconds"] / figures["all, seconds"], memory=LIMITS["MiB"] / figures["all, peak MiB"])
    return ratios, figures
