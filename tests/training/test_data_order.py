"""What a step reads: every window once an epoch, every story whole, and its successors as targets."""

import numpy as np
import pytest
import torch
from conftest import log_of

from train import train
from training.config import TrainConfig
from training.data_order import TokenStream, batch_starts, flat_windows, story_windows


@pytest.mark.parametrize("n_tokens, block_size", [(1000, 16), (193, 64), (33, 16)])
def test_an_epoch_sees_every_window_once(n_tokens, block_size):
    windows = flat_windows(np.zeros(n_tokens), block_size)
    n = len(windows)
    assert (n + 1) * block_size <= n_tokens < (n + 2) * block_size
    epochs = []
    for epoch in range(3):
        steps = range(epoch * n, (epoch + 1) * n)
        starts = np.concatenate([batch_starts(windows, block_size, 1, 7, step) for step in steps])
        assert len(set(starts)) == n
        assert starts.min() >= 0 and starts.max() + block_size + 1 <= n_tokens
        assert len({start % block_size for start in starts}) == 1  # windows side by side, none over another
        epochs.append(starts.tolist())
    # the same whatever the batch: a step is a place in one long list
    assert batch_starts(windows, block_size, 3 * n, 7, 0).tolist() == epochs[0] + epochs[1] + epochs[2]
    assert epochs[0] != epochs[1]
    assert batch_starts(windows, block_size, n, 8, 0).tolist() != epochs[0]


def test_story_windows_hold_every_story_whole():
    rng = np.random.default_rng(0)
    stories = [rng.integers(1, 100, size) for size in rng.integers(1, 31, 200)]
    stories[50] = rng.integers(1, 100, 100)  # too long for any window
    tokens = np.concatenate([np.append(story, 0) for story in stories])
    starts = story_windows(tokens, 32, end_of_text=0)
    assert starts[0] == 0 and (np.diff(starts) > 0).all() and (np.diff(starts) <= 32).all()
    assert starts[-1] + 32 < len(tokens) <= starts[-1] + 2 * 32 + 1
    windows = [tokens[start : start + 33].tolist() for start in starts]
    for story in stories[1:-5]:
        whole = [0, *story.tolist()]  # with the end of text before it
        if len(whole) <= 32:
            assert any(window[i : i + len(whole)] == whole for window in windows for i in range(len(window)))
    begins = [window[0] == 0 for window in windows[1:]]
    assert sum(begins) >= len(begins) - 4 and not all(begins)  # all but where the long ones go on


def test_aligned_windows_are_trained_on(config):
    flat = log_of(train(TrainConfig(**config), resume=False)[0])
    aligned = log_of(train(TrainConfig(**config | dict(align_stories=True)), resume=False)[0])
    assert flat[0]["train_loss"] != aligned[0]["train_loss"]
    assert float(aligned[-1]["train_loss"]) < float(aligned[0]["train_loss"]) - 1


def test_windows_hold_the_text_and_its_successors():
    tokens = np.arange(40_000, 40_100).astype("<u2")  # ids that int16 cannot hold
    inputs, targets = TokenStream(tokens, 10, torch.device("cpu")).read(np.array([0, 89]))
    assert inputs.tolist() == [list(range(40_000, 40_010)), list(range(40_089, 40_099))]
    assert targets.tolist() == [list(range(40_001, 40_011)), list(range(40_090, 40_100))]
