"""
An exact search of many stories for a few texts: the largest ROUGE-k of each text with any story, and the longest spans
of a text that occur in one. rouge.py searches a model's whole training set for its completions.

The few texts are indexed, by a suffix automaton (Blumer et al., 1985); the many stories are read once, word by word.
Words are compared, never hashes alone, so nothing is approximate. numba compiles this file on first use, in seconds.

>>> search([np.array([1, 2, 3])], Stream.of([np.array([0, 1, 2, 9])]), k=2).spans
[array([2, 1, 0])]
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numba
import numpy as np
from tqdm import tqdm

STORIES_AT_ONCE = 4000  # for each call of compiled code; several run in parallel
MIX = -7046029254386353131  # odd, its bits as if at random: spreads the keys of a hash table
# A match is one number, words << PLACE_BITS | LAST - place: the longest, then earliest, is the largest.
PLACE_BITS = 44
LAST = (1 << PLACE_BITS) - 1


class Stream(NamedTuple):
    """Stories one after another, as ids of words or tokens: story i is ids[starts[i] : ends[i]]."""

    ids: np.ndarray  # (n,) uint16 or uint32
    starts: np.ndarray  # (stories,) int64
    ends: np.ndarray  # (stories,) int64

    @classmethod
    def of(cls, texts: Sequence[np.ndarray]) -> "Stream":
        ends = np.cumsum([len(text) for text in texts])
        return cls(np.concatenate(texts).astype(np.uint32), np.append(0, ends[:-1]), ends)


class Found(NamedTuple):
    """What a search finds for each of n texts."""

    f: np.ndarray  # (n,) the largest ROUGE-k F with any story
    nearest: np.ndarray  # (n,) the first story with that F; -1 if no story shares a k-gram
    precision: np.ndarray  # (n,) the largest share of the text's k-grams that occurs in one story
    container: np.ndarray  # (n,) the first such story, or -1
    spans: list[np.ndarray]  # for each word of a text: the longest span starting there that occurs in some story
    places: list[np.ndarray]  # and an index in the stream where it occurs, or -1

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

    counting: as in rouge.rouge_k. classes: (ids,) int, for all ids in stories and texts; ids of one class count as the
    same word. label: of the progress bar.
    """
    if classes is None:
        classes = np.arange(1 + max(int(ids.max(initial=0)) for ids in (stories.ids, *texts)))
    numbers, words, n_words = number_words([classes[text] for text in texts], classes)
    automaton, lengths = build_automaton(words), np.array([len(text) for text in texts])
    grams, n_stories = index_grams(automaton, lengths, k, counting), len(stories.starts)

    def read(first: int) -> tuple:
        bounds = (column[first : first + STORIES_AT_ONCE] for column in (stories.starts, stories.ends))
        return read_stories(automaton, grams, numbers, n_words, stories.ids, *bounds, first, k, counting == "set")

    f, nearest = np.zeros(len(texts)), np.full(len(texts), -1)
    shared, container = np.zeros(len(texts), np.int64), np.full(len(texts), -1)
    matches = np.zeros(len(automaton.length), np.int64)
    bar = tqdm(desc=label, total=n_stories, unit="story", unit_scale=True, disable=None, delay=1, leave=False)
    with ThreadPoolExecutor(numba.config.NUMBA_NUM_THREADS) as pool, bar:
        for found in pool.map(read, range(0, n_stories, STORIES_AT_ONCE)):
            for best, where, values, which in ((f, nearest, *found[:2]), (shared, container, *found[2:4])):
                better = values > best
                best[better], where[better] = values[better], which[better]
            np.maximum(matches, found[4], out=matches)
            bar.update(min(STORIES_AT_ONCE, n_stories - bar.n))
    share_matches(automaton, matches)
    by_end = np.split(matches[automaton.at], np.cumsum(lengths + 1)[:-1])
    spans, places = zip(*(spans_by_start(each[:-1]) for each in by_end))
    return Found(f, nearest, shared / np.maximum(grams.sizes, 1), container, list(spans), list(places))


# ---- The index of the texts ----


class Automaton(NamedTuple):
    """Recognizes every passage of the texts. A state stands for passages that end at the same places: the longest has
    length[state] words, the shortest length[link[state]] + 1. State 0 stands for no words."""

    table: np.ndarray  # (slots, 2) hash table: state << 32 | word, or -1 if free; the state that this word leads to
    length: np.ndarray  # (states,)
    link: np.ndarray  # (states,) the state of the next shorter passages with the same end; -1 for state 0
    at: np.ndarray  # (places,) the state after each word and each separator


