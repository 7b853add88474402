"""
Validation loss and bits per byte: always over the same tokens, whatever was trained on and on however many processes.
"""

import math

import numpy as np
import torch

from corpus.instruct_headers import story_tokens
from corpus.tokenizer import Tokenizer
from model import GPTNeo
from training.data_order import Corpus, TokenStream, story_windows
from training.distributed import SINGLE_PROCESS, Ranks

EVAL_BATCH_SIZE = 16  # windows


def validation_windows(corpus: Corpus, block_size: int, device: torch.device) -> tuple[TokenStream, np.ndarray]:
    """What evaluate() reads. Of stories under headers only the stories count, whatever loss_on is: runs compare."""
    target_mask = story_tokens(corpus.val, corpus.tokenizer) if corpus.has_headers else None
    windows = story_windows(corpus.val, block_size, corpus.tokenizer.end_of_text)
    return TokenStream(corpus.val, block_size, device, target_mask), windows


@torch.no_grad()
def evaluate(
    model: GPTNeo,
    stream: TokenStream,
    windows: np.ndarray,
    tokenizer: Tokenizer,
    autocast,
    ranks: Ranks = SINGLE_PROCESS,
) -> dict:
    """val_loss (nats per token) and bpb (bits per UTF-8 byte) over story_windows, each counted token taken once.

    Where windows overlap, the later one counts: there the story is read from its beginning. Batches are dealt out to
    the ranks; all get the same figures, bit by bit those of one process alone.
    """
    block_size = len(stream.offsets) - 1
    n_new = torch.from_numpy(np.diff(windows, append=windows[-1] + block_size)).to(stream.offsets.device)
    byte_lengths = torch.from_numpy(tokenizer.byte_lengths()).to(stream.offsets.device)
    batches = range(0, len(windows), EVAL_BATCH_SIZE)
    sums = torch.zeros(len(batches), 3, dtype=torch.float64)  # nats, tokens and bytes of each
    model.eval()
    for batch in range(ranks.rank, len(batches), ranks.world_size):
        i = batches[batch]
        inputs, targets = stream.read(windows[i : i + EVAL_BATCH_SIZE])
        targets = targets.where(stream.offsets[:-1] < n_new[i : i + EVAL_BATCH_SIZE, None], -100)
        with autocast():
            _, loss = model(inputs, targets)
        target_mask = targets >= 0
        n_tokens = target_mask.sum().item()
        sums[batch] = torch.tensor([loss.item() * n_tokens, n_tokens, byte_lengths[targets[target_mask]].sum().item()])
    model.train()
    nats, n_tokens, n_bytes = ranks.all_reduce_sum(sums).sum(0).tolist()
    return dict(val_loss=nats / n_tokens, bpb=nats / math.log(2) / n_bytes)
