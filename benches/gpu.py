"""
The first hour on a GPU: does it compute what a CPU does, and are speed and memory what was counted
from compiled code (docs/results/gpu-by-count.md)? docs/gpu.md says what to expect.

$ python bench.py gpu --save

A ratio below 1 is a promise that was not kept; these are named at the end.
"""

import subprocess
import sys
from functools import partial

import torch

from benches.measure import DEVICE, ROOT, Contestant, alternating_medians
from benches.models import SHAPE, random_tokens, tell_stories, training_steps
from model import GPTNeo, GPTNeoConfig
from nanostories.cli import UserError
from nanostories.device import choose_dtype, measured_flops, peak_flops, set_up_device
from nanostories.training.config import TrainConfig, read_config

CHECKS = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "0", "-q"]
# Of a step of one micro-batch of the published size, 80 x 512 tokens, counted from code compiled
# for sm_90: GB moved, GB of memory at its peak.
COUNTED = {
    "ts_1m": (11.9, 1.85),
    "ts_8m": (27.7, 4.07),
    "ts_28m": (51.0, 7.47),
    "ts_33m": (40.7, 6.11),
}
STEPS = 10
STORIES = 500  # of 200 tokens after prompts of 100, ten to a prompt
SECONDS_FOR_STORIES = 2.0
SHARE_OF_BOUND = 0.5  # of the speed that memory and matrix products allow
MFU = 0.45  # of ts_33m, on a GPU whose peak is known
NUMBERS = 2**28  # in a tensor that is read and written, to measure the memory


def bench(rounds=3):
    if not torch.cuda.is_available():
        raise UserError("PyTorch finds no NVIDIA GPU")
    device = set_up_device(DEVICE)
    dtype = choose_dtype("auto", device)
    ratios = {"checks": float(subprocess.run(CHECKS, cwd=ROOT, stdout=2).returncode == 0)}
    bandwidth = measured_bandwidth(device)
    flops = measured_flops(device, dtype)
    figures = {"memory, GB/s": bandwidth / 1e9, "matrix products, TFLOP/s": flops / 1e12}
    for name, (gigabytes, memory) in COUNTED.items():
        settings = read_config(ROOT / "configs" / f"{name}.py")
        config = TrainConfig(**settings, grad_accum_steps=1)
        torch.manual_seed(0)
        model = GPTNeo(GPTNeoConfig(SHAPE.vocab_size, **config.model_shape())).to(device)
        seconds, peak = step_seconds_and_memory(model, config, rounds)
        n_tokens = config.tokens_per_step
        n_flops = n_tokens * model.flops_per_token(config.block_size)
        bound = max(gigabytes * 1e9 / bandwidth, n_flops / flops)
        figures[f"{name}, tokens/s"] = n_tokens / seconds
        figures[f"{name}, memory, GB"] = peak / 1e9
        ratios[f"{name}: {SHARE_OF_BOUND} of the bound"] = bound / seconds / SHARE_OF_BOUND
        ratios[f"{name}: memory as counted, +10%"] = 1.1e9 * memory / peak
        peak_of_sheet = peak_flops(device, dtype)
        if name == "ts_33m" and peak_of_sheet:
            ratios[f"{name}: MFU {MFU}"] = n_flops / seconds / peak_of_sheet / MFU
        if name == "ts_8m":
            prompts = random_tokens(STORIES // 10, 100).repeat_interleave(10, dim=0)
            seconds = median_seconds(partial(tell_stories, model.eval(), prompts, 200), rounds)
            figures[f"{name}, {STORIES} stories, seconds"] = seconds
            ratios[f"{name}: {STORIES} stories in time"] = SECONDS_FOR_STORIES / seconds
    for promise, ratio in ratios.items():
        if ratio < 1:
            print(f"NOT KEPT: {promise} ({ratio:.2f} of it)")
    return ratios, figures


def median_seconds(contestant: Contestant, rounds: int) -> float:
    return alternating_medians({"ours": contestant}, rounds)["ours"]


def measured_bandwidth(device: torch.device) -> float:
    """Bytes a second, of a large tensor read and written."""
    x = torch.zeros(NUMBERS, device=device)
    return 2 * x.nbytes / median_seconds(partial(x.add_, 1), rounds=8)


def step_seconds_and_memory(model: GPTNeo, config: TrainConfig, rounds: int) -> tuple[float, int]:
    """Of a training step; the memory in bytes."""
    take_steps = training_steps(model, config, STEPS)
    take_steps()  # compiles
    torch.cuda.reset_peak_memory_stats()
    seconds = median_seconds(take_steps, rounds) / STEPS
    return seconds, torch.cuda.max_memory_allocated()
