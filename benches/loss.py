"""
Time to a loss on real stories: a nanoGPT-style GPT (128 wide, 8 layers, 8 heads; AdamW, compiled if
that is faster, freed memory kept, the best of three learning rates at seed 0) learns for seven
minutes from batches of 8 windows of 256 tokens. How soon does configs/cpu.py, at this shape, reach
its last loss? It is trained for shares of these minutes, each with its whole schedule. (Its
bigram_init was chosen on this text, with seed 0.)

$ python bench.py loss --rounds 3      # seeds; half an hour each; needs data/real (docs/data.md)
"""

import math
import statistics
import time
from functools import partial

import numpy as np
import torch

from benches import measure
from benches.models import PlainGPT, next_token_loss
from model import GPTNeoConfig
from nanostories.device import set_up_device
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import Batches, load_corpus
from nanostories.training.distributed import SINGLE_PROCESS
from nanostories.training.state import TrainingState
from train import evaluate, train_step

LEARNING_RATES = (2e-3, 4e-3, 8e-3)  # of the peer
SHARES = (1 / 16, 1 / 12, 1 / 9, 1 / 6, 1 / 4)  # of the minutes, for ours
SETTINGS = {
    "data": "real",
    "max_minutes": 7.0,
    "max_steps": 10**6,
    "eval_interval": 10**6,
    "block_size": 256,
    "batch_size": 8,
    "grad_accum_steps": 1,
    "n_layer": 8,
    "n_head": 8,
    "n_embd": 128,
}


# ---- The peer ----
def train_peer(highest_rate: float, seed: int) -> float:
    """Its validation loss. As nanoGPT, whose betas and decay are TrainConfig's own."""
    device = set_up_device(measure.DEVICE)
    config = TrainConfig(**SETTINGS, seed=seed, learning_rate=0.0)
    corpus = load_corpus(config, device)
    batches = Batches(corpus, config, SINGLE_PROCESS)
    torch.manual_seed(seed)
    shape = GPTNeoConfig(vocab_size=corpus.tokenizer.vocab_size, **config.model_shape())
    state = TrainingState(PlainGPT(shape).to(device), config, corpus)

    # Compiled or not, whichever is faster. These steps leave the weights: the learning rate is 0.
    contestants = {}
    for model in (state.model, state.compiled_model):
        loss_of = partial(next_token_loss, model)
        contestants[loss_of] = partial(train_step, state, loss_of, list(batches.for_step(0)))
    seconds = measure.alternating_medians(contestants, rounds=5)
    loss_of = min(seconds, key=seconds.get)

    state.optimizers[0].state.clear()  # but they left moments
    state.step = 0
    start = time.perf_counter()
    while state.fraction_done < 1:
        for group in state.optimizers[0].param_groups:
            group["lr"] = highest_rate * schedule(state.fraction_done)
        train_step(state, loss_of, batches.for_step(state.step))
        state.seconds = time.perf_counter() - start
    return evaluate(state)["val_loss"]


def schedule(done: float) -> float:
    """Warm-up over the first 3% of the time, and a cosine to a tenth."""
    warmup = min(1, done / 0.03 + 0.01)
    return warmup * (0.55 + 0.45 * math.cos(math.pi * done))


# ---- Ours beside it ----
def bench(rounds=1):
    rates = LEARNING_RATES
    figures = {}
    speedups = []
    for seed in range(rounds):
        peer_losses = {}
        for rate in rates:
            peer_losses[rate] = train_peer(rate, seed)
            figures[f"nanoGPT-style, {rate:g}, seed {seed}: loss"] = peer_losses[rate]
        best_rate = min(peer_losses, key=peer_losses.get)
        rates = [best_rate]  # for the other seeds, too

        losses = []
        for share in SHARES:
            settings = SETTINGS | {"max_minutes": share * SETTINGS["max_minutes"], "seed": seed}
            run = measure.OUT / f"loss-{share:.3f}-{seed}"
            row = measure.train(measure.ROOT / "configs" / "cpu.py", settings, run)
            losses.append(float(row["val_loss"]))
            figures[f"ours, 1/{1 / share:.0f} of the time, seed {seed}: loss"] = losses[-1]
        speedups.append(speedup(losses, peer_losses[best_rate]))
    return {"nanoGPT-style": statistics.median(speedups)}, figures


def speedup(losses: list[float], peer_loss: float) -> float:
    """1 / the share of the time in which `losses`, those of SHARES, reach the peer's: between two
    trainings it is interpolated over the logarithm. At most 1 / SHARES[0]; 0 if none reaches it."""
    log_speedups = -np.log(SHARES)
    # np.interp wants losses that rise
    return math.exp(np.interp(-peer_loss, -np.array(losses), log_speedups, right=-math.inf))
