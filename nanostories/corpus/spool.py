"""
The stories of a split on disk until the vocabulary is known, and their tokens, encoded by several
threads.

>>> for ids in encode(spool.read("tokenizing train"), gpt2().vocabulary): ...
"""

import itertools
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from nanostories.corpus.tokenizer import Tokenizer

THREADS = min(os.cpu_count() or 1, 16)  # more would wait for the one that reads the stories
STORIES_PER_CALL = 256  # enough to keep a thread busy


class Spool:
    """Stories in a file, in the order in which they were added."""

    def __init__(self, file: BinaryIO):
        self.file = file
        self.stories = 0
        self.bytes = 0

    def add(self, story: str) -> None:
        # Unlike a separator between stories, pickle works whatever a story contains.
        pickle.dump(story, self.file)
        self.stories += 1
        self.bytes += len(story.encode())

    def read(self, label: str) -> Iterator[str]:
        """The stories, beside a progress bar."""
        self.file.seek(0)
        for _ in tqdm(range(self.stories), label, unit=" stories", disable=None):
            yield pickle.load(self.file)


def encode(stories: Iterator[str], vocabulary: dict) -> Iterator[np.ndarray]:
    """The ids of some hundred stories at a time, in order, each followed by <|endoftext|>."""
    # Each thread has a tokenizer: threads that share one wait for its regex.
    tokenizers = [Tokenizer(**vocabulary) for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            parts = [list(itertools.islice(stories, STORIES_PER_CALL)) for _ in tokenizers]
            if not parts[0]:
                break
            yield from pool.map(Tokenizer.encode_stories, tokenizers, parts)
