"""novelty/corpus_words.py: words on disk always match train.bin, whatever happened to the files."""

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from conftest import ROOT
from rouge_score.tokenize import tokenize

from corpus import preparation, token_files
from corpus.tokenizer import Tokenizer, gpt2
from kernels import compile_cpp
from novelty import corpus_words
from novelty.corpus_words import NativeReader, PythonReader, blocks_of_stories, open_stories, words_of

ODD = [
    "\u212aelvin saw \u0130stanbul, and \u212a9. naïve CAFÉ's 3rd don't—“Oh”",
    "",
    "…",
    "I met Lily, Lily met the lily. then Lily-Mae and lily pads; so Tom, tom's",
    "x" * 300 + " " + "na\u00efve " * 40,
    "A\u0130 \u0130a a\u212a",
]


def texts(real: list[str] | None = None) -> list[str]:
    rng = np.random.default_rng(0)
    letters = list("aAbBzZ09 ,.'\"\n\u00e9\u212a\u0130\u4e2d\U0001f600-")
    random_texts = ["".join(rng.choice(letters, size=rng.integers(0, 60))) for _ in range(300)]
    return ODD + random_texts + (real or [])


def test_words_are_those_of_rouge_score():
    for text in texts():
        assert words_of(text) == tokenize(text, None)


@pytest.mark.skipif(compile_cpp.library("split_words") is None, reason="no C++ compiler that builds it")
def test_both_readers_agree(request, monkeypatch):
    some = texts()
    some += [f"Word{i} of {i * 7919} made, Up{i % 50} there" for i in range(40_000)]  # more than the table begins with
    tokenizer = gpt2()
    tokens = tokenizer.encode_stories(some)
    readers = PythonReader(tokenizer), NativeReader(tokenizer)
    monkeypatch.setattr(corpus_words, "TOKENS_PER_BLOCK", 50_000)
    for block, ends in blocks_of_stories(tokens, tokenizer.end_of_text):
        (ids, word_ends), (same_ids, same_ends) = (reader.read(block, ends) for reader in readers)
        np.testing.assert_array_equal(ids, same_ids)
        np.testing.assert_array_equal(word_ends, same_ends)
    (words, counts), (same_words, same_counts) = (reader.vocabulary() for reader in readers)
    assert words == same_words and len(words) > 65_536
    np.testing.assert_array_equal(counts, same_counts)


def test_blocks_are_whole_stories(monkeypatch):
    tokens = np.array([1, 1, 0, 2, 0, 0, 3, 3, 3, 3, 3, 3, 3, 0, 4, 0])
    monkeypatch.setattr(corpus_words, "TOKENS_PER_BLOCK", 4)
    blocks = list(blocks_of_stories(tokens, 0))
    assert [block.tolist() for block, _ in blocks] == [[1, 1, 0], [2, 0, 0], [3] * 7 + [0], [4, 0]]
    assert [ends.tolist() for _, ends in blocks] == [[2], [1, 2], [7], [1]]


# On disk


@pytest.fixture
def data(tmp_path):
    stories = [f"One day, Lily had lily number {i}. {odd} The end." for i, odd in enumerate(ODD * 3)]
    preparation.prepare(tmp_path / "data" / "tiny", ["tiny"], stories, stories[:2], 300, 0.1, 0, 1)
    return tmp_path / "data" / "tiny"


def check(data) -> None:
    stories = open_stories(data)
    tokens, end_of_text = token_files.load_meta_and_tokens(data, "train")[1], stories.tokenizer.end_of_text
    texts = [
        stories.tokenizer.decode(part[:-1]) for part in np.split(tokens, np.flatnonzero(tokens == end_of_text) + 1)
    ]
    assert len(stories) == len(texts) - 1
    words = list(stories.vocabulary)
    for i, text in enumerate(texts[:-1]):
        ids = stories.stream.ids[stories.stream.starts[i] : stories.stream.ends[i]]
        assert [words[j] for j in ids] == tokenize(text, None)
        assert stories.text(i) == text
        assert len(ids) == 0 or stories.story_at(int(stories.stream.ends[i]) - 1) == i


def test_words_are_built_once(data, capsys):
    check(data)
    stamp = (data / "words" / "words.bin").stat().st_mtime_ns
    check(data)
    assert (data / "words" / "words.bin").stat().st_mtime_ns == stamp
    assert sorted(path.name for path in (data / "words").iterdir()) == ["ends.bin", "meta.json", "words.bin"]
    assert capsys.readouterr().err == ""


