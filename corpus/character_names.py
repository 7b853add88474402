"""
Which words are names: those that in mid-sentence have a capital more often than not.

One rule, counted over the text that each user knows best: rouge.py masks the names of a whole training set
(novelty/corpus_words.py, where C++ counts), interpret.py tells the names of the stories that it reads from other words
(interpretation/word_classes.py).

>>> counts = Counts()
>>> count_capitals("Then Tom ran, and Tom saw a cat.", counts)
>>> names_among(counts.items())
['tom']
"""

import re
from collections import defaultdict
from collections.abc import Iterable
from functools import partial

# Behind a word in lower case or a comma: where a sentence or a quotation begins, a capital says nothing.
IN_MID_SENTENCE = re.compile("(?<=[a-z,] )[A-Za-z][A-Za-z0-9]*")
Counts = partial(defaultdict, lambda: [0, 0])  # word in lower case -> how often in lower case, how often capitalized


def count_capitals(text: str, counts: dict[str, list[int]]) -> None:
    """Adds the words of a text that stand in mid-sentence to `counts`."""
    for word in IN_MID_SENTENCE.findall(text):
        counts[word.lower()][word[0].isupper()] += 1


def names_among(counts: Iterable[tuple[str, Iterable[int]]]) -> list[str]:
    """In lower case. "I" is none."""
    return [word for word, (lower, capital) in counts if capital > lower and len(word) > 1]
