"""
How diverse the stories of a data set are: repetition among them, and their vocabulary.

>>> measure(["A cat sat on a mat.", "A dog ran to a cat."])["distinct words"]
8
"""

from collections.abc import Mapping, Sequence

import numpy as np
import regex
from matplotlib.figure import Figure

from novelty.search import Stream, search

WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")  # of any script
NEAR = 0.5  # share of a story's passages that are in one other story, from which on it counts as a near-duplicate
PASSAGE = 4  # words
SEARCHED = 1000  # stories at most, each compared with all others


def measure(texts: Sequence[str]) -> dict[str, int | float | None]:
    """Figures of a data set by their names in a table; shares are floats from 0 to 1."""
    words, ids = [WORD.findall(text.lower()) for text in texts], {}
    encoded = [np.array([ids.setdefault(word, len(ids)) for word in story], dtype=np.int64) for story in words]
    pairs = [pair for story in words for pair in zip(story, story[1:])]
    return {
        "words per story": round(sum(map(len, words)) / len(words)),
        "distinct words": len(ids),
        "distinct pairs of words": len(set(pairs)) / max(len(pairs), 1),
        "duplicates": 1 - len({tuple(story) for story in words}) / len(words),
        "near-duplicates": near_duplicates(encoded),
    }


def near_duplicates(stories: Sequence[np.ndarray]) -> float | None:
    """The share of the last stories, at most half of all, that repeat one of the stories before them."""
    n = min(len(stories) // 2, SEARCHED)
    if not n:
        return None
    earlier, last = stories[:-n], stories[-n:]
    ends = np.cumsum([len(story) for story in earlier])
    stream = Stream(np.concatenate(earlier).astype(np.uint32), np.insert(ends[:-1], 0, 0), ends)
    return float((search(last, stream, PASSAGE).precision > NEAR).mean())


def draw(sets: Mapping[str, Sequence[str]]) -> Figure:
    """The number of distinct words over the number of stories, a curve for each data set."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, texts in sets.items():
        seen, sizes = set(), []
        for text in texts:
            seen.update(WORD.findall(text.lower()))
            sizes.append(len(seen))
        axes.plot(range(1, len(sizes) + 1), sizes, label=name)
    axes.set(xlabel="stories", ylabel="distinct words")
    axes.legend()
    axes.grid(alpha=0.3)
    return figure
