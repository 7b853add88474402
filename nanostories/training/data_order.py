"""Which tokens a step sees: a pure function of (seed, step), so a resumed run needs no state to go
on exactly."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from nanostories.cli import UserError
from nanostories.corpus.instruct_headers import story_tokens
from nanostories.corpus.token_files import load_meta_and_tokens
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.config import TrainConfig
from nanostories.training.distributed import Ranks


@dataclass
class Corpus:
    tokenizer: Tokenizer
    has_headers: bool  # stories are under headers, as in TinyStories-Instruct
    sha256: str  # checksum of the training tokens
    train: np.ndarray  # (tokens,) uint16
    val: np.ndarray  # (tokens,), the first eval_tokens of the validation split


def load_corpus(config: TrainConfig) -> Corpus:
    directory, least = Path(config.data_dir, config.data), 2 * config.block_size + 1
    meta, train, val = load_meta_and_tokens(directory, "train", "val")
    val = val[: config.eval_tokens]
    if config.loss_on == "story" and "headers" not in meta:
        raise UserError(
            f"{directory}: its stories have no headers for loss_on=story to leave out; use"
            " loss_on=all"
        )
    if min(len(train), len(val)) < least:
        counts = f"{len(train):,} tokens of train, {len(val):,} of val"
        raise UserError(
            f"{directory}: {counts}: too few; block_size={config.block_size} needs {least:,} of"
            " each"
        )
    return Corpus(
        Tokenizer(**meta["vocabulary"]),
        "headers" in meta,
        meta["splits"]["train"]["sha256"],
        train,
        val,
    )


class TokenStream:
    """The tokens of a split, on the device. target_mask: (tokens,) bool, which of them are targets;
    None: all."""

    def __init__(
        self, tokens: np.ndarray, device: torch.device, target_mask: np.ndarray | None = None
    ):
        # int16, as not every device can index uint16; masking the sign bits restores ids above
        # 32767
        self.tokens = torch.from_numpy(np.array(tokens).view(np.int16)).to(device)
        self.target_mask = None if target_mask is None else torch.from_numpy(target_mask).to(device)

    def read(self, starts: np.ndarray, block_size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """inputs and targets (the inputs' successors; -100: not counted), each (len(starts),
        block_size) int64"""
        positions = torch.from_numpy(starts).to(self.tokens.device, non_blocking=True)[:, None]
        positions = positions + torch.arange(block_size + 1, device=self.tokens.device)
        tokens = self.tokens[positions].long() & 0xFFFF
        targets = tokens[:, 1:]
        if self.target_mask is not None:
            targets = targets.where(self.target_mask[positions[:, 1:]], -100)
        return tokens[:, :-1], targets


# ---- Windows, and the order in which they are read ----
def flat_windows(tokens: np.ndarray, block_size: int) -> np.ndarray:
    """Where adjacent windows start, with up to block_size tokens left by which to shift them
    all."""
    return np.arange(len(tokens) // block_size - 1) * block_size


def story_windows(tokens: np.ndarray, block_size: int, end_of_text: int) -> np.ndarray:
    """Where windows start if each begins with a story, at the <|endoftext|> before it.

    Where a window's end cuts a story, the next window begins with it, so every story is whole in
    one of them; a longer one continues in the next. The last window ends with the text, so it may
    begin within a story."""
    stories = np.append(0, np.flatnonzero(tokens == end_of_text))
    starts, last = [0], len(tokens) - 1 - block_size
    while starts[-1] < last:
        limit = starts[-1] + block_size
        story = int(
            stories[np.searchsorted(stories, limit, side="right") - 1]
        )  # the last one to begin by then
        starts.append(min(story if story > starts[-1] else limit, last))
    return np.array(starts)


@functools.lru_cache(maxsize=2)
def epoch_order(n_windows: int, seed: int, epoch: int) -> tuple[np.ndarray, float]:
    """The shuffled order of the windows in this epoch, and the fraction of the allowed shift by
    which to move them."""
    rng = np.random.default_rng([seed, epoch])
    return rng.permutation(n_windows), rng.random()


def batch_starts(
    windows: np.ndarray, shift: int, n_sequences: int, seed: int, step: int
) -> np.ndarray:
    """Where the sequences of `step` start: windows without replacement in an epoch, all moved by
    less than `shift`."""
    starts = []
    for i in range(step * n_sequences, (step + 1) * n_sequences):
        epoch, place = divmod(i, len(windows))
        order, fraction = epoch_order(len(windows), seed, epoch)
        starts.append(windows[order[place]] + int(fraction * shift))
    return np.array(starts)


class Batches:
    """The micro-batches of any step, for this rank: as large as batch_size, or a part of it that
    divides its share."""

    def __init__(self, corpus: Corpus, config: TrainConfig, ranks: Ranks, device: torch.device):
        self.config, self.ranks = config, ranks
        share, rest = divmod(config.sequences_per_step, ranks.size)
        if rest:
            raise UserError(
                f"batch_size * grad_accum_steps cannot be divided among {ranks.size} processes"
            )
        self.micro_batch_size = math.gcd(share, config.batch_size)
        self.n_micro_batches = share // self.micro_batch_size
        self.target_mask = (
            story_tokens(corpus.train, corpus.tokenizer) if config.loss_on == "story" else None
        )
        self.stream = TokenStream(corpus.train, device, self.target_mask)
        self.windows, self.shift = flat_windows(corpus.train, config.block_size), config.block_size
        if config.align_stories:
            self.windows = story_windows(
                corpus.train, config.block_size, corpus.tokenizer.end_of_text
            )
            self.shift = 1
        if config.short_window_steps:
            quarter = dict(
                block_size=config.block_size // 4,
                batch_size=4 * config.batch_size,
                short_window_steps=0,
            )
            self.short = Batches(corpus, replace(config, **quarter), ranks, device)

    def step_batches(self, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, float]]:
        """inputs, targets, and the weight of their loss in the step's mean. Seeds PyTorch for each,
        so that dropout and contrast need no random state. (Where processes split micro-batches,
        each part has a seed of its own.)"""
        config, n = self.config, self.n_micro_batches
        if step < config.short_window_steps:
            yield from self.short.step_batches(step)
            return
        starts = batch_starts(
            self.windows, self.shift, config.sequences_per_step, config.seed, step
        )
        starts = starts.reshape(-1, self.micro_batch_size)
        counts = np.ones(len(starts))  # targets of each micro-batch, or proportional to them
        if self.target_mask is not None:
            counts = self.target_mask[starts[..., None] + np.arange(1, config.block_size + 1)].sum(
                (-1, -2)
            )
        for i in range(self.ranks.rank * n, (self.ranks.rank + 1) * n):
            if config.dropout or config.contrast != "none":
                torch.manual_seed(
                    int(
                        np.random.SeedSequence([config.seed, step, i]).generate_state(1, np.uint64)[
                            0
                        ]
                    )
                )
            yield (
                *self.stream.read(starts[i], config.block_size),
                float(counts[i] / max(1, counts.sum())),
            )
