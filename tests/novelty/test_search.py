"""nanostories/novelty/search.py: it finds what brute force finds, in texts of one letter a word."""

import numpy as np
import pytest

from nanostories.novelty import search as search_module
from nanostories.novelty.search import Stream, search
from rouge import kgrams, overlap


def stream_of(texts: list[str]) -> Stream:
    bounds = np.cumsum([0, *map(len, texts)])
    return Stream(ids_of("".join(texts)), bounds)


def ids_of(text: str) -> np.ndarray:
    return np.array([ord(letter) for letter in text], dtype=np.uint32)


def random_texts(rng, n: int, letters: str) -> list[str]:
    return ["".join(rng.choice([*letters], size=rng.integers(20))) for _ in range(n)]


def spans_of(text: str, stories: list[str]) -> list[int]:
    """For each letter, the longest span starting there that occurs in a story."""
    spans = []
    for i in range(len(text)):
        n = 0
        while i + n < len(text) and any(text[i : i + n + 1] in story for story in stories):
            n += 1
        spans.append(n)
    return spans


@pytest.mark.parametrize("counting", ["set", "clipped"])
@pytest.mark.parametrize("seed", range(12))
def test_it_finds_what_brute_force_finds(seed, counting, monkeypatch):
    monkeypatch.setattr(search_module, "STORIES_AT_ONCE", 7)
    rng = np.random.default_rng(seed)
    k = 1 + seed % 4
    letters = "abcdefghijkl"[: seed + 1]
    stories = random_texts(rng, 30, letters)
    texts = [*random_texts(rng, 6, f"{letters}z"), stories[3], stories[3][2:9], ""]
    found = search([ids_of(text) for text in texts], stream_of(stories), k, counting)
    for i, text in enumerate(texts):
        ours = kgrams(text, k, counting)
        scores = [overlap(ours, kgrams(story, k, counting)) for story in stories]
        fs = [score.f for score in scores]
        shares = [score.precision for score in scores]
        assert found.f[i] == max(fs) and found.precision[i] == max(shares)
        assert found.nearest[i] == (fs.index(max(fs)) if any(fs) else -1)
        assert found.container[i] == (shares.index(max(shares)) if any(shares) else -1)
        spans = spans_of(text, stories)
        assert found.spans[i].tolist() == spans
        longest = max(spans, default=0)
        if longest >= search_module.SEED:
            begin = spans.index(longest)
            source = [text[begin : begin + longest] in story for story in stories].index(True)
            assert found.sources[i][begin] == source
        if len(text) >= k:
            starts = spans[: len(text) - k + 1]
            assert found.share(k)[i] == np.mean([span >= k for span in starts])
