"""How the benches measure: contestants alternate."""

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.kernels.cpu_features import instruction_set
from nanostories.training.run_directory import read_log

ROOT = Path(__file__).parent.parent
OUT = Path("out/bench")  # trained runs stay there, to be sampled and probed
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Contestant = Callable[[], object]  # what is timed


def peer_dtypes() -> list[str]:
    """The types to try a peer in: those that the hardware has instructions for, fast or not."""
    if DEVICE == "cuda" or instruction_set().name in ("avx512_bf16", "amx"):
        return ["float32", "bfloat16"]
    return ["float32"]


def train(config: Path, settings: dict, run: Path) -> dict[str, str]:
    """The last row of the log of a training by train.py, in a process of its own; the run stays."""
    flags = [f"--{name}={value}" for name, value in settings.items()]
    flags += [f"--name={run.name}", f"--out_dir={run.parent}", f"--device={DEVICE}"]
    run_command("train.py", config, *flags)
    return read_log(run / "log.csv")[-1]


def run_command(script: str, *args) -> None:
    """Its output goes to standard error: on standard output, the result comes alone."""
    try:
        subprocess.run([sys.executable, ROOT / script, *args], check=True, stdout=2)
    except subprocess.CalledProcessError:
        raise UserError(f"{script} failed: see above") from None


def alternating_medians(contestants: dict[str, Contestant], rounds: int) -> dict[str, float]:
    """{name: median seconds}; contestants alternate, after one uncounted warm-up round."""
    seconds = {name: [] for name in contestants}
    for _ in tqdm(range(1 + rounds), "rounds", leave=False, disable=None):
        for name, contestant in contestants.items():
            seconds[name].append(seconds_of(contestant))
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def seconds_of(contestant: Contestant) -> float:
    gc.collect()
    start = time.perf_counter()
    contestant()
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
