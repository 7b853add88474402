"""What a step reads: every window once an epoch, every story whole, and its successors as
targets."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nanostories.cli import UserError
from nanostories.training.config import TrainConfig
from nanostories.training.data_order import (
    Batches,
    Corpus,
    TokenStream,
    Windows,
    load_corpus,
    story_windows,
)
from nanostories.training.distributed import SINGLE_PROCESS, Ranks

CPU = torch.device("cpu")


def corpus_of(tokens: np.ndarray) -> Corpus:
    stream = TokenStream(tokens.astype("<u2"), np.ones(len(tokens), dtype=bool), 64, CPU)
    return Corpus(None, "", stream, None)


@pytest.mark.parametrize("n_tokens, block_size", [(1000, 16), (193, 64), (33, 16)])
def test_an_epoch_sees_every_window_once(n_tokens, block_size):
    corpus = corpus_of(np.arange(n_tokens))
    n = n_tokens // block_size - 1

    def first_starts(n_steps, n_sequences, seed=7):
        config = TrainConfig(
            block_size=block_size, batch_size=n_sequences, grad_accum_steps=1, seed=seed
        )
        windows = Windows(corpus, config)
        return np.concatenate([windows.for_step(step) for step in range(n_steps)])

    epochs = first_starts(1, 3 * n).reshape(3, n)
    for starts in epochs:
        assert len(set(starts)) == n
        assert starts.min() >= 0 and starts.max() + block_size + 1 <= n_tokens
        assert len(set(starts % block_size)) == 1  # side by side, none over another
    assert (epochs[0] != epochs[1]).any()
    # the same whatever the batch: a step is a place in one long list
    assert (first_starts(3 * n, 1) == epochs.flatten()).all()
    assert (first_starts(1, n, seed=8) != epochs[0]).any()


@pytest.mark.parametrize("seed", range(8))
def test_story_windows_hold_every_story_whole(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 32, 200 if seed else 3)
    lengths[1] = 100  # too long for any window
    stories = [np.append(rng.integers(1, 100, length), 0) for length in lengths]
    tokens = np.concatenate(stories)
    starts = story_windows(tokens, 32, end_of_text=0)
    assert starts[0] == 0 and (np.diff(starts) > 0).all() and (np.diff(starts) <= 32).all()
    assert starts[-1] + 32 >= len(tokens) - 1  # the last target is the last token
    ends = np.flatnonzero(tokens == 0)
    for end_before, end in zip(ends, ends[1:]):
        window = starts[starts <= end_before][-1]
        # the story and the end of text before it, among 32 inputs and the last target
        assert end <= window + 33 or end - end_before > 32
    # all but those in which the long one goes on
    assert (tokens[starts[1:]] == 0).sum() >= len(starts) - 5


def test_a_window_at_the_end_holds_text_and_its_successors_that_count():
    tokens = np.arange(40_000, 40_100).astype("<u2")  # ids that int16 cannot hold
    stream = TokenStream(tokens, tokens % 2 == 0, 10, CPU)
    start = np.array([96])
    inputs, targets = stream.read(start, 5)
    assert inputs[0, :4].tolist() == [40_096, 40_097, 40_098, 40_099]
    assert targets[0].tolist() == [-100, 40_098, -100, -100, -100]
    assert stream.count_targets(start, 5).tolist() == [1]


def test_every_micro_batch_has_its_own_dropout():
    corpus = corpus_of(np.zeros(200))
    drawn = set()
    for seed, rank, step in itertools.product(range(2), range(2), range(3)):
        config = TrainConfig(block_size=8, batch_size=2, grad_accum_steps=4, seed=seed)
        for _ in Batches(corpus, config, Ranks(rank, 2)).for_step(step):
            drawn.add(torch.rand(1).item())
    assert len(drawn) == 2 * 3 * 4


def test_however_a_step_is_divided_its_loss_is_the_mean_over_its_targets(instruct_data_dir):
    """Windows of 8 tokens: many hold nothing but header."""
    settings = dict(data="builtin-instruct", data_dir=str(instruct_data_dir), loss_on="story")
    losses = torch.rand(100_000)
    all_targets = None
    for size, batch_size in ((1, 240), (4, 60), (24, 5)):
        sizes = dict(block_size=8, batch_size=batch_size, grad_accum_steps=240 // batch_size)
        config = TrainConfig(**settings, **sizes)
        corpus = load_corpus(config, CPU)
        counted = []
        weighted = 0.0
        for rank in range(size):
            for _, targets, weight in Batches(corpus, config, Ranks(rank, size)).for_step(3):
                targets = targets[targets >= 0]
                counted += targets.tolist()
                if len(targets):
                    weighted += weight * losses[targets].mean().item()
        assert weighted == pytest.approx(losses[counted].mean().item(), rel=1e-5)
        all_targets = all_targets or counted
        assert counted == all_targets


def test_the_first_steps_read_more_and_shorter_windows():
    corpus = corpus_of(np.arange(2000))
    plain = TrainConfig(block_size=16, batch_size=2, grad_accum_steps=3)
    early = Batches(corpus, replace(plain, short_window_steps=2), SINGLE_PROCESS)
    short = list(early.for_step(1))
    assert len(short) == 3
    for inputs, targets, weight in short:
        assert inputs.shape == (8, 4) and weight == pytest.approx(1 / 3)
        assert (targets - inputs == 1).all()
    theirs = list(Batches(corpus, plain, SINGLE_PROCESS).for_step(2))
    torch.testing.assert_close(list(early.for_step(2)), theirs, atol=0, rtol=0)


def test_epochs_are_passes_over_windows_also_where_they_overlap():
    """Windows that begin with stories overlap: counted in tokens, two passes were fewer."""
    corpus = corpus_of(np.random.default_rng(0).integers(0, 20, 5000))
    corpus.tokenizer = SimpleNamespace(end_of_text=0)
    config = TrainConfig(align_stories=True, block_size=64, batch_size=8, grad_accum_steps=1)
    n_windows = len(story_windows(corpus.train.tokens, 64, 0))
    assert n_windows > 1.1 * 5000 / 64
    steps = Batches(corpus, config, SINGLE_PROCESS).steps_in(2.0)
    assert 2 * n_windows <= 8 * steps < 2 * n_windows + 8
    with pytest.raises(UserError, match="is not divisible by 3 processes"):
        Batches(corpus, config, Ranks(0, 3))
