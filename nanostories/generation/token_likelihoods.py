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
    model = backend.model
    device = model.wte.weight.device
    found = []  # for each text
    readings = []  # (ids to read, how many of them precede the text, where its likelihoods go)
    for prompt, text in pairs:
        ids = torch.tensor(prompt + text)
        nats = torch.zeros(len(text))
        found.append(nats)
        for start, first, end in windows(len(prompt), len(ids), model.config.block_size):
            part = nats[first - len(prompt) : end - len(prompt)]
            readings.append((ids[start:end], first - start, part))
    if bar is not None:
        bar.total = len(readings)
    readings.sort(key=lambda reading: len(reading[0]))
    while readings:
        longest, _, _ = readings[-1]
        size = max(1, min(backend.batch_size, BATCH_TOKENS // len(longest)))
        batch = readings[-size:]
        del readings[-size:]
        # Shorter ones are padded at the end, where causal attention never looks.
        tokens = pad_sequence([ids for ids, _, _ in batch], batch_first=True).to(device)  # (B, T)
        positions = torch.arange(tokens.size(1) - 1, device=device)
        x = model.hidden(tokens[:, :-1], positions, model.attention())  # (B, T - 1, C)
        for row, (ids, n_before, part) in enumerate(batch):
            logits = model.head(x[row, n_before - 1 : len(ids) - 1])
            targets = tokens[row, n_before : len(ids)]
            part[:] = -F.cross_entropy(logits, targets, reduction="none")
            if bar is not None:
                bar.update()
    return found


def windows(n_before: int, n: int, context: int) -> Iterator[tuple[int, int, int]]:
    """(start, first, end): ids[start : end - 1] are read at once, and ids[first:end] are predicted.
    Each window begins half a context after the previous one, so that every later prediction still
    has half a context before it."""
    start = 0
    first = n_before
    while first < n:
        end = min(n, start + context + 1)
        if end > first:
            yield start, first, end
            first = end
        start = min(start + max(1, context // 2), n - 1 - context)
