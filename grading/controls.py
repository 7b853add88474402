"""
Controls: endings of known quality that test what a judge can see. One is the true ending, the others are spoiled.

Each is spoiled in one way. The first piece of the true ending completes the sentence that the prompt broke off, so it
stays in place: otherwise every control would have bad grammar at the joint. If stories were written to instructions, a
story for another instruction is a control, too: all that is wrong with it is that it is not what was asked for.
"""

import hashlib
import itertools
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from grading.scores import CUT, OTHER, SHUFFLED, TRUE, UNASKED
from grading.stories import Story

# A safe ending is not spoiled, but likely: sampled at this temperature from a likelihood judge itself. It shows whether
# the judge prefers what is likely to the true ending.
SAFE_TEMPERATURE = 0.3

# Final punctuation, perhaps with a quote, before whitespace and a capital; but not the period of Mr., Mrs. and so on.
SENTENCE_END = re.compile(r"""(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)[.!?…]+["'”’)]*(?=\s+["'“‘(]?[A-Z]|\s*$)""")


def sentences(text: str, before: str = "") -> list[str]:
    """Splits the text into sentences, each with the whitespace before it. Speech in double quotes is never split.

    before: the text that precedes it, which may break off within quotes.
    """
    pieces, start = [], 0
    for end in SENTENCE_END.finditer(text):
        quotes = (before + text[: end.end()]).translate({ord("“"): '"', ord("”"): '"'}).count('"')
        if quotes % 2 == 0:
            pieces.append(text[start : end.end()])
            start = end.end()
    return pieces + [text[start:]] * bool(text[start:].strip())


def make_controls(true_endings: Sequence[Story]) -> dict[str, list[Story]]:
    """{kind: stories}: the true endings, and each of them spoiled in every way that is possible.

    A story's controls depend only on it, except OTHER and UNASKED, which take the next different story in the order of
    hashes. So if stories are added, nearly all controls stay the same, and so do their grades.
    """
    ordered = in_order(true_endings)
    controls = {TRUE: ordered, SHUFFLED: [], OTHER: [], CUT: [], UNASKED: []}
    for i, story in enumerate(ordered):
        following = itertools.chain(ordered[i + 1 :], ordered[:i])  # the same story may have several instructions
        other = next((other for other in following if other.completion != story.completion), story)
        spoiled = {SHUFFLED: shuffle(story), OTHER: end_as(story, other), CUT: cut_off(story)}
        if story.instruction and not story.prompt:
            spoiled[UNASKED] = other.completion
        for kind, completion in spoiled.items():
            if completion and completion != story.completion:
                controls[kind].append(replace(story, completion=completion))
    return controls


def in_order(stories: Iterable[Story]) -> list[Story]:
    """One story per task, in a random order that stays the same when others are added."""
    unique = {hashlib.sha256(story.task.encode()).hexdigest(): story for story in stories}
    return [unique[key] for key in sorted(unique)]


def shuffle(story: Story) -> str | None:
    """The sentences after the first in another order, with the same spaces and paragraphs."""
    _, *others = sentences(story.completion, story.prompt) or [""]
    texts = [piece.strip() for piece in others]
    if len(set(texts)) < 2:
        return None
    rng, order = random.Random(story.task or story.completion), list(texts)
    while order == texts:
        rng.shuffle(order)
    return in_other_order(story, order)


def in_other_order(story: Story, order: Sequence[str]) -> str:
    """The completion with `order` in place of the sentences after its first, which completes the prompt's."""
    first, *others = sentences(story.completion, story.prompt) or [""]
    spaces = [piece[: len(piece) - len(piece.lstrip())] for piece in others]
    return first + "".join(space + text for space, text in zip(spaces, order))


def any_order(story: Story, seed: int) -> str:
    """The completion with the sentences after its first in an order drawn by `seed`, whatever their true order.

    A last sentence that breaks off stays last: nothing can follow it.
    """
    _, *others = sentences(story.completion, story.prompt) or [""]
    texts = [piece.strip() for piece in others]
    last = [texts.pop()] if texts and not re.search(r"""[.!?…]["'”’)]*$""", texts[-1]) else []
    order = sorted(texts)
    random.Random(seed).shuffle(order)
    return in_other_order(story, order + last)


def end_as(story: Story, other: Story) -> str | None:
    """Completes the sentence that the prompt broke off; what follows is from the other story."""
    first, *_ = sentences(story.completion, story.prompt) or [""]
    rest = sentences(other.completion, other.prompt)[1:]
    return first + "".join(rest) if rest and other is not story else None


def cut_off(story: Story) -> str | None:
    """Cut within a sentence of the second half, before its last word."""
    pieces = sentences(story.completion, story.prompt)
    rng = random.Random(story.task)
    long_enough = [i for i in range(len(pieces) // 2, len(pieces)) if len(pieces[i].split()) >= 3]
    if not long_enough:
        return None
    i = rng.choice(long_enough)
    words = list(re.finditer(r"\w[\w'’-]*", pieces[i]))
    if len(words) < 3:
        return None
    return "".join(pieces[:i]) + pieces[i][: words[rng.randrange(1, len(words) - 1)].end()]
