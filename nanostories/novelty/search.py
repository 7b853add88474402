"""
An exact search of many stories for a few texts: the largest ROUGE-k of each text with any story,
and the longest spans of a text that occur in one. rouge.py searches a model's whole training set
for its completions.

The few texts are indexed by a trie of their short passages; the many stories are read once, word by
word. Words are compared, nothing is hashed or approximate. numba compiles this file on first use,
in seconds.

>>> stories = Stream(np.array([0, 1, 2, 9]), np.array([0, 4]))
>>> search([np.array([1, 2, 3])], stories, k=2).spans
[array([2, 1, 0])]
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
from tqdm import tqdm

STORIES_AT_ONCE = 4000  # for each call of compiled code; several run in parallel
# Words of a match that is then followed word by word: changes the time, and below which length the
# source of a span is not known; no other result.
SEED = 3


class Stream(NamedTuple):
    """Stories one after another, as ids of words: story i is ids[bounds[i] : bounds[i + 1]]."""

    ids: np.ndarray  # (words,) uint32
    bounds: np.ndarray  # (stories + 1,) int64


class Matches(NamedTuple):
    """The results of a search, for each of n texts."""

    texts: Sequence[np.ndarray]
    f: np.ndarray  # (n,) the largest ROUGE-k F with any story
    nearest: np.ndarray  # (n,) the first story with that F; -1 if no story shares a k-gram
    precision: np.ndarray  # (n,) the largest share of the text's k-grams that occurs in one story
    container: np.ndarray  # (n,) the first such story, or -1
    # For each word of a text: how many words from it on occur in a row in some story.
    spans: list[np.ndarray]
    # For each word of a text: the first story with its span, where that begins one of SEED or more
    sources: list[np.ndarray]

    def longest(self) -> np.ndarray:
        """(n,) words of each text's longest span."""
        return np.array([spans.max(initial=0) for spans in self.spans], dtype=float)

    def share(self, k: int) -> np.ndarray:
        """(n,) the share of each text's k-grams that occurs in any story; NaN if it has none."""
        shares = np.full(len(self.spans), np.nan)
        for i, spans in enumerate(self.spans):
            if len(spans) >= k:
                shares[i] = (spans[: len(spans) - k + 1] >= k).mean()
        return shares


def search(texts: Sequence[np.ndarray], stories: Stream, k: int, counting: str = "set") -> Matches:
    """Compares every text, (words,) int, with every story. counting: as in rouge.rouge_k."""
    n_ids = 1 + max(int(ids.max(initial=0)) for ids in (stories.ids, *texts))
    index = build_index(texts, n_ids, k, counting)
    starts = range(0, len(stories.bounds) - 1, STORIES_AT_ONCE)

    def search_block(start: int) -> Best:
        bounds = stories.bounds[start : start + STORIES_AT_ONCE + 1]
        return read_stories(index, stories.ids, bounds, start, k, counting == "set")

    best = empty_best(index)
    with ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS) as pool:
        blocks = pool.map(search_block, starts)
        for block in tqdm(blocks, "comparing", len(starts), disable=None, delay=1, leave=False):
            keep_larger(best.f, best.nearest, block.f, block.nearest)
            keep_larger(best.shared, best.container, block.shared, block.container)
            keep_larger(best.match, best.match_story, block.match, block.match_story)
            best.occurs[:] |= block.occurs
    return results_of(texts, index, best)


def keep_larger(values, stories, found_values, found_stories) -> None:
    is_larger = found_values > values
    values[is_larger] = found_values[is_larger]
    stories[is_larger] = found_stories[is_larger]


def results_of(texts: Sequence[np.ndarray], index: "Index", best: "Best") -> Matches:
    match = best.match
    for length in range(1, SEED):  # shorter than SEED: the trie knows whether they occur
        match = np.maximum(match, length * best.occurs[index.nodes[length - 1]])
    places = np.arange(len(match))
    # The rest of a match: at its next word it is one word shorter.
    match = np.maximum.accumulate(match + places) - places
    spans = []
    sources = []
    start = 0
    for text in texts:
        spans.append(match[start : start + len(text)])
        sources.append(best.match_story[start : start + len(text)])
        start += len(text) + 1  # its separator
    precision = best.shared / np.maximum(index.sizes, 1)
    return Matches(texts, best.f, best.nearest, precision, best.container, spans, sources)


