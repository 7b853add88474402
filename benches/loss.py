"""
Time to a loss on real stories: a nanoGPT-style GPT (128 wide, 8 layers, 8 heads; AdamW, compiled if
that is faster, freed memory kept, the best of three learning rates at seed 0) learns for seven
minutes from batches of 8 windows of 256 tokens. How soon does configs/cpu.py, at this shape, reach
its last loss? It is trained for shares of these minutes, each with its whole schedule. (Its
bigram_init was chosen on this text, with seed 0.)

$ python bench.py loss --rounds 3      # seeds; half an hour each; needs data/real (docs/data.md)
"""

import math
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import numpy as np
import torch
from tqdm import tqdm

from benches import measure
from benches.models import PlainGPT
from nanostories.device import choose_dtype, set_up_device
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import Batches, load_corpus
from nanostories.training.distributed import SINGLE_PROCESS
from train import TrainingState, evaluate, train_step

LEARNING_RATES = (2e-3, 4e-3, 8e-3)  # of the peer
SHARES = (1 / 16, 1 / 12, 1 / 9, 1 / 6, 1 / 4)  # of the minutes, for ours
SETTINGS = dict(data="real", max_minutes=7.0, block_size=256, batch_size=8, grad_accum_steps=1)
SETTINGS |= dict(n_layer=8, n_head=8, n_embd=128)


def train_peer(learning_rate: float, seed: int, settings: dict) -> tuple[float, int]:
    """As nanoGPT: betas, decay, warm-up of 3% and a cosine to a tenth, by the clock. -> the
    validation loss and the number of tokens"""
    device, config = set_up_device(measure.DEVICE), TrainConfig(**settings, seed=seed)
    corpus, dtype = load_corpus(config), choose_dtype("auto", device)
    torch.manual_seed(seed)
    shape = (config.block_size, config.n_layer, config.n_head, config.n_embd)
    model = PlainGPT(corpus.tokenizer.vocab_size, *shape).to(device)
    vectors, matrices = (
        [p for p in model.parameters() if (p.dim() > 1) == is_matrix] for is_matrix in (False, True)
    )
    groups = [dict(params=vectors, weight_decay=0.0), dict(params=matrices, weight_decay=0.1)]
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)
    state, batches = (
        TrainingState(model, [adamw], dtype),
        Batches(corpus, config, SINGLE_PROCESS, device),
    )
    steps = {x: partial(train_step, state, x) for x in (model, torch.compile(model, dynamic=False))}
    first_batch = [*batches.step_batches(0)]
    seconds = measure.alternating_medians(
        {x: partial(step, first_batch) for x, step in steps.items()}, 5
    )  # lr = 0
    step, state.step, start = steps[min(seconds, key=seconds.get)], 0, time.perf_counter()
    while (done := (time.perf_counter() - start) / (60 * config.max_minutes)) < 1:
        for group in adamw.param_groups:
            group["lr"] = (
                learning_rate
                * min(1, done / 0.03 + 0.01)
                * (0.55 + 0.45 * math.cos(math.pi * done))
            )
        step(batches.step_batches(state.step))
    return evaluate(model, state, corpus, config.block_size)[
        "val_loss"
    ], state.step * config.tokens_per_step


def peer(learning_rate: float, seed: int) -> tuple[float, int]:
    """train_peer() in a process of its own"""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(train_peer, learning_rate, seed, SETTINGS).result()


def ours(share: float, seed: int) -> float:
    minutes = share * SETTINGS["max_minutes"]
    settings = SETTINGS | dict(max_minutes=minutes, max_steps=10**6, eval_interval=10**6, seed=seed)
    return float(measure.train(measure.ROOT / "configs" / "cpu.py", settings)[-1]["val_loss"])


def bench(rounds: int = 1) -> tuple[dict, dict]:
    rates, figures, ratios = list(LEARNING_RATES), {}, []
    for seed in range(rounds):
        peers = {rate: peer(rate, seed) for rate in tqdm(rates, f"peer, seed {seed}", disable=None)}
        rates = [min(peers, key=peers.get)]
        for rate, (loss, tokens) in peers.items():
            figures |= {f"nanoGPT-style, {rate:g}, seed {seed}: loss": loss}
            figures |= {f"nanoGPT-style, {rate:g}, seed {seed}: tokens": tokens}
        losses = [ours(share, seed) for share in SHARES]
        figures |= {
            f"ours, 1/{1 / share:.0f} of the time, seed {seed}: loss": x
            for share, x in zip(SHARES, losses)
        }
        ratios.append(speedup(losses, peers[rates[0]][0]))
    return dict(nanogpt=statistics.median(ratios)), figures


def speedup(losses: Sequence[float], peer_loss: float) -> float:
    """1 / the share of the time in which `losses`, those of SHARES, reach the peer's: between two
    trainings it is interpolated over the logarithm. At most 1 / SHARES[0]; 0 if none reaches it."""
    return math.exp(np.interp(-peer_loss, -np.array(losses), -np.log(SHARES), right=-math.inf))
