"""
Time to a loss on real stories: a nanoGPT-style GPT (128 wide, 8 layers, 8 heads; AdamW, compiled, freed memory kept,
the best of three learning rates at seed 0) learns for seven minutes from batches of 8 windows of 256 tokens. How soon
does the recipe `fast` reach its last loss? `fast` is trained for shares of these minutes, each with its whole schedule.

$ python bench.py loss --rounds 3      # seeds; half an hour each; needs data/real (docs/data.md)
"""

import math
import multiprocessing
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import torch

from benches import measure
from benches.models import PlainGPT
from train import TrainingState, evaluate, train_step
from training.config import TrainConfig
from training.data_order import Batches, load_corpus
from training.device_and_dtype import choose_dtype, set_up_device
from training.distributed import SINGLE_PROCESS

LEARNING_RATES = (2e-3, 4e-3, 8e-3)  # of the peer
SHARES = (1 / 16, 1 / 12, 1 / 9, 1 / 6, 1 / 4)  # of the minutes, for `fast`
SETTINGS = dict(data="real", max_minutes=7.0, block_size=256, batch_size=8, grad_accum_steps=1)
SETTINGS |= dict(n_layer=8, n_head=8, n_embd=128)


def train_peer(learning_rate: float, seed: int, settings: dict) -> tuple[float, int]:
    """As nanoGPT: initialization, betas, decay, warm-up of 3% and a cosine to a tenth, by the clock. -> the validation
    loss and the number of tokens"""
    device, config = set_up_device(measure.DEVICE), TrainConfig(**settings, seed=seed)
    corpus, dtype = load_corpus(config), choose_dtype("auto", device)
    torch.manual_seed(seed)
    shape = (config.block_size, config.n_layer, config.n_head, config.n_embd)
    model = PlainGPT(corpus.tokenizer.vocab_size, *shape).to(device)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2:
            std = 0.02 / math.sqrt(2 * config.n_layer) if name.endswith("_out.weight") else 0.02
            torch.nn.init.normal_(parameter, std=std)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    adamw = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    state, batches = TrainingState(model, [adamw], dtype), Batches(corpus, config, SINGLE_PROCESS, device)
    compiled, start = torch.compile(model, dynamic=False), math.inf
    while (done := max(0.0, time.perf_counter() - start) / (60 * config.max_minutes)) < 1:
        factor = min(1, done / 0.03 + 0.01) * (0.55 + 0.45 * math.cos(math.pi * done))
        adamw.param_groups[0]["lr"] = learning_rate * factor
        train_step(state, compiled, batches.step_batches(state.step))
        start = min(start, time.perf_counter())  # the first step, which compiles, does not count
    return evaluate(model, state, corpus, config.block_size)["val_loss"], state.step * config.tokens_per_step


def peer(learning_rate: float, seed: int) -> tuple[float, int]:
    """train_peer() in a process of its own"""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        loss, tokens = pool.submit(train_peer, learning_rate, seed, SETTINGS).result()
    print(f"nanoGPT-style, {learning_rate:g}, seed {seed}: {loss:.4f} after {tokens:,} tokens", file=sys.stderr)
    return loss, tokens


def fast(share: float, seed: int) -> float:
    minutes = share * SETTINGS["max_minutes"]
    settings = SETTINGS | dict(max_minutes=minutes, max_steps=10**6, eval_interval=10**6, seed=seed)
    return float(measure.train(measure.ROOT / "configs" / "cpu_1m.py", settings)[-1]["val_loss"])


def bench(rounds: int = 1) -> tuple[dict, dict]:
    rates, figures, ratios = list(LEARNING_RATES), {}, []
    for seed in range(rounds):
        peers = {rate: peer(rate, seed) for rate in rates}
        rates = [min(peers, key=peers.get)]
        for rate, (loss, tokens) in peers.items():
            figures |= {f"nanoGPT-style, {rate:g}, seed {seed}: loss": loss}
            figures |= {f"nanoGPT-style, {rate:g}, seed {seed}: tokens": tokens}
        losses = [fast(share, seed) for share in SHARES]
        figures |= {f"fast, 1/{1 / share:.0f} of the time, seed {seed}: loss": x for share, x in zip(SHARES, losses)}
        # losses fall with time: interpolated between two trainings, over the logarithm of their minutes
        log_share = np.interp(-peers[rates[0]][0], -np.array(losses), np.log(SHARES))
        ratios.append(math.exp(-log_share))
    return dict(nanogpt=statistics.median(ratios)), figures