class Grams(NamedTuple):
    """The k-grams of the texts: gram g occurs times[i] times in texts[i], for i from starts[g] to starts[g + 1]."""

    of_state: np.ndarray  # (states,) the gram at the end of its passages, or -1 if they are shorter
    starts: np.ndarray  # (grams + 1,)
    texts: np.ndarray
    times: np.ndarray
    sizes: np.ndarray  # (n,) k-grams of each text


def number_words(texts: Sequence[np.ndarray], classes: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Numbers the classes, first those in the texts -> (ids,) the number of each id's class; (places,) the texts as
    numbers, after each a separator that occurs nowhere else; how many classes are in the texts."""
    used = np.unique(np.concatenate(texts))
    n_words = len(used)
    numbers = np.arange(classes.max() + 1) + n_words + len(texts)
    numbers[used] = np.arange(n_words)
    words = np.concatenate([np.append(numbers[text], n_words + i) for i, text in enumerate(texts)])
    return numbers[classes].astype(np.int32), words.astype(np.int32), n_words


@numba.njit(nogil=True, cache=True)
def size_of_table(n):
    """A power of 2, at least twice the number of entries."""
    size = 64
    while size < 2 * n:
        size *= 2
    return size


@numba.njit(nogil=True, cache=True, inline="always")
def slot_of(table, state, word):
    """Where the table has, or would have, the edge from this state by this word."""
    key, mask = np.int64(state) << 32 | word, len(table) - 1
    slot = key * MIX >> 20 & mask
    while table[slot, 0] != key and table[slot, 0] >= 0:
        slot = slot + 1 & mask
    return slot


@numba.njit(cache=True)
def build_automaton(words):
    n, size = len(words), size_of_table(2 * len(words))  # there are fewer than 3 * n edges
    table, at = np.full((size, 2), -1, np.int64), np.empty(n, np.int32)
    length, link = np.zeros(2 * n + 1, np.int32), np.full(2 * n + 1, -1, np.int32)
    newest, before = np.full(2 * n + 1, -1, np.int32), np.empty(size, np.int32)  # the slots of a state's edges: a list
    n_states, last = 1, 0
    for i in range(n):
        new, state = n_states, last
        n_states += 1
        length[new], link[new], at[i] = length[last] + 1, 0, new
        while state >= 0:
            slot = slot_of(table, state, words[i])
            if table[slot, 0] >= 0:
                break
            table[slot] = np.int64(state) << 32 | words[i], new
            before[slot], newest[state] = newest[state], slot
            state = link[state]
        if state >= 0:  # its passages, with this word after them, have occurred before
            target = table[slot, 1]
            link[new] = target
            if length[target] > length[state] + 1:  # and so have longer ones: those that end here get their own state
                clone = link[new] = n_states
                n_states += 1
                length[clone], link[clone], link[target] = length[state] + 1, link[target], clone
                edge = newest[target]
                while edge >= 0:
                    word, goal = table[edge, 0] & 0xFFFFFFFF, table[edge, 1]
                    slot = slot_of(table, clone, word)
                    table[slot] = np.int64(clone) << 32 | word, goal
                    before[slot], newest[clone] = newest[clone], slot
                    edge = before[edge]
                while state >= 0 and table[slot_of(table, state, words[i]), 1] == target:
                    table[slot_of(table, state, words[i]), 1] = clone
                    state = link[state]
        last = new
    return Automaton(table, length[:n_states], link[:n_states], at)


def index_grams(automaton: Automaton, lengths: np.ndarray, k: int, counting: str) -> Grams:
    """lengths: (n,) words of each text."""
    state_of_gram = gram_states(automaton.length, automaton.link, k)
    text = np.repeat(np.arange(len(lengths)), lengths + 1)
    place = np.arange(len(text)) - np.repeat(np.cumsum(lengths + 1) - lengths - 1, lengths + 1)
    complete = (place >= k - 1) & (place < lengths[text])
    pairs = state_of_gram[automaton.at[complete]].astype(np.int64) * len(lengths) + text[complete]
    pairs, times = np.unique(pairs, return_counts=True)
    if counting == "set":
        times[:] = 1
    state, text = np.divmod(pairs, len(lengths))
    used, gram = np.unique(state, return_inverse=True)
    number = np.full(len(automaton.length) + 1, -1, np.int32)  # [-1] stays -1
    number[used] = np.arange(len(used))
    sizes = np.bincount(text, times, len(lengths)).astype(np.int64)
    starts = np.searchsorted(gram, np.arange(len(used) + 1))
    return Grams(number[state_of_gram], starts, text.astype(np.int32), times.astype(np.int32), sizes)


@numba.njit(cache=True)
def gram_states(length, link, k):
    """(states,) the state of the last k words of each state's passages, or -1 if they are shorter."""
    found = np.full(len(length), -1, np.int32)
    for state in np.argsort(length):
        if length[state] >= k:
            found[state] = found[link[state]] if length[link[state]] >= k else state
    return found


# ---- The search ----


@numba.njit(nogil=True, cache=True)
def read_stories(automaton, grams, numbers, n_words, ids, starts, ends, first, k, by_set):
    """Reads some stories, whose numbers begin at `first` -> for each text: the largest F and its story, the largest
    number of shared k-grams and its story; for each state: the longest match in it, or 0."""
    table, length, link, n_texts = automaton.table, automaton.length, automaton.link, len(grams.sizes)
    f, nearest = np.zeros(n_texts), np.full(n_texts, -1)
    shared, container = np.zeros(n_texts, np.int64), np.full(n_texts, -1)
    matches = np.zeros(len(length), np.int64)
    overlaps, counts = np.zeros(n_texts, np.int32), np.zeros(len(grams.starts), np.int32)
    longest = max((ends - starts).max(), 1)
    words, seen = np.empty(longest, np.int32), np.empty(longest, np.int32)
    slots = np.full((size_of_table(longest), 2), -1, np.int32)
    for story in range(len(starts)):
        n, state, matched, n_seen = ends[story] - starts[story], 0, 0, 0
        for i in range(n):
            place = starts[story] + i
            word = words[i] = numbers[ids[place]]
            if word >= n_words:  # in no text
                state = matched = 0
                continue
            slot = slot_of(table, state, word)
            while table[slot, 0] < 0:  # forget the first words, until the others and this one are in a text
                state = link[state]
                matched = length[state]
                slot = slot_of(table, state, word)
            state = table[slot, 1]
            matched += 1
            matches[state] = max(matches[state], matched << PLACE_BITS | LAST - (place - matched + 1))
            if matched >= k:
                gram = grams.of_state[state]
                if counts[gram] == 0:
                    seen[n_seen] = gram
                    n_seen += 1
                counts[gram] += 1
        for gram in seen[:n_seen]:
            for i in range(grams.starts[gram], grams.starts[gram + 1]):
                overlaps[grams.texts[i]] += min(counts[gram], grams.times[i])
            counts[gram] = 0
        size = count_distinct(words, n, k, slots, story) if by_set else max(n - k + 1, 0)
        for text in range(n_texts):
            both = overlaps[text]
            score = 2.0 * both / max(grams.sizes[text] + size, 1)
            if both > shared[text]:
                shared[text], container[text] = both, first + story
            if score > f[text]:
                f[text], nearest[text] = score, first + story
            overlaps[text] = 0
    return f, nearest, shared, container, matches


@numba.njit(nogil=True, cache=True)
def count_distinct(words, n, k, slots, story):
    """How many different k-grams there are in words[:n]. slots: a hash table of stories and places of k-grams in them,
    in which those of earlier stories count as free."""
    n_distinct, mask = 0, size_of_table(n) - 1
    for i in range(n - k + 1):
        key = np.int64(0)
        for j in range(k):
            key = (key + words[i + j] + 1) * MIX
        slot = key >> 20 & mask
        while slots[slot, 0] == story:
            same = 0
            while same < k and words[slots[slot, 1] + same] == words[i + same]:
                same += 1
            if same == k:
                break
            slot = slot + 1 & mask
        if slots[slot, 0] != story:
            slots[slot] = story, i
            n_distinct += 1
    return n_distinct


# ---- Spans ----


@numba.njit(cache=True)
def share_matches(automaton, matches):
    """A match of a passage is one of its end as well; where a state has none, only shorter passages were found."""
    order = np.argsort(automaton.length)
    for state in order[:0:-1]:
        if matches[state]:
            link, n = automaton.link[state], matches[state] >> PLACE_BITS
            dropped = n - automaton.length[link]
            matches[link] = max(matches[link], matches[state] - (dropped << PLACE_BITS) - dropped)
    matches[0] = 0
    for state in order[1:]:
        if matches[state] == 0:
            matches[state] = matches[automaton.link[state]]


def spans_by_start(matches: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(words,) the longest match that ends with each word -> (words,) how long the longest one is that starts with it,
    and its place, or -1."""
    here = np.arange(len(matches))
    starts = here + 1 - (matches >> PLACE_BITS)  # ascending
    end = np.searchsorted(starts, here, side="right") - 1
    lengths = np.maximum(end - here + 1, 0)
    places = LAST - (matches[end] & LAST) + here - starts[end]
    return lengths, np.where(lengths > 0, places, -1)
