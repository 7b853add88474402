"""
Ten minutes on two cores: the bits per byte that a config reaches on the validation stories of data/real; seeds 0 to 2.

$ python bench.py track --config configs/cpu_1m.py mine.py     # needs data/real (docs/data.md); records are in LOG.md

The first config is the record to beat. Another one beats it if p of a paired t-test over the seeds is below 0.01.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from scipy.stats import ttest_rel

from benches.measure import ROOT
from training.run_directory import read_log

MINUTES, THREADS = 10, 2
SETTINGS = dict(data="real", max_minutes=MINUTES, max_steps=1_000_000, eval_interval=1_000_000, log_interval=50)


def bench(rounds: int = 3, configs: Sequence[Path] = (ROOT / "configs" / "cpu_1m.py",)) -> tuple[dict, dict]:
    reached, figures, ratios = {config.stem: [] for config in configs}, {}, {}
    for seed in range(rounds):
        for config in configs:
            bpb, tokens = train(config, seed)
            reached[config.stem].append(bpb)
            figures |= {
                f"{config.stem}, seed {seed}: bits per byte": bpb,
                f"{config.stem}, seed {seed}: tokens": tokens,
            }
    record, *others = reached
    for name in others:
        ratios[name] = sum(reached[record]) / sum(reached[name])
        figures[f"{name}: p"] = float(ttest_rel(reached[name], reached[record], alternative="less").pvalue)
    return ratios, figures


def train(config: Path, seed: int) -> tuple[float, int]:
    with tempfile.TemporaryDirectory() as directory:
        flags = [
            f"--{key}={value}" for key, value in (SETTINGS | dict(seed=seed, name="run", out_dir=directory)).items()
        ]
        environment = os.environ | dict(OMP_NUM_THREADS=str(THREADS))
        command = [sys.executable, ROOT / "train.py", config, *flags]
        subprocess.run(command, check=True, stdout=2, env=environment)
        row = read_log(Path(directory, "run", "log.csv"))[-1]
    return float(row["bpb"]), int(row["tokens"])
