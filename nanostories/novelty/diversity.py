"""
How diverse the stories of a data set are, and whether they have what was requested (stories.jsonl
of synthesize.py).

>>> story = {"text": "A cat sat. A dog ran to it.", "words": ["cat"], "features": []}
>>> (row,) = describe({"mine": [story] * 2}).rows
>>> row["distinct words"], row["duplicates"]
(7, 0.5)
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from nanostories.corpus.word_forms import SPEECH, uses_word
from nanostories.novelty.search import Stream, search
from nanostories.results import Table
from nanostories.text import words_of

PASSAGE = 4  # words
NEAR = 0.5  # a near-duplicate has more than this share of its passages in one other story
SEARCHED = 1000  # stories at most, each compared with all before them


def describe(sets: Mapping[str, Sequence[dict]]) -> Table:
    """A row for each data set, shares from 0 to 1 as floats.

    Dialogue is the one feature that rules can check. In other languages than English, words must be
    used uninflected.
    """
    n = min(map(len, sets.values()))
    rows = []
    for name, stories in sets.items():
        is_used = [uses_word(story["text"], word) for story in stories for word in story["words"]]
        has_dialogue = {True: [], False: []}  # by whether it was requested
        for story in stories:
            is_requested = "Dialogue" in story["features"]
            has_dialogue[is_requested].append(SPEECH.search(story["text"]) is not None)
        row = {
            "data": name,
            "stories": len(stories),
            "words used": share(is_used),
            "dialogue if requested": share(has_dialogue[True]),
            "dialogue otherwise": share(has_dialogue[False]),
        }
        rows.append(row | repetition([story["text"] for story in stories[:n]]))
    about = (
        f"The last five columns are for the first {n:,} stories of each data set. Dialogue is the"
        " only feature that is checked."
    )
    shares = ("words used", "dialogue if requested", "dialogue otherwise")
    shares += ("distinct pairs", "duplicates", "near-duplicates")
    formats = dict.fromkeys(shares, ".1%")
    return Table("Diversity", rows, formats, about=about, facts={"kind": "diversity"})


def share(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def repetition(texts: Sequence[str]) -> dict[str, int | float | None]:
    ids = {}
    stories = []
    pairs = []
    for text in texts:
        stories.append(tuple(ids.setdefault(word, len(ids)) for word in words_of(text)))
        pairs += itertools.pairwise(stories[-1])
    return {
        "words per story": round(sum(map(len, stories)) / len(stories)),
        "distinct words": len(ids),
        "distinct pairs": len(set(pairs)) / max(len(pairs), 1),
        "duplicates": 1 - len(set(stories)) / len(stories),
        "near-duplicates": near_duplicates([np.array(story, np.int64) for story in stories]),
    }


def near_duplicates(stories: Sequence[np.ndarray]) -> float | None:
    """The share of the last stories, at most half of all, that repeat one of the stories before
    them."""
    n = min(len(stories) // 2, SEARCHED)
    if not n:
        return None
    earlier = stories[:-n]
    bounds = np.cumsum([0, *map(len, earlier)])
    found = search(stories[-n:], Stream(np.concatenate(earlier), bounds), PASSAGE)
    return float((found.precision > NEAR).mean())


def draw(sets: Mapping[str, Sequence[dict]]) -> Figure:
    """Distinct words, and distinct pairs of words as a share of all, over the number of stories of
    each data set."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, stories in sets.items():
        words = [words_of(story["text"]) for story in stories]
        pairs = [list(itertools.pairwise(story)) for story in words]
        n_pairs = np.cumsum([len(story) for story in pairs])
        left.plot(range(1, len(words) + 1), distinct(words), label=name)
        right.plot(range(1, len(words) + 1), distinct(pairs) / np.maximum(n_pairs, 1))
    left.set(xlabel="stories", ylabel="distinct words")
    right.set(xlabel="stories", ylabel="distinct pairs of words / all pairs", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend()
    return figure


def distinct(stories: Iterable[Sequence]) -> np.ndarray:
    """(stories,) how many different items are in each story and those before it."""
    seen = set()
    counts = []
    for items in stories:
        seen.update(items)
        counts.append(len(seen))
    return np.array(counts)
