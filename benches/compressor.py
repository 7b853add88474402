"""
Time and memory of a training step of the compressor (variants/compressor.py) and of the plain model: three widths,
batches of 2 to 32 x 512 tokens, AdamW, bf16, compiled; each in its own process.

$ python bench.py compressor --rounds 3
"""

import itertools
from collections.abc import Callable
from functools import partial

import torch

from benches.measure import DEVICE, alternating_processes
from benches.models import SHAPE, random_tokens
from benches.train import step_of
from model import GPTNeoConfig
from variants.compressor import MODELS

WIDTHS, BATCH_SIZES = (128, 256, 512), (2, 4, 8, 16, 32)
BATCH_SIZE_WITH_MATRIX = 8  # here, attention that builds its T x T matrix is measured as well


def step_of_shape(kind: str, width: int, with_matrix: bool = False) -> Callable[[torch.Tensor], None]:
    torch.manual_seed(0)
    model = MODELS[kind](GPTNeoConfig(**SHAPE | dict(n_embd=width))).to(DEVICE)
    if with_matrix:
        model.attend = attend_with_matrix
    return step_of(model)


def attend_with_matrix(_, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as written before fused kernels: all T x T weights of all heads, kept for backward. (B, T, H, D)"""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


def bench(rounds: int) -> tuple[dict, dict]:
    ratios, figures = {}, {}
    for width, batch_size in itertools.product(WIDTHS, BATCH_SIZES):
        steps = {kind: partial(step_of_shape, kind, width) for kind in ("gptneo", "compressor")}
        if batch_size == BATCH_SIZE_WITH_MATRIX:
            steps |= {f"{kind}, matrix": partial(make, with_matrix=True) for kind, make in steps.items()}
        seconds, peak = alternating_processes(steps, random_tokens(batch_size, SHAPE["block_size"] + 1), rounds)
        for name in steps:
            figures[f"{name}, {width} wide, batch {batch_size}: ms a step"] = 1000 * seconds[name]
            figures[f"{name}, {width} wide, batch {batch_size}: peak MiB"] = peak[name]
        ratios[f"speed_{width}_batch{batch_size}"] = seconds["gptneo"] / seconds["compressor"]
        ratios[f"memory_{width}_batch{batch_size}"] = peak["gptneo"] / peak["compressor"]
        if batch_size == BATCH_SIZE_WITH_MATRIX:
            ratios[f"memory_{width}_batch{batch_size}_matrix"] = peak["gptneo, matrix"] / peak["compressor, matrix"]
    few, many = BATCH_SIZES[0], BATCH_SIZES[-1]
    for width, kind in itertools.product(WIDTHS, ("gptneo", "compressor")):  # without Python's own memory
        difference = figures[f"{kind}, {width} wide, batch {many}: peak MiB"]
        difference -= figures[f"{kind}, {width} wide, batch {few}: peak MiB"]
        figures[f"{kind}, {width} wide: MiB a sequence"] = difference / (many - few)
    return ratios, figures
