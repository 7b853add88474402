"""
An exact search of many stories for a few texts: the largest ROUGE-k of each text with any story,
and the longest spans of a text that occur in one. rouge.py searches a model's whole training set
for its completions.

The few texts are indexed by a trie of their short passages; the many stories are read once, word by
word. Words are compared, never hashes alone, so nothing is approximate. numba compiles this file on
first use, in seconds.

>>> stream = Stream(np.array([0, 1, 2, 9]), np.array([0]), np.array([4]))
>>> search([np.array([1, 2, 3])], stream, k=2).spans
[array([2, 1, 0])]
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
from tqdm import tqdm

STORIES_AT_ONCE = 4000  # for each call of compiled code; several run in parallel
# words of a match that is then followed word by word; does not change the results, only the time
SEED = 3
MIX = -7046029254386353131  # odd, its bits as if at random: spreads the keys of the hash table


class Stream(NamedTuple):
    """Stories one after another, as ids of words or tokens: story i is ids[starts[i] : ends[i]]."""

    ids: np.ndarray  # (n,) uint16 or uint32
    starts: np.ndarray  # (stories,) int64
    ends: np.ndarray  # (stories,) int64


class Found(NamedTuple):
    """The results of a search, for each of n texts."""

    f: np.ndarray  # (n,) the largest ROUGE-k F with any story
    nearest: np.ndarray  # (n,) the first story with that F; -1 if no story shares a k-gram
    precision: np.ndarray  # (n,) the largest share of the text's k-grams that occurs in one story
    container: np.ndarray  # (n,) the first such story, or -1
    spans: list[
        np.ndarray
    ]  # for each word of a text: the longest span starting there that occurs in some story
    source: (
        np.ndarray
    )  # (n,) the first story with the text's first longest span; -1 if that is below SEED words

    def longest(self) -> np.ndarray:
        """(n,) words of each text's longest span."""
        return np.array([spans.max(initial=0) for spans in self.spans], dtype=float)

    def share(self, k: int) -> np.ndarray:
        """(n,) the share of each text's k-grams that occurs in any story; NaN if it has none."""
        matched = [spans[: max(len(spans) - k + 1, 0)] >= k for spans in self.spans]
        return np.array([each.mean() if len(each) else np.nan for each in matched])


def search(
    texts: Sequence[np.ndarray],
    stories: Stream,
    k: int,
    counting: str = "set",
    classes: np.ndarray | None = None,
    label: str = "comparing",
) -> Found:
    """Compares every text, (words,) int, with every story.

    counting: as in rouge.rouge_k. classes: (ids,) int, for all ids in stories and texts; ids of one
    class count as the same word. label: of the progress bar.
    """
    if classes is None:
        classes = np.arange(1 + max(int(ids.max(initial=0)) for ids in (stories.ids, *texts)))
    index, n_stories = (
        build_index([classes[text] for text in texts], k, counting),
        len(stories.starts),
    )
    numbers = np.full(classes.max() + 1, -1)  # -1: a class that no text has
    numbers[index.words] = np.arange(len(index.words))
    numbers = numbers[classes].astype(np.int32)

    def read(first: int) -> tuple:
        bounds = (
            column[first : first + STORIES_AT_ONCE] for column in (stories.starts, stories.ends)
        )
        text_index = index.table, index.grams, index.seeds, index.sizes, index.nodes[0]
        return read_stories(
            *text_index, numbers, classes, stories.ids, *bounds, first, k, counting == "set"
        )

    f, nearest = np.zeros(len(texts)), np.full(len(texts), -1)
    shared, container = np.zeros(len(texts), np.int64), np.full(len(texts), -1)
    longest, source, short = (
        np.zeros(len(index.nodes[0]), np.int64),
        np.full(len(index.nodes[0]), -1),
        False,
    )
    bar = tqdm(
        desc=label,
        total=n_stories,
        unit="story",
        unit_scale=True,
        disable=None,
        delay=1,
        leave=False,
    )
    with ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS) as pool, bar:
        for found in pool.map(read, range(0, n_stories, STORIES_AT_ONCE)):
            for i, (best, where) in enumerate(
                ((f, nearest), (shared, container), (longest, source))
            ):
                better = found[2 * i] > best
                best[better], where[better] = found[2 * i][better], found[2 * i + 1][better]
            short = short | found[6]
            bar.update(min(STORIES_AT_ONCE, n_stories - bar.n))
    for length, nodes in enumerate(index.nodes[: SEED - 1], 1):
        longest[: len(nodes)] = np.maximum(longest[: len(nodes)], length * short[nodes])
    places = np.arange(len(longest))
    longest = (
        np.maximum.accumulate(longest + places) - places
    )  # a match goes on at the next word, one word shorter
    ends = np.cumsum(index.lengths + 1)[:-1]
    spans, sources = (
        [each[:-1] for each in np.split(column, ends)] for column in (longest, source)
    )
    first = np.array(
        [each[span.argmax()] if len(span) else -1 for span, each in zip(spans, sources)]
    )
    return Found(f, nearest, shared / np.maximum(index.sizes, 1), container, spans, first)


