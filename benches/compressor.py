"""
Time and memory of a training step of the compressor (variants/compressor.py) and of the plain model: three widths,
batches of 2 to 32 x 512 tokens, AdamW, compiled; each in its own process.

$ python bench.py compressor
"""

import itertools
from functools import partial

import torch

from benches.measure import DEVICE, alternating_processes, fast_dtype
from benches.models import SHAPE, random_tokens
from benches.train import Model, steps_of
from model import GPTNeoConfig
from variants import MODELS

WIDTHS, BATCH_SIZES = (128, 256, 512), (2, 4, 8, 16, 32)
BATCH_SIZE_WITH_MATRIX = 8  # here, attention that builds its T x T matrix is measured as well


def make(kind: str, width: int, with_matrix: bool = False) -> Model:
    torch.manual_seed(0)
    model = MODELS[kind](GPTNeoConfig(**SHAPE | dict(n_embd=width))).to(DEVICE)
    if with_matrix:
        model.attend = attend_with_matrix
    forward = torch.compile(model, dynamic=False)
    return model, lambda x, y: forward(x, y)[1]


def attend_with_matrix(_, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Attention as written before fused kernels: all T x T weights of all heads, kept for backward. (B, T, H, D)"""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
    return torch.einsum("bhqk,bkhd->bqhd", scores.masked_fill(later, -torch.inf).softmax(-1), v)


def bench(rounds: int, **training) -> tuple[dict, dict]:
    ratios, figures = {}, {}
    for width, batch_size in itertools.product(WIDTHS, BATCH_SIZES):
        models = {kind: partial(make, kind, width) for kind in ("gptneo", "pair_compressor")}
        if batch_size == BATCH_SIZE_WITH_MATRIX:
            models |= {f"{kind}, matrix": partial(model, with_matrix=True) for kind, model in models.items()}
        steps = {name: partial(steps_of, model, fast_dtype(), **training) for name, model in models.items()}
        seconds, peak = alternating_processes(steps, random_tokens(batch_size, SHAPE["block_size"] + 1), rounds)
        for name in steps:
            figures[f"{name}, {width} wide, batch {batch_size}: ms a step"] = 1000 * seconds[name]
            figures[f"{name}, {width} wide, batch {batch_size}: peak MiB"] = peak[name]
        ratios[f"speed_{width}_batch{batch_size}"] = seconds["gptneo"] / seconds["pair_compressor"]
        ratios[f"memory_{width}_batch{batch_size}"] = peak["gptneo"] / peak["pair_compressor"]
        if batch_size == BATCH_SIZE_WITH_MATRIX:
            ratios[f"memory_{width}_batch{batch_size}_matrix"] = (
                peak["gptneo, matrix"] / peak["pair_compressor, matrix"]
            )
    return ratios, figures
