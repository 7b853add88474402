"""From text to tokens: nothing is lost, nothing leaks, whatever the format of the files."""

import collections
import csv
import gzip
import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT
from random_models import TOKENIZER, random_model
from story_files import (
    END,
    ODD_STORIES,
    STORIES,
    prepared_stories,
    run_prepare,
    stories_in,
    write_jsonl,
    write_parquet,
    write_stories,
)

from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus import sources, spool
from nanostories.corpus.token_files import load_meta, load_stories, text_identity
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, cut, gpt2, learn_bpe
from prepare import Options, clean_and_split, prepare


def test_round_trip_and_meta(tmp_path):
    train = ODD_STORIES + STORIES[:300]
    val = STORIES[300:320] + ["Only here: ñ 🦊."]
    train_file = write_jsonl(tmp_path / "train.jsonl", train)
    val_file = write_jsonl(tmp_path / "val.jsonl", val, "story")
    files = ("--input", train_file, "--val", val_file)
    run_prepare(*files, "--name", "x", "--vocab_size", 700, "--data_dir", tmp_path)
    directory = tmp_path / "x"
    assert stories_in(directory, "train") == train
    assert stories_in(directory, "val") == val

    meta, stories = load_stories(directory, "train")
    assert list(stories) == train
    assert meta["source"] == [str(train_file), str(val_file)]
    data = (directory / "val.bin").read_bytes()
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
    prepare(tmp_path / "other", [], train, val[1:], Options(vocab_size=280))
    identity = text_identity(tmp_path / "cut")
    assert identity == text_identity(tmp_path / "bpe") != text_identity(tmp_path / "other")


DELIMITERS = {".csv": ",", ".csv.gz": ";", ".tsv": "\t"}  # as spreadsheets write them


@pytest.mark.parametrize("ending", [*DELIMITERS, ".jsonl.gz", ".json", ".parquet"])
def test_every_kind_of_file_gives_the_same_stories(tmp_path, ending):
    """Of the column that is named, also where there is a column "text"; and from all files of a
    folder."""
    folder = tmp_path / "mine"
    folder.mkdir()
    stories = STORIES + ODD_STORIES
    path = folder / f"0{ending}"
    if ".jsonl" in ending:
        write_jsonl(path, stories, "body")
    elif ".json" in ending:
        path.write_text(json.dumps([{"body": story} for story in stories], indent=1))
    elif ending in DELIMITERS:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.writer(file, delimiter=DELIMITERS[ending])
            writer.writerows([["text", "body"], *(["no story", story] for story in stories)])
    else:
        write_parquet(path, [*stories, None], "body")
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SystemExit, match=f"0{ending}: no story under tale, .*: --column"):
        prepared_stories(tmp_path, folder, "--column", "tale")
    write_jsonl(folder / "others.jsonl", ["Of another file."], "tale")
    found = prepared_stories(tmp_path, folder, "--column", "body", "tale")
    assert found == sorted([*stories, "Of another file."])


def test_a_column_by_itself_and_files_of_other_systems(tmp_path):
    """A .tsv in which only stories have commas; a folder with capital endings and a Mac's files."""
    folder = tmp_path / "mine"
    (folder / "x.csv").mkdir(parents=True)
    (folder / "._A.TXT").write_bytes(b"\0\5\xff")
    (folder / "A.TXT").write_text("A fox, and a hen.")
    (folder / "b.tsv").write_text("text\nOne day, a fox ran.\n")
    found = list(sources.read_files(sources.files_in([folder])))
    assert found == ["A fox, and a hen.", "One day, a fox ran."]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_text_is_cut_rightly_wherever_a_block_ends(tmp_path, encoding):
    """Separators and many-byte characters that lie across the blocks that are read; a byte order
    mark."""
    stories = [f"Ünï 🐉 {i} " + "é" * (i % 8) + "." for i in range(120_000)]  # 4 MB
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(END.join(stories).encode(encoding), 1))
    assert list(sources.read_files([path])) == stories


