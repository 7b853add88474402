"""
Where the stories of a window begin, so that each attends only to itself: sequence packing with document masking.

>>> stories = packed_stories(tokens, tokenizer.end_of_text, max_stories=5)
>>> y = causal_attention(q, k, v, window, stories=stories)
"""

from typing import NamedTuple

import numpy as np
import torch


class PackedStories(NamedTuple):
    """The stories of a batch of B windows of T tokens, in the two forms that attention on a CPU and on a GPU needs."""

    starts: torch.Tensor  # (B, T) int32: for each token, at which position of its window its story begins
    # (B * max_stories + 1,) int32: where each begins among all B * T tokens, then B * T in the places left over. The
    # length is always the same, so that torch.compile needs only one graph and nothing waits for the GPU.
    cu_seqlens: torch.Tensor


def packed_stories(tokens: torch.Tensor, end_of_text: int, max_stories: int) -> PackedStories:
    """tokens (B, T), in which `end_of_text` comes before each story and belongs to it. A window may also begin with the
    rest of a story. max_stories: the most that a window can hold."""
    B, T = tokens.shape
    position = torch.arange(T, device=tokens.device)
    begins = (tokens == end_of_text) | (position == 0)
    starts = torch.where(begins, position, 0).cummax(1).values
    places = torch.arange(B * T, device=tokens.device).where(begins.flatten(), B * T)
    cu_seqlens = torch.nn.functional.pad(places.sort().values[: B * max_stories], (0, 1), value=B * T)
    return PackedStories(starts.int(), cu_seqlens.int())


def max_stories_per_window(tokens: np.ndarray, block_size: int, end_of_text: int) -> int:
    """How many stories a window of block_size tokens can hold, wherever it begins."""
    begins = np.flatnonzero(tokens == end_of_text)
    n_following = np.searchsorted(begins, begins + block_size) - np.arange(len(begins))
    return min(block_size, 1 + int(n_following.max(initial=0)))


def visible_keys(T: int, window: int, story_starts: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Which keys (columns) each query (row) sees: (T, T) bool; with story_starts (B, T), (B, 1, T, T)."""
    visible = torch.ones(T, T, dtype=torch.bool, device=device).tril().triu(1 - window)
    if story_starts is None:
        return visible
    return visible & (torch.arange(T, device=device) >= story_starts[:, None, :, None])
