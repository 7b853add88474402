"""
A training step of 8 x 512 tokens beside a nanoGPT-style GPT and transformers' GPTNeo, eager and compiled, and beside
the matrix products alone (the limit: a step that does nothing else). Each has its own process; types that this
processor only emulates are skipped.

$ python bench.py train            # needs transformers: pip install -r requirements-dev.txt
"""

import tempfile
from collections.abc import Callable
from functools import partial

import torch

from benches.measure import DEVICE, alone, alternating_processes, fast_dtype, peak_mib, peer_dtypes
from benches.models import SHAPE, PlainGPT, export_our_model, our_model, random_tokens, their_model
from kernels import compile_cpp
from kernels.cross_entropy import CHUNK
from model import GPTNeo, GPTNeoConfig
from training.config import TrainConfig
from training.device_and_dtype import peak_flops
from training.optimizers_and_schedule import make_optimizers

BATCH_SIZE = 8
WIDE = dict(n_layer=12, n_embd=512)  # whose memory is measured, with 32 sequences


def our_step() -> Callable[[torch.Tensor], None]:
    return step_of(our_model().train())


def step_of(model: GPTNeo) -> Callable[[torch.Tensor], None]:
    """A step as in train.py: compiled, with AdamW."""
    compile_cpp.keep_freed_memory()
    forward = torch.compile(model, dynamic=False)
    return partial(take_step, model, optimizers_of(model), fast_dtype(), lambda x, y: forward(x, y)[1])


def their_step(directory: str, dtype: torch.dtype, compiled: bool, keep_freed_memory: bool = False):
    if keep_freed_memory:  # train.py does this, and a peer could
        compile_cpp.keep_freed_memory()
    model = their_model(directory).train()
    forward = torch.compile(model) if compiled else model
    # It shifts the labels itself.
    return partial(take_step, model, optimizers_of(model), dtype, lambda x, y: forward(x, labels=x).loss)


def plain_step(directory: str, dtype: torch.dtype, compiled: bool):
    torch.manual_seed(0)
    model = PlainGPT(**SHAPE).to(DEVICE)
    return partial(take_step, model, optimizers_of(model), dtype, torch.compile(model) if compiled else model)


def optimizers_of(model: torch.nn.Module) -> list:
    """Our optimizers, as in train.py, or a peer's AdamW."""
    if isinstance(model, GPTNeo):
        return make_optimizers(model, TrainConfig())
    return [torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)]


def take_step(model, optimizers: list, dtype: torch.dtype, loss_of: Callable, tokens: torch.Tensor):
    """dtype float32: no autocast."""
    tokens = tokens.to(next(model.parameters()).device)
    with torch.autocast(tokens.device.type, dtype, enabled=dtype != torch.float32):
        loss = loss_of(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def products_alone() -> Callable[[torch.Tensor], None]:
    """The products of all Linear layers, one forward and two backward, the head's in chunks, as in
    kernels/cross_entropy.py; not those inside attention."""
    compile_cpp.keep_freed_memory()
    n, C, V, dtype = BATCH_SIZE * SHAPE["block_size"], SHAPE["n_embd"], SHAPE["vocab_size"], fast_dtype()
    block = [(n, C, 3 * C), (n, C, C), (n, C, 4 * C), (n, 4 * C, C)]
    layers = block * SHAPE["n_layer"] + [(CHUNK, C, V)] * (n // CHUNK)
    random = {size: [torch.randn(*shape, device=DEVICE, dtype=dtype) for shape in shapes_of(*size)] for size in layers}

    def run(_):
        for size in layers:
            x, weight, dy = random[size]
            x @ weight.T, dy @ weight, dy.T @ x

    return run


def shapes_of(n: int, n_in: int, n_out: int) -> list[tuple[int, int]]:
    """Shapes of the inputs, the weight and the gradient of the outputs."""
    return [(n, n_in), (n_out, n_in), (n, n_out)]


def memory_of_a_step() -> float:
    step_of(our_model(**WIDE).train())(random_tokens(32, SHAPE["block_size"] + 1))
    return peak_mib()


def bench(rounds: int) -> tuple[dict, dict]:
    figures = {}
    with tempfile.TemporaryDirectory() as directory:
        export_our_model(directory)
        eager = "transformers, eager, float32"
        steps = {
            "ours": our_step,
            "matrix products alone": products_alone,
            eager: partial(their_step, directory, torch.float32, compiled=False),
            f"{eager}, freed memory kept": partial(their_step, directory, torch.float32, False, keep_freed_memory=True),
        }
        name = compile_cpp.dtype_name(fast_dtype())
        steps[f"transformers, compiled, {name}"] = partial(their_step, directory, fast_dtype(), compiled=True)
        for dtype in peer_dtypes():
            for how in ("eager", "compiled"):
                label = f"nanoGPT-style, {how}, {compile_cpp.dtype_name(dtype)}"
                steps[label] = partial(plain_step, directory, dtype, compiled=how == "compiled")
        seconds, _ = alternating_processes(steps, random_tokens(BATCH_SIZE, SHAPE["block_size"] + 1), rounds)
    for label, value in seconds.items():
        figures[f"{label}, tokens/s"] = BATCH_SIZE * SHAPE["block_size"] / value
    ratios = dict(
        nanogpt=min(value for label, value in seconds.items() if label.startswith("nanoGPT")) / seconds["ours"],
        transformers=min(value for label, value in seconds.items() if label.startswith("trans")) / seconds["ours"],
        transformers_eager_fp32=seconds[eager] / seconds["ours"],
        limit=seconds["matrix products alone"] / seconds["ours"],
    )
    flops = GPTNeo(GPTNeoConfig(**SHAPE)).flops_per_token(SHAPE["block_size"]) * figures["ours, tokens/s"]
    figures["ours, MFU, percent"] = 100 * flops / peak_flops(torch.device(DEVICE), fast_dtype())
    figures["ours, 12 layers x 512, 32 x 512 tokens, peak MiB"] = alone(memory_of_a_step)
    return ratios, figures
