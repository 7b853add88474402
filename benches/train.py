"""
A step of training beside transformers' GPTNeo, eager and compiled: the same weights, batches of 16 x 512 tokens, bf16
autocast unless said otherwise; each in a process of its own.

$ python bench.py train            # needs transformers: pip install -r requirements-dev.txt
"""

import tempfile
from collections.abc import Callable
from functools import partial

import torch

import native
from benches.measure import DEVICE, alone, alternating_processes, peak_mib
from benches.models import SHAPE, export_random_model, our_model, random_tokens, their_model
from config import TrainConfig
from model import GPTNeo, GPTNeoConfig
from train import make_optimizers, peak_flops  # of the project: this file is benches.train

BATCH_SIZE = 16


def our_step(directory: str) -> Callable[[torch.Tensor], None]:
    return step_of(our_model(directory).train())


def step_of(model: GPTNeo) -> Callable[[torch.Tensor], None]:
    """As train.py takes it, compiled, with AdamW."""
    native.keep_freed_memory()
    optimizers = make_optimizers(model, TrainConfig(name="bench"))
    forward = torch.compile(model)
    return partial(take_step, model, optimizers, torch.bfloat16, lambda x, y: forward(x, y)[1])


def their_step(directory: str, dtype: torch.dtype, compiled: bool, keep_freed_memory: bool = False):
    if keep_freed_memory:  # one of the things that train.py does, and a peer could
        native.keep_freed_memory()
    model = their_model(directory).train()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)]
    forward = torch.compile(model) if compiled else model
    return partial(take_step, model, optimizers, dtype, lambda x, y: forward(x, labels=x).loss)  # shifts them itself


def take_step(model, optimizers: list, dtype: torch.dtype, loss_of: Callable, tokens: torch.Tensor):
    """dtype float32: no autocast."""
    tokens = tokens.to(DEVICE)
    with torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32):
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()
    if tokens.is_cuda:
        torch.cuda.synchronize()


def memory_of_a_step(directory: str) -> float:
    our_step(directory)(random_tokens(32, 513))
    return peak_mib()


def bench(rounds: int) -> tuple[dict, dict]:
    ratios, figures = {}, {}
    with tempfile.TemporaryDirectory() as directory:
        export_random_model(directory)
        eager = "transformers, eager, float32"
        steps = {
            "ours": partial(our_step, directory),
            eager: partial(their_step, directory, torch.float32, compiled=False),
            f"{eager}, freed memory kept": partial(their_step, directory, torch.float32, False, keep_freed_memory=True),
            "transformers, eager": partial(their_step, directory, torch.bfloat16, compiled=False),
            "transformers, compiled": partial(their_step, directory, torch.bfloat16, compiled=True),
        }
        seconds, _ = alternating_processes(steps, random_tokens(BATCH_SIZE, SHAPE["block_size"] + 1), rounds)
        for name, value in seconds.items():
            figures[f"{name}, tokens/s"] = BATCH_SIZE * SHAPE["block_size"] / value
        ratios["transformers_eager_fp32"] = seconds[eager] / seconds["ours"]
        ratios["transformers_compiled"] = seconds["transformers, compiled"] / seconds["ours"]
        flops = GPTNeo(GPTNeoConfig(**SHAPE)).flops_per_token(SHAPE["block_size"]) * figures["ours, tokens/s"]
        figures["ours, MFU, percent"] = 100 * flops / peak_flops(torch.device(DEVICE), torch.bfloat16)
    with tempfile.TemporaryDirectory() as directory:
        export_random_model(directory, n_layer=12, n_embd=512)
        figures["ours, 12 layers x 512, 32 x 512 tokens, peak MiB"] = alone(memory_of_a_step, directory)
    return ratios, figures
