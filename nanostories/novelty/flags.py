"""
Which completions look memorized: a long passage word for word, or nearly all of it but its names
and nouns.
"""

from collections.abc import Sequence

import numpy as np

from nanostories.corpus.builtin_stories import NOUNS, plural
from nanostories.novelty.search import Found
from nanostories.novelty.words import WordCorpus

FLAGS = ("copy", "template")
# in a flagged text or copied passage, not counting repetition: all stories share short phrases
MIN_WORDS = 20
FALSE_ALARMS = (
    0.01  # the share of held-out excerpts in which a passage may be as long as a copied one
)
# the share of a text's k-grams, names and nouns masked, that occurs in the story it was made from
TEMPLATE = 0.75
N_SHOWN, LONGEST = 5, 100  # flagged completions in a table, and characters of each


def mask_names_and_nouns(corpus: WordCorpus, texts: Sequence[np.ndarray]) -> np.ndarray:
    """(ids,) a class for each word id: all names are one class, all nouns of
    nanostories/corpus/builtin_stories.py another, every other word is its own. Words missing from
    the training set count as names: most words that a model makes up are. Tokens are not masked."""
    n_ids, vocabulary = corpus.n_ids, corpus.vocabulary or {}
    classes = np.arange(max(n_ids, *(int(text.max(initial=0)) + 1 for text in texts)) + 2)
    name, noun = classes[-2:]
    classes[n_ids:-2] = name
    for words, mask in (
        ({form for word in NOUNS for form in (word, plural(word))}, noun),
        (corpus.names, name),
    ):
        classes[[i for word in words if (i := vocabulary.get(word, n_ids)) < n_ids]] = mask
    return classes


def copied_length(longest: np.ndarray) -> int:
    """How many words in a row make a passage a copy: more than held-out excerpts share with a
    training story by chance, which grows with the number of stories. longest: (excerpts,) their
    longest spans."""
    quantile = np.quantile(longest, 1 - FALSE_ALARMS, method="inverted_cdf") if len(longest) else 0
    return max(MIN_WORDS, int(quantile) + 1)


def flag_texts(
    texts: list[np.ndarray],
    found: Found,
    found_masked: Found,
    word_class: np.ndarray,
    k: int,
    min_copied_words: int,
) -> np.ndarray:
    """(texts,) one of FLAGS, or "".

    A copy has `min_copied_words` or more in a row in common with one training story. A template has
    nearly all of its k-grams in one, once names and nouns are masked. Texts that only repeat
    themselves are not flagged.
    """
    flags = np.full(len(texts), "", dtype="<U8")
    flags[
        (found_masked.precision >= TEMPLATE) & [has_variety(word_class[text], k) for text in texts]
    ] = "template"
    flags[(found.longest() >= min_copied_words) & [has_variety(text, k) for text in texts]] = "copy"
    return flags


def has_variety(text: np.ndarray, k: int) -> bool:
    """Whether it has at least as many different k-grams as MIN_WORDS different words."""
    return len(set(zip(*(text[i:].tolist() for i in range(k))))) > MIN_WORDS - k


def describe_completions(
    samples: list[dict], corpus: WordCorpus, found: Found, found_masked: Found, flags: np.ndarray
) -> list[dict]:
    """rouge.csv: each completion with its nearest training story, its longest span in any, and the
    story that it is flagged for; copies first, then templates, those with the longest spans
    first."""
    csv_rows = []
    for i, row in enumerate(samples):
        flag, spans = str(flags[i]), found.spans[i]
        start, length = (int(spans.argmax()), int(spans.max())) if len(spans) else (0, 0)
        story = int((found.source if flag == "copy" else found_masked.container)[i]) if flag else -1
        csv_rows.append(
            dict(
                prompt_index=row["prompt_index"],
                sample_index=row["sample_index"],
                flag=flag,
                story=story,
            )
            | dict(length=len(spans), f=float(found.f[i]), nearest_story=int(found.nearest[i]))
            | dict(span_length=length, span=corpus.excerpt(row["completion"], start, length))
            | dict(completion=row["completion"], training_story=corpus.text(story) if flag else "")
        )
    return sorted(csv_rows, key=lambda row: ((*FLAGS, "").index(row["flag"]), -row["span_length"]))


def shorten(text: str) -> str:
    """On one line; also where no spaces are between words."""
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else text[:LONGEST] + " …"


def flagged_rows(run: str, csv_rows: list[dict]) -> list[dict]:
    """The first flagged completions of a run, for a table."""
    rows = []
    for row in csv_rows[:N_SHOWN]:
        if row["flag"]:
            rows.append(
                {
                    "run": run,
                    "flagged": f"{row['flag']} of story {row['story']}",
                    "prompt.sample": f"{row['prompt_index']}.{row['sample_index']}",
                    "length": row["length"],
                    "longest passage": row["span_length"],
                    "which is in the training set": shorten(row["span"]),
                }
            )
    return rows
