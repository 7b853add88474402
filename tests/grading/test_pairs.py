"""probe.py --pairs: our pairs are balanced, and one trial by group."""

import collections
import math
import re

import numpy as np
import pytest
from conftest import ROOT

from nanostories.cli import UserError
from nanostories.corpus import builtin_stories
from nanostories.grading.pairs import GRAMMAR, Pair, pair_tables, read_pairs
from nanostories.text import words_of

OURS = read_pairs(GRAMMAR)
REAL = ROOT.parent / "shared" / "data" / "tinystories-23mb" / "train.txt"


# ---- Our pairs ----
def words_and_marks(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def test_who_counts_neighbors_of_words_scores_near_chance():
    counts = collections.Counter()
    followed = collections.Counter()
    for story in builtin_stories.stories(700):
        words = words_and_marks(story.text)
        counts.update(words)
        followed.update(zip(words, words[1:]))

    def bigram(text: str) -> float:
        words = words_and_marks(text)
        likelihood = 1.0
        for before, word in zip(words, words[1:]):
            backoff = (counts[word] + 1) / counts.total()
            seen = followed[before, word] / max(1, counts[before])
            likelihood *= 0.9 * seen + 0.1 * backoff
        return math.log(likelihood)

    leads = np.array([bigram(pair.right) - bigram(pair.wrong) for pair in OURS])
    shares, *_ = pair_tables(OURS, {"bigram": leads})
    assert shares.rows[0]["bigram"][0] <= 0.65


@pytest.mark.skipif(not REAL.exists(), reason=f"no {REAL.name} of real stories in ../shared")
def test_real_stories_have_all_of_their_words():
    known = set(re.findall(r"\w+", REAL.read_text().lower())) | set(builtin_stories.PRONOUNS)
    for pair in OURS:
        assert set(words_of(f"{pair.right} {pair.wrong}")) <= known


# ---- Files ----
BLIMP = '{"sentence_good": "It is.", "sentence_bad": "It are.", "UID": "be", "pairID": 7}\n'


def test_pairs_of_blimp_and_zorro_in_one_folder(tmp_path):
    (tmp_path / "a.jsonl").write_text(BLIMP)
    (tmp_path / "b.txt").write_text("where does i go ?\nwhere do i go ?\n")
    (tmp_path / "LICENSE").write_text("MIT")
    blimp, zorro = read_pairs(tmp_path)
    assert blimp == Pair("be", "7", "It is.", "It are.")
    assert zorro == Pair("b", "0", "Where do I go?", "Where does I go?")


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("a.txt", b"one line .\n", "no partner"),
        ("a.jsonl", b"", "no pairs"),
        ("a.jsonl", BLIMP.encode() + b'{"sentence_good": "It is."}\n', "line 2"),
        ("a.jsonl", BLIMP.replace('"It is."', "3").encode(), "line 1"),
    ],
)
def test_wrong_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        read_pairs(tmp_path / name)


# ---- Scores ----
def test_pairs_of_a_group_are_one_trial():
    pairs = [Pair("p", str(i // 2), f"right {i}", f"wrong {i}") for i in range(40)]
    shares, *_ = pair_tables(pairs, {"good": np.ones(40), "tied": np.zeros(40)})
    row = shares.rows[0]
    assert row["good"][1] < 0.9  # of 20, not of 40
    assert row["tied"][0] == 0.5