def test_names_have_a_capital_in_mid_sentence(data):
    stories = ["then Tom and Spot ran, and Tom saw a spot, Spot and I too."] * 2
    preparation.prepare(data.parent / "named", ["named"], stories, ["A story."], 300, 0.1, 0, 1)
    assert open_stories(data.parent / "named").names == {"tom", "spot"}


def cut_short(place):
    (place / "words.bin").write_bytes((place / "words.bin").read_bytes()[:-4])


def flip_a_bit(place):
    content = bytearray((place / "ends.bin").read_bytes())
    content[20] ^= 1
    (place / "ends.bin").write_bytes(content)


def change_the_format(place):
    (place / "meta.json").write_text(json.dumps(json.loads((place / "meta.json").read_text()) | dict(format=99)))


@pytest.mark.parametrize(
    "damage, reason",
    [
        (cut_short, "words.bin damaged"),
        (flip_a_bit, "ends.bin damaged"),
        (change_the_format, "format 99"),
        (lambda place: (place / "ends.bin").unlink(), "incomplete"),
        (lambda place: (place / "meta.json").write_text("{"), "incomplete"),
        (lambda place: (place / "meta.json").write_text("[]"), "incomplete"),
    ],
)
def test_damage_is_named_and_rebuilt(data, damage, reason, capsys):
    check(data)
    damage(data / "words")
    check(data)
    assert f"{data / 'words'}: {reason}" in capsys.readouterr().err
    check(data)
    assert capsys.readouterr().err == ""


def test_words_of_another_train_bin_are_rebuilt(data, capsys):
    check(data)
    other = data.parent / "other"
    preparation.prepare(other, ["other"], ["Another story.", "And one more."], ["A third."], 300, 0.1, 0, 1)
    (data / "words").rename(other / "words")
    check(other)
    assert "made from another train.bin" in capsys.readouterr().err


def test_preparing_data_again_discards_its_words(data):
    check(data)
    preparation.prepare(data, ["new"], ["Another story.", "And one more."], ["A third."], 300, 0.1, 0, 1)
    assert not (data / "words").exists()
    check(data)


@pytest.mark.slow
def test_a_killed_build_leaves_nothing_half_done(data):
    program = (
        f"import sys, os, signal; sys.path.insert(0, {str(ROOT)!r})\n"
        "from novelty import corpus_words\n"
        "corpus_words.install = lambda new, place: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"corpus_words.open_stories({str(data)!r})\n"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == -signal.SIGKILL
    assert not (data / "words").exists() and list(data.glob(".words.tmp-*"))
    check(data)
    for leftover in data.glob(".words.tmp-*"):  # once it is an hour old, the next build removes it
        for path in (leftover, *leftover.rglob("*")):
            os.utime(path, (0, 0))
    (data / "words" / "meta.json").unlink()
    check(data)
    assert not list(data.glob(".words.tmp-*"))


def test_two_at_once_build_the_words_once(data, monkeypatch, capsys):
    """The second waits, and says so."""
    built, write_words, others = [], corpus_words.write_words, []

    def while_another_asks(*args):
        built.append(args)
        if not others:
            others.append(pool.submit(open_stories, data))
            while "another process is building words there; waiting" not in capsys.readouterr().err:
                assert not others[0].done()
        return write_words(*args)

    monkeypatch.setattr(corpus_words, "write_words", while_another_asks)
    with ThreadPoolExecutor() as pool:
        check(data)
        assert len(others[0].result()) == len(open_stories(data))
    assert len(built) == 1 and sorted(os.listdir(data)) == ["meta.json", "train.bin", "val.bin", "words"]


def test_by_tokens_nothing_is_built(data):
    stories = open_stories(data, by_tokens=True)
    assert not (data / "words").exists()
    tokenizer = Tokenizer(stories.tokenizer.gpt2_ids)
    for i in (0, 1, len(stories) - 1):
        ids = stories.stream.ids[stories.stream.starts[i] : stories.stream.ends[i]]
        assert tokenizer.decode(ids) == stories.text(i) == stories.spell(ids)
        assert (stories.encode([stories.text(i)])[0] == ids).all()