def test_stories_between_any_separator(tmp_path):
    """Also in several of them at once, and with groups in the pattern."""
    stories = [f"Story {i} is short. The end." for i in range(200)]
    path = tmp_path / "x.txt"
    path.write_bytes(b"".join(f"Chapter 7.\r\n{story}\r\n".encode() for story in stories))
    pattern = r"^(Chapter \d+\.)\n"  # which suits files of Windows, too
    assert prepared_stories(tmp_path, path, "--split_on", pattern) == sorted(stories)


def test_same_ids_whatever_the_threads(monkeypatch):
    monkeypatch.setattr(spool, "STORIES_PER_CALL", 3)  # many, which could overtake each other
    monkeypatch.setattr(spool, "THREADS", 3)
    ids = np.concatenate(list(spool.encode(iter(STORIES), TOKENIZER)))
    assert (ids == TOKENIZER.encode_stories(STORIES)).all()


def test_split_by_hash():
    """About the share asked for; the same stories in any order; others for another seed; of copies
    the first, whatever their line breaks."""
    copies = [story.replace("\n", " ") for story in STORIES]

    def validation_stories(stories: list[str], seed: int) -> set[str]:
        options = Options(val_share=0.2, seed=seed)
        kept = list(clean_and_split(stories, None, options, collections.Counter()))
        assert sorted(text for _, text in kept) == sorted(STORIES)
        return {text for split, text in kept if split == "val"}

    val = validation_stories(STORIES, seed=0)
    assert validation_stories(STORIES[::-1] + copies, seed=0) == val
    assert validation_stories(STORIES, seed=1) != val
    assert 80 < len(val) < 160  # 120 ± 4 standard deviations


def test_raw_keeps_every_story_in_the_order_of_the_file(tmp_path):
    train = ["  Not clean \r\nand cut", "Twice.", "donâ€™t", "Twice.", *STORIES[:50]]
    train_file = write_stories(tmp_path / "train.txt", [*train, " "])
    val_file = write_stories(tmp_path / "val.txt", train)
    prepared_stories(tmp_path, train_file, "--val", val_file, "--raw")
    assert stories_in(tmp_path / "x", "train") == stories_in(tmp_path / "x", "val") == train


def test_a_builtin_corpus_with_the_vocabulary_of_a_model(tmp_path):
    save_hf(random_model(vocab_size=3000, n_layer=1, n_embd=4), tmp_path, TOKENIZER)
    flags = ("--vocabulary_of", f"hf:{tmp_path}", "--data_dir", tmp_path)
    run_prepare("builtin", "--stories", 1000, *flags)
    assert load_meta(tmp_path / "builtin")["vocabulary"] == TOKENIZER.vocabulary


def test_parquet_corpora_of_the_hub(tmp_path, monkeypatch):
    """The published files' names and columns; one file may hold both splits, after 10,000 stories
    for a test 10,000 for validation."""
    monkeypatch.setattr(sources, "from_hub", lambda *args, **others: tmp_path)
    data = tmp_path / "data"
    data.mkdir()
    write_parquet(data / "train-00000-of-00002.parquet", STORIES[:200], "story")
    write_parquet(data / "test-00000-of-00001.parquet", STORIES[400:], "story")
    write_parquet(data / "train-00001-of-00002.parquet", STORIES[200:400], "story")
    addresses, train, val = sources.download("simplestories")
    assert list(train) == STORIES[:400] and list(val) == STORIES[400:]
    assert addresses[0].endswith("SimpleStories/resolve/main/data/train-00000-of-00002.parquet")

    stories = [f"Story {i}." for i in range(20_100)]
    write_parquet(tmp_path / "tinystories_gpt4_clean.parquet", stories)
    _, train, val = sources.download("tinystories-clean")
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
        source = write_stories(tmp_path / "x.txt", texts)
        args = ["--input", source, "--name", f"n{n}", "--data_dir", tmp_path]
        said = subprocess.check_output([sys.executable, "-c", show_peak, *args], cwd=ROOT)
        peaks.append(int(said.split()[-1]) // 1024)  # MB
    assert peaks[1] - peaks[0] < 16
