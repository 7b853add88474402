"""
Ten minutes on two cores: the bits per byte that a config reaches on the validation stories of
data/real; seeds 0 to 2.

# needs data/real (docs/data.md); records are in LOG.md
$ python bench.py track --config configs/cpu.py mine.py

The first config is the record to beat. Another one beats it if p of a paired t-test over the seeds
is below 0.01.
"""

from collections.abc import Sequence
from pathlib import Path

from scipy.stats import ttest_rel

from benches import measure

SETTINGS = dict(
    data="real", max_minutes=10, max_steps=1_000_000, eval_interval=1_000_000, log_interval=50
)


def bench(
    rounds: int = 3, configs: Sequence[Path] = (measure.ROOT / "configs" / "cpu.py",)
) -> tuple[dict, dict]:
    reached, figures, ratios = {config.stem: [] for config in configs}, {}, {}
    for seed in range(rounds):
        for config in configs:
            row = measure.train(config, SETTINGS | dict(seed=seed), OMP_NUM_THREADS="2")[-1]
            reached[config.stem].append(float(row["bpb"]))
            figures[f"{config.stem}, seed {seed}: bits per byte"] = float(row["bpb"])
            figures[f"{config.stem}, seed {seed}: tokens"] = int(row["tokens"])
    record, *others = reached
    for name in others:
        ratios[name] = sum(reached[record]) / sum(reached[name])
        figures[f"{name}: p"] = float(
            ttest_rel(reached[name], reached[record], alternative="less").pvalue
        )
    return ratios, figures
