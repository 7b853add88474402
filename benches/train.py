"""
A training step of 8 x 512 tokens (on a GPU 32 x 512, and the 33M shape of ours as well) against a
nanoGPT-style GPT and transformers' GPTNeo, each eager and compiled, in every dtype that the
hardware multiplies, and against the matrix products alone (the limit: a step that does nothing
else). All take train.py's own step, keep freed memory, and alternate with ours in processes of
their own. Only the nanoGPT-style model attends to all 512 tokens in each layer.

$ python bench.py train            # needs transformers: pip install -r requirements-dev.txt
"""

import statistics
from collections.abc import Callable
from functools import partial
from itertools import product

import torch

from benches.measure import DEVICE, alternating_processes, peer_dtypes
from benches.models import SHAPE, PlainGPT, our_model, random_tokens, their_model
from model import GPTNeo
from nanostories.device import choose_dtype, peak_flops
from nanostories.kernels.compile_cpp import dtype_name
from nanostories.kernels.cross_entropy import CHUNK
from nanostories.training.config import TrainConfig
from nanostories.training.optimizers import make_optimizers
from train import TrainingState, train_step

BATCH_SIZE, STEPS = (
    (32, 20) if DEVICE == "cuda" else (8, 1)
)  # steps in a turn: on a GPU one takes milliseconds
DTYPE = choose_dtype("auto", torch.device(DEVICE))  # for our matrix products
MFU = {"ours": {}} | ({"ours, 33M": dict(n_layer=4, n_embd=768)} if DEVICE == "cuda" else {})

Model = tuple[torch.nn.Module, Callable]  # and a function of inputs and targets -> loss


def ours(**shape) -> Model:
    model = our_model(**shape).train()
    return model, lambda x, y: model(x, y)[1]


def plain() -> Model:
    torch.manual_seed(0)
    model = PlainGPT(**SHAPE).to(DEVICE)
    return model, model


def theirs() -> Model:
    model = their_model().train()
    return model, lambda x, y: model(x, labels=x).loss  # it shifts the labels itself


def steps_of(
    make: Callable[[], Model], compiled: bool, dtype: torch.dtype
) -> Callable[[torch.Tensor], None]:
    """STEPS steps of train.py on tokens (B, T + 1)."""
    model, loss_of = make()
    loss_of = torch.compile(loss_of, dynamic=False) if compiled else loss_of
    adamw = torch.optim.AdamW(model.parameters(), lr=5e-4, fused=True)
    optimizers = make_optimizers(model, TrainConfig()) if isinstance(model, GPTNeo) else [adamw]
    state = TrainingState(model, optimizers, dtype)

    def run(tokens: torch.Tensor) -> None:
        tokens = tokens.to(DEVICE)
        for _ in range(STEPS):
            train_step(state, loss_of, [(tokens[:, :-1], tokens[:, 1:], 1.0)])

    return run


def products_alone() -> Callable[[torch.Tensor], None]:
    """The products of all Linear layers, one forward and two backward, the head's in chunks, as in
    nanostories/kernels/cross_entropy.py; not those inside attention."""
    n, C, V = BATCH_SIZE * SHAPE["block_size"], SHAPE["n_embd"], SHAPE["vocab_size"]
    block = [(n, C, 3 * C), (n, C, C), (n, C, 4 * C), (n, 4 * C, C)]
    layers, random = (
        block * SHAPE["n_layer"] + [(CHUNK, C, V)] * (n // CHUNK),
        partial(torch.randn, device=DEVICE),
    )
    tensors = {
        (n, i, o): [random(*shape, dtype=DTYPE) for shape in ((n, i), (o, i), (n, o))]
        for n, i, o in layers
    }

    def run(_):
        for _ in range(STEPS):
            for size in layers:
                x, weight, dy = tensors[size]
                x @ weight.T, dy @ weight, dy.T @ x

    return run


def bench(rounds: int = 3) -> tuple[dict, dict]:
    makes = {
        name: partial(steps_of, partial(ours, **shape), True, DTYPE) for name, shape in MFU.items()
    }
    makes["matrix products alone"] = products_alone
    peers = {"nanoGPT-style": plain, "transformers": theirs}
    for (name, peer), compiled, dtype in product(peers.items(), (False, True), peer_dtypes()):
        label = f"{name}, {'compiled' if compiled else 'eager'}, {dtype_name(dtype)}"
        makes[label] = partial(steps_of, peer, compiled, dtype)
    own, tokens = makes.pop("ours"), random_tokens(BATCH_SIZE, SHAPE["block_size"] + 1)
    pairs = {
        name: alternating_processes({"ours": own, name: make}, tokens, rounds)
        for name, make in makes.items()
    }
    seconds = {"ours": statistics.median(pair["ours"] for pair in pairs.values())} | {
        x: pairs[x][x] for x in pairs
    }
    figures = {
        f"{name}, tokens/s": STEPS * tokens[:, 1:].numel() / value
        for name, value in seconds.items()
    }
    for name, shape in MFU.items():
        flops = (
            our_model(**shape).flops_per_token(SHAPE["block_size"]) * figures[f"{name}, tokens/s"]
        )
        figures[f"{name}, MFU, percent"] = 100 * flops / peak_flops(torch.device(DEVICE), DTYPE)
    starts = {
        "nanogpt": "nanoGPT-style",
        "transformers": "transformers",
        "limit": "matrix products alone",
    }
    ratios = {name: pair[name] / pair["ours"] for name, pair in pairs.items()}
    return {
        x: min(ratios[name] for name in ratios if name.startswith(start))
        for x, start in starts.items()
    }, figures
