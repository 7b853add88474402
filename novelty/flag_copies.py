"""
Which completions look memorised (word for word, nearly, or but for names and nouns), and flagged.txt, which shows each
beside the training story that it resembles.
"""

import textwrap
from itertools import zip_longest
from pathlib import Path

import numpy as np

from corpus.builtin_stories import NOUNS, plural
from novelty.corpus_words import Stories
from novelty.ngram_search import Overlaps

FLAGS = ("copy", "near copy", "template")
MIN_WORDS = 20  # of a flagged text, not counting repetition: all stories share short phrases
SHARE_LENGTHS = (*range(1, 9), 12, 16, 24, 32)  # of the k-grams whose shares rouge.json has for each completion


def mask_names_and_nouns(stories: Stories, texts: list[np.ndarray]) -> np.ndarray:
    """(ids,) a class for each word id: all names are one class, all nouns of corpus/builtin_stories.py another, every
    other word is its own.

    Words that the training set lacks count as names, as nearly all words that a model makes up are.
    """
    nouns = {form for noun in NOUNS for form in (noun, plural(noun))}
    n_ids = stories.stream.n_ids
    classes = np.arange(max(n_ids, *(int(text.max(initial=0)) + 1 for text in texts)) + 2)
    name, noun = classes[-2:]
    classes[n_ids:-2] = name
    for words, mask in ((nouns, noun), (stories.names, name)):
        classes[[i for word in words if (i := stories.vocabulary.get(word, n_ids)) < n_ids]] = mask
    return classes


def flag_texts(
    texts: list[np.ndarray], overlaps: Overlaps, masked: Overlaps | None, k: int, threshold: float
) -> np.ndarray:
    """(texts,) one of FLAGS, or "".

    A copy occurs word for word in a training story. A near copy has at least `threshold` of its k-grams in one training
    story; a template does so once names and nouns are masked.
    """
    flags = np.full(len(overlaps.f), "", dtype="<U9")
    if masked:
        flags[masked.precision >= threshold] = "template"
    flags[overlaps.precision >= threshold] = "near copy"
    flags[[span.max(initial=0) == len(span) for span in overlaps.spans]] = "copy"
    flags[[len(set(zip(*(text[i:] for i in range(k))))) < MIN_WORDS - k + 1 for text in texts]] = ""
    return flags


def describe_completions(
    rows: list[dict], words: list[np.ndarray], stories: Stories, overlaps: Overlaps, masked: Overlaps | None, flags
) -> list[dict]:
    """What rouge.json has of each completion: nearest training story, longest span in any, and why it is flagged."""
    details = []
    for i, row in enumerate(rows):
        n_words, spans = len(words[i]), overlaps.spans[i]
        start, length = int(spans.argmax()) if n_words else 0, int(spans.max(initial=0))
        span_story = stories.story_at(overlaps.places[i][start]) if length else -1
        nearest = int(overlaps.nearest[i])
        sources = {
            "": (-1, 0.0),
            "copy": (span_story, 1.0),
            "near copy": (overlaps.container[i], overlaps.precision[i]),
        }
        if masked:
            sources["template"] = (masked.container[i], masked.precision[i])
        flag_story, flag_share = sources[flags[i]]
        details.append(
            dict(
                prompt_index=row["prompt_index"],
                sample_index=row["sample_index"],
                words=n_words,
                f=overlaps.f[i],
                nearest_story=nearest,
                nearest_text=stories.text(nearest) if nearest >= 0 else None,
                shares={n: float((spans[: n_words - n + 1] >= n).mean()) for n in SHARE_LENGTHS if n <= n_words},
                span_words=length,
                span=stories.spell(words[i][start : start + length]),
                span_story=span_story,
                flag=str(flags[i]),
                flag_story=int(flag_story),
                flag_share=float(flag_share),
            )
        )
    return details


def flagged_text(run: Path, details: list[dict], completions: list[str], stories: Stories, k: int) -> str:
    """flagged.txt: the flagged completions, copies first, each beside the training story that it resembles."""
    flagged = [(row, text) for row, text in zip(details, completions) if row["flag"]]
    flagged.sort(key=lambda pair: (FLAGS.index(pair[0]["flag"]), -pair[0]["flag_share"]))
    counts = ", ".join(f"{sum(row['flag'] == flag for row, _ in flagged)} {flag}" for flag in FLAGS)
    parts = [f"{run}: {len(flagged)} of {len(details)} completions are flagged ({counts})."]
    for row, text in flagged:
        what = f"all {row['words']} words" if row["flag"] == "copy" else f"{row['flag_share']:.0%} of its {k}-grams"
        what += " (names and nouns masked)" if row["flag"] == "template" else ""
        who = f"Prompt {row['prompt_index']}, completion {row['sample_index']}, {row['flag']}"
        parts.append(f"{who}: {what} occur in training story {row['flag_story']}")
        parts.append(side_by_side(text, stories.text(row["flag_story"])))
    return "\n\n".join(parts) + "\n"


def side_by_side(left: str, right: str, width: int = 58) -> str:
    columns = [
        [line for part in text.strip().splitlines() for line in textwrap.wrap(part, width)] for text in (left, right)
    ]
    return "\n".join(f"{a:{width}} | {b}".rstrip() for a, b in zip_longest(*columns, fillvalue=""))
