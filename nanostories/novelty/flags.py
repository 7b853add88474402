"""
Which completions look memorized: a long passage word for word, or nearly all of it but its names.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from nanostories.novelty.search import Matches, count_distinct
from nanostories.novelty.words import WordCorpus, passage

FLAGS = ("copy", "template")
MIN_WORDS = 20  # of a copied passage: all stories share short phrases
MIN_DIFFERENT_WORDS = 10  # in a copied passage: "ha ha ha ..." does not count
FALSE_ALARMS = 0.01  # the share of held-out excerpts with a passage as long as a copied one
TEMPLATE = 0.75  # the share of a text's k-grams, names masked, in the story that it was made from
# In a table: columns of rouge.csv, for this many flagged completions of a run
SHOWN = ("prompt_index", "sample_index", "flag", "story", "span_length", "span")
N_SHOWN = 5
LONGEST = 100  # characters of a span


def mask_names(corpus: WordCorpus) -> np.ndarray:
    """(ids,) a class for each word id: all names are one class, every other word is its own. Words
    that are in no training story count as names: most words that a model makes up are."""
    vocabulary = corpus.vocabulary
    name = len(vocabulary)
    classes = np.arange(name + 1, dtype=np.uint32)  # as a Stream's ids
    classes[corpus.n_training_words :] = name
    classes[[i for word, i in vocabulary.items() if word in corpus.names]] = name
    return classes


def copied_length(longest: np.ndarray) -> int:
    """How many words in a row make a passage a copy: more than held-out excerpts share with a
    training story by chance, which grows with the number of stories. longest: (excerpts,) their
    longest spans."""
    if not len(longest):
        return MIN_WORDS
    by_chance = np.quantile(longest, 1 - FALSE_ALARMS, method="inverted_cdf")
    return max(MIN_WORDS, int(by_chance) + 1)


def find_copy(text: np.ndarray, spans: np.ndarray, min_words: int) -> int | None:
    """Where the longest span in a training story begins that has at least min_words words, and
    enough different ones; None if there is no such span.

    spans: as in search.Matches."""
    for start in np.argsort(-spans, kind="stable"):
        if spans[start] < min_words:
            break
        if len(np.unique(text[start : start + spans[start]])) >= MIN_DIFFERENT_WORDS:
            return int(start)
    return None


class FlaggedText(NamedTuple):
    flag: str  # one of FLAGS, or ""
    story: int  # that it is flagged for, or -1
    n_words: int
    # Its longest span in any training story; of a copy, the longest that counts
    start: int
    span_length: int


def flag_texts(
    matches: Matches, masked: Matches, k: int, min_copied_words: int
) -> list[FlaggedText]:
    """masked: the matches with names masked."""
    flagged = []
    for i, words in enumerate(matches.texts):
        spans = matches.spans[i]
        flag = ""
        story = -1
        start = find_copy(words, spans, min_copied_words)
        if start is not None:
            flag = "copy"
            story = int(matches.sources[i][start])
        # A text that only repeats itself is no template.
        elif masked.precision[i] >= TEMPLATE and count_distinct(masked.texts[i], k) > MIN_WORDS - k:
            flag = "template"
            story = int(masked.container[i])
        if start is None:
            start = int(spans.argmax()) if len(spans) else 0
        span_length = int(spans[start]) if len(spans) else 0
        flagged.append(FlaggedText(flag, story, len(words), start, span_length))
    return flagged


def count_flags(
    completions: Sequence[FlaggedText],
    held_out: Sequence[FlaggedText],
    k: int,
    min_copied_words: int,
) -> list[dict]:
    """Rows of a table: how many texts have each flag, of those that are long enough for it."""
    copied = f"{min_copied_words} words in a row (of texts of as many words)"
    retold = f"{TEMPLATE:.0%} of its {k}-grams, names masked"
    rows = []
    for flag, least, criterion in (("copy", min_copied_words, copied), ("template", 0, retold)):
        row = {"flagged": flag, "if one training story has": criterion}
        for column, texts in (("completions", completions), ("held-out", held_out)):
            found = [text.flag for text in texts if text.n_words >= least]
            row[column] = f"{found.count(flag):,} of {len(found):,}"
        rows.append(row)
    return rows


def describe_completions(
    samples: Sequence[dict],
    corpus: WordCorpus,
    flagged: Sequence[FlaggedText],
    matches: Matches,
) -> list[dict]:
    """rouge.csv: each completion with its nearest training story, its longest span in any, and the
    story that it is flagged for; copies first, then templates, those with the longest spans
    first."""
    csv_rows = []
    for i, (row, text) in enumerate(zip(samples, flagged)):
        csv_rows.append(
            {
                "prompt_index": row["prompt_index"],
                "sample_index": row["sample_index"],
                "flag": text.flag,
                "story": text.story,
                "length": text.n_words,
                "f": float(matches.f[i]),
                "nearest_story": int(matches.nearest[i]),
                "span_length": text.span_length,
                "span": passage(row["completion"], text.start, text.span_length),
                "completion": row["completion"],
                "training_story": corpus.text(text.story) if text.flag else "",
            }
        )
    order = [*FLAGS, ""]
    return sorted(csv_rows, key=lambda row: (order.index(row["flag"]), -row["span_length"]))


def flagged_rows(first_cells: dict, csv_rows: list[dict]) -> list[dict]:
    """The first flagged completions of a set, for a table, after these cells."""
    rows = []
    for row in csv_rows[:N_SHOWN]:
        if row["flag"]:
            cells = {column: row[column] for column in SHOWN}
            cells["span"] = " ".join(row["span"].split())[:LONGEST]
            rows.append(first_cells | cells)
    return rows
