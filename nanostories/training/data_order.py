"""Which tokens a step reads: a pure function of its number, the seed and the corpus, so a resumed
run needs no state to go on exactly."""

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from nanostories.cli import UserError
from nanostories.corpus.instruct_headers import story_tokens
from nanostories.corpus.token_files import load_meta_and_tokens
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.training.config import SHORTER, TrainConfig
from nanostories.training.distributed import Ranks

IGNORED = -100  # a target that the loss does not count


class TokenStream:
    """The tokens of a split, also on the device.

    is_target: (tokens,) bool, which of them the loss counts. padding: how far a window may reach
    past the end, where nothing counts."""

    def __init__(
        self, tokens: np.ndarray, is_target: np.ndarray, padding: int, device: torch.device
    ):
        self.tokens = tokens  # (tokens,) uint16, without the padding
        padded = np.pad(tokens, (0, padding))
        self.is_target = np.pad(is_target, (0, padding))  # count_targets reads past the end
        # As int16, since not every device can index uint16; read() restores ids above 32767.
        self.tokens_on_device = torch.from_numpy(padded.view(np.int16)).to(device)
        self.is_target_on_device = torch.from_numpy(self.is_target).to(device)

    def read(self, starts: np.ndarray, block_size: int) -> tuple[Tensor, Tensor]:
        """inputs and targets, the inputs' successors: (len(starts), block_size) int64 each. Targets
        that do not count are -100."""
        device = self.tokens_on_device.device
        first = torch.from_numpy(starts).to(device, non_blocking=True)
        positions = first[:, None] + torch.arange(block_size + 1, device=device)
        tokens = self.tokens_on_device[positions].long() & 0xFFFF
        counts = self.is_target_on_device[positions[:, 1:]]
        return tokens[:, :-1], tokens[:, 1:].where(counts, IGNORED)

    def count_targets(self, starts: np.ndarray, block_size: int) -> np.ndarray:
        """How many targets count in the windows that begin at starts, of any shape."""
        return self.is_target[starts[..., None] + np.arange(1, block_size + 1)].sum(-1)


@dataclass
class Corpus:
    tokenizer: Tokenizer
    sha256: str  # checksum of the training tokens
    train: TokenStream
    val: TokenStream  # the first eval_tokens of the validation split; headers never count


def load_corpus(config: TrainConfig, device: torch.device) -> Corpus:
    directory = Path(config.data_dir, config.data)
    meta, train, val = load_meta_and_tokens(directory, "train", "val")
    val = val[: config.eval_tokens]
    n_tokens = min(len(train), len(val))
    if n_tokens <= 2 * config.block_size:
        problem = f"a split (validation: its first eval_tokens) has only {n_tokens:,} tokens"
        needed = f"block_size={config.block_size} needs more than {2 * config.block_size:,}"
        raise UserError(f"{directory}: {problem}; {needed}")
    tokenizer = Tokenizer(**meta["vocabulary"])
    streams = []
    for tokens, loss_on in ((train, config.loss_on), (val, "story")):
        is_target = np.ones(len(tokens), dtype=bool)
        if loss_on == "story" and "headers" in meta:
            is_target = story_tokens(tokens, tokenizer)
        streams.append(TokenStream(tokens, is_target, config.block_size, device))
    return Corpus(tokenizer, meta["splits"]["train"]["sha256"], *streams)


# ---- Windows, and the order in which they are read ----
def story_windows(tokens: np.ndarray, block_size: int, end_of_text: int) -> np.ndarray:
    """Where windows start if each begins with a story, at the <|endoftext|> before it.

    Where a window's end cuts a story, the next window begins with that story, so every story is
    whole in one of them; a longer one continues in the next. The last window may reach past the
    end."""
    stories = np.append(0, np.flatnonzero(tokens == end_of_text))
    starts = [0]
    while starts[-1] + block_size < len(tokens) - 1:
        limit = starts[-1] + block_size
        last_story = int(stories[np.searchsorted(stories, limit, side="right") - 1])
        if last_story > starts[-1]:
            starts.append(last_story)
        else:  # the story is longer than the window
            starts.append(limit)
    return np.array(starts)


