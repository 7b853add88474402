"""
Validation loss and bits per byte: over the same tokens whatever the training loss counts, with any number of processes.
"""

import math

import numpy as np
import torch

from corpus.instruct_headers import story_tokens
from corpus.tokenizer import Tokenizer
from training.data_order import Corpus, TokenStream, story_windows
from training.distributed import SINGLE_PROCESS, Ranks

EVAL_BATCH_SIZE = 16  # windows
GPU_EVAL_BATCH_SIZE = 128


def validation_windows(corpus: Corpus, block_size: int, device: torch.device) -> tuple[TokenStream, np.ndarray]:
    """What evaluate() reads. Headers never count, whatever loss_on is, so that runs can be compared."""
    target_mask = story_tokens(corpus.val, corpus.tokenizer) if corpus.has_headers else None
    windows = story_windows(corpus.val, block_size, corpus.tokenizer.end_of_text)
    return TokenStream(corpus.val, block_size, device, target_mask), windows


@torch.no_grad()
def evaluate(
    model: torch.nn.Module,
    stream: TokenStream,
    windows: np.ndarray,
    tokenizer: Tokenizer,
    autocast,
    ranks: Ranks = SINGLE_PROCESS,
    compiled: bool = False,
) -> dict:
    """val_loss (nats per token) and bpb (bits per UTF-8 byte) over story_windows, each counted token taken once.

    Where windows overlap, the later one counts: it reads the story from its beginning. With attend_within_story, each
    story is read alone here, too. Batches are dealt out to the ranks; all get the same figures, bit for bit those of a
    single process. `compiled`: batches are larger, for a GPU, and all of one shape: the last one is filled up with
    windows that do not count.
    """
    block_size, device = len(stream.offsets) - 1, stream.offsets.device
    batch_size = GPU_EVAL_BATCH_SIZE if compiled else EVAL_BATCH_SIZE
    n_new = np.diff(windows, append=windows[-1] + block_size)
    if compiled:
        windows, n_new = (np.pad(x, (0, -len(x) % batch_size)) for x in (windows, n_new))
    n_new, byte_lengths = (torch.from_numpy(x).to(device) for x in (n_new, tokenizer.byte_lengths()))
    batches = range(0, len(windows), batch_size)
    sums = torch.zeros(len(batches), 3, dtype=torch.float64)  # nats, tokens and bytes of each
    own = list(range(ranks.rank, len(batches), ranks.world_size))
    results = []  # stay on the device: reading one waits for it
    model.eval()
    for i in (batches[batch] for batch in own):
        inputs, targets = stream.read(windows[i : i + batch_size])
        targets = targets.where(stream.offsets[:-1] < n_new[i : i + batch_size, None], -100)
        with autocast():
            _, loss = model(inputs, targets)
        target_mask = targets >= 0
        n_bytes = byte_lengths[targets.clamp(min=0)].where(target_mask, 0).sum()
        results.append(torch.stack([loss.float(), target_mask.sum().float(), n_bytes.float()]))
    model.train()
    if own:
        sums[own] = torch.stack(results).cpu().double()
        sums[:, 0] *= sums[:, 1]  # the loss is a mean
    nats, n_tokens, n_bytes = ranks.all_reduce_sum(sums).sum(0).tolist()
    return dict(val_loss=nats / n_tokens, bpb=nats / math.log(2) / n_bytes)
