"""
Endings whose quality is known, to find out what a judge can see: the true one, and three that are spoiled on purpose.

Each is spoiled in one way. The true ending's first piece ends the sentence that the prompt broke off, so it stays where
it is, or every control would have bad grammar at the joint.
"""

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import replace

from grading.judge import Story

TRUE, SHUFFLED, OTHER, CUT = "(true ending)", "(shuffled)", "(another ending)", "(cut off)"
# Which scores each of them must cost, if the judge sees it at all. None of them tests creativity, or age.
SPOILED = {SHUFFLED: ("consistency", "plot"), OTHER: ("consistency", "plot"), CUT: ("grammar", "plot")}

# A full stop, perhaps in quotes, before a blank and a capital; not that of Mr. and his kind.
SENTENCE_END = re.compile(r"""(?<!\bMr)(?<!\bMrs)(?<!\bMs)(?<!\bDr)[.!?…]+["'”’)]*(?=\s+["'“‘(]?[A-Z]|\s*$)""")


def sentences(text: str, before: str = "") -> list[str]:
    """The text in pieces, each with the blanks before it. Speech in double quotes is never cut.

    before: what stands before the text, as it may break off within quotes.
    """
    pieces, start = [], 0
    for end in SENTENCE_END.finditer(text):
        quotes = (before + text[: end.end()]).translate({ord("“"): '"', ord("”"): '"'}).count('"')
        if quotes % 2 == 0:
            pieces.append(text[start : end.end()])
            start = end.end()
    return pieces + [text[start:]] * bool(text[start:].strip())


def controls(true_endings: Sequence[Story]) -> dict[str, list[Story]]:
    """Of stories with their true endings, the four kinds, as far as each can be made.

    A story's controls depend on it alone, but for the other story, which is the next one in the order of hashes: so
    more stories leave nearly all of the controls as they were, and what was graded stays so.
    """
    unique = {hashlib.sha256(story.task.encode()).hexdigest(): story for story in true_endings}
    ordered = [unique[key] for key in sorted(unique)]
    kinds = {TRUE: ordered, SHUFFLED: [], OTHER: [], CUT: []}
    for story, other in zip(ordered, ordered[1:] + ordered[:1]):
        spoiled = {SHUFFLED: shuffled(story), OTHER: of_another(story, other), CUT: cut_off(story)}
        for kind, completion in spoiled.items():
            if completion and completion != story.completion:
                kinds[kind].append(replace(story, completion=completion))
    return kinds


def shuffled(story: Story) -> str | None:
    """The same blanks and paragraphs, with the sentences after the first in another order."""
    first, *others = sentences(story.completion, story.prompt) or [""]
    texts = [piece.strip() for piece in others]
    if len(set(texts)) < 2:
        return None
    rng, order = random.Random(story.task), list(texts)
    while order == texts:
        rng.shuffle(order)
    blanks = [piece[: len(piece) - len(piece.lstrip())] for piece in others]
    return first + "".join(blank + text for blank, text in zip(blanks, order))


def of_another(story: Story, other: Story) -> str | None:
    """The sentence in hand comes to its true end; what follows is the other story's."""
    first, *_ = sentences(story.completion, story.prompt) or [""]
    rest = sentences(other.completion, other.prompt)[1:]
    return first + "".join(rest) if rest and other is not story else None


def cut_off(story: Story) -> str | None:
    """Cut within one of the sentences of the second half, at some word but the last."""
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
