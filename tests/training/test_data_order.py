"""What a step reads: every window once an epoch, every story whole, and its successors as
targets."""

import itertools

import numpy as np
import pytest
import torch

from nanostories.corpus.token_files import load_meta_and_tokens
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import (
    Batches,
    Corpus,
    TokenStream,
    Windows,
    flat_windows,
    story_windows,
)
from nanostories.training.distributed import Ranks

CPU = torch.device("cpu")


@pytest.mark.parametrize("n_tokens, block_size", [(1000, 16), (193, 64), (33, 16)])
def test_an_epoch_sees_every_window_once(n_tokens, block_size):
    starts = flat_windows(np.zeros(n_tokens), block_size)
    n = len(starts)

    def read(n_sequences, seed, step):
        return Windows(starts, block_size, block_size, n_sequences, seed).for_step(step)

    assert (n + 1) * block_size <= n_tokens < (n + 2) * block_size
    epochs = []
    for epoch in range(3):
        steps = range(epoch * n, (epoch + 1) * n)
        shifted = np.concatenate([read(1, 7, step) for step in steps])
        assert len(set(shifted)) == n
        assert shifted.min() >= 0 and shifted.max() + block_size + 1 <= n_tokens
        # windows side by side, none over another
        assert len({start % block_size for start in shifted}) == 1
        epochs.append(shifted.tolist())
    # the same whatever the batch: a step is a place in one long list
    assert read(3 * n, 7, 0).tolist() == epochs[0] + epochs[1] + epochs[2]
    assert epochs[0] != epochs[1]
    assert read(n, 8, 0).tolist() != epochs[0]


@pytest.mark.parametrize("seed", range(20))
def test_story_windows_hold_every_story_whole(seed):
    rng, size = np.random.default_rng(seed), 32
    stories = [rng.integers(1, 100, n) for n in rng.integers(1, size, 200 if seed else 3)]
    if seed:
        stories[50] = rng.integers(1, 100, 100)  # too long for any window
    tokens = np.concatenate([np.append(story, 0) for story in stories])
    tokens = np.append(tokens, np.zeros(max(0, size + 1 - len(tokens)), dtype=int))
    starts = story_windows(tokens, size, end_of_text=0)
    assert starts[0] == 0 and (np.diff(starts) > 0).all() and (np.diff(starts) <= size).all()
    assert starts[-1] + size >= len(tokens) - 1  # the last target is the last token
    windows = [tokens[start : start + size + 1].tolist() for start in starts]
    for story in stories[1:]:
        whole = [0, *story.tolist()]  # with the end of text before it
        if len(whole) <= size:
            assert any(
                window[i : i + len(whole)] == whole
                for window in windows
                for i in range(len(window))
            )
    begins = [window[0] == 0 for window in windows[1:]]
    assert sum(begins) >= len(begins) - 4  # all but where the long one goes on


def test_windows_hold_the_text_and_its_successors():
    tokens = np.arange(40_000, 40_100).astype("<u2")  # ids that int16 cannot hold
    inputs, targets = TokenStream(tokens, np.ones(100, bool), 10, CPU).read(np.array([0, 89]), 10)
    assert inputs.tolist() == [list(range(40_000, 40_010)), list(range(40_089, 40_099))]
    assert targets.tolist() == [list(range(40_001, 40_011)), list(range(40_090, 40_100))]


def test_targets_past_the_end_do_not_count():
    stream = TokenStream(np.arange(100).astype("<u2"), np.arange(100) % 2 == 0, 10, CPU)
    starts = np.array([85, 93])
    _, targets = stream.read(starts, 10)
    assert targets[0].tolist() == [86, -100, 88, -100, 90, -100, 92, -100, 94, -100]
    assert targets[1].tolist() == [94, -100, 96, -100, 98] + [-100] * 5
    assert stream.count_targets(starts, 10).tolist() == [5, 3]