# ---- The index of the texts ----
class Index(NamedTuple):
    """The texts one after another, each with a separator after it, and a trie of their passages.
    Nodes of the trie are numbered: first the words, then the passages of two words, and so on."""

    sizes: np.ndarray  # (texts,) its k-grams
    nodes: np.ndarray  # (depth, places): nodes[d, p] stands for the d + 1 words from place p on
    # From a node, edge_words[j] leads on to the node n_words + j, where
    # edge_starts[node] <= j < edge_starts[node + 1]; these words are in order.
    n_words: int
    edge_starts: np.ndarray
    edge_words: np.ndarray
    # The k-gram of a node occurs gram_times[j] times in text gram_texts[j], where
    # gram_starts[node] <= j < gram_starts[node + 1].
    gram_starts: np.ndarray
    gram_texts: np.ndarray
    gram_times: np.ndarray
    # A node of SEED words begins at seed_places[j], seed_starts[node] <= j < seed_starts[node + 1].
    seed_starts: np.ndarray
    seed_places: np.ndarray


def build_index(texts: Sequence[np.ndarray], n_ids: int, k: int, counting: str) -> Index:
    lengths = np.array([len(text) for text in texts])
    ends = np.cumsum(lengths + 1) - 1
    separators = n_ids + np.arange(len(texts))  # all different, and in no story
    words = np.insert(np.concatenate(texts), np.cumsum(lengths), separators).astype(np.int64)
    n_words = n_ids + len(texts)
    nodes, edges = build_trie(words, n_words, max(k, SEED))
    numbers = np.arange(nodes.max() + 2)

    text_of_place = np.repeat(np.arange(len(texts)), lengths + 1)
    is_whole = np.arange(len(words)) + k <= ends[text_of_place]
    pairs = nodes[k - 1] * len(texts) + text_of_place
    pairs, times = np.unique(pairs[is_whole], return_counts=True)
    if counting == "set":
        times[:] = 1
    gram, text = np.divmod(pairs, len(texts))

    seeds = nodes[SEED - 1]
    places = np.argsort(seeds, kind="stable")
    return Index(
        sizes=np.bincount(text, times, len(texts)),
        nodes=nodes,
        n_words=n_words,
        edge_starts=np.searchsorted(edges, numbers << 32),
        edge_words=edges & (1 << 32) - 1,
        gram_starts=np.searchsorted(gram, numbers),
        gram_texts=text.astype(np.int32),
        gram_times=times.astype(np.int32),
        seed_starts=np.searchsorted(seeds[places], numbers),
        seed_places=places.astype(np.int32),
    )


