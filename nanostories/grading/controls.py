"""
Controls: endings of known quality, which test a judge. One is the true ending, the others are
spoiled.

Each is spoiled in one way. The first piece of the true ending completes the sentence that the
prompt broke off, so it stays in place: otherwise every control would have bad grammar at the joint.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace

import regex

from nanostories.corpus.cleaning import COMPLETE
from nanostories.grading.scores import CUT, OTHER, SHUFFLED, TRUE_ENDING
from nanostories.grading.stories import Story
from nanostories.text import sentences


def make_controls(true_endings: Sequence[Story]) -> dict[str, list[Story]]:
    """{kind: stories}: the true endings, one for each prompt, and each of them spoiled in every way
    that is possible.

    A story's controls depend only on it, except OTHER, which takes the next different story in the
    order of hashes. So if stories are added, nearly all controls stay the same, and so do their
    grades.
    """
    ordered = sorted(true_endings, key=lambda x: hashlib.sha256(x.beginning.encode()).digest())
    controls = {TRUE_ENDING: ordered, SHUFFLED: [], OTHER: [], CUT: []}
    for i, story in enumerate(ordered):
        completions = {SHUFFLED: shuffle(story), CUT: cut_off(story)}
        # The same story may have several instructions.
        following = [*ordered[i + 1 :], *ordered[:i]]
        others = [other for other in following if other.completion != story.completion]
        if others:
            completions[OTHER] = end_like_other(story, others[0])
        for kind, completion in completions.items():
            if completion and completion != story.completion:
                controls[kind].append(replace(story, completion=completion))
    return controls


# ---- Ways to spoil a completion; None where it cannot be ----
def shuffle(story: Story) -> str | None:
    """The sentences after the first in another order."""
    texts = later_sentences(story)
    fragment = take_fragment(texts)
    if len(set(texts)) < 2:
        return None
    rng = random.Random(story.beginning or story.completion)
    order = list(texts)
    while order == texts:
        rng.shuffle(order)
    return join_sentences(story, order + fragment)


def end_like_other(story: Story, other: Story) -> str | None:
    """Completes the sentence that the prompt broke off; the rest is from the other story."""
    first = sentences(story.completion, story.prompt)[:1]
    rest = sentences(other.completion, other.prompt)[1:]
    return "".join([*first, *rest]) if rest else None


def cut_off(story: Story) -> str | None:
    """Cut within a sentence of the second half, before its last word."""
    if not COMPLETE.search(story.completion):  # it is cut already
        return None
    pieces = sentences(story.completion, story.prompt)
    words = [list(regex.finditer(r"\w[\w'’-]*", piece)) for piece in pieces]
    long_enough = [i for i in range(len(pieces) // 2, len(pieces)) if len(words[i]) >= 3]
    if not long_enough:
        return None
    rng = random.Random(story.beginning)
    i = rng.choice(long_enough)
    last_word = words[i][rng.randrange(1, len(words[i]) - 1)]
    return "".join(pieces[:i]) + pieces[i][: last_word.end()]


# ---- Sentences of a completion ----
def later_sentences(story: Story) -> list[str]:
    """The sentences after the first, without white space."""
    return [piece.strip() for piece in sentences(story.completion, story.prompt)[1:]]


def take_fragment(texts: list[str]) -> list[str]:
    """Removes a last sentence that breaks off, which stays last: nothing can follow it."""
    if texts and not COMPLETE.search(texts[-1]):
        return [texts.pop()]
    return []


def join_sentences(story: Story, order: Sequence[str]) -> str:
    """The completion with `order` as the sentences after its first, between the same spaces and
    paragraphs."""
    first, *others = sentences(story.completion, story.prompt) or [""]
    joined = first
    for piece, text in zip(others, order):
        space = piece[: len(piece) - len(piece.lstrip())]
        joined += space + text
    return joined


def any_order(story: Story, seed: int) -> str:
    """The completion with the sentences after its first in an order drawn by `seed`, whatever their
    true order."""
    texts = later_sentences(story)
    fragment = take_fragment(texts)
    order = sorted(texts)
    random.Random(seed).shuffle(order)
    return join_sentences(story, order + fragment)
