"""Words of any script."""

import pytest
from rouge_score.tokenize import tokenize

from nanostories.text import words_of


@pytest.mark.parametrize(
    "text, words",
    [
        ("Zoë's café, 3 crêpes_", ["zoë", "s", "café", "3", "crêpes"]),
        ("हिन्दी में", ["हिन्दी", "में"]),
        ("猫が走る。", ["猫", "が", "走", "る"]),
        ("한국어 이야기", ["한국어", "이야기"]),
        ("", []),
    ],
)
def test_words(text, words):
    assert words_of(text) == words


def test_english_words_are_those_of_rouge_score():
    text = "Once upon a time, Tom's 3 red-and-blue kites said: \"We can't fly!\" 12:30"
    assert words_of(text) == tokenize(text, stemmer=None)
