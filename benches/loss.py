"""
How soon the recipe `fast` reaches the loss at which plain AdamW ends: the 1M shape, real stories. One seed per round.

$ python bench.py loss --rounds 3  # needs data/sample (docs/data.md)
"""

import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benches.measure import ROOT
from training.run_directory import read_log, training_seconds

ROUNDS = 1
STEPS = 1600
RUNS = {  # the peer, adamw, has the best batch size, learning rate and schedule in LOG.md
    "adamw": dict(recipe="adamw", learning_rate=6e-3, warmup_steps=40, warmdown=0.6),
    "fast": dict(recipe="fast", max_steps=700, eval_interval=50),
}


def train_run(name: str, settings: dict, out_dir: str) -> list[tuple[float, float, int]]:
    """Trains in its own process -> (seconds of training, validation loss, tokens) at every evaluation"""
    defaults = dict(max_minutes=0, batch_size=4, max_steps=STEPS, eval_interval=STEPS, log_interval=50)
    settings = defaults | settings | dict(name=name, out_dir=out_dir)
    flags = [f"--{key}={value}" for key, value in settings.items()]
    subprocess.run([sys.executable, ROOT / "train.py", ROOT / "configs" / "cpu_1m.py", *flags], check=True, stdout=2)
    rows = read_log(Path(out_dir, name, "log.csv"))
    points = ((seconds, row["val_loss"], int(row["tokens"])) for row, seconds in zip(rows, training_seconds(rows)))
    return [(seconds, float(val_loss), tokens) for seconds, val_loss, tokens in points if val_loss]


def bench(rounds: int) -> tuple[dict, dict]:
    figures, ratios = {}, []
    with tempfile.TemporaryDirectory() as out_dir:
        for seed in range(rounds):
            curves = {}
            for name, settings in RUNS.items():
                curves[name] = train_run(f"{name}_{seed}", settings | dict(seed=seed), out_dir)
                seconds, val_loss, tokens = curves[name][-1]
                figures[f"{name}, seed {seed}: validation loss at the end"] = val_loss
                figures[f"{name}, seed {seed}: seconds"] = seconds
                figures[f"{name}, seed {seed}: tokens"] = tokens
            goal = curves["adamw"][-1]
            reached = next((point for point in curves["fast"] if point[1] <= goal[1]), (math.inf, 0.0, math.inf))
            figures[f"fast, seed {seed}: seconds to the loss of adamw"] = reached[0]
            figures[f"fast, seed {seed}: tokens to the loss of adamw"] = reached[2]
            ratios.append(goal[0] / reached[0])
    return dict(fast_vs_adamw=statistics.median(ratios)), figures
