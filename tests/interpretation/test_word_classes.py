"""nanostories/interpretation/word_classes.py: tokens are put together into words, and words get the
right kind."""

from nanostories.corpus.tokenizer import gpt2
from nanostories.interpretation.word_classes import (
    TaggedCorpus,
    kind_of,
    names_in,
    pieces_of,
    split_words,
)

TEXT = (
    "Zorblax said, \"It's café  o'clock!\"\n\nThe end. He said, “Hello Tom.” Tom was “happy” too."
    " Tom—Ben ran. लड़की थी।"
)
BEGINNING = ["Zorblax", "said", ",", '"', "It", "'s", "café", "o", "'", "clock", '!"', "The", "end"]


def corpus_of(*texts: str, block_size: int = 512) -> TaggedCorpus:
    return TaggedCorpus.from_texts(texts, gpt2(), [50256], block_size)


def test_tokens_are_put_together_to_words():
    pieces = pieces_of(gpt2(), gpt2().encode(TEXT))
    words = ["".join(pieces[i] for i in members).strip() for members in split_words(pieces)]
    assert words[: len(BEGINNING)] == BEGINNING
    assert {"Hello", "Tom", "happy", "Ben", "लड़की", "थी"} <= set(words) and words.count("Tom") == 3


def test_kinds_of_words():
    texts = [
        "One day, Zora saw the cats. The dog saw Zora. Then Fluffy met fluffy Fluffy.",
        "Monty. The monty ran. She saw Mom.",
    ]
    names = names_in(texts)
    assert {"zora", "fluffy", "tom"} <= names and not {"monty", "the", "one", "mom"} & names
    expected = {
        "Zora": "name",
        "Fluffy": "name",
        "fluffy": "adjective",
        "cats": "noun",
        "ran": "verb",
        "was": "verb",
        "she": "pronoun",
        '!"': "punctuation",
        "the": "other",
        "rocks": None,
        "wugs": None,
    }
    assert {word: kind_of(word, names) for word in expected} == expected
    corpus = corpus_of(*texts)
    assert {"Fluffy", "fluffy", "monty"} <= set(corpus.words) and "Monty" not in corpus.words
    story = corpus.stories[0]
    assert story.tokens[0] == 50256 and story.words[0] == -1 and story.targets[-1] == 50256
    assert story.ends[-1]
    targets = corpus_of("Words: cat\nStory:\n\nTom ran.").stories[0].targets
    assert targets[targets >= 0].tolist() == [*gpt2().encode("\n\nTom ran."), 50256]
    assert "Tom" in corpus_of("Then Tom’s cat.").words
    cut = corpus_of(*texts, block_size=5).stories[0]
    assert cut.targets.tolist() == story.tokens[1:6].tolist()
    russian = corpus_of("Маша увидела кота. Кот молчал!")
    kinds = dict(zip(russian.words, russian.kinds))
    assert kinds["."] == kinds["!"] == "punctuation" and kinds["кота"] == "other"
