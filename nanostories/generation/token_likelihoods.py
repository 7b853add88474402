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
    nats = []  # of each text
    readings = []  # (number of the pair, *window)
    for i, (prompt, text) in enumerate(pairs):
        nats.append(torch.zeros(len(text)))
        n = len(prompt) + len(text)
        for window in windows(len(prompt), n, model.config.block_size):
            readings.append((i, *window))
    readings.sort(key=length_of)
    while readings:
        size = max(1, min(backend.batch_size, BATCH_TOKENS // length_of(readings[-1])))
        batch = readings[-size:]
        del readings[-size:]
        ids = []
        for i, start, _, end in batch:
            prompt, text = pairs[i]
            ids.append(torch.tensor((prompt + text)[start:end]))
        # Shorter ones are padded at the end, where causal attention never looks.
        tokens = pad_sequence(ids, batch_first=True).to(model.wte.weight.device)  # (B, T)
        positions = torch.arange(tokens.size(1) - 1, device=tokens.device)
        x = model.hidden(tokens[:, :-1], positions, model.attention())  # (B, T - 1, C)
        for row, (i, start, first, end) in enumerate(batch):
            logits = model.head(x[row, first - 1 - start : end - 1 - start])
            targets = tokens[row, first - start : end - start]
            losses = F.cross_entropy(logits, targets, reduction="none")
            prompt, text = pairs[i]
            nats[i][first - len(prompt) : end - len(prompt)] = -losses.cpu()
            if bar is not None and end == len(prompt) + len(text):
                bar.update()
    return nats


def length_of(reading: tuple[int, int, int, int]) -> int:
    _, start, _, end = reading
    return end - start


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
