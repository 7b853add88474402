"""Where stories begin, against a plain loop over the tokens."""

import numpy as np
import pytest
import torch

from kernels.packed_stories import max_stories_per_window, packed_stories, visible_keys

# 0 begins a story
TOKENS = torch.tensor([[0, 5, 6, 0, 7, 8, 0, 0], [5, 6, 7, 8, 5, 6, 7, 0], [0, 5, 5, 5, 5, 5, 5, 5]])


def test_starts_and_cu_seqlens_of_a_batch():
    stories = packed_stories(TOKENS, end_of_text=0, max_stories=4)
    assert stories.starts.tolist() == [[0, 0, 0, 3, 3, 3, 6, 7], [0, 0, 0, 0, 0, 0, 0, 7], [0] * 8]
    assert stories.cu_seqlens.tolist() == [0, 3, 6, 7, 8, 15, 16, 24, 24, 24, 24, 24, 24]
    assert {x.dtype for x in stories} == {torch.int32}


def test_both_forms_say_the_same():
    tokens = torch.randint(5, (7, 50), generator=torch.Generator().manual_seed(0))
    stories = packed_stories(tokens, 0, max_stories=max_stories_per_window(tokens.flatten().numpy(), 50, 0))
    assert len(stories.cu_seqlens) < tokens.numel()
    positions = torch.arange(tokens.numel(), dtype=torch.int32)
    own = stories.cu_seqlens[torch.searchsorted(stories.cu_seqlens, positions, right=True) - 1].view(7, 50)
    assert own.equal(stories.starts + 50 * torch.arange(7)[:, None].int())


@pytest.mark.parametrize("block_size", [1, 2, 5, 40, 1000])
def test_no_window_holds_more_stories_than_it_says(block_size):
    rng = np.random.default_rng(block_size)
    tokens = rng.integers(6, size=300).astype(np.uint16)
    windows = [tokens[i : i + block_size] for i in range(len(tokens))]
    held = max((window == 0).sum() + (window[0] != 0) for window in windows)
    assert held <= max_stories_per_window(tokens, block_size, 0) <= held + 1
    assert max_stories_per_window(tokens, block_size, end_of_text=9) == 1


def test_visible_keys_of_a_window_and_of_stories():
    assert visible_keys(3, 2, None, torch.device("cpu")).int().tolist() == [[1, 0, 0], [1, 1, 0], [0, 1, 1]]
    starts = torch.tensor([[0, 0, 2], [0, 1, 1]])
    (first,), (second,) = visible_keys(3, 3, starts, torch.device("cpu")).int().tolist()
    assert first == [[1, 0, 0], [1, 1, 0], [0, 0, 1]] and second == [[1, 0, 0], [0, 1, 0], [0, 1, 1]]
