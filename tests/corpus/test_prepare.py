"""From text to tokens: nothing is lost, nothing leaks, whatever the format of the files."""

import gzip
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
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
from tokenizer_texts import SCRIPTS

import prepare
from model import GPTNeo, GPTNeoConfig
from nanostories.checkpoints.huggingface import save_hf
from nanostories.corpus import sources, spool
from nanostories.corpus.token_files import (
    load_meta,
    load_meta_and_tokens,
    load_stories,
    text_identity,
)
from nanostories.corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut, gpt2, learn_bpe


def test_round_trip_and_meta(tmp_path):
    train, val = ODD_STORIES + STORIES[:300], STORIES[300:320] + ["Only here: ñ 🦊."]
    paths = [
        write_jsonl(tmp_path / "train.jsonl", train),
        write_jsonl(tmp_path / "val.jsonl", val, "story"),
    ]
    run_prepare(
        "--input",
        paths[0],
        "--val",
        paths[1],
        "--name",
        "x",
        "--vocab_size",
        700,
        "--data_dir",
        tmp_path,
    )
    directory = tmp_path / "x"
    assert stories_in(directory, "train") == train == list(load_stories(directory, "train")[1])
    assert stories_in(directory, "val") == val

    assert sorted(path.name for path in directory.iterdir()) == [
        "meta.json",
        "train.bin",
        "val.bin",
    ]
    meta, tokens = load_meta_and_tokens(directory, "val")
    assert (meta["name"], meta["source"], meta["seed"]) == ("x", list(map(str, paths)), 0)
    assert (
        meta["vocab_size"] == 700
        and len(meta["vocabulary"]["tokens"]) == 699
        and isinstance(tokens, np.memmap)
    )
    data = (directory / "val.bin").read_bytes()
    assert Tokenizer(**meta["vocabulary"]).encode_stories(val).tobytes() == data
    counts = dict(stories=len(val), tokens=len(data) // 2, bytes=len("".join(val).encode()))
    assert meta["splits"]["val"] == counts | dict(sha256=hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("kind", ["cut", "bpe"])
def test_vocabulary_is_learned_from_train_alone(tmp_path, kind):
    """What the training stories give, however much the validation stories would change it."""
    train, val = STORIES[:200], [f"Zebra zoo {i} wizard jazz quiz!" for i in range(400)]
    prepare.prepare(tmp_path / "x", [], train, val, vocab_size=280, vocabulary=kind)
    whole = gpt2()
    counts = sum(np.bincount(whole.encode(story), minlength=GPT2_VOCAB_SIZE) for story in train)
    expected = cut(counts, 280) if kind == "cut" else learn_bpe(train, 280)
    assert load_meta(tmp_path / "x")["vocabulary"] == expected.vocabulary
    assert stories_in(tmp_path / "x", "val") == val


@pytest.mark.parametrize("ending", [".txt.gz", ".jsonl", ".jsonl.gz", ".parquet"])
def test_every_kind_of_file_gives_the_same_data(tmp_path, ending):
    stories = [story for story in STORIES + ODD_STORIES if END not in story]
    plain = write_stories(tmp_path / "plain.txt", stories)
    text = plain.read_bytes()
    if "jsonl" in ending:
        text = write_jsonl(tmp_path / "a.jsonl", stories).read_bytes()
    if ending == ".parquet":
        text = write_parquet(tmp_path / "a.parquet", [*stories, None]).read_bytes()
    (path := tmp_path / f"stories{ending}").write_bytes(
        gzip.compress(text) if ending.endswith(".gz") else text
    )
    for name, source in (("one", path), ("two", plain)):
        run_prepare(
            "--input",
            source,
            "--name",
            name,
            "--vocab_size",
            400,
            "--data_dir",
            tmp_path,
            "--val_share",
            0.1,
        )
    assert sorted(
        stories_in(tmp_path / "one", "train") + stories_in(tmp_path / "one", "val")
    ) == sorted(stories)
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_same_stories_are_known_again_in_any_vocabulary(tmp_path):
    for name, kind, seed in (("a", "cut", 0), ("b", "bpe", 0), ("c", "cut", 1)):
        prepare.prepare(
            tmp_path / name, ["x.txt"], STORIES[:99], None, 280, 0.2, seed, vocabulary=kind
        )
    a, b, c, gone = (text_identity(tmp_path / name) for name in "abcd")
    assert a == b != c and gone == tmp_path / "d"


def test_text_is_cut_rightly_wherever_a_block_ends(tmp_path):
    """Separators and many-byte characters that lie across the blocks that are read; a byte order
    mark."""
    stories = [f"Ünï 🐉 {i} " + "é" * (i % 7) + "." for i in range(120_000)]  # 4 MB
    path = write_stories(tmp_path / "t.txt", stories)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [piece.strip() for piece in sources.read_stories(path)] == stories


def test_stories_between_any_separator(tmp_path, capsys):
    """Also in several of them at once, and with groups in the pattern; short ones are doubted, long
    ones need room."""
    stories = [f"Story {i} is short. The end." for i in range(200)]
    (tmp_path / "a.txt").write_text(f"\n{END}\n".join(stories))
    (tmp_path / "b.txt").write_bytes(
        "".join(f"Chapter {i}\r\n{story}\r\n" for i, story in enumerate(stories)).encode()
    )
    for name, *more in (("a",), ("b", "--split_on", r"^(Chapter|Part) \d+\s*$")):
        run_prepare(
            "--input", tmp_path / f"{name}.txt", "--name", name, "--data_dir", tmp_path, *more
        )
        assert "tokens on average" in (said := capsys.readouterr().out) and (
            "unseen texts" in said
        ) == bool(more)
    assert (tmp_path / "a" / "train.bin").read_bytes() == (
        tmp_path / "b" / "train.bin"
    ).read_bytes()
    odd = [f"{i} went on{' and on' * 150}." for i in range(50)] + [f"{i} broke" for i in range(5)]
    run_prepare(
        "--input",
        write_stories(tmp_path / "c.txt", odd),
        "--name=c",
        "--data_dir",
        tmp_path,
        "--val_share=.3",
    )
    assert (
        "WARNING 5 stories" in (said := capsys.readouterr().out)
        and "=512" in said
        and "share 0.5" in said
    )


def test_same_bytes_whatever_the_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(
        spool, "STORIES_PER_CHUNK", 3
    )  # many chunks, which could overtake each other
    for threads in (1, 3):
        prepare.prepare(
            tmp_path / f"{threads}",
            [],
            STORIES + ODD_STORIES,
            None,
            vocab_size=500,
            threads=threads,
        )
    metas = [{**load_meta(tmp_path / name), "name": ""} for name in "13"]
    assert metas[0] == metas[1]


def test_split_by_hash(tmp_path):
    """About the share asked for; the same stories in any order; others for another seed; copies in
    one split."""
    splits = {}
    for name, stories, seed in (
        ("a", STORIES, 0),
        ("b", STORIES[::-1] + STORIES[:300], 0),
        ("c", STORIES, 1),
    ):
        prepare.prepare(
            tmp_path / name, [], stories, None, vocab_size=300, val_share=0.2, seed=seed
        )
        train, val = (stories_in(tmp_path / name, split) for split in ("train", "val"))
        assert sorted(train + val) == sorted(STORIES)
        splits[name] = set(val)
    assert splits["a"] == splits["b"] != splits["c"]
    assert 80 < len(splits["a"]) < 160  # 120 ± 4 standard deviations


def test_raw_keeps_every_story_in_the_order_of_the_file(tmp_path):
    train = ["  Not clean \r\nand cut", "Twice.", "donâ€™t", "Twice.", *STORIES[:50]]
    paths = [
        write_stories(tmp_path / "train.txt", [*train[:2], " ", *train[2:]]),
        write_stories(tmp_path / "val.txt", train),
    ]
    args = ("--input", paths[0], "--val", paths[1], "--vocab_size", 300, "--data_dir", tmp_path)
    run_prepare(*args, "--name", "x", "--raw")
    assert stories_in(tmp_path / "x", "train") == stories_in(tmp_path / "x", "val") == train
    meta = load_meta(tmp_path / "x")
    assert meta["raw"] and {key: n for key, n in meta["cleaning"].items() if n} == {
        "stories read": 2 * len(train) + 1,
        "empty dropped": 1,
    }


@pytest.mark.parametrize(
    "tokenizer", [cut(np.arange(GPT2_VOCAB_SIZE), 500), learn_bpe(SCRIPTS, 400)]
)
def test_a_corpus_with_the_vocabulary_of_a_model(tmp_path, tokenizer):
    save_hf(
        GPTNeo(GPTNeoConfig(tokenizer.vocab_size, 8, n_layer=1, n_head=1, n_embd=4)),
        tmp_path / "model",
        tokenizer,
    )
    model = f"hf:{tmp_path / 'model'}"
    run_prepare(
        "builtin", "--stories", 300, "--name", "x", "--vocabulary_of", model, "--data_dir", tmp_path
    )
    assert load_meta(tmp_path / "x")["vocabulary"] == tokenizer.vocabulary


def prepare_from_hub(hub, folder, corpus) -> Path:
    command = [sys.executable, ROOT / "prepare.py", corpus, "--vocab_size", "300"]
    subprocess.run(
        command, cwd=folder, env=hub.environment(folder / "cache"), check=True, capture_output=True
    )
    return folder / "data" / corpus


def test_parquet_corpora_of_the_hub(hub, tmp_path):
    """The published files' names and columns; what is not asked for is not downloaded."""
    shards = {
        "data/train-00000-of-00002": STORIES[:200],
        "data/train-00001-of-00002": STORIES[200:400],
    }
    shards |= {"data/test-00000-of-00001": STORIES[400:450], "processed": STORIES[450:]}
    for name, stories in shards.items():
        shards[name] = write_parquet(tmp_path / "x.parquet", stories, "story").read_bytes()
    hub.repositories["datasets/SimpleStories/SimpleStories"] = {
        f"{name}.parquet": x for name, x in shards.items()
    }
    directory = prepare_from_hub(hub, tmp_path, "simplestories")
    assert (
        stories_in(directory, "train") == STORIES[:400]
        and stories_in(directory, "val") == STORIES[400:450]
    )
    first, *others = load_meta(directory)["source"]
    assert len(others) == 2 and first.endswith("00000-of-00002.parquet")
    assert not [request for request in hub.requests if "processed" in request["path"]]

    rows = [f"Story {i}." for i in range(20_100)]
    files = {
        "tinystories_gpt4_clean.parquet": write_parquet(tmp_path / "x.parquet", rows).read_bytes()
    }
    hub.repositories["datasets/karpathy/tinystories-gpt4-clean"] = files
    directory = prepare_from_hub(hub, tmp_path, "tinystories-clean")
    assert (
        stories_in(directory, "train") == rows[20_000:]
        and stories_in(directory, "val") == rows[10_000:20_000]
    )
    assert len(load_meta(directory)["source"]) == 1


def test_shards_that_are_missing_are_noticed(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(sources, "from_hub", lambda *args, **others: tmp_path)
    (tmp_path / "data").mkdir()
    write_parquet(tmp_path / "data" / "train-00000-of-00002.parquet", STORIES, "story")
    with pytest.raises(ValueError, match="not all files data/train-"):
        sources.download("simplestories")


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
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) // 1024)  # MB
    assert source.stat().st_size > 22e6 and peaks[1] - peaks[0] < 16
