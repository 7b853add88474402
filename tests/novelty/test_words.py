"""nanostories/novelty/words.py: the words are rouge-score's, in compiled code as in Python,
whatever the text."""

import re

import numpy as np
import pytest
from planted import write_corpus
from rouge_score.tokenize import tokenize

from nanostories.novelty import words
from nanostories.novelty.words import open_corpus, words_of

ODD = [
    "\u212aelvin saw \u0130stanbul, and \u212a9. naïve CAFÉ's 3rd don't—“Oh”",
    "…",
    "I met Lily, Lily met the lily. then Lily-Mae and lily pads; so Tom, tom's",
    "x" * 300 + " " + "na\u00efve " * 40,
    "A\u0130 \u0130a a\u212a",
    "ends in a word",
    "Z",
]


def texts() -> list[str]:
    rng = np.random.default_rng(0)
    letters = list("aAbBzZ09 ,.'\"\n\u00e9\u212a\u0130\u4e2d\U0001f600-")
    return ODD + ["".join(rng.choice(letters, size=rng.integers(1, 60))) for _ in range(300)]


def names_by_hand(stories: list[str]) -> set[str]:
    """Words that after a lowercase letter or a comma, and a blank, have a capital more often than
    not."""
    counts: dict[str, int] = {}
    for story in stories:
        for word in re.findall("(?<=[a-z,] )[A-Za-z][A-Za-z0-9]*", story):
            counts[word.lower()] = counts.get(word.lower(), 0) + (1 if word[0].isupper() else -1)
    return {word for word, more in counts.items() if more > 0 and len(word) > 1}


def test_words_are_those_of_rouge_score():
    for text in texts():
        assert words_of(text) == tokenize(text, None)


@pytest.mark.parametrize("block", [1, 50, 10**6])
def test_the_words_of_a_corpus(block, tmp_path, monkeypatch):
    """In blocks of any size; the vocabulary is in the order in which words first occur."""
    monkeypatch.setattr(words, "TOKENS_PER_BLOCK", block)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stories = texts()
    corpus = open_corpus(write_corpus(tmp_path / "odd", stories, ODD))
    vocabulary, spelled = list(corpus.vocabulary), [tokenize(story, None) for story in stories]
    assert vocabulary == list(dict.fromkeys(sum(spelled, [])))
    assert len(corpus) == len(stories) and corpus.names == names_by_hand(stories)
    for i, (story, ids) in enumerate(zip(stories, corpus.encode(stories))):
        start, end = corpus.stream.starts[i], corpus.stream.ends[i]
        assert (
            [vocabulary[j] for j in corpus.stream.ids[start:end]]
            == spelled[i]
            == [vocabulary[j] for j in ids]
        )
        assert corpus.text(i) == story
    assert corpus.excerpt(ODD[2], 1, 3) == "met Lily, Lily" and corpus.excerpt("…", 0, 3) == ""


def test_they_are_kept_by_checksum_and_made_again_if_absent(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first, second = (
        write_corpus(tmp_path / story[0], [story], [story]) for story in ("a cat", "the dog")
    )
    open_corpus(first)
    (kept,) = (tmp_path / "nanostories" / "words").iterdir()
    before = kept.stat().st_mtime_ns
    open_corpus(first)
    assert kept.stat().st_mtime_ns == before
    monkeypatch.setattr(
        words, "RULES", words.RULES + 1
    )  # other words would be read: the kept ones are not taken
    open_corpus(first)
    assert len(list(kept.parent.iterdir())) == 2
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert list(open_corpus(second).vocabulary) == ["the", "dog"]
    kept.unlink()
    assert list(open_corpus(first).vocabulary) == ["a", "cat"]


def test_a_corpus_without_words_needs_tokens(tmp_path):
    directory = write_corpus(tmp_path / "none", ["…", "¿?"], ["…"])
    with pytest.raises(ValueError, match="--tokens"):
        open_corpus(directory)
    corpus = open_corpus(directory, by_tokens=True)
    for i, story in enumerate(["…", "¿?"]):
        ids = corpus.stream.ids[corpus.stream.starts[i] : corpus.stream.ends[i]]
        assert (
            corpus.text(i) == story == corpus.excerpt(story, 0, 99) == corpus.tokenizer.decode(ids)
        )
        assert (corpus.encode([story])[0] == ids).all()
