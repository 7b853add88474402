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

DRAWS = 20  # of an order, to find another than the true one


def make_controls(true_endings: Sequence[Story]) -> dict[str, list[Story]]:
    """{kind: stories}: the true endings, one for each prompt, and each of them spoiled in every way
    that is possible.

    A story's controls depend only on it, except OTHER, which takes the next different story in the
    order of hashes. So if stories are added, nearly all controls stay the same, and so do their
    grades.
    """
    ordered = sorted(true_endings, key=lambda x: hashlib.sha256(x.prompt.encode()).digest())
    controls = {TRUE_ENDING: ordered, SHUFFLED: [], OTHER: [], CUT: []}
    for i, story in enumerate(ordered):
        completions = {SHUFFLED: shuffle(story), CUT: cut_off(story)}
        # The next story in this order; one that ends alike is this one, under another instruction
        following = [*ordered[i + 1 :], *ordered[:i]]
        other = next((x for x in following if x.completion != story.completion), None)
        if other:
            completions[OTHER] = end_like_other(story, other)
        for kind, completion in completions.items():
            if completion and completion != story.completion:
                controls[kind].append(replace(story, completion=completion))
    return controls


# ---- Ways to spoil a completion; None where it cannot be ----
def shuffle(story: Story) -> str | None:
    """Its sentences in the first other order that is drawn."""
    for seed in range(DRAWS):
        other = reordered(story, seed)
        if other != story.completion.rstrip():  # where sentences() ends, too
            return other
    return None


def end_like_other(story: Story, other: Story) -> str | None:
    """Completes the sentence that the prompt broke off; the rest is from the other story."""
    first = sentences(story.completion, story.opening)[:1]
    rest = sentences(other.completion, other.opening)[1:]
    return "".join([*first, *rest]) if rest else None


def cut_off(story: Story) -> str | None:
    """Cut within a sentence of the second half, before its last word."""
    if not COMPLETE.search(story.completion):  # it is cut already
        return None
    pieces = sentences(story.completion, story.opening)
    words = [list(regex.finditer(r"\w[\w'’-]*", piece)) for piece in pieces]
    long_enough = [i for i in range(len(pieces) // 2, len(pieces)) if len(words[i]) >= 3]
    if not long_enough:
        return None
    rng = random.Random(story.prompt)
    i = rng.choice(long_enough)
    last_word = words[i][rng.randrange(1, len(words[i]) - 1)]
    return "".join(pieces[:i]) + pieces[i][: last_word.end()]


# ---- Another order ----
def reordered(story: Story, seed: int) -> str:
    """The completion with the sentences after its first in an order drawn by `seed`, whatever their
    true order, between the same spaces and paragraphs. A last sentence that breaks off stays last:
    nothing can follow it."""
    first, *others = sentences(story.completion, story.opening) or [""]
    texts = [piece.strip() for piece in others]
    last = []
    if texts and not COMPLETE.search(texts[-1]):
        last.append(texts.pop())
    order = sorted(texts)
    random.Random(seed).shuffle(order)
    joined = first
    for piece, text in zip(others, order + last):
        space = piece[: len(piece) - len(piece.lstrip())]
        joined += space + text
    return joined
