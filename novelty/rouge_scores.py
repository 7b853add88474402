"""
ROUGE-k and ROUGE-L of two texts, counted as the paper does or as the package rouge-score does.

>>> rouge_k("The cat sat on the mat.", "A cat sat there.", k=2)
Score(precision=0.2, recall=0.3333333333333333, f=0.25)
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from novelty.corpus_words import words_of
from novelty.ngram_search import number_kgrams


class Score(NamedTuple):
    precision: float  # share of a's k-grams that also occur in b
    recall: float  # share of b's that also occur in a
    f: float  # their harmonic mean


def rouge_k(a: str | Sequence, b: str | Sequence, k: int = 2, counting: str = "set") -> Score:
    """Shared k-grams of two texts, or of two sequences of token ids.

    counting: "set" is the paper's (section 4): each k-gram counts once per text, however often it occurs there.
    "clipped" is Lin's (2004), and rouge-score's: a k-gram that a has m times and b n times is shared min(m, n) times.
    """
    a, b = number_words(a, b)
    ids = number_kgrams(np.concatenate([a, [-1], b, [-1]]), k)
    halves = ids[: len(a)], ids[len(a) + 1 :]
    counts = np.array([np.bincount(half[half >= 0], minlength=ids.max() + 1) for half in halves])
    if counting == "set":
        counts = np.minimum(counts, 1)
    return score(counts.min(0).sum(), *counts.sum(1))


def rouge_l(a: str | Sequence, b: str | Sequence) -> Score:
    """ROUGE-L: by the longest common subsequence (Lin 2004)."""
    a, b = number_words(a, b)
    longest = np.zeros(len(b) + 1, dtype=np.int64)  # common subsequence of a so far and the first j words of b
    for word in a:
        longest[1:] = np.maximum(longest[1:], longest[:-1] + (b == word))
        longest = np.maximum.accumulate(longest)
    return score(longest[-1], len(a), len(b))


def number_words(*texts: str | Sequence) -> list[np.ndarray]:
    """Each text as (words,) int64, where the same word (or token id) has the same number in all of them."""
    numbers: dict = {}
    texts = [words_of(text) if isinstance(text, str) else text for text in texts]
    return [np.array([numbers.setdefault(word, len(numbers)) for word in text], dtype=np.int64) for text in texts]


def score(shared: int, n_a: int, n_b: int) -> Score:
    return Score(float(shared / max(n_a, 1)), float(shared / max(n_b, 1)), float(2 * shared / max(n_a + n_b, 1)))