def test_every_micro_batch_has_its_own_dropout():
    corpus = Corpus(None, False, "", np.zeros(200, np.uint16), None)
    drawn = set()
    for seed, rank, step in itertools.product(range(3), range(2), range(5)):
        config = TrainConfig(dropout=0.1, block_size=8, batch_size=2, grad_accum_steps=4, seed=seed)
        for _ in Batches(corpus, config, Ranks(rank, 2), CPU).for_step(step):
            drawn.add(torch.rand(1).item())
    assert len(drawn) == 3 * 5 * 4


@pytest.fixture(scope="module")
def headed(instruct_data_dir) -> Corpus:
    meta, train = load_meta_and_tokens(instruct_data_dir / "builtin-instruct", "train")
    return Corpus(Tokenizer(**meta["vocabulary"]), True, "", train, None)


def test_however_a_step_is_divided_its_loss_is_the_mean_over_its_targets(headed):
    """Windows of 8 tokens: many hold nothing but header."""
    losses = torch.rand(100_000)
    for loss_on in ("story", "all"):
        means = []
        for size, batch_size in ((1, 240), (1, 4), (4, 60), (2, 40), (24, 10)):
            shape = dict(block_size=8, batch_size=batch_size, grad_accum_steps=240 // batch_size)
            config = TrainConfig(loss_on=loss_on, **shape)
            total = count = weighted = 0.0
            for rank in range(size):
                for _, targets, weight in Batches(headed, config, Ranks(rank, size), CPU).for_step(
                    3
                ):
                    taken = losses[targets[targets >= 0]]
                    total, count = total + taken.sum().item(), count + len(taken)
                    weighted += weight * (taken.mean().item() if len(taken) else 0.0)
            means.append(weighted)
            assert weighted == pytest.approx(total / count, rel=1e-5)
        assert means == pytest.approx([means[0]] * len(means), rel=1e-5)


def test_the_first_steps_read_more_and_shorter_windows():
    corpus = Corpus(None, False, "", np.arange(2000, dtype=np.uint16), None)
    shape = dict(block_size=16, batch_size=2, grad_accum_steps=3)
    early = TrainConfig(**shape, short_window_steps=2)
    plain = TrainConfig(**shape)
    for step, size in ((0, (8, 4)), (1, (8, 4)), (2, (2, 16))):
        batches = list(Batches(corpus, early, Ranks(0, 1), CPU).for_step(step))
        assert [(inputs.shape, weight) for inputs, _, weight in batches] == [
            (size, pytest.approx(1 / 3))
        ] * 3
        assert all((targets - inputs == 1).all() for inputs, targets, _ in batches)
    for ours, theirs in zip(batches, Batches(corpus, plain, Ranks(0, 1), CPU).for_step(2)):
        assert torch.equal(ours[0], theirs[0])


def test_the_corpus_is_on_the_device_once_whatever_the_windows(monkeypatch):
    made = []
    make = TokenStream.__init__
    monkeypatch.setattr(TokenStream, "__init__", lambda self, *args: made.append(make(self, *args)))
    corpus = Corpus(None, False, "", np.arange(2000, dtype=np.uint16), None)
    shape = dict(block_size=16, batch_size=2, grad_accum_steps=3)
    Batches(corpus, TrainConfig(**shape, short_window_steps=2), Ranks(), CPU)
    assert len(made) == 1


def test_epochs_are_passes_over_windows_also_where_they_overlap(headed):
    """Windows that begin with stories overlap: counted in tokens, two passes were fewer."""
    config = TrainConfig(align_stories=True, block_size=320, batch_size=8, grad_accum_steps=1)
    batches = Batches(headed, config, Ranks(), CPU)
    n_steps = batches.steps_in(2.0)
    starts = np.concatenate([batches.windows.for_step(step) for step in range(n_steps)])
    n_windows = len(batches.windows.starts)
    assert 2 * n_windows <= len(starts) < 2 * n_windows + 8
    assert n_steps > 2 * len(headed.train) / config.tokens_per_step
    assert np.unique(starts[: 2 * n_windows], return_counts=True)[1].tolist() == [2] * n_windows