@functools.lru_cache(maxsize=2)
def epoch_order(n_windows: int, seed: int, epoch: int) -> tuple[np.ndarray, float]:
    """The shuffled order of the windows in this epoch, and a number below 1, which says how far
    they are moved, so that text is cut elsewhere in each epoch."""
    rng = np.random.default_rng([seed, epoch])
    return rng.permutation(n_windows), rng.random()


class Windows:
    """The windows of an epoch, in an order of its own, and how many of them a step reads.

    divisor: SHORTER for short windows."""

    def __init__(self, corpus: Corpus, config: TrainConfig, divisor: int = 1):
        self.block_size = config.block_size // divisor
        self.n_per_step = config.windows_per_step * divisor
        self.seed = config.seed
        tokens = corpus.train.tokens
        if config.align_stories:
            self.starts = story_windows(tokens, self.block_size, corpus.tokenizer.end_of_text)
            self.n_shifts = 1  # that by 0 alone: these windows stay
        else:
            # Each epoch moves all windows by less than a block, which is left for it at the end.
            self.starts = np.arange(len(tokens) // self.block_size - 1) * self.block_size
            self.n_shifts = self.block_size

    def for_step(self, step: int) -> np.ndarray:
        """Where its windows start, (n_per_step,): without replacement in an epoch."""
        starts = []
        for i in range(step * self.n_per_step, (step + 1) * self.n_per_step):
            epoch, place = divmod(i, len(self.starts))
            order, fraction = epoch_order(len(self.starts), self.seed, epoch)
            starts.append(self.starts[order[place]] + int(fraction * self.n_shifts))
        return np.array(starts)


class Batches:
    """The micro-batches of any step, for this rank: all of one size, at most batch_size windows (or
    as many tokens in short ones)."""

    def __init__(self, corpus: Corpus, config: TrainConfig, ranks: Ranks):
        self.config = config
        self.ranks = ranks
        share, rest = divmod(config.windows_per_step, ranks.size)
        if rest:
            problem = f"is not divisible by {ranks.size} processes"
            raise UserError(f"batch_size * grad_accum_steps {problem}")
        self.n_micro_batches = math.ceil(share / config.batch_size)
        while share % self.n_micro_batches:
            self.n_micro_batches += 1
        self.stream = corpus.train
        self.windows = Windows(corpus, config)
        if config.short_window_steps:
            self.short_windows = Windows(corpus, config, SHORTER)

    def steps_in(self, epochs: float) -> int:
        """The number of steps that read all windows `epochs` times. (A step of short windows reads
        as many tokens, and counts as any other.)"""
        return math.ceil(epochs * len(self.windows.starts) / self.windows.n_per_step)

    def for_step(self, step: int) -> Iterator[tuple[Tensor, Tensor, float]]:
        """inputs, targets, and the weight of their loss in the step's mean. Seeds PyTorch for each,
        so that dropout and contrast need no random state."""
        windows = self.windows
        if step < self.config.short_window_steps:
            windows = self.short_windows
        n = self.n_micro_batches
        # a row for each micro-batch of all ranks
        starts = windows.for_step(step).reshape(self.ranks.size * n, -1)
        n_targets = self.stream.count_targets(starts, windows.block_size).sum(1)
        first = self.ranks.rank * n  # of this rank's
        for i in range(first, first + n):
            seeds = np.random.SeedSequence([self.config.seed, step, i])
            torch.manual_seed(int(seeds.generate_state(1, np.uint64)[0]))
            inputs, targets = self.stream.read(starts[i], windows.block_size)
            yield inputs, targets, float(n_targets[i] / max(1, n_targets.sum()))
