"""
Does a text have a bad ending? Only the built-in plots' are recognized: the sentences marked @BadEnding.

>>> ends_badly("Tom never saw the kite again.")
True
"""

import functools
import re
from collections.abc import Iterator

from corpus.builtin_stories import PARSED_PLOTS


def as_pattern(part) -> str:
    """A regular expression for all texts that a part of a parsed template can become; a slot matches any words."""
    if type(part) is tuple:
        return "(?:" + "|".join("".join(map(as_pattern, branch)) for branch in part[1]) + ")"
    if part[0] == "{":
        return "[^.]+?"
    return re.sub(r"\ba ", "an? ", re.escape(re.sub(r"\s+", " ", part)).replace("\\ ", " "))


def marked_sentences(mark: str, choice) -> Iterator[str]:
    """A pattern for each sentence of a parsed template that follows this mark."""
    for branch in choice[1]:
        for i, part in enumerate(branch):
            if type(part) is tuple:
                yield from marked_sentences(mark, part)
            elif mark in part:
                rest = [part.partition(mark)[2].lstrip(), *branch[i + 1 :]]
                pattern = "".join(as_pattern(part) for part in rest if part).partition(r"\.")[0]
                yield pattern.removeprefix("[^.]+?")  # a slot in front would make the search 25 times slower


@functools.cache
def bad_endings() -> re.Pattern:
    patterns = (pattern for _, story in PARSED_PLOTS.values() for pattern in marked_sentences("@BadEnding", story))
    return re.compile("|".join(patterns), re.I)


def ends_badly(text: str) -> bool:
    return bad_endings().search(text) is not None
