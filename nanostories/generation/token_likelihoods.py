"""
How likely a model finds each token of a text, given everything before it.

>>> prompt, text = backend.encode("Once upon a"), backend.tokenizer.encode(" time")
>>> (nats,) = log_likelihoods(backend, [(prompt, text)])  # (1,): the text has one token
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from tqdm import tqdm

from nanostories.generation.backends import LocalBackend

BATCH_TOKENS = 8192  # in one forward pass, at most


@torch.inference_mode()
def log_likelihoods(
    backend: LocalBackend, pairs: Sequence[tuple[list[int], list[int]]], bar: tqdm | None = None
) -> list[torch.Tensor]:
    """Natural-log likelihoods, (tokens of the text,) float32, for each pair: ids before a text (at
    least one), and ids of the text. If both together exceed the model's context, they are read in
    windows."""
    model, device, context = (
        backend.model,
        backend.model.wte.weight.device,
        backend.model.config.block_size,
    )
    nats = [torch.zeros(len(text)) for _, text in pairs]
    spans = [windows(len(prompt), len(prompt) + len(text), context) for prompt, text in pairs]
    readings = [(i, *window) for i, span in enumerate(spans) for window in span]
    readings.sort(key=lambda reading: reading[3] - reading[1])
    while readings:
        length = readings[-1][3] - readings[-1][1]  # the longest of the batch, as they are sorted
        size = max(1, min(backend.batch_size, BATCH_TOKENS // length))
        readings, batch = readings[:-size], readings[-size:]
        # Shorter ones are padded at the end, where causal attention never looks.
        ids = [torch.tensor((pairs[i][0] + pairs[i][1])[start:end]) for i, start, _, end in batch]
        tokens = pad_sequence(ids, batch_first=True).to(device)  # (B, T)
        x = model.hidden(
            tokens[:, :-1], torch.arange(tokens.size(1) - 1, device=device), model.attention()
        )  # (B, T - 1, C)
        for row, (i, start, first, end) in enumerate(batch):
            logits, n_before = (
                model.head(x[row, first - 1 - start : end - 1 - start]),
                len(pairs[i][0]),
            )
            scored = -F.cross_entropy(
                logits, tokens[row, first - start : end - start], reduction="none"
            )
            nats[i][first - n_before : end - n_before] = scored.cpu()
            if bar is not None and end == n_before + len(pairs[i][1]):
                bar.update()
    return nats


def windows(n_before: int, n: int, context: int) -> Iterator[tuple[int, int, int]]:
    """(start, first, end): ids[start : end - 1] are read at once, and ids[first:end] are predicted.
    Each window begins half a context after the previous one, so that every later prediction still
    has half a context before it."""
    start, first = 0, n_before
    while first < n:
        end = min(n, start + context + 1)
        if end > first:
            yield start, first, end
            first = end
        start = min(start + max(1, context // 2), n - 1 - context)
