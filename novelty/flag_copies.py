"""
Finds completions that look memorized (a passage word for word, nearly all of it, or all but names and nouns); formats
flagged.txt, which shows each beside the training story that it resembles.
"""

import textwrap
from difflib import SequenceMatcher
from itertools import zip_longest
from pathlib import Path

import numpy as np

from corpus.builtin_stories import NOUNS, plural
from novelty.corpus_words import SPELLED_OUT, WORD, Stories
from novelty.ngram_search import Overlaps

FLAGS = ("copy", "near copy", "template")
MIN_WORDS = 20  # of a flagged text or copied passage, not counting repetition: all stories share short phrases
FALSE_ALARMS = 0.01  # the largest share of held-out pieces with a passage long enough to be flagged
SHARE_LENGTHS = (*range(1, 9), 12, 16, 24, 32)  # of k-grams; rouge.json has their shares for each completion


def mask_names_and_nouns(stories: Stories, texts: list[np.ndarray]) -> np.ndarray:
    """(ids,) a class for each word id: all names are one class, all nouns of corpus/builtin_stories.py another, every
    other word is its own.

    Words missing from the training set count as names, as nearly all words that a model makes up are names.
    """
    nouns = {form for noun in NOUNS for form in (noun, plural(noun))}
    n_ids = stories.stream.n_ids
    classes = np.arange(max(n_ids, *(int(text.max(initial=0)) + 1 for text in texts)) + 2)
    name, noun = classes[-2:]
    classes[n_ids:-2] = name
    for words, mask in ((nouns, noun), (stories.names, name)):
        classes[[i for word in words if (i := stories.vocabulary.get(word, n_ids)) < n_ids]] = mask
    return classes


def copied_length(held_out: list[np.ndarray]) -> int:
    """How many words in a row make a passage a copy: more than held-out pieces share with a training story by chance,
    which grows with the number of stories. held_out: the spans of these pieces."""
    longest = [span.max(initial=0) for span in held_out]
    return max(MIN_WORDS, int(np.quantile(longest, 1 - FALSE_ALARMS, method="inverted_cdf")) + 1)


def flag_texts(
    texts: list[np.ndarray],
    overlaps: Overlaps,
    masked: Overlaps | None,
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
    flags[(overlaps.precision >= threshold) & varied] = "near copy"
    flags[np.array([span.max(initial=0) >= copied_words for span in overlaps.spans]) & varied] = "copy"
    return flags


def has_variety(text: np.ndarray, k: int) -> bool:
    """Whether it has at least as many different k-grams as MIN_WORDS different words."""
    return len(set(zip(*(text[i:] for i in range(k))))) > MIN_WORDS - k


def describe_completions(
    rows: list[dict], words: list[np.ndarray], stories: Stories, overlaps: Overlaps, masked: Overlaps | None, flags
) -> list[dict]:
    """rouge.json on each completion: its nearest training story, longest span in any, and why it is flagged."""
    details = []
    for i, row in enumerate(rows):
        n_words, spans = len(words[i]), overlaps.spans[i]
        start, length = int(spans.argmax()) if n_words else 0, int(spans.max(initial=0))
        span_story = stories.story_at(overlaps.places[i][start]) if length else -1
        nearest = int(overlaps.nearest[i])
        sources = {
            "": (-1, 0.0),
            "copy": (span_story, length / max(n_words, 1)),
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


def flagged_text(
    run: Path, details: list[dict], completions: list[str], stories: Stories, k: int, classes: np.ndarray | None
) -> str:
    """flagged.txt: the flagged completions, copies first, each beside the training story that it resembles."""
    flagged = [(row, text) for row, text in zip(details, completions) if row["flag"]]
    flagged.sort(key=lambda pair: (FLAGS.index(pair[0]["flag"]), -pair[0]["flag_share"]))
    counts = ", ".join(f"{sum(row['flag'] == flag for row, _ in flagged)} {flag}" for flag in FLAGS)
    parts = [f"{run}: {len(flagged)} of {len(details)} completions are flagged ({counts})."]
    unit = "words" if stories.vocabulary else "tokens"
    for row, text in flagged:
        what = f"{row['flag_share']:.0%} of its {k}-grams occur"
        what += " (names and nouns masked)" if row["flag"] == "template" else ""
        if row["flag"] == "copy":
            what = f"{row['span_words']} of its {row['words']} {unit} occur in a row"
        who = f"Prompt {row['prompt_index']}, completion {row['sample_index']}, {row['flag']}"
        parts.append(f"{who}: {what} in training story {row['flag_story']}")
        parts.append(
            side_by_side(text, stories.text(row["flag_story"]), stories, classes if row["flag"] == "template" else None)
        )
    return "\n\n".join(parts) + "\n"


def side_by_side(left: str, right: str, stories: Stories, classes: np.ndarray | None, width: int = 58) -> str:
    """Two columns, aligned at the start of the longest passage that both have (by class, if there are classes),
    with = where lines are equal. Before that passage, the right column shows at most as many lines as the left one."""
    ids = [text if classes is None else classes[text] for text in stories.encode([left, right])]
    match = SequenceMatcher(None, *(text.tolist() for text in ids), autojunk=False).find_longest_match()
    columns = []
    for text, word in ((left, match.a), (right, match.b)):
        at = begin_of(word, text, stories)
        columns.append([wrapped(part, width) for part in (text[:at], text[at:])])
    (before, left_lines), (earlier, right_lines) = columns
    earlier = earlier[max(0, len(earlier) - len(before)) :]
    right_lines = [""] * (len(before) - len(earlier)) + earlier + right_lines
    pairs = zip_longest(before + left_lines, right_lines, fillvalue="")
    return "\n".join(f"{a:{width}} {'=' if a == b else '|'} {b}".rstrip() for a, b in pairs)


def begin_of(word: int, text: str, stories: Stories) -> int:
    """The index of the character at which this word (or token) of the text begins."""
    if stories.vocabulary is None:
        return len(stories.tokenizer.decode(stories.tokenizer.encode(text)[:word]))
    return [found.start() for found in WORD.finditer(text.translate(SPELLED_OUT))][word]


def wrapped(text: str, width: int) -> list[str]:
    return [line for part in text.strip().splitlines() for line in textwrap.wrap(part, width)]