# ---- The index of the texts ----
class Index(NamedTuple):
    """The texts one after another, a separator after each, and a trie of their passages:
    nodes[d][p] stands for the d + 1 words from place p on. Nodes are numbered by depth; those of
    one word are the words."""

    words: np.ndarray  # the classes that the texts have; from here on, a word is an index in this
    lengths: np.ndarray  # (texts,)
    sizes: np.ndarray  # (texts,) k-grams of each
    nodes: list[np.ndarray]  # for each depth: (places,)
    table: (
        np.ndarray
    )  # (slots, 2) hash table: node << 32 | word, or -1 if free; the node that this word leads to
    # the first node of k words; gram i occurs times[j] times in texts[j], starts[i] <= j < starts[i
    # + 1]
    grams: tuple
    # the first node of SEED words; seed i begins at places[j], starts[i] <= j < starts[i + 1]
    seeds: tuple


def build_index(texts: Sequence[np.ndarray], k: int, counting: str) -> Index:
    lengths = np.array([len(text) for text in texts])
    used, words = np.unique(np.concatenate(texts), return_inverse=True)
    separators = len(used) + np.arange(len(texts))
    words = np.insert(words, np.cumsum(lengths), separators).astype(np.int64)
    nodes, first, keys = [words], [0, len(used) + len(texts)], []
    for depth in range(1, max(k, SEED)):
        edges, node = np.unique(nodes[-1][:-1] << 32 | words[depth:], return_inverse=True)
        nodes.append(first[-1] + node)
        first.append(first[-1] + len(edges))
        keys.append(edges)

    text, place = np.repeat(np.arange(len(texts)), lengths + 1), np.arange(len(words))
    complete = np.flatnonzero((place + k <= np.cumsum(lengths + 1)[text] - 1)[: len(nodes[k - 1])])
    pairs, times = np.unique(
        nodes[k - 1][complete] * len(texts) + text[complete], return_counts=True
    )
    if counting == "set":
        times[:] = 1
    gram, text = np.divmod(pairs, len(texts))
    grams = (
        np.searchsorted(gram, np.arange(first[k - 1], first[k] + 1)),
        text.astype(np.int32),
        times.astype(np.int32),
    )
    order = np.argsort(nodes[SEED - 1], kind="stable")
    seeds = (
        np.searchsorted(nodes[SEED - 1][order], np.arange(first[SEED - 1], first[SEED] + 1)),
        order.astype(np.int32),
    )
    sizes, table = np.bincount(text, times, len(texts)), make_table(np.concatenate(keys), first[1])
    return Index(
        used, lengths, sizes, nodes, table, (first[k - 1], *grams), (first[SEED - 1], *seeds)
    )


