"""
How diverse the stories of a data set are, and whether they have what was requested (stories.jsonl
of synthesize.py).

>>> story = dict(text="A cat sat. A dog ran to it.", words=["cat"], features=[])
>>> rows, text = describe({"mine": [story] * 2})
>>> rows[0]["distinct words"], rows[0]["duplicates"]
(7, 0.5)
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import regex
from matplotlib.figure import Figure

from nanostories.corpus.word_forms import SPEECH, uses_word
from nanostories.novelty.search import Stream, search
from nanostories.results import Table

WORD = regex.compile(r"[\p{L}\p{M}\p{N}]+")  # in any script
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
        row = dict(data=name, stories=len(stories))
        row["words used"] = share(
            uses_word(story["text"], word) for story in stories for word in story["words"]
        )
        for label, requested in (("dialogue if requested", True), ("dialogue otherwise", False)):
            own = (
                story["text"] for story in stories if ("Dialogue" in story["features"]) == requested
            )
            row[label] = share(SPEECH.search(text) is not None for text in own)
        rows.append(row | repetition([story["text"] for story in stories[:n]]))
    about = (
        f"The last five columns are for the first {n:,} stories of each. Of the features, only"
        " Dialogue is checked."
    )
    formats = {}
    for name, value in rows[0].items():
        if isinstance(value, float):
            formats[name] = ".1%"
    return Table("Diversity", rows, formats, about=about, facts={"kind": "diversity"})


def share(values: Iterable[bool]) -> float | None:
    values = list(values)
    return sum(values) / len(values) if values else None


def repetition(texts: Sequence[str]) -> dict[str, int | float | None]:
    words, ids = [WORD.findall(text.lower()) for text in texts], {}
    encoded = [
        np.array([ids.setdefault(word, len(ids)) for word in story], dtype=np.int64)
        for story in words
    ]
    pairs = [pair for story in words for pair in zip(story, story[1:])]
    return {
        "words per story": round(sum(map(len, words)) / len(words)),
        "distinct words": len(ids),
        "distinct pairs": len(set(pairs)) / max(len(pairs), 1),
        "duplicates": 1 - len({tuple(story) for story in words}) / len(words),
        "near-duplicates": near_duplicates(encoded),
    }


def near_duplicates(stories: Sequence[np.ndarray]) -> float | None:
    """The share of the last stories, at most half of all, that repeat one of the stories before
    them."""
    n = min(len(stories) // 2, SEARCHED)
    if not n:
        return None
    earlier, last = stories[:-n], stories[-n:]
    ends = np.cumsum([len(story) for story in earlier])
    stream = Stream(np.concatenate(earlier).astype(np.uint32), np.insert(ends[:-1], 0, 0), ends)
    return float((search(last, stream, PASSAGE).precision > NEAR).mean())


def draw(sets: Mapping[str, Sequence[dict]]) -> Figure:
    """Distinct words, and distinct pairs of words as a share of all, over the number of stories of
    each data set."""
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name, stories in sets.items():
        words, pairs, n_pairs, vocabulary, distinct = set(), set(), 0, [], []
        for story in stories:
            told = WORD.findall(story["text"].lower())
            words.update(told)
            pairs.update(zip(told, told[1:]))
            n_pairs += max(len(told) - 1, 0)
            vocabulary.append(len(words))
            distinct.append(len(pairs) / max(n_pairs, 1))
        left.plot(range(1, len(stories) + 1), vocabulary, label=name)
        right.plot(range(1, len(stories) + 1), distinct, label=name)
    left.set(xlabel="stories", ylabel="distinct words")
    right.set(xlabel="stories", ylabel="distinct pairs of words / all pairs", xscale="log")
    for axes in (left, right):
        axes.grid(alpha=0.3)
    left.legend()
    return figure
