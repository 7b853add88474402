"""
Ten minutes on two cores: the bits per byte that a config reaches on the validation stories of
data/real; seeds 0 to 2.

# needs data/real (docs/data.md); records are in LOG.md
$ python bench.py track --config configs/cpu.py mine.py

The first config is the record to beat. Another one beats it if p of a paired t-test over the seeds
is below 0.01.
"""

import os

from scipy.stats import ttest_rel

from benches import measure

SETTINGS = {
    "data": "real",
    "max_minutes": 10,
    "max_steps": 1_000_000,
    "eval_interval": 1_000_000,
    "log_interval": 50,
}


def bench(rounds=3, configs=(measure.ROOT / "configs" / "cpu.py",)):
    os.environ["OMP_NUM_THREADS"] = "2"
    reached = {config.stem: [] for config in configs}  # bits per byte, one for each seed
    figures = {}
    for seed in range(rounds):
        for config in configs:
            row = measure.train(config, SETTINGS | {"seed": seed})
            bpb = float(row["bpb"])
            reached[config.stem].append(bpb)
            figures[f"{config.stem}, seed {seed}: bits per byte"] = bpb
            figures[f"{config.stem}, seed {seed}: tokens"] = int(row["tokens"])

    ratios = {}
    record, *others = reached
    for name in others:
        ratios[name] = sum(reached[record]) / sum(reached[name])
        test = ttest_rel(reached[name], reached[record], alternative="less")
        figures[f"{name}: p"] = float(test.pvalue)
    return ratios, figures
