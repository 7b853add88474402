"""
The stories of a split on disk until the vocabulary is known, and their tokens, encoded by several
threads.

>>> for ids in encode(spool.chunks("tokenizing train"), gpt2().vocabulary): ...
"""

import collections
import os
import pickle
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from nanostories.corpus.tokenizer import Tokenizer

# Tokenized in one call: enough to keep threads busy, few enough to hold many chunks in memory.
STORIES_PER_CHUNK = 128
THREADS = os.cpu_count() or 1


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

    def chunks(self, label: str) -> Iterator[list[str]]:
        """All stories, beside a progress bar."""
        self.file.seek(0)
        unit = dict(unit=" stories", unit_scale=STORIES_PER_CHUNK)
        for first in tqdm(range(0, self.stories, STORIES_PER_CHUNK), label, **unit, disable=None):
            n = min(STORIES_PER_CHUNK, self.stories - first)
            yield [pickle.load(self.file) for _ in range(n)]


def encode(chunks: Iterable[list[str]], vocabulary: dict) -> Iterator[np.ndarray]:
    """The ids of each chunk of stories, in order; threads work only a few chunks ahead."""
    # Each thread has a tokenizer: threads that share one wait for its regex.
    local = threading.local()

    def start_thread():
        local.tokenizer = Tokenizer(**vocabulary)

    def encode_chunk(chunk: list[str]) -> np.ndarray:
        return local.tokenizer.encode_stories(chunk)

    with ThreadPoolExecutor(THREADS, initializer=start_thread) as pool:
        futures = collections.deque()
        for chunk in chunks:
            futures.append(pool.submit(encode_chunk, chunk))
            if len(futures) > 4 * THREADS:
                yield futures.popleft().result()
        for future in futures:
            yield future.result()
