"""
Where the stories of a window begin, for attention that lets each story see itself alone.

>>> stories = packed_stories(tokens, tokenizer.end_of_text, most=5)
>>> y = causal_attention(q, k, v, window, stories=stories)
"""

from typing import NamedTuple

import numpy as np
import torch


class PackedStories(NamedTuple):
    """The stories of a batch of B windows of T tokens, in the two forms that attention on a CPU and on a GPU wants."""

    starts: torch.Tensor  # (B, T) int32: for each token, at which position of its window its story begins
    # (B * most + 1,) int32: where each begins among all B * T tokens, then B * T as often as there is room left. As
    # many numbers whatever the batch holds, so that torch.compile needs one graph and nothing waits for the GPU.
    boundaries: torch.Tensor


def packed_stories(tokens: torch.Tensor, end_of_text: int, most: int) -> PackedStories:
    """tokens (B, T), in which `end_of_text` stands before each story and belongs to it. What a window begins with is a
    story, or what is left of one. `most`: how many there can be in a window."""
    B, T = tokens.shape
    begins = (tokens == end_of_text) | (torch.arange(T, device=tokens.device) == 0)
    starts = torch.where(begins, torch.arange(T, device=tokens.device), 0).cummax(1).values
    places = torch.arange(B * T, device=tokens.device).where(begins.flatten(), B * T)
    boundaries = torch.nn.functional.pad(places.sort().values[: B * most], (0, 1), value=B * T)
    return PackedStories(starts.int(), boundaries.int())


def most_stories(tokens: np.ndarray, block_size: int, end_of_text: int) -> int:
    """How many stories a window of block_size tokens can hold, wherever it begins."""
    begins = np.flatnonzero(tokens == end_of_text)
    n_following = np.searchsorted(begins, begins + block_size) - np.arange(len(begins))
    return min(block_size, 1 + int(n_following.max(initial=0)))


def visible_keys(T: int, window: int, starts: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Which keys (columns) each query (row) sees: (T, T) bool, or with the starts of stories (B, 1, T, T)."""
    visible = torch.ones(T, T, dtype=torch.bool, device=device).tril().triu(1 - window)
    if starts is None:
        return visible
    return visible & (torch.arange(T, device=device) >= starts[:, None, :, None])