@numba.njit(cache=True)
def make_table(keys, first):
    """A hash table that leads from these keys to nodes, numbered from `first` on."""
    size = 64
    while size < 2 * len(keys):
        size *= 2
    table = np.full((size, 2), -1, np.int64)
    for i in range(len(keys)):
        table[slot_of(table, keys[i])] = keys[i], first + i
    return table


@numba.njit(nogil=True, cache=True, inline="always")
def slot_of(table, key):
    """Where the table has, or would have, this key."""
    slot, mask = key * MIX >> 20, len(table) - 1
    while table[slot & mask, 0] != key and table[slot & mask, 0] >= 0:
        slot += 1
    return slot & mask


# ---- The search ----
@numba.njit(nogil=True, cache=True)
def read_stories(
    table, grams, seeds, sizes, words, numbers, classes, ids, starts, ends, first, k, by_set
):
    """Reads some stories, whose numbers begin at `first` -> for each text: the largest F and its
    story, the largest number of shared k-grams and its story; for each place of the texts: the
    longest match of at least SEED words that begins there, and not before it, and its story; for
    each node of less than SEED words, whether it occurs."""
    n_texts, depth = len(sizes), max(k, SEED)
    first_gram, gram_starts, gram_texts, gram_times = grams
    first_seed, seed_starts, seed_places = seeds
    f, nearest = np.zeros(n_texts), np.full(n_texts, -1)
    shared, container = np.zeros(n_texts, np.int64), np.full(n_texts, -1)
    longest, source = np.zeros(len(words), np.int64), np.full(len(words), -1)
    short = np.zeros(first_seed, np.bool_)
    overlaps, counts = np.zeros(n_texts, np.int32), np.zeros(len(gram_starts), np.int32)
    seen = np.empty(max((ends - starts).max(), 1), np.int32)
    for story in range(len(starts)):
        n_seen, end = 0, ends[story]
        for i in range(starts[story], end):
            node = np.int64(numbers[ids[i]])
            for length in range(1, min(depth, end - i) + 1):
                if length > 1:
                    node = table[slot_of(table, node << 32 | numbers[ids[i + length - 1]]), 1]
                if node < 0:  # in no text
                    break
                if length < SEED:
                    short[node] = True
                if length == k:
                    gram = node - first_gram
                    if counts[gram] == 0:
                        seen[n_seen] = gram
                        n_seen += 1
                    counts[gram] += 1
                if length == SEED:
                    seed = node - first_seed
                    before = numbers[ids[i - 1]] if i > starts[story] else -1
                    for place in seed_places[seed_starts[seed] : seed_starts[seed + 1]]:
                        if before == words[place - 1]:  # this match began earlier
                            continue
                        n = SEED
                        while i + n < end and numbers[ids[i + n]] == words[place + n]:
                            n += 1
                        if n > longest[place]:
                            longest[place], source[place] = n, first + story
        for gram in seen[:n_seen]:
            for j in range(gram_starts[gram], gram_starts[gram + 1]):
                overlaps[gram_texts[j]] += min(counts[gram], gram_times[j])
            counts[gram] = 0
        n = end - starts[story]
        size = count_distinct(classes[ids[starts[story] : end]], k) if by_set else max(n - k + 1, 0)
        for text in range(n_texts):
            both = overlaps[text]
            score = 2.0 * both / max(sizes[text] + size, 1)
            if both > shared[text]:
                shared[text], container[text] = both, first + story
            if score > f[text]:
                f[text], nearest[text] = score, first + story
            overlaps[text] = 0
    return f, nearest, shared, container, longest, source, short


@numba.njit(nogil=True, cache=True)
def count_distinct(words, k):
    """How many different k-grams there are in these words."""
    grams = words[: max(len(words) - k + 1, 0)]
    for i in range(1, k):
        if i > 1:  # number the grams so far, so that the next word fits, too
            grams = np.searchsorted(np.unique(grams), grams)
        grams = grams << 32 | words[i : i + len(grams)]
    return len(np.unique(grams))
