"""From text to tokens: nothing is lost, nothing leaks, whatever the format of the files."""

import csv
import gzip
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from random_models import TOKENIZER, random_model
from story_files import (
    END,
    ODD_STORIES,
    STORIES,
    run_prepare,
    stories_in,
    write_jsonl,
    write_parquet,
    write_stories,
)

from nanostories.checkpoints.huggingface import save_hf
from nanostories.cli import UserError
from nanostories.corpus import sources, spool
from nanostories.corpus.token_files import (
    load_meta,
    load_meta_and_tokens,
    load_stories,
    text_identity,
)
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut, gpt2, learn_bpe
from prepare import Options, prepare


def test_round_trip_and_meta(tmp_path):
    train = ODD_STORIES + STORIES[:300]
    val = STORIES[300:320] + ["Only here: ñ 🦊."]
    train_file = write_jsonl(tmp_path / "train.jsonl", train)
    val_file = write_jsonl(tmp_path / "val.jsonl", val, "story")
    files = ("--input", train_file, "--val", val_file)
    run_prepare(*files, "--name", "x", "--vocab_size", 700, "--data_dir", tmp_path)
    directory = tmp_path / "x"
    assert stories_in(directory, "train") == train
    assert list(load_stories(directory, "train")[1]) == train
    assert stories_in(directory, "val") == val
    assert sorted(os.listdir(directory)) == ["meta.json", "train.bin", "val.bin"]

    meta, tokens = load_meta_and_tokens(directory, "val")
    assert isinstance(tokens, np.memmap)
    assert meta["source"] == [str(train_file), str(val_file)]
    assert (meta["name"], meta["seed"], meta["vocab_size"]) == ("x", 0, 700)
    data = (directory / "val.bin").read_bytes()
    assert Tokenizer(**meta["vocabulary"]).encode_stories(val).tobytes() == data
    assert meta["splits"]["val"] == {
        "stories": len(val),
        "tokens": len(data) // 2,
        "bytes": len("".join(val).encode()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


def test_vocabulary_is_learned_from_train_alone(tmp_path):
    """What the training stories give, however much the validation stories would change it. And the
    same stories are known again in any vocabulary."""
    train = STORIES[:200]
    val = [f"Zebra zoo {i} wizard jazz quiz!" for i in range(400)]
    counts = np.bincount(gpt2().encode_stories(train), minlength=GPT2_VOCAB_SIZE)
    for kind, expected in (("cut", cut(counts, 280)), ("bpe", learn_bpe(train, 280))):
        prepare(tmp_path / kind, [], train, val, Options(kind, vocab_size=280))
        assert load_meta(tmp_path / kind)["vocabulary"] == expected.vocabulary
        assert stories_in(tmp_path / kind, "val") == val
    prepare(tmp_path / "other", [], train, val[1:], Options(vocab_size=280))
    identity = text_identity(tmp_path / "cut")
    assert identity == text_identity(tmp_path / "bpe") != text_identity(tmp_path / "other")
    assert text_identity(tmp_path / "gone") == tmp_path / "gone"


def prepared_stories(data_dir: Path, source: Path, *flags) -> list[str]:
    """Of both splits, sorted, by the command line."""
    to = ("--name", "x", "--vocab_size", 300, "--data_dir", data_dir)
    run_prepare("--input", source, *flags, *to)
    return sorted(stories_in(data_dir / "x", "train") + stories_in(data_dir / "x", "val"))


@pytest.mark.parametrize("ending", [".txt.gz", ".tsv", ".csv.gz", ".jsonl.gz", ".json", ".parquet"])
def test_every_kind_of_file_gives_the_same_stories(tmp_path, ending):
    """Of the column that is named, also where there is a column "text"; from all files of a
    folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    stories = [story for story in STORIES + ODD_STORIES if END not in story]
    for i, part in enumerate((stories[:200], stories[200:])):
        path = folder / f"{i}{ending}"
        if ".txt" in ending:
            write_stories(path, part)
        elif ".jsonl" in ending:
            write_jsonl(path, part, "body")
        elif ".json" in ending:
            path.write_text(json.dumps([{"body": story} for story in part], indent=1))
        elif ".csv" in ending or ".tsv" in ending:
            with path.open("w", encoding="utf-8-sig", newline="") as file:
                csv.writer(file).writerows([["text", "body"], *(["no story", x] for x in part)])
        else:
            write_parquet(path, [*part, None], "body")
        if path.suffix == ".gz":
            path.write_bytes(gzip.compress(path.read_bytes()))
    if ".txt" in ending:
        assert prepared_stories(tmp_path, folder) == sorted(stories)
        return
    assert prepared_stories(tmp_path, folder, "--column", "body") == sorted(stories)
    with pytest.raises(SystemExit, match=f"0{ending}: no story in .*--column"):
        prepared_stories(tmp_path, folder, "--column", "Body")
    write_jsonl(folder / "others.jsonl", ["Of another file."], "tale")
    found = prepared_stories(tmp_path, folder, "--column", "body", "tale")
    assert found == sorted([*stories, "Of another file."])


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_cells_are_separated_as_spreadsheets_do(tmp_path, delimiter):
    path = tmp_path / "stories.csv"
    stories = [story for story in STORIES if END not in story]
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        rows = [["number", "text"], *([i, story] for i, story in enumerate(stories))]
        csv.writer(file, delimiter=delimiter).writerows(rows)
    assert prepared_stories(tmp_path, path) == sorted(stories)
    named = "no tale in its columns number, text; --column"
    with pytest.raises(SystemExit, match=named):
        prepared_stories(tmp_path, path, "--column", "tale")


def test_copies_with_other_line_breaks_are_copies(tmp_path):
    """In whichever split the first of them is."""
    stories = [f"Tom {i} ran. Sue {i} sat. The dog {i} slept." for i in range(100)]
    broken = [story.replace(". ", ".\n") for story in stories]
    path = write_stories(tmp_path / "t.txt", stories + broken)
    assert prepared_stories(tmp_path, path, "--val_share", "0.5") == sorted(stories)


def test_utf16_with_its_mark_is_read(tmp_path, capsys):
    path = write_stories(tmp_path / "t.txt", STORIES)
    stories = prepared_stories(tmp_path, path)
    path.write_bytes(path.read_bytes().decode().encode("utf-16"))
    assert prepared_stories(tmp_path, path) == stories
    assert "the first story begins: " in capsys.readouterr().out


def test_text_is_cut_rightly_wherever_a_block_ends(tmp_path):
    """Separators and many-byte characters that lie across the blocks that are read; a byte order
    mark."""
    stories = [f"Ünï 🐉 {i} " + "é" * (i % 7) + "." for i in range(60_000)]  # 2 MB
    path = write_stories(tmp_path / "t.txt", stories)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [piece.strip() for piece in sources.read_files([path])] == stories


def test_stories_between_any_separator(tmp_path):
    """Also in several of them at once, and with groups in the pattern."""
    stories = [f"Story {i} is short. The end." for i in range(200)]
    chapters = [f"Chapter {i}.\r\n{story}\r\n" for i, story in enumerate(stories)]
    (tmp_path / "x.txt").write_bytes("".join(chapters).encode())
    flags = ("--split_on", r"^(Chapter \d+\.)\n")  # which suits files of Windows, too
    assert prepared_stories(tmp_path, tmp_path / "x.txt", *flags) == sorted(stories)


def test_same_bytes_whatever_the_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(spool, "STORIES_PER_CALL", 3)  # many, which could overtake each other
    metas = []
    for threads in (1, 3):
        monkeypatch.setattr(spool, "THREADS", threads)
        prepare(tmp_path / "x", [], STORIES + ODD_STORIES, None, Options(vocab_size=500))
        metas.append(load_meta(tmp_path / "x"))
    assert metas[0] == metas[1]


def test_split_by_hash(tmp_path):
    """About the share asked for; the same stories in any order; others for another seed; copies in
    one split."""

    def validation_stories(stories: list[str], seed: int) -> set[str]:
        options = Options(vocab_size=300, val_share=0.2, seed=seed)
        prepare(tmp_path / "x", [], stories, None, options)
        val = stories_in(tmp_path / "x", "val")
        assert sorted(stories_in(tmp_path / "x", "train") + val) == sorted(STORIES)
        return set(val)

    val = validation_stories(STORIES, seed=0)
    assert validation_stories(STORIES[::-1] + STORIES[:300], seed=0) == val
    assert validation_stories(STORIES, seed=1) != val
    assert 80 < len(val) < 160  # 120 ± 4 standard deviations


def test_raw_keeps_every_story_in_the_order_of_the_file(tmp_path):
    train = ["  Not clean \r\nand cut", "Twice.", "donâ€™t", "Twice.", *STORIES[:50]]
    train_file = write_stories(tmp_path / "train.txt", [*train[:2], " ", *train[2:]])
    val_file = write_stories(tmp_path / "val.txt", train)
    to = ("--vocab_size", 300, "--name", "x", "--data_dir", tmp_path)
    run_prepare("--input", train_file, "--val", val_file, "--raw", *to)
    assert stories_in(tmp_path / "x", "train") == stories_in(tmp_path / "x", "val") == train
    meta = load_meta(tmp_path / "x")
    counts = {step: n for step, n in meta["cleaning"].items() if n}
    assert meta["raw"] and counts == {"stories read": 2 * len(train) + 1, "empty dropped": 1}


def test_a_builtin_corpus_with_the_vocabulary_of_a_model(tmp_path):
    """By default about 250 of its stories are for validation."""
    model = random_model(vocab_size=3000, n_layer=1, n_embd=4)
    save_hf(model, tmp_path / "model", TOKENIZER)
    flags = ("--vocabulary_of", f"hf:{tmp_path / 'model'}", "--data_dir", tmp_path)
    run_prepare("builtin", "--stories", 1000, "--name", "x", *flags)
    meta = load_meta(tmp_path / "x")
    assert meta["vocabulary"] == TOKENIZER.vocabulary
    assert 200 < meta["splits"]["val"]["stories"] < 300


@pytest.fixture
def hub_directory(tmp_path, monkeypatch):
    """What was downloaded from the hub."""
    pytest.importorskip("pyarrow")
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(sources, "from_hub", lambda *args, **others: tmp_path)
    return tmp_path


def test_parquet_corpora_of_the_hub(hub_directory):
    """The published files' names and columns."""
    data = hub_directory / "data"
    write_parquet(data / "train-00000-of-00002.parquet", STORIES[:200], "story")
    write_parquet(data / "test-00000-of-00001.parquet", STORIES[400:450], "story")
    write_parquet(data / "processed.parquet", STORIES[450:], "story")
    with pytest.raises(UserError, match="not all files data/train-"):
        sources.download("simplestories")
    write_parquet(data / "train-00001-of-00002.parquet", STORIES[200:400], "story")
    addresses, train, val = sources.download("simplestories")
    assert list(train) == STORIES[:400] and list(val) == STORIES[400:450]
    assert len(addresses) == 3 and addresses[0].endswith("00000-of-00002.parquet")


def test_one_parquet_file_that_holds_both_splits(hub_directory):
    """After 10,000 test stories, 10,000 for validation."""
    stories = [f"Story {i}." for i in range(20_100)]
    write_parquet(hub_directory / "tinystories_gpt4_clean.parquet", stories)
    addresses, train, val = sources.download("tinystories-clean")
    assert len(addresses) == 1
    assert list(train) == stories[20_000:] and list(val) == stories[10_000:20_000]


@pytest.mark.slow
def test_input_streams_through(tmp_path):
    """24 MB of text in a process of its own: the peak of memory hardly moves from that of 3 MB."""
    show_peak = (
        "import prepare; prepare.main();"
        " print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    )
    peaks = []
    for n in (3_000, 24_000):
        texts = [f"Story {i}. " + "They ran and ran all day long. " * 32 for i in range(n)]
        source = write_stories(tmp_path / f"{n}.txt", texts)
        args = ["--input", source, "--name", f"n{n}", "--data_dir", tmp_path / "data"]
        command = [sys.executable, "-c", show_peak, *args]
        said = subprocess.check_output(command, cwd=ROOT, text=True)
        peaks.append(int(said.split()[-1]) // 1024)  # MB
    assert peaks[1] - peaks[0] < 16


def test_of_many_files_the_smallest_and_the_largest_are_named(tmp_path, capfd):
    (tmp_path / "texts").mkdir()
    for i in range(30):
        write_stories(tmp_path / "texts" / f"{i}.txt", STORIES[10 * i : 10 * i + 2 + i % 9])
    run_prepare("--input", tmp_path / "texts", "--name", "x", "--data_dir", tmp_path)
    shown = capfd.readouterr().out
    assert "30 files" in shown and "from 2 (" in shown and "to 10 (" in shown
