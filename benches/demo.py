"""
The demo as a new user runs it, building the corpus and compiling included: how long it takes, and its loss. Each round
has its own seed. No peer: the ratios are to its promises, 300 s and a loss of 0.45.

$ python bench.py demo
"""

import tempfile
import time

from benches.measure import medians, train_run

PROMISES = {"seconds in all": 300, "validation loss": 0.45}


def train_demo(seed: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as directory:
        start = time.perf_counter()
        last = train_run(directory, data_dir=directory, seed=seed)[-1]
        seconds = time.perf_counter() - start
    names = {"tokens/s at the end": "tokens_per_s", "tokens": "tokens", "validation loss": "val_loss"}
    return {"seconds in all": seconds} | {name: float(last[column]) for name, column in names.items()}


def bench(rounds: int = 1) -> tuple[dict, dict]:
    figures = medians([train_demo(seed) for seed in range(rounds)])
    return {name: promise / figures[name] for name, promise in PROMISES.items()}, figures
