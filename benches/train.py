"""
A training step of 8 x 512 tokens (on a GPU 32 x 512) against a nanoGPT-style GPT and transformers'
GPTNeo, each eager and compiled, in every dtype that the hardware multiplies, and against the matrix
products alone (the limit: a step that does nothing else). All take train.py's own step, keep freed
memory, and alternate with ours in processes of their own. Only the nanoGPT-style model attends to
all 512 tokens in each layer.

$ python bench.py train            # needs transformers: pip install -r requirements-dev.txt
"""

import itertools
import statistics
from functools import partial

import torch

from benches.measure import DEVICE, Contestant, alternating_processes, peer_dtypes
from benches.models import SHAPE, PlainGPT, random_tokens, transformers_gptneo
from model import GPTNeo
from nanostories.device import choose_dtype
from nanostories.kernels.cross_entropy import CHUNK
from nanostories.training.config import TrainConfig
from train import TrainingState, train_step

BATCH_SIZE = 32 if DEVICE == "cuda" else 8
STEPS = 20 if DEVICE == "cuda" else 1  # in a turn: on a GPU a step takes milliseconds
# ratios: ours beside the fastest contestant whose name begins so
PEERS = {
    "nanogpt": "nanoGPT-style",
    "transformers": "transformers",
    "limit": "matrix products alone",
}


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


def training_steps(name: str, dtype="auto", compile=True) -> Contestant:
    """STEPS steps of train.py."""
    torch.manual_seed(0)
    make_model, loss = MODELS[name]
    model = make_model(SHAPE).to(DEVICE)
    state = TrainingState(model, TrainConfig(dtype=dtype, compile=compile))
    loss_of = partial(loss, state.compiled_model)
    tokens = random_tokens(BATCH_SIZE, SHAPE.block_size + 1)
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
    dtype = choose_dtype("auto", torch.device(DEVICE))
    random = partial(torch.randn, device=DEVICE, dtype=dtype)
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
    others = {"matrix products alone": matrix_products}
    variants = itertools.product(("nanoGPT-style", "transformers"), (False, True), peer_dtypes())
    for peer, compile, dtype in variants:
        mode = "compiled" if compile else "eager"
        others[f"{peer}, {mode}, {dtype}"] = partial(training_steps, peer, dtype, compile)

    tokens = STEPS * BATCH_SIZE * SHAPE.block_size
    our_seconds = []
    ratios = {}
    figures = {}
    for name, make in others.items():
        pair = {"ours": partial(training_steps, "ours"), name: make}
        seconds = alternating_processes(pair, rounds)
        our_seconds.append(seconds["ours"])
        ratios[name] = seconds[name] / seconds["ours"]
        figures[f"{name}, tokens/s"] = tokens / seconds[name]
    figures["ours, tokens/s"] = tokens / statistics.median(our_seconds)
    best_ratios = {}
    for peer, prefix in PEERS.items():
        best_ratios[peer] = min(ratios[name] for name in ratios if name.startswith(prefix))
    return best_ratios, figures
