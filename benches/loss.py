"""
How soon the recipe `fast` reaches the loss at which plain AdamW ends: the 1M shape, real stories. One seed per round.

$ python bench.py loss --rounds 3  # needs data/sample (docs/data.md)
"""

import math
import statistics

from benches import measure

STEPS = 1600
RUNS = {  # the peer, adamw, has the best batch size, learning rate and schedule in LOG.md
    "adamw": dict(recipe="adamw", learning_rate=6e-3, warmup_steps=40, warmdown=0.6, eval_interval=STEPS),
    "fast": dict(recipe="fast", max_steps=700, eval_interval=50),
}


def curve(settings: dict, seed: int) -> list[tuple[float, float, int]]:
    """(seconds of training, validation loss, tokens) at every evaluation"""
    settings = dict(max_minutes=0, batch_size=4, max_steps=STEPS, log_interval=50, seed=seed) | settings
    rows = measure.train(measure.ROOT / "configs" / "cpu_1m.py", settings)
    return [(float(row["seconds"]), float(row["val_loss"]), int(row["tokens"])) for row in rows if row["val_loss"]]


def bench(rounds: int = 1) -> tuple[dict, dict]:
    figures, ratios = {}, []
    for seed in range(rounds):
        curves = {name: curve(settings, seed) for name, settings in RUNS.items()}
        goal = curves["adamw"][-1]
        reached = next((point for point in curves["fast"] if point[1] <= goal[1]), (math.inf, 0.0, math.inf))
        for name, points in curves.items():
            for figure, value in zip(("seconds", "validation loss at the end", "tokens"), points[-1]):
                figures[f"{name}, seed {seed}: {figure}"] = value
        figures[f"fast, seed {seed}: seconds to the loss of adamw"] = reached[0]
        figures[f"fast, seed {seed}: tokens to the loss of adamw"] = reached[2]
        ratios.append(goal[0] / reached[0])
    return dict(fast_vs_adamw=statistics.median(ratios)), figures
