"""probe.py --pairs: our pairs are balanced; scores are those of transformers."""

import collections
import math
import re

import numpy as np
import pytest
import torch
from conftest import ROOT
from grade_fixtures import read_by_transformers
from random_models import TOKENIZER, model_to_probe, save_run

import probe
from nanostories.checkpoints.huggingface import save_hf
from nanostories.checkpoints.models import open_model
from nanostories.cli import UserError
from nanostories.corpus.builtin_stories import PRONOUNS
from nanostories.grading.pairs import GRAMMAR, Pair, pair_tables, read_pairs
from nanostories.results import load

OURS = read_pairs(GRAMMAR)
REAL = ROOT.parent / "shared" / "data" / "tinystories-23mb" / "train.txt"


# ---- Our pairs ----
@pytest.fixture(scope="module")
def stories(instruct_data_dir) -> list[str]:
    from nanostories.corpus.token_files import load_stories

    return list(load_stories(instruct_data_dir / "builtin", "train")[1])


def words_and_marks(text: str) -> list[str]:
    return re.findall(r"\w+|[^\w\s]", text)


def test_who_counts_neighbors_of_words_scores_near_chance(stories):
    counts = collections.Counter()
    followed = collections.Counter()
    for story in stories:
        words = words_and_marks(story)
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


def test_our_sentences_are_forty_of_each():
    assert set(collections.Counter(pair.phenomenon for pair in OURS).values()) == {40}


@pytest.mark.skipif(not REAL.exists(), reason=f"no {REAL.name} of real stories in ../shared")
def test_real_stories_have_all_of_their_words():
    known = set(re.findall(r"\w+", REAL.read_text().lower())) | set(PRONOUNS)
    ours = " ".join(pair.right + " " + pair.wrong for pair in OURS)
    assert set(re.findall(r"\w+", ours.lower())) <= known


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
        ("a.txt", b"\xff\n\xff\n", "UTF-8"),
        ("a.jsonl", b"", "no pairs"),
        ("a.jsonl", BLIMP.encode() + b"{\n", "line 2"),
        ("a.jsonl", b'{"sentence_good": "It is."}\n', "line 1"),
        ("a.jsonl", BLIMP.replace('"It is."', "3").encode(), "line 1"),
    ],
)
def test_wrong_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}.*{message}"):
        read_pairs(tmp_path / name)


# ---- Scores ----
def test_verdicts_are_those_of_transformers(tmp_path):
    save_hf(model_to_probe(), tmp_path, TOKENIZER)
    theirs = read_by_transformers(tmp_path)
    texts = [text for pair in OURS[::5] for text in (pair.right, pair.wrong)]
    readings = [("", text) for text in texts]
    models = {"m": open_model(f"hf:{tmp_path}")}
    ((_, _, nats),) = probe.read_by_each(models, readings, ends=False)
    for text in texts:
        assert nats["", text].sum() == pytest.approx(sum(theirs("<|endoftext|>", text)), abs=1e-3)


def test_the_command_writes_shares_of_groups(command_line, tmp_path):
    """A model that prefers some words whatever stands before them is right in half of the pairs."""
    fixed = model_to_probe()
    torch.nn.init.zeros_(fixed.ln_f.weight)  # its bias alone meets the head
    save_run(tmp_path / "out" / "fixed", fixed)
    save_run(tmp_path / "out" / "random", model_to_probe())
    run = command_line(probe, tmp_path)
    assert run("out", "--pairs")[0] == 0
    shares, differences = load(tmp_path / "out" / "grammar.json").tables
    assert len(shares.rows) == 1 + 13 and shares.columns[1:] == ["fixed", "random"]
    assert all(row["fixed"][0] == 0.5 for row in shares.rows)
    assert differences.rows[0]["run"] == "fixed minus random"
    assert (tmp_path / "out" / "grammar.svg").exists()
    lines = (tmp_path / "out" / "grammar.csv").read_text().splitlines()
    assert len(lines) == 1 + len(OURS)


def test_pairs_of_a_group_are_one_trial():
    pairs = [Pair("p", str(i // 2), f"right {i}", f"wrong {i}") for i in range(40)]
    shares, *_ = pair_tables(pairs, {"good": np.ones(40), "tied": np.zeros(40)})
    row = shares.rows[0]
    assert row["good"][1] < 0.9  # of 20, not of 40
    assert row["tied"][0] == 0.5
