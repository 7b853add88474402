"""
The stories of a split on disk until the vocabulary is known, and their tokens, encoded by several
threads.

>>> for ids in encode(spool.read("tokenizing train"), tokenizer): ...
"""

import array
import itertools
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanostories.corpus.tokenizer import Tokenizer

THREADS = min(os.cpu_count() or 1, 16)  # more would wait for the one that reads the stories
STORIES_PER_CALL = 256  # enough to keep a thread busy


class Spool:
    """Stories in a temporary file, in the order in which they were added."""

    def __init__(self, directory: Path):
        self.file = tempfile.TemporaryFile(dir=directory)
        self.lengths = array.array("Q")  # of each story, in bytes

    def add(self, story: str) -> None:
        data = story.encode()
        self.file.write(data)
        self.lengths.append(len(data))

    def read(self, label: str) -> Iterator[str]:
        """The stories, beside a progress bar."""
        self.file.seek(0)
        for length in tqdm(self.lengths, label, unit=" stories", disable=None):
            yield self.file.read(length).decode()


def encode(stories: Iterator[str], tokenizer: Tokenizer) -> Iterator[np.ndarray]:
    """The ids of some hundred stories at a time, in order, each followed by <|endoftext|>."""
    # Each thread has a tokenizer: threads that share one wait for its regex.
    tokenizers = [Tokenizer(**tokenizer.vocabulary) for _ in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        while True:
            parts = [list(itertools.islice(stories, STORIES_PER_CALL)) for _ in tokenizers]
            if not parts[0]:
                break
            yield from pool.map(Tokenizer.encode_stories, tokenizers, parts)
