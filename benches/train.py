"""
A training step of 8 x 512 tokens (on a GPU 32 x 512, and the 33M shape of ours as well) against a
nanoGPT-style GPT and transformers' GPTNeo, each eager and compiled, in every dtype that the
hardware multiplies, and against the matrix products alone (the limit: a step that does nothing
else). All take train.py's own step, keep freed memory, and alternate with ours in processes of
their own. Only the nanoGPT-style model attends to all 512 tokens in each layer.

$ python bench.py train            # needs transformers: pip install -r requirements-dev.txt
"""

import dataclasses
import itertools
import statistics
from functools import partial

import torch

from benches.measure import DEVICE, Contestant, alternating_processes, peer_dtypes
from benches.models import SHAPE, PlainGPT, random_tokens, transformers_gptneo
from model import GPTNeo
from nanostories.device import choose_dtype, peak_flops
from nanostories.kernels.cross_entropy import CHUNK
from nanostories.training.config import TrainConfig
from train import TrainingState, train_step

SHAPE_33M = dataclasses.replace(SHAPE, n_layer=4, n_embd=768)
BATCH_SIZE = 32 if DEVICE == "cuda" else 8
STEPS = 20 if DEVICE == "cuda" else 1  # in a turn: on a GPU a step takes milliseconds
DTYPE = choose_dtype("auto", torch.device(DEVICE))  # of our matrix products


# ---- Contestants ----
def our_loss(model, inputs, targets):
    return model(inputs, targets)[1]


def transformers_loss(model, inputs, targets):
    return model(inputs, labels=inputs).loss  # it shifts the labels itself


MODELS = {
    "ours": (GPTNeo, our_loss),
    "nanoGPT-style": (PlainGPT, our_loss),
    "transformers": (transformers_gptneo, transformers_loss),
}


def training_steps(name: str, shape, dtype="auto", compile=True) -> Contestant:
    """STEPS steps of train.py."""
    torch.manual_seed(0)
    make_model, loss = MODELS[name]
    model = make_model(shape).to(DEVICE)
    state = TrainingState(model, TrainConfig(dtype=dtype, compile=compile))
    loss_of = partial(loss, state.compiled_model)
    tokens = random_tokens(BATCH_SIZE, shape.block_size + 1)
    micro_batches = [(tokens[:, :-1], tokens[:, 1:], 1.0)]

    def take_steps():
        for _ in range(STEPS):
            train_step(state, loss_of, micro_batches)

    return take_steps


def matrix_products() -> Contestant:
    """The products of all Linear layers, one forward and two backward, the head's on a CPU in
    chunks, as in nanostories/kernels/cross_entropy.py; not those inside attention."""
    n = BATCH_SIZE * SHAPE.block_size
    C = SHAPE.n_embd
    # (rows, inputs, outputs) of each layer
    block = [(n, C, 3 * C), (n, C, C), (n, C, 4 * C), (n, 4 * C, C)]
    chunk = CHUNK if DEVICE == "cpu" else n
    head = [(chunk, C, SHAPE.vocab_size)] * (n // chunk)
    layers = block * SHAPE.n_layer + head
    random = partial(torch.randn, device=DEVICE, dtype=DTYPE)
    operands = {}
    for rows, inputs, outputs in set(layers):
        x = random(rows, inputs)
        weight = random(outputs, inputs)
        dy = random(rows, outputs)
        operands[rows, inputs, outputs] = (x, weight, dy)

    def multiply():
        for layer in layers * STEPS:
            x, weight, dy = operands[layer]
            x @ weight.T
            dy @ weight
            dy.T @ x

    return multiply


# ---- Measurement ----
def bench(rounds=3):
    ours = partial(training_steps, "ours", SHAPE)
    others = {"matrix products alone": matrix_products}
    if DEVICE == "cuda":
        others["ours, 33M"] = partial(training_steps, "ours", SHAPE_33M)
    variants = itertools.product(("nanoGPT-style", "transformers"), (False, True), peer_dtypes())
    for peer, compile, dtype in variants:
        mode = "compiled" if compile else "eager"
        make = partial(training_steps, peer, SHAPE, dtype, compile)
        others[f"{peer}, {mode}, {dtype}"] = make

    tokens = STEPS * BATCH_SIZE * SHAPE.block_size
    our_seconds = []
    ratios = {}
    figures = {}
    for name, make in others.items():
        seconds = alternating_processes({"ours": ours, name: make}, rounds)
        our_seconds.append(seconds["ours"])
        ratios[name] = seconds[name] / seconds["ours"]
        figures[f"{name}, tokens/s"] = tokens / seconds[name]
    figures["ours, tokens/s"] = tokens / statistics.median(our_seconds)
    best_ratios = {
        "nanogpt": smallest(ratios, "nanoGPT-style"),
        "transformers": smallest(ratios, "transformers"),
        "limit": ratios["matrix products alone"],
    }
    return best_ratios, figures | mfu(figures)


def smallest(ratios: dict[str, float], peer: str) -> float:
    """Ours beside the fastest variant of this peer."""
    return min(ratio for name, ratio in ratios.items() if name.startswith(peer))


def mfu(figures: dict[str, float]) -> dict[str, float]:
    """Model FLOPs utilization, on GPUs whose peak is known."""
    peak = peak_flops(torch.device(DEVICE), DTYPE)
    if not peak:
        return {}
    percent = {}
    for name, shape in {"ours": SHAPE, "ours, 33M": SHAPE_33M}.items():
        flops_per_token = GPTNeo(shape).flops_per_token(shape.block_size)
        flops = flops_per_token * figures[f"{name}, tokens/s"]
        percent[f"{name}, MFU, percent"] = 100 * flops / peak
    return percent
