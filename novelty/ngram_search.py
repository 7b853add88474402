"""
An exact search of many stories for a few texts: how many k-grams each pair shares, and which spans of a text occur in
any story. rouge.py searches a model's whole training set for its completions.

The few texts are indexed, in tables that stay in the CPU's cache; the many stories are read once, from end to end.
K-grams are compared word by word, never by a hash alone.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tqdm import tqdm

from kernels import compile_cpp

COUNTINGS = ("set", "clipped")  # explained at rouge_scores.rouge_k
NO_STORY = np.iinfo(np.int64).max
# A match is packed into one number, n_words << PLACE_BITS | LAST - place: the longest, then earliest, is largest.
PLACE_BITS = 44
LAST = (1 << PLACE_BITS) - 1


@dataclass
class Stream:
    """Stories one after another, as ids of words or tokens: story i is ids[starts[i] : ends[i]]."""

    ids: np.ndarray  # (n,) uint16 or uint32
    starts: np.ndarray  # (stories,) int64
    ends: np.ndarray  # (stories,) int64
    n_ids: int  # larger than any id

    @classmethod
    def of(cls, texts: Sequence[np.ndarray]) -> "Stream":
        ends = np.cumsum([len(text) for text in texts])
        ids = np.concatenate(texts).astype(np.uint32)
        return cls(ids, np.append(0, ends[:-1]), ends, int(ids.max(initial=0)) + 1)


@dataclass
class Overlaps:
    """What a search finds for each of n texts."""

    f: np.ndarray  # (n,) the largest ROUGE-k F with any story
    nearest: np.ndarray  # (n,) the first story with that F; -1 if no story shares a k-gram
    precision: np.ndarray  # (n,) the largest share of the text's k-grams that occurs in one story
    container: np.ndarray  # (n,) the first such story, or -1
    spans: list[np.ndarray]  # for each word of a text: the longest span starting there that occurs in some story
    places: list[np.ndarray]  # and the index in the stream of its first occurrence, or -1


def search(
    texts: Sequence[np.ndarray],
    stories: Stream,
    k: int,
    counting: str = "set",
    classes: np.ndarray | None = None,
    leave_out_own: bool = False,
    label: str = "comparing",
) -> Overlaps:
    """Compares every text, (words,) int, with every story.

    classes: (ids,) int for all ids, including new ones in the texts; ids of one class count as the same word.
    leave_out_own: text i is not compared with story i (its spans still are).
    label: of the progress bar.
    """
    if classes is None:
        classes = np.arange(max([stories.n_ids, *(int(text.max(initial=0)) + 1 for text in texts)]))
    tables = Tables([classes[text] for text in texts], classes[: stories.n_ids], k, counting)
    search_class = NativeSearch if compile_cpp.library("ngram_search") else NumpySearch
    searcher = search_class(tables, stories, leave_out_own)
    n_stories, step = len(stories.starts), search_class.STORIES_AT_ONCE
    with tqdm(desc=label, total=n_stories, unit="story", unit_scale=True, disable=None, delay=1, leave=False) as bar:
        for first in range(0, n_stories, step):
            n = min(step, n_stories - first)
            searcher.compare(first, n)
            bar.update(n)
    return tables.overlaps(searcher.best)


# ---- Tables of the texts ----


def number_kgrams(words: np.ndarray, k: int) -> np.ndarray:
    """words (n,), with -1 after each text -> dense ids (n,) of the k-grams that begin there; -1 where none does."""
    ids, n_words = words.astype(np.int64), int(words.max(initial=0)) + 1
    for j in range(1, k):
        following = np.append(words[j:], np.full(min(j, len(words)), -1))
        complete = (ids >= 0) & (following >= 0)
        pairs = ids[complete] * n_words + following[complete]
        ids = np.full(len(words), -1)
        ids[complete] = np.unique(pairs, return_inverse=True)[1]
    return ids


def number_in_runs(*keys: np.ndarray) -> np.ndarray:
    """For each element, how many before it have the same keys. Elements with the same keys must be adjacent."""
    n = len(keys[0])
    first = np.append(True, np.any([np.diff(key) != 0 for key in keys], axis=0))[:n]
    return np.arange(n) - np.maximum.accumulate(np.where(first, np.arange(n), 0))


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """start, start + 1, ..., start + length - 1 of each, concatenated."""
    return np.arange(lengths.sum()) + np.repeat(starts - np.cumsum(lengths) + lengths, lengths)


class Tables:
    """An index of the texts: a trie of their suffixes, and how often each k-gram occurs in each text."""

    def __init__(self, texts: Sequence[np.ndarray], classes: np.ndarray, k: int, counting: str):
        """texts: the classes of their words; classes (ids,): the class of each word id of the stories."""
        self.k, self.by_set, self.lengths = k, counting == "set", np.array([len(text) for text in texts])
        used = np.unique(np.concatenate(texts))
        self.words = np.concatenate([np.append(np.searchsorted(used, text), -1) for text in texts]).astype(np.int32)
        self.classes, every_class = classes.astype(np.int32), np.arange(classes.max(initial=0) + 1)
        self.table = np.where(np.isin(every_class, used), np.searchsorted(used, every_class), -1).astype(np.int32)
        self.build_trie()
        self.index_kgrams()

    def build_trie(self) -> None:
        """The trie of all suffixes, word by word. A node with only one suffix is a leaf: what follows is in the text.

        Node 0 is the root. Nodes are numbered by depth, and within a depth by the edge that leads to them. Edges,
        written as node << 32 | word, are then sorted, and edge i leads to node i + 1.
        """
        places, depth = np.flatnonzero(self.words >= 0), 0
        self.last = np.zeros(len(self.words), dtype=np.int64)  # the deepest node that the suffix at each place reaches
        edges, at, leaf, n_nodes = [], [np.array([-1])], [np.array([False])], 1
        nodes = np.zeros(len(places), dtype=np.int64)
        while len(places):
            word = self.words[places + depth]
            places, nodes, word = places[word >= 0], nodes[word >= 0], word[word >= 0]
            edge, first, inverse, count = np.unique(nodes << 32 | word, True, True, True)
            nodes = n_nodes + inverse
            self.last[places] = nodes
            edges.append(edge)
            at.append(places[first])
            leaf.append(count == 1)
            n_nodes += len(edge)
            depth += 1
            places, nodes = places[count[inverse] > 1], nodes[count[inverse] > 1]
        self.edges = np.concatenate([np.zeros(0, dtype=np.int64), *edges])
        self.at = np.concatenate(at).astype(np.int32)  # one place in `words` that leads to the node
        self.leaf = np.concatenate(leaf)

    def index_kgrams(self) -> None:
        """The c-th occurrence of a k-gram in a story counts for the texts that have it c times or more; in "set" mode,
        only the first occurrence counts.

        Each such (k-gram, c) is an item. K-gram g has items[g] to items[g + 1], and item i counts for the texts
        members[member_ends[i - 1]] to members[member_ends[i]].
        """
        self.grams = number_kgrams(self.words, self.k)
        places = np.flatnonzero(self.grams >= 0)
        text = np.repeat(np.arange(len(self.lengths)), self.lengths + 1)[places]
        gram = self.grams[places]
        order = np.lexsort((text, gram))
        gram, text = gram[order], text[order]
        c = number_in_runs(gram, text)
        if self.by_set:
            gram, text, c = gram[c == 0], text[c == 0], c[c == 0]
        order = np.lexsort((text, c, gram))
        gram, text, c = gram[order], text[order], c[order]
        new_item = number_in_runs(gram, c) == 0
        self.members = text.astype(np.int32)
        self.member_ends = np.append(np.flatnonzero(new_item)[1:], len(gram)).astype(np.int32)
        n_grams = int(self.grams.max(initial=-1)) + 1
        self.items = np.searchsorted(gram[new_item], np.arange(n_grams + 1)).astype(np.int32)
        self.sizes = np.bincount(text, minlength=len(self.lengths)).astype(np.int32)  # k-grams of each text
        self.grams = self.grams.astype(np.int32)

    def overlaps(self, best: "BestMatches") -> Overlaps:
        """Merges the results of all threads: the best story for each text; of equally good ones, the first."""
        f, overlap, reached = best.f.max(0), best.overlap.max(0), best.match >> PLACE_BITS
        nearest = np.where(best.f == f, best.nearest, NO_STORY).min(0)
        container = np.where(best.overlap == overlap, best.container, NO_STORY).min(0)
        parent = np.append(0, self.edges >> 32)
        node = self.last.copy()
        while (missed := reached[node] == 0).any() and node[missed].any():
            node[missed] = parent[node[missed]]
        starts = np.cumsum(self.lengths + 1) - self.lengths - 1
        rows = [slice(start, start + n) for start, n in zip(starts, self.lengths)]
        return Overlaps(
            f,
            np.where(f > 0, nearest, -1),
            overlap / np.maximum(self.sizes, 1),
            np.where(overlap > 0, container, -1),
            [reached[node[row]] for row in rows],
            [np.where(reached[node[row]] > 0, LAST - (best.match[node[row]] & LAST), -1) for row in rows],
        )


class BestMatches:
    """The best matches so far: for stories, one row per thread; for passages, one array for all threads."""

    def __init__(self, n_threads: int, n_texts: int, n_nodes: int):
        self.f = np.zeros((n_threads, n_texts))  # the largest F, and the story that has it
        self.nearest = np.full((n_threads, n_texts), NO_STORY)
        self.overlap = np.zeros((n_threads, n_texts), dtype=np.int32)  # the largest overlap, and its story
        self.container = np.full((n_threads, n_texts), NO_STORY)
        self.match = np.zeros(n_nodes, dtype=np.int64)  # the longest match through a node (or beyond a leaf), or 0


# ---- The search ----


class NativeSearch:
    """In C++ (kernels/ngram_search.cpp), with as many threads as PyTorch has."""

    STORIES_AT_ONCE = 20_000

    def __init__(self, tables: Tables, stories: Stream, leave_out_own: bool):
        self.n_threads = torch.get_num_threads()
        self.best = BestMatches(self.n_threads, len(tables.lengths), len(tables.at))
        self.stories = stories
        size = 1 << max(4, 2 * len(tables.edges) - 1).bit_length()
        edges = np.full((size, 2), -1)
        arguments = ctypes.c_long(len(tables.edges)), compile_cpp.pointer(edges), ctypes.c_long(size - 1)
        compile_cpp.library("ngram_search").fill_table(compile_cpp.pointer(tables.edges), *arguments)
        fields = dict(vars(tables), edges=edges, mask=size - 1, leave_out_own=leave_out_own)
        fields |= dict(n_texts=len(tables.lengths), n_nodes=len(tables.at), n_grams=len(tables.items) - 1)
        self.kept = fields  # the arrays must live as long as the pointers to them
        self.texts, self.rows = to_struct(TextsStruct, fields), to_struct(BestMatchesStruct, vars(self.best))

    def compare(self, first: int, n: int) -> None:
        stories = self.stories
        library = compile_cpp.library("ngram_search")
        function = {2: library.search_tokens, 4: library.search_words}[stories.ids.itemsize]
        pointers = (compile_cpp.pointer(x) for x in (stories.ids, stories.starts, stories.ends))
        numbers = (ctypes.c_long(number) for number in (first, n, self.n_threads))
        function(ctypes.byref(self.texts), ctypes.byref(self.rows), *pointers, *numbers)


def to_struct(structure: type, fields: dict):
    """The fields as a ctypes structure of numbers and pointers to arrays."""
    values = {name: fields[name] for name, _ in structure._fields_}
    return structure(**{k: compile_cpp.pointer(v) if isinstance(v, np.ndarray) else v for k, v in values.items()})


class TextsStruct(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("classes", "table", "words")]
    _fields_ += [(name, ctypes.c_long) for name in ("n_texts", "k", "by_set", "leave_out_own")]
    _fields_ += [("edges", ctypes.c_void_p), ("mask", ctypes.c_long)]
    _fields_ += [(name, ctypes.c_void_p) for name in "at leaf grams items members member_ends sizes".split()]
    _fields_ += [(name, ctypes.c_long) for name in ("n_grams", "n_nodes")]


class BestMatchesStruct(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("f", "nearest", "overlap", "container", "match")]


class NumpySearch:
    """Does the same in NumPy, for machines without a C++ compiler."""

    STORIES_AT_ONCE = 500

    def __init__(self, tables: Tables, stories: Stream, leave_out_own: bool):
        self.best = BestMatches(1, len(tables.lengths), len(tables.at))
        self.tables, self.stories, self.leave_out_own = tables, stories, leave_out_own

    def compare(self, first: int, n: int) -> None:
        tables, best = self.tables, self.best
        starts, ends = (x[first : first + n] for x in (self.stories.starts, self.stories.ends))
        places = ranges(starts, ends - starts)
        story, left = np.repeat(np.arange(n), ends - starts), np.repeat(ends, ends - starts) - places
        classes = tables.classes[self.stories.ids[places]]
        overlaps = self.count(story, self.match(tables.table[classes], left, places), n)
        if self.leave_out_own:
            overlaps[np.arange(n), first + np.arange(n)] = 0
        sizes = np.maximum(ends - starts - tables.k + 1, 0)
        if tables.by_set:
            grams = number_kgrams(np.insert(classes, np.cumsum(ends - starts), -1), tables.k)
            pairs = np.stack([np.repeat(np.arange(n), ends - starts + 1), grams])[:, grams >= 0]
            sizes = np.bincount(np.unique(pairs, axis=1)[0], minlength=n)
        f = 2.0 * overlaps / np.maximum(tables.sizes + sizes[:, None], 1)
        for scores, most, where in ((f, best.f, best.nearest), (overlaps, best.overlap, best.container)):
            better = scores.max(0) > most[0]
            where[0, better], most[0, better] = first + scores.argmax(0)[better], scores.max(0)[better]

    def match(self, words: np.ndarray, left: np.ndarray, places: np.ndarray) -> np.ndarray:
        """words (n,) of complete stories; how many words are `left` in the story; their places in the stream -> the
        k-grams of the texts that begin there, or -1. Keeps the longest matches in `best`."""
        tables, best = self.tables, self.best
        nodes, grams, depth = words + 1, np.full(len(words), -1), 1
        active = np.flatnonzero(words >= 0)
        while len(active):
            node, first = np.unique(nodes[active], return_index=True)
            best.match[node] = np.maximum(best.match[node], depth << PLACE_BITS | LAST - places[active[first]])
            if depth == tables.k:
                grams[active] = tables.grams[tables.at[nodes[active]]]
            active = active[left[active] > depth]
            node, word = nodes[active].astype(np.int64), words[active + depth]
            edge = node << 32 | np.maximum(word, 0)
            i = np.minimum(np.searchsorted(tables.edges, edge), len(tables.edges) - 1)
            leaf = tables.leaf[node]
            matches = (word >= 0) & np.where(
                leaf, tables.words[tables.at[node] + depth] == word, tables.edges[i] == edge
            )
            active = active[matches]
            nodes[active] = np.where(leaf, node, i + 1)[matches]
            depth += 1
        return grams

    def count(self, story: np.ndarray, grams: np.ndarray, n: int) -> np.ndarray:
        """(n, texts): how many k-grams each story shares with each text."""
        tables, n_texts = self.tables, len(self.tables.lengths)
        order = np.flatnonzero(grams >= 0)
        order = order[np.lexsort((grams[order], story[order]))]
        story, grams = story[order], grams[order]
        item = tables.items[grams] + number_in_runs(story, grams)
        story, item = story[item < tables.items[grams + 1]], item[item < tables.items[grams + 1]]
        begin = np.append(0, tables.member_ends)[item]
        lengths = tables.member_ends[item] - begin
        pairs = np.repeat(story, lengths) * n_texts + tables.members[ranges(begin, lengths)]
        return np.bincount(pairs, minlength=n * n_texts).reshape(n, n_texts)
