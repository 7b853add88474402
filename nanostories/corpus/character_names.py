"""
Names: the words that are capitalized more often than not in mid-sentence (for rouge.py and
interpret.py).

>>> counts = Counts()
>>> count_capitals("Then Tom ran, and Tom saw a cat.", counts)
>>> names_among(counts.items())
['tom']
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

# After a lower-case word or a comma: where a sentence or a quotation begins, a capital says
# nothing.
IN_MID_SENTENCE = re.compile("(?<=[a-z,] )[A-Za-z][A-Za-z0-9]*")
Counts = partial(
    defaultdict, lambda: [0, 0]
)  # word in lower case -> how often in lower case, how often capitalized


def count_capitals(text: str, counts: dict[str, list[int]]) -> None:
    """Adds the mid-sentence words of a text to `counts`."""
    for word in IN_MID_SENTENCE.findall(text):
        counts[word.lower()][word[0].isupper()] += 1


def names_among(counts: Iterable[tuple[str, Iterable[int]]]) -> list[str]:
    """The names, in lower case. "I" is not one."""
    return [word for word, (lower, capital) in counts if capital > lower and len(word) > 1]
