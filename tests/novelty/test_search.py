"""nanostories/novelty/search.py: it finds what brute force finds."""

from collections import Counter

import numpy as np
import pytest

from nanostories.novelty import search as search_module
from nanostories.novelty.search import Stream, search


def stream_of(texts: list[np.ndarray]) -> Stream:
    bounds = np.cumsum([0] + [len(text) for text in texts])
    return Stream(np.concatenate(texts).astype(np.uint32), bounds)


def random_texts(rng, n: int, longest: int, n_words: int) -> list[np.ndarray]:
    return [rng.integers(0, n_words, size=rng.integers(0, longest)) for _ in range(n)]


def kgrams(text, k: int, counting: str) -> Counter:
    counts = Counter(tuple(text[i : i + k]) for i in range(len(text) - k + 1))
    return Counter(dict.fromkeys(counts, 1)) if counting == "set" else counts


def best_by_brute_force(text, stories, k: int, counting: str):
    """(largest F, its story), (largest share, its story)"""
    ours, best, most = kgrams(text, k, counting), (0.0, -1), (0.0, -1)
    for i, story in enumerate(stories):
        theirs = kgrams(story, k, counting)
        shared, n = (ours & theirs).total(), ours.total() + theirs.total()
        if shared:
            best = max(best, (2 * shared / n, i), key=lambda found: found[0])
            most = max(most, (shared / ours.total(), i), key=lambda found: found[0])
    return best, most


def spans_by_brute_force(text, stories) -> list[int]:
    """For each word, the longest span starting there that occurs in a story."""
    passages = {
        tuple(story[i:j])
        for story in stories
        for i in range(len(story))
        for j in range(i, len(story) + 1)
    }
    found = [
        [j - i for j in range(i, len(text) + 1) if tuple(text[i:j]) in passages]
        for i in range(len(text))
    ]
    return [max(lengths, default=0) for lengths in found]


def check(texts, stories: list[np.ndarray], found, k: int, counting: str) -> None:
    for i, text in enumerate(texts):
        best, most = best_by_brute_force(text, stories, k, counting)
        assert (found.f[i], found.nearest[i]) == best
        assert (found.precision[i], found.container[i]) == most
        assert found.spans[i].tolist() == spans_by_brute_force(text, stories)
        longest = found.spans[i].max(initial=0)
        passage = text[found.spans[i].argmax() :][:longest] if longest else text
        holders = [
            j
            for j, story in enumerate(stories)
            if spans_by_brute_force(passage, [story])[:1] == [longest]
        ]
        assert found.source[i] == (holders[0] if longest >= search_module.SEED else -1)
        grams = [tuple(text[j : j + k]) for j in range(len(text) - k + 1)]
        if grams:
            occurring = set().union(*(kgrams(story, k, "set") for story in stories))
            assert found.share(k)[i] == np.mean([gram in occurring for gram in grams])


@pytest.mark.parametrize("counting", ["set", "clipped"])
@pytest.mark.parametrize("seed", range(12))
def test_it_finds_what_brute_force_finds(seed, counting, monkeypatch):
    monkeypatch.setattr(search_module, "STORIES_AT_ONCE", 7)
    rng = np.random.default_rng(seed)
    n_words, k = int(rng.integers(2, 12)), int(rng.integers(1, 5))
    stories = random_texts(rng, 30, 20, n_words)
    texts = random_texts(rng, 6, 15, n_words + 1) + [
        stories[3],
        stories[3][2:9],
        np.zeros(0, dtype=int),
    ]
    check(texts, stories, search(texts, stream_of(stories), k, counting), k, counting)