def build_trie(words: np.ndarray, n_words: int, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """nodes, as in Index; (edges,) node << 32 | word, in order."""
    nodes = [words]
    levels = []
    n_nodes = n_words
    for length in range(1, depth):
        # The last places go on at the first, but behind a separator.
        edges = nodes[-1] << 32 | np.roll(words, -length)
        distinct, node = np.unique(edges, return_inverse=True)
        nodes.append(n_nodes + node)
        n_nodes += len(distinct)
        levels.append(distinct)
    return np.array(nodes), np.concatenate(levels)


@numba.njit(nogil=True, cache=True, inline="always")
def next_node(index, node, word):
    """-1 if the word does not follow there in any text."""
    first = index.edge_starts[node]
    last = index.edge_starts[node + 1] - 1
    while first <= last:
        middle = (first + last) // 2
        found = index.edge_words[middle]
        if found == word:
            return index.n_words + middle
        if found < word:
            first = middle + 1
        else:
            last = middle - 1
    return -1


# ---- The search ----
class Best(NamedTuple):
    """What some stories have in common with the texts. Stories are the first of equal ones."""

    f: np.ndarray  # (texts,) the largest F, and its story
    nearest: np.ndarray
    shared: np.ndarray  # (texts,) the largest number of shared k-grams, and its story
    container: np.ndarray
    # (places,) the words of the longest match from here on, and its story. 0: shorter than SEED, or
    # only the rest of a match that begins one word earlier; results_of fills in both.
    match: np.ndarray
    match_story: np.ndarray
    occurs: np.ndarray  # (nodes,) whether a story has these words


@numba.njit(nogil=True, cache=True)
def empty_best(index):
    n_texts = len(index.sizes)
    n_places = index.nodes.shape[1]
    return Best(
        np.zeros(n_texts),
        np.full(n_texts, -1),
        np.zeros(n_texts, np.int64),
        np.full(n_texts, -1),
        np.zeros(n_places, np.int64),
        np.full(n_places, -1),
        np.zeros(len(index.gram_starts), np.bool_),
    )


@numba.njit(nogil=True, cache=True)
def read_stories(index, ids, bounds, first, k, by_set):
    """Reads the stories within these bounds; the first of them is number `first`."""
    best = empty_best(index)
    counts = np.zeros(len(index.gram_starts), np.int32)  # of each k-gram in a story
    for i in range(len(bounds) - 1):
        words = ids[bounds[i] : bounds[i + 1]]
        grams = match_words(index, words, first + i, k, counts, best)
        size = count_distinct(words, k) if by_set else max(len(words) - k + 1, 0)
        score(index, grams, counts, size, first + i, best)
        counts[grams] = 0
    return best


@numba.njit(nogil=True, cache=True)
def match_words(index, words, story, k, counts, best):
    """Looks up the passages from each word of a story on -> its different k-grams that a text has
    (of k = 1: all), which it counts."""
    grams = np.empty(len(words), np.int32)
    n_grams = 0
    for i in range(len(words)):
        node = np.int64(words[i])
        for length in range(1, min(max(k, SEED), len(words) - i) + 1):
            if length > 1:
                node = next_node(index, node, np.int64(words[i + length - 1]))
            if node < 0:  # in no text
                break
            best.occurs[node] = True
            if length == k:
                if counts[node] == 0:
                    grams[n_grams] = node
                    n_grams += 1
                counts[node] += 1
            if length == SEED:
                follow(index, words, i, node, story, best)
    return grams[:n_grams]


@numba.njit(nogil=True, cache=True, inline="always")  # a call for each seed would cost a tenth
def follow(index, words, i, node, story, best):
    """Follows the match of the story's words from i on with all places of the texts that have the
    SEED words of this node, unless it begins earlier."""
    texts = index.nodes[0]
    before = words[i - 1] if i else -1
    for place in index.seed_places[index.seed_starts[node] : index.seed_starts[node + 1]]:
        if before == texts[place - 1]:
            continue
        n = SEED
        while i + n < len(words) and words[i + n] == texts[place + n]:
            n += 1
        if n > best.match[place]:
            best.match[place] = n
            best.match_story[place] = story


@numba.njit(nogil=True, cache=True)
def score(index, grams, counts, size, story, best):
    """size: the k-grams of the story."""
    overlaps = np.zeros(len(index.sizes), np.int32)
    for gram in grams:
        for j in range(index.gram_starts[gram], index.gram_starts[gram + 1]):
            overlaps[index.gram_texts[j]] += min(counts[gram], index.gram_times[j])
    for text in range(len(overlaps)):
        shared = overlaps[text]
        f = 2.0 * shared / max(index.sizes[text] + size, 1)
        if shared > best.shared[text]:
            best.shared[text] = shared
            best.container[text] = story
        if f > best.f[text]:
            best.f[text] = f
            best.nearest[text] = story


@numba.njit(nogil=True, cache=True)
def count_distinct(words, k):
    """How many different k-grams there are in these words."""
    grams = words[: max(len(words) - k + 1, 0)].astype(np.int64)
    for i in range(1, k):
        if i > 1:  # number the grams so far, so that the next word fits, too
            grams = np.searchsorted(np.unique(grams), grams)
        grams = grams << 32 | words[i : i + len(grams)]
    return len(np.unique(grams))
