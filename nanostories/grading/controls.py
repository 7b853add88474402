"""
Controls: endings of known quality, which test a judge. One is the true ending, the others are
spoiled.

Each is spoiled in one way. The first piece of the true ending completes the sentence that the
prompt broke off, so it stays in place: otherwise every control would have bad grammar at the joint.
"""

import hashlib
import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import regex

from nanostories.corpus.cleaning import COMPLETE
from nanostories.grading.scores import CUT, OTHER, SHUFFLED, TRUE_ENDING
from nanostories.grading.stories import Story

# Final punctuation, perhaps with a quote, before whitespace and a capital; but not the period of
# Mr., Mrs. and so on. Where letters have no case, a quote ends no sentence: "he said" may follow.
# Chinese and Japanese need no space.
SENTENCE_END = regex.compile(
    r"""(?<!\b(?:Mr|Mrs|Ms|Dr))[\p{Sentence_Terminal}…]+(?:["'”’)」』]*(?=\s+["'“‘(]?\p{Lu}|\s*$)|(?=\s+["'“‘(]?\p{Lo}))"""
    r"""|[。！？…]+(?![」』])"""
)
QUOTES = str.maketrans("“”「」", '""""')


def sentences(text: str, preceding: str = "") -> list[str]:
    """Splits the text into sentences, each with the whitespace before it. Speech in double quotes
    is never split.

    preceding: the text that precedes it, which may break off within quotes.
    """
    pieces, start = [], 0
    for end in SENTENCE_END.finditer(text):
        quotes = (preceding + text[: end.end()]).translate(QUOTES).count('"')
        if quotes % 2 == 0:
            pieces.append(text[start : end.end()])
            start = end.end()
    return pieces + [text[start:]] * bool(text[start:].strip())


def later_sentences(story: Story) -> list[str]:
    """The sentences after the first, without whitespace."""
    return [piece.strip() for piece in sentences(story.completion, story.prompt)[1:]]


def join_sentences(story: Story, order: Sequence[str]) -> str:
    """The completion with `order` as the sentences after its first, between the same spaces and
    paragraphs."""
    first, *others = sentences(story.completion, story.prompt) or [""]
    spaces = [piece[: len(piece) - len(piece.lstrip())] for piece in others]
    return first + "".join(space + text for space, text in zip(spaces, order))


# ---- Kinds of controls: (story, another story) -> a completion, or None where it cannot be ----
def shuffle(story: Story, other: Story | None = None) -> str | None:
    """The sentences after the first in another order."""
    texts = later_sentences(story)
    rng, order = random.Random(story.beginning or story.completion), list(texts)
    while order == texts and len(set(texts)) > 1:
        rng.shuffle(order)
    return None if order == texts else join_sentences(story, order)


def end_like_other(story: Story, other: Story) -> str | None:
    """Completes the sentence that the prompt broke off; the rest is from the other story."""
    rest = sentences(other.completion, other.prompt)[1:]
    return (
        "".join([*sentences(story.completion, story.prompt)[:1], *rest])
        if rest and other is not story
        else None
    )


def cut_off(story: Story, other: Story | None = None) -> str | None:
    """Cut within a sentence of the second half, before its last word; one that is cut already
    cannot be spoiled so."""
    pieces, rng = sentences(story.completion, story.prompt), random.Random(story.beginning)
    words = [list(regex.finditer(r"\w[\w'’-]*", piece)) for piece in pieces]
    long_enough = [i for i in range(len(pieces) // 2, len(pieces)) if len(words[i]) >= 3]
    if not long_enough or not COMPLETE.search(story.completion):
        return None
    i = rng.choice(long_enough)
    return "".join(pieces[:i]) + pieces[i][: words[i][rng.randrange(1, len(words[i]) - 1)].end()]


SPOILED = {SHUFFLED: shuffle, OTHER: end_like_other, CUT: cut_off}


def make_controls(*corpora: Iterable[Story]) -> dict[str, list[Story]]:
    """{kind: stories}: the true endings, one for each task, and each of them spoiled in every way
    that is possible.

    A story's controls depend only on it, except OTHER, which takes the next different story of its
    corpus in the order of hashes. So if stories are added, nearly all controls stay the same, and
    so do their grades.
    """
    controls, seen = {TRUE_ENDING: []} | {kind: [] for kind in SPOILED}, set()
    for true_endings in corpora:
        unique = {
            hashlib.sha256(story.beginning.encode()).hexdigest(): story for story in true_endings
        }
        ordered = [unique[key] for key in sorted(unique.keys() - seen)]
        seen |= unique.keys()
        controls[TRUE_ENDING] += ordered
        for i, story in enumerate(ordered):
            following = itertools.chain(
                ordered[i + 1 :], ordered[:i]
            )  # the same story may have several instructions
            other = next(
                (other for other in following if other.completion != story.completion), story
            )
            for kind, spoil in SPOILED.items():
                completion = spoil(story, other)
                if completion and completion != story.completion:
                    controls[kind].append(replace(story, completion=completion))
    return controls


def any_order(story: Story, seed: int) -> str:
    """The completion with the sentences after its first in an order drawn by `seed`, whatever their
    true order.

    A last sentence that breaks off stays last: nothing can follow it.
    """
    texts = later_sentences(story)
    last = [texts.pop()] if texts and not COMPLETE.search(texts[-1]) else []
    order = sorted(texts)
    random.Random(seed).shuffle(order)
    return join_sentences(story, order + last)
