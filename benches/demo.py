"""
The demo as a new user runs it, building the corpus and compiling included: how long it takes, and its loss. Each round
has its own seed. No peer: the ratios are to its promises, 300 s and a loss of 0.45.

$ python bench.py demo
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benches.measure import ROOT, medians
from training.run_directory import read_log

ROUNDS = 1
PROMISES = {"seconds in all": 300, "validation loss": 0.45}


def train_demo(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        flags = [f"--out_dir={directory}", f"--data_dir={directory}", f"--seed={seed}"]
        start = time.perf_counter()
        subprocess.run([sys.executable, ROOT / "train.py", *flags], check=True, stdout=2)
        seconds, last = time.perf_counter() - start, read_log(Path(directory, "demo", "log.csv"))[-1]
    names = {"tokens/s at the end": "tokens_per_s", "tokens": "tokens", "validation loss": "val_loss"}
    return {"seconds in all": seconds} | {name: float(last[column]) for name, column in names.items()}


def bench(rounds: int) -> tuple[dict, dict]:
    figures = medians([train_demo(seed) for seed in range(rounds)])
    return {name: promise / figures[name] for name, promise in PROMISES.items()}, figures
