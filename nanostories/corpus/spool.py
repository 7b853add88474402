"""
The stories of a split on disk until the vocabulary is known, and their tokens, encoded by several
threads.

>>> for ids in spool.encode(gpt2().vocabulary, threads=2, progress_label="tokenizing train"): ...
"""

import collections
import itertools
import pickle
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from tqdm import tqdm

from nanostories.corpus.tokenizer import Tokenizer

# tokenized in one call: enough to keep threads busy, few enough to hold many chunks in memory
STORIES_PER_CHUNK = 128


class Spool:
    def __init__(self, path: Path):
        self.path, self.chunk, self.stories, self.bytes = path, [], 0, 0
        path.touch()

    def add(self, story: str) -> None:
        self.chunk.append(story)
        self.stories += 1
        self.bytes += len(story.encode())
        if len(self.chunk) == STORIES_PER_CHUNK:
            with self.path.open("ab") as file:
                pickle.dump(
                    self.chunk, file
                )  # unlike a separator, this works whatever a story contains
            self.chunk = []

    def chunks(self) -> Iterator[list[str]]:
        with self.path.open("rb") as file:
            for _ in range(self.stories // STORIES_PER_CHUNK):
                yield pickle.load(file)
        yield self.chunk

    def encode(
        self, vocabulary: dict, threads: int, progress_label: str, every: int = 1
    ) -> Iterator[np.ndarray]:
        """The ids of every `every`-th chunk, in order; threads work only a few chunks ahead."""
        chunks = itertools.islice(self.chunks(), 0, None, every)
        n_chunks = self.stories // STORIES_PER_CHUNK // every + 1
        own = (
            threading.local()
        )  # a tokenizer for each thread: threads that share one wait for its regex
        with ThreadPoolExecutor(
            threads, initializer=lambda: setattr(own, "tokenizer", Tokenizer(**vocabulary))
        ) as pool:
            futures = collections.deque()
            unit = dict(unit="stories", unit_scale=STORIES_PER_CHUNK)
            for chunk in tqdm(chunks, progress_label, n_chunks, **unit, disable=None):
                futures.append(
                    pool.submit(lambda chunk: own.tokenizer.encode_stories(chunk), chunk)
                )
                if len(futures) > 4 * threads:
                    yield futures.popleft().result()
            yield from (future.result() for future in futures)
