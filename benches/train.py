"""
A training step of 8 x 512 tokens (on a GPU 32 x 512) against a nanoGPT-style GPT and transformers'
GPTNeo, each eager and compiled, in every dtype that the hardware multiplies, and against the matrix
products alone (the limit: a step that does nothing else). All take train.py's own step, keep freed
memory, and alternate. Only the nanoGPT-style model attends to all 512 tokens in each layer.

$ python bench.py train            # needs transformers: pip install -r requirements-dev.txt
"""

import itertools
from functools import partial

import torch

from benches.measure import DEVICE, Contestant, alternating_medians, peer_dtypes
from benches.models import (
    SHAPE,
    PlainGPT,
    next_token_loss,
    training_steps,
    transformers_gptneo,
)
from model import GPTNeo
from nanostories.device import choose_dtype, set_up_device
from nanostories.kernels.cross_entropy import CHUNK
from nanostories.training.config import TrainConfig

BATCH_SIZE = 32 if DEVICE == "cuda" else 8
# In a turn: on a GPU a step takes milliseconds; on a CPU the first one after a pause is slow, as no
# cache holds its memory any more.
STEPS = 20 if DEVICE == "cuda" else 5
# ratios: ours beside the fastest contestant whose name begins so
PEERS = ("nanoGPT-style", "transformers", "matrix products alone")


# ---- Contestants ----
def transformers_loss(model, inputs, targets):
    return model(inputs, labels=inputs).loss  # it shifts the labels itself


MODELS = {
    "ours": (GPTNeo, next_token_loss),
    "nanoGPT-style": (PlainGPT, next_token_loss),
    "transformers": (transformers_gptneo, transformers_loss),
}


def contestant(name: str, dtype="auto", compile=True) -> Contestant:
    torch.manual_seed(0)
    make_model, loss = MODELS[name]
    config = TrainConfig(
        batch_size=BATCH_SIZE, block_size=SHAPE.block_size, dtype=dtype, compile=compile
    )
    return training_steps(make_model(SHAPE).to(DEVICE), config, STEPS, loss)


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
    dtype = choose_dtype("auto", torch.device(DEVICE))
    random = partial(torch.randn, device=DEVICE, dtype=dtype)
    operands = {}
    for rows, inputs, outputs in set(layers):
        operands[rows, inputs, outputs] = (
            random(rows, inputs),
            random(outputs, inputs),
            random(rows, outputs),
        )

    def multiply():
        for layer in layers * STEPS:
            x, weight, dy = operands[layer]
            x @ weight.T
            dy @ weight
            dy.T @ x

    return multiply


# ---- Measurement ----
def bench(rounds=3):
    set_up_device(DEVICE)
    contestants = {"ours": contestant("ours"), "matrix products alone": matrix_products()}
    variants = itertools.product(("nanoGPT-style", "transformers"), (False, True), peer_dtypes())
    for peer, compile, dtype in variants:
        mode = "compiled" if compile else "eager"
        contestants[f"{peer}, {mode}, {dtype}"] = contestant(peer, dtype, compile)

    seconds = alternating_medians(contestants, rounds)
    tokens = STEPS * BATCH_SIZE * SHAPE.block_size
    figures = {f"{name}, tokens/s": tokens / value for name, value in seconds.items()}
    ratios = {}
    for peer in PEERS:
        best = min(value for name, value in seconds.items() if name.startswith(peer))
        ratios[peer] = best / seconds["ours"]
    return ratios, figures
