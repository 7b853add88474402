"""novelty/ngram_search.py: it finds what brute force finds, in C++ and in NumPy."""

import tracemalloc
from collections import Counter

import numpy as np
import pytest

from kernels import compile_cpp
from novelty import ngram_search
from novelty.ngram_search import Stream, number_kgrams, search


@pytest.fixture(params=["c++", "numpy"])
def path(request, monkeypatch):
    if request.param == "numpy":
        monkeypatch.setattr(ngram_search.compile_cpp, "library", lambda name, **constants: None)
    elif compile_cpp.library("ngram_search") is None:
        pytest.skip("no C++ compiler that builds it")
    return request.param


def random_texts(rng, n: int, longest: int, n_words: int) -> list[np.ndarray]:
    return [rng.integers(0, n_words, size=rng.integers(0, longest)) for _ in range(n)]


def kgrams(text, k: int, counting: str) -> Counter:
    counts = Counter(tuple(text[i : i + k]) for i in range(len(text) - k + 1))
    return Counter(dict.fromkeys(counts, 1)) if counting == "set" else counts


def best_by_brute_force(text, stories, k: int, counting: str, left_out: int = -1):
    """(largest F, its story), (largest share, its story)"""
    ours, best, most = kgrams(text, k, counting), (0.0, -1), (0.0, -1)
    for i, story in enumerate(stories):
        theirs = kgrams(story, k, counting)
        shared, n = (ours & theirs).total(), ours.total() + theirs.total()
        if i != left_out and shared:
            best = max(best, (2 * shared / n, i), key=lambda found: found[0])
            most = max(most, (shared / ours.total(), i), key=lambda found: found[0])
    return best, most


def spans_by_brute_force(text, stories):
    """For each word: the longest span starting there that occurs in a story, and its first place in all of them."""
    words = [tuple(story) for story in stories]
    starts = np.append(0, np.cumsum([len(story) for story in stories]))
    for i in range(len(text)):
        longest = (0, -1)
        for start, story in zip(starts, words):
            for j in range(len(story)):
                n = 0
                while i + n < len(text) and j + n < len(story) and text[i + n] == story[j + n]:
                    n += 1
                longest = max(longest, (n, start + j), key=lambda found: found[0])
        yield longest


@pytest.mark.parametrize("counting", ngram_search.COUNTINGS)
@pytest.mark.parametrize("seed", range(12))
def test_it_finds_what_brute_force_finds(path, seed, counting):
    rng = np.random.default_rng(seed)
    n_words, k = int(rng.integers(2, 12)), int(rng.integers(1, 5))
    stories = random_texts(rng, 30, 20, n_words)
    texts = random_texts(rng, 6, 15, n_words + 1) + [stories[3], stories[3][2:9], np.zeros(0, dtype=int)]
    found = search(texts, Stream.of(stories), k, counting)
    for i, text in enumerate(texts):
        best, most = best_by_brute_force(text, stories, k, counting)
        assert (found.f[i], found.nearest[i]) == best
        assert (found.precision[i], found.container[i]) == most
        assert list(zip(found.spans[i], found.places[i])) == list(spans_by_brute_force(text, stories))


@pytest.mark.parametrize("counting", ngram_search.COUNTINGS)
def test_texts_among_themselves(path, counting):
    texts = random_texts(np.random.default_rng(0), 40, 30, 4)
    found = search(texts, Stream.of(texts), 2, counting, leave_out_own=True)
    for i, text in enumerate(texts):
        assert (found.f[i], found.nearest[i]) == best_by_brute_force(text, texts, 2, counting, left_out=i)[0]


def test_words_of_a_class_are_the_same_word(path):
    rng = np.random.default_rng(1)
    stories, texts = random_texts(rng, 30, 20, 10), random_texts(rng, 8, 20, 12)
    classes = np.array([0, 1, 2, 3, 4, 4, 4, 7, 8, 7, 10, 4])
    masked = search(texts, Stream.of(stories), 2, "set", classes)
    same = search([classes[text] for text in texts], Stream.of([classes[story] for story in stories]), 2, "set")
    for name in ("f", "nearest", "precision", "container"):
        assert (getattr(masked, name) == getattr(same, name)).all()


def test_stories_of_tokens_have_gaps_between_them(path):
    """As in train.bin, where <|endoftext|>, here 9, is of no story; and nothing is found across it."""
    ids = np.array([1, 2, 3, 9, 9, 4, 5, 9], dtype=np.uint16)
    stories = Stream(ids, np.array([0, 4, 5]), np.array([3, 4, 7]), 10)
    found = search([np.array([2, 3, 9, 4, 5])], stories, 2, "set")
    assert found.spans[0].tolist() == [2, 1, 0, 2, 1] and found.places[0].tolist() == [1, 2, -1, 5, 6]
    assert found.nearest.tolist() == [2] and found.f[0] == 2 * 1 / (4 + 1)


def test_cpp_and_numpy_agree_with_any_number_of_threads(monkeypatch):
    if compile_cpp.library("ngram_search") is None:
        pytest.skip("no C++ compiler that builds it")
    rng = np.random.default_rng(2)
    zipf = lambda n: np.minimum(rng.zipf(1.3, size=n), 500) - 1  # noqa: E731
    stories = [zipf(rng.integers(1, 200)) for _ in range(3000)]
    texts = [zipf(100) for _ in range(20)] + stories[5:2000:200] + [stories[7]]
    results = []
    for n_threads in (1, 3, 0):
        if n_threads:
            monkeypatch.setattr(ngram_search.torch, "get_num_threads", lambda n=n_threads: n)
        else:
            monkeypatch.setattr(ngram_search.compile_cpp, "library", lambda name, **constants: None)
        results.append(search(texts, Stream.of(stories), 2, "clipped"))
    for other in results[1:]:
        for name, value in vars(results[0]).items():
            for a, b in zip(value, getattr(other, name)):
                np.testing.assert_array_equal(a, b, name)
    assert results[0].nearest[20:].tolist() == [*range(5, 2000, 200), 7]


def test_memory_does_not_grow_with_threads(monkeypatch):
    """Threads share what is kept of every node of the trie, of which long texts have many."""
    if compile_cpp.library("ngram_search") is None:
        pytest.skip("no C++ compiler that builds it")
    text = np.random.default_rng(3).integers(0, 50, size=800)  # two of them share 320,000 nodes
    peaks = []
    for n_threads in (1, 32):
        monkeypatch.setattr(ngram_search.torch, "get_num_threads", lambda n=n_threads: n)
        tracemalloc.start()
        search([text, text], Stream.of([text[:100]]), 2)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_kgrams_are_numbered_by_their_words():
    words = np.array([3, 1, 3, 1, 3, -1, 1, 3, 1, -1, -1, 3])
    assert (number_kgrams(words, 1) >= 0).tolist() == (words >= 0).tolist()
    two = number_kgrams(words, 2)
    assert two[0] == two[2] == two[7] and two[1] == two[3] == two[6] and two[0] != two[1]
    assert (np.flatnonzero(two < 0) == [4, 5, 8, 9, 10, 11]).all()
    assert (number_kgrams(words, 20) < 0).all()
