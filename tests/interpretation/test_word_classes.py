"""nanostories/interpretation/word_classes.py: tokens are put together into words, and words get the
right kind."""

from nanostories.corpus.builtin_stories import ROLES
from nanostories.corpus.tokenizer import gpt2
from nanostories.interpretation.word_classes import TaggedCorpus, kind_of, names_in, split_words


def test_tokens_are_put_together_to_words():
    tokenizer = gpt2()
    text = (
        "Zorblax said, \"It's café  o'clock!\"\n\nThe end. He said, “Hello Tom.” Tom was “happy”"
        " too. Tom—Ben ran."
    )
    text += " लड़की थी।"
    pieces = [tokenizer.decode_bytes([i]) for i in tokenizer.encode(text)]
    words = [
        b"".join(pieces[i] for i in members).decode().strip() for members in split_words(pieces)
    ]
    expected = [
        "Zorblax",
        "said",
        ",",
        '"',
        "It",
        "'s",
        "café",
        "o",
        "'",
        "clock",
        '!"',
        "The",
        "end",
        ".",
    ]
    assert words[: len(expected)] == expected
    assert {"Hello", "Tom", "happy", "Ben", "लड़की", "थी"} <= set(words) and words.count("Tom") == 3


def test_kinds_of_words():
    texts = [
        "One day, Zora saw the cats. The dog saw Zora. Then Fluffy met fluffy Fluffy.",
        "Monty. The monty ran. She saw Mom.",
    ]
    assert {"zora", "fluffy", "tom"} <= names_in(texts) and not {
        "monty",
        "the",
        "one",
        "mom",
    } & names_in(texts)
    corpus = TaggedCorpus.from_texts(texts, gpt2(), [50256], 512)
    expected = dict(
        Zora="name",
        Fluffy="name",
        fluffy="adjective",
        cats="noun",
        the="other",
        ran="verb",
        wugs=None,
    )
    expected |= {
        ".": "punctuation",
        '!"': "punctuation",
        "was": "verb",
        "rocks": None,
        "she": "pronoun",
    }
    assert {word: kind_of(word, names_in(texts)) for word in expected} == expected
    assert (
        corpus.kinds == [kind_of(word, names_in(texts)) for word in corpus.words]
        and "name" in corpus.kinds
    )
    assert {"Fluffy", "fluffy", "monty"} <= set(corpus.words) and "Monty" not in corpus.words
    assert "rock" not in ROLES
    story = corpus.stories[0]
    assert story.tokens[0] == 50256 and story.words[0] == -1 and story.targets[-1] == 50256
    assert corpus.words[story.words[-1]] == "."
    russian = TaggedCorpus.from_texts(["Маша увидела кота. Кот молчал!"], gpt2(), [50256], 512)
    assert set(zip(russian.words, russian.kinds)) >= {
        (".", "punctuation"),
        ("!", "punctuation"),
        ("кота", "other"),
    }
