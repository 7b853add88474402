"""nanostories/novelty/words.py: every word of every story, as nanostories/text.py reads it."""

import sys

import numpy as np
import regex
from planted import write_corpus

from nanostories.novelty.words import open_corpus, passage
from nanostories.text import WORD, words_of

ODD = [
    "\u212aelvin saw \u0130stanbul, and \u212a9. naïve CAFÉ's 3rd don't—“Oh”",
    "…",
    "I met Lily, Lily met the lily. then Lily-Mae and Zoë, Zoë; so Tom, tom's",
    "x" * 300 + " " + "na\u00efve " * 40,
    "Анна видела, как Миша и Анна шли домой. 猫が走る。 हिन्दी में",
    "ends in a word",
    "Z",
]


def texts() -> list[str]:
    rng = np.random.default_rng(0)
    letters = list("aAbBzZ09 ,.'\"\n\u00e9\u212a\u0130\u4e2d\U0001f600-")
    return ODD + ["".join(rng.choice(letters, size=rng.integers(1, 60))) for _ in range(300)]


def names_by_hand(stories: list[str]) -> set[str]:
    """Words that in mid-sentence have a capital more often than not."""
    counts: dict[str, int] = {}
    for story in stories:
        for word in regex.findall(r"(?<=[\p{Ll},] )\p{L}[\p{L}\p{M}\p{N}]*", story):
            counts[word.lower()] = counts.get(word.lower(), 0) + (1 if word[0].isupper() else -1)
    return {word for word, more in counts.items() if more > 0 and len(word) > 1}


def test_the_words_of_a_corpus(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    stories = texts()
    corpus = open_corpus(write_corpus(tmp_path / "odd", stories, ODD))
    vocabulary = list(corpus.vocabulary)
    assert len(corpus) == len(stories) == len(corpus.stream.bounds) - 1
    assert corpus.names == names_by_hand(stories) and {"zoë", "миша"} <= corpus.names
    for i, story in enumerate(stories):
        ids = corpus.stream.ids[corpus.stream.bounds[i] : corpus.stream.bounds[i + 1]]
        assert [vocabulary[j] for j in ids] == words_of(story)
        assert ids.tolist() == corpus.encode(story).tolist()
        assert corpus.text(i) == story


def test_a_passage_is_as_it_is_written():
    """Lower case may be longer: offsets are those of the text itself."""
    assert passage("\u0130\u0130\u0130 and Ann ran home.", 2, 2) == "Ann ran"
    assert passage(ODD[2], 1, 3) == "met Lily, Lily" and passage("…", 0, 3) == ""
    for character in map(chr, range(sys.maxunicode + 1)):
        if character.lower() != character:
            text = f"a{character}b"
            assert len(WORD.findall(text)) == len(words_of(text))


def test_they_are_kept_by_checksum(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = write_corpus(tmp_path / "first", ["a cat"], ["a cat"])
    second = write_corpus(tmp_path / "second", ["the dog"], ["the dog"])
    open_corpus(first)
    (kept,) = (tmp_path / "nanostories" / "words").iterdir()
    before = kept.stat().st_mtime_ns
    open_corpus(first)
    assert kept.stat().st_mtime_ns == before
    assert set(open_corpus(second).vocabulary) == {"the", "dog"}
