"""
Ten minutes on two cores: the bits per byte that a config reaches on the validation stories of
data/real; seeds 0 to 2. The runs stay in out/bench/, for `probe.py --pairs` and others.

# needs data/real (docs/data.md); records are in LOG.md
$ python bench.py track --config configs/cpu.py mine.py

The first config is the record to beat. Another one beats it if p of a paired t-test over the seeds
is below 0.01.
"""

import os

from scipy.stats import ttest_rel

from benches import measure
from nanostories.cli import UserError

SETTINGS = {
    "data": "real",
    "max_minutes": 10,
    "max_steps": 1_000_000,
    "eval_interval": 1_000_000,
    "log_interval": 50,
    "keep_checkpoints": 8,
}


def bench(rounds=3, configs=(measure.ROOT / "configs" / "cpu.py",)):
    os.environ["OMP_NUM_THREADS"] = "2"
    reached = {config.stem: [] for config in configs}  # bits per byte, one for each seed
    if len(reached) < len(configs):
        raise UserError("--config: runs are named after their configs, so these names must differ")
    figures = {}
    for seed in range(rounds):
        for config in configs:
            run = measure.OUT / f"{config.stem}-{seed}"
            row = measure.train(config, SETTINGS | {"seed": seed}, run)
            name = f"{config.stem}, seed {seed}"
            bpb = float(row["bpb"])
            reached[config.stem].append(bpb)
            figures[f"{name}: bits per byte"] = bpb
            figures[f"{name}: tokens"] = int(row["tokens"])

    ratios = {}
    record, *others = reached
    for name in others:
        ratios[name] = sum(reached[record]) / sum(reached[name])
        if rounds > 1:
            test = ttest_rel(reached[name], reached[record], alternative="less")
            figures[f"{name}: p"] = float(test.pvalue)
    return ratios, figures
