"""
Which completions look memorized: a passage word for word, nearly all of it, or all of it but names and nouns.
"""

from collections.abc import Sequence
from difflib import SequenceMatcher

import numpy as np

from common.tables import table_text
from corpus.builtin_stories import NOUNS, plural
from novelty.search import Found
from novelty.words import Corpus

FLAGS = ("copy", "near copy", "template")
MIN_WORDS = 20  # in a flagged text or copied passage, not counting repetition: all stories share short phrases
FALSE_ALARMS = 0.01  # the share of held-out pieces in which a passage may be as long as a copied one
N_SHOWN, EXCERPT = 5, 25  # flagged completions in rouge.md, and words of each


def mask_names_and_nouns(corpus: Corpus, texts: Sequence[np.ndarray]) -> np.ndarray:
    """(ids,) a class for each word id: all names are one class, all nouns of corpus/builtin_stories.py another, every
    other word is its own. Words missing from the training set count as names: most words that a model makes up are."""
    n_ids = corpus.n_ids
    classes = np.arange(max(n_ids, *(int(text.max(initial=0)) + 1 for text in texts)) + 2)
    name, noun = classes[-2:]
    classes[n_ids:-2] = name
    for words, mask in (({form for word in NOUNS for form in (word, plural(word))}, noun), (corpus.names, name)):
        classes[[i for word in words if (i := corpus.vocabulary.get(word, n_ids)) < n_ids]] = mask
    return classes


def copied_length(longest: np.ndarray) -> int:
    """How many words in a row make a passage a copy: more than held-out pieces share with a training story by chance,
    which grows with the number of stories. longest: (pieces,) their longest spans."""
    quantile = np.quantile(longest, 1 - FALSE_ALARMS, method="inverted_cdf") if len(longest) else 0
    return max(MIN_WORDS, int(quantile) + 1)


def flag_texts(
    texts: Sequence[np.ndarray],
    found: Found,
    masked: Found | None,
    classes: np.ndarray | None,
    k: int,
    threshold: float,
    copied_words: int,
) -> np.ndarray:
    """(texts,) one of FLAGS, or "".

    A copy has `copied_words` or more in a row in common with one training story. A near copy has at least `threshold`
    of its k-grams in one training story; a template does so once names and nouns are masked. Texts that only repeat
    themselves (or that are all names, once masked) are not flagged.
    """
    flags = np.full(len(texts), "", dtype="<U9")
    varied = np.array([has_variety(text, k) for text in texts])
    if masked:
        varied_masked = np.array([has_variety(classes[text], k) for text in texts])
        flags[(masked.precision >= threshold) & varied_masked] = "template"
    flags[(found.precision >= threshold) & varied] = "near copy"
    flags[(found.longest() >= copied_words) & varied] = "copy"
    return flags


def has_variety(text: np.ndarray, k: int) -> bool:
    """Whether it has at least as many different k-grams as MIN_WORDS different words."""
    return len(set(zip(*(text[i:].tolist() for i in range(k))))) > MIN_WORDS - k


def describe_completions(
    rows: list[dict], words: list[np.ndarray], corpus: Corpus, found: Found, masked: Found | None, flags: np.ndarray
) -> list[dict]:
    """rouge.csv: each completion with its nearest training story, its longest span in any, and the story that it is
    flagged for; flagged ones first, the largest shares first."""
    described = []
    for i, row in enumerate(rows):
        n, spans, flag = len(words[i]), found.spans[i], str(flags[i])
        start, length = (int(spans.argmax()), int(spans.max())) if n else (0, 0)
        if flag == "copy":
            story, share = int(found.source[i]), length / n
        else:
            source = masked if flag == "template" else found
            story, share = (int(source.container[i]), source.precision[i]) if flag else (-1, 0.0)
        described.append(
            dict(prompt_index=row["prompt_index"], sample_index=row["sample_index"], flag=flag)
            | dict(share=float(share), story=story, words=n, f=float(found.f[i]), nearest_story=int(found.nearest[i]))
            | dict(span_words=length, span=corpus.excerpt(row["completion"], start, length))
            | dict(completion=row["completion"], training_story=corpus.text(story) if flag else "")
        )
    return sorted(described, key=lambda row: (("", *FLAGS[::-1]).index(row["flag"]), row["share"]), reverse=True)


def worst_text(described: list[dict], corpus: Corpus) -> str:
    """For rouge.md: a table of the first flagged ones; of both texts, the words from where their longest passage in
    common begins. "" if none is flagged."""
    cells = []
    for row in (row for row in described[:N_SHOWN] if row["flag"]):
        texts = row["completion"], row["training_story"]
        match = SequenceMatcher(
            None, *map(np.ndarray.tolist, corpus.encode(texts)), autojunk=False
        ).find_longest_match()
        excerpts = [corpus.excerpt(text, first, EXCERPT) for text, first in zip(texts, (match.a, match.b))]
        name = f"{row['flag']}, {row['share']:.0%} of it: prompt {row['prompt_index']}, story {row['story']}"
        cells.append([name, *(f"… {' '.join(excerpt.split())} …".replace("|", "\\|") for excerpt in excerpts)])
    return "\n\n" + table_text(["flagged", "completion", "training story"], cells) if cells else ""
