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
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["meta.json", "train.bin", "val.bin"]

    meta, tokens = load_meta_and_tokens(directory, "val")
    assert isinstance(tokens, np.memmap)
    assert meta["name"] == "x"
    assert meta["source"] == [str(train_file), str(val_file)]
    assert meta["seed"] == 0
    assert meta["vocab_size"] == 700
    assert len(meta["vocabulary"]["tokens"]) == 699
    data = (directory / "val.bin").read_bytes()
    assert Tokenizer(**meta["vocabulary"]).encode_stories(val).tobytes() == data
    assert meta["splits"]["val"] == {
        "stories": len(val),
        "tokens": len(data) // 2,
        "bytes": len("".join(val).encode()),
        "sha256": hashlib.sha256(data).hexdigest(),
    }


@pytest.mark.parametrize("kind", ["cut", "bpe"])
def test_vocabulary_is_learned_from_train_alone(tmp_path, kind):
    """What the training stories give, however much the validation stories would change it."""
    train = STORIES[:200]
    val = [f"Zebra zoo {i} wizard jazz quiz!" for i in range(400)]
    prepare(tmp_path / "x", [], train, val, Options(kind, vocab_size=280))
    counts = np.bincount(gpt2().encode_stories(train), minlength=GPT2_VOCAB_SIZE)
    expected = cut(counts, 280) if kind == "cut" else learn_bpe(train, 280)
    assert load_meta(tmp_path / "x")["vocabulary"] == expected.vocabulary
    assert stories_in(tmp_path / "x", "val") == val


@pytest.mark.parametrize("ending", [".txt.gz", ".jsonl", ".jsonl.gz", ".parquet"])
def test_every_kind_of_file_gives_the_same_data(tmp_path, ending):
    stories = [story for story in STORIES + ODD_STORIES if END not in story]
    plain = write_stories(tmp_path / "plain.txt", stories)
    data = plain.read_bytes()
    if "jsonl" in ending:
        data = write_jsonl(tmp_path / "a.jsonl", stories).read_bytes()
    if ending == ".parquet":
        data = write_parquet(tmp_path / "a.parquet", [*stories, None]).read_bytes()
    if ending.endswith(".gz"):
        data = gzip.compress(data)
    path = tmp_path / f"stories{ending}"
    path.write_bytes(data)
    to = ("--vocab_size", 400, "--val_share", 0.1, "--data_dir", tmp_path)
    run_prepare("--input", path, "--name", "one", *to)
    run_prepare("--input", plain, "--name", "two", *to)
    found = stories_in(tmp_path / "one", "train") + stories_in(tmp_path / "one", "val")
    assert sorted(found) == sorted(stories)
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_the_same_stories_are_known_again_in_any_vocabulary(tmp_path):
    for name, kind, seed in (("a", "cut", 0), ("b", "bpe", 0), ("c", "cut", 1)):
        options = Options(kind, vocab_size=280, val_share=0.2, seed=seed)
        prepare(tmp_path / name, ["x.txt"], STORIES[:99], None, options)
    a, b, c, gone = (text_identity(tmp_path / name) for name in "abcd")
    assert a == b != c and gone == tmp_path / "d"


def test_text_is_cut_rightly_wherever_a_block_ends(tmp_path):
    """Separators and many-byte characters that lie across the blocks that are read; a byte order
    mark."""
    stories = [f"Ünï 🐉 {i} " + "é" * (i % 7) + "." for i in range(120_000)]  # 4 MB
    path = write_stories(tmp_path / "t.txt", stories)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [piece.strip() for piece in sources.read_files([path])] == stories


def test_stories_between_any_separator(tmp_path, capsys):
    """Also in several of them at once, and with groups in the pattern; short ones are doubted."""
    stories = [f"Story {i} is short. The end." for i in range(200)]
    chapters = [f"Chapter {i}\r\n{story}\r\n" for i, story in enumerate(stories)]
    (tmp_path / "a.txt").write_text(f"\n{END}\n".join(stories))
    (tmp_path / "b.txt").write_bytes("".join(chapters).encode())
    run_prepare("--input", tmp_path / "a.txt", "--name", "a", "--data_dir", tmp_path)
    said = capsys.readouterr().out
    assert "tokens on average" in said and "unseen texts" not in said
    split_on = ("--split_on", r"^(Chapter|Part) \d+\s*$")
    run_prepare("--input", tmp_path / "b.txt", "--name", "b", "--data_dir", tmp_path, *split_on)
    said = capsys.readouterr().out
    assert "tokens on average" in said and "unseen texts" in said
    assert (tmp_path / "a/train.bin").read_bytes() == (tmp_path / "b/train.bin").read_bytes()


def test_warnings_name_the_remedy(tmp_path, capsys):
    """Long stories, five that were cut off, few for validation."""
    stories = [f"{i} went on{' and on' * 150}." for i in range(50)]
    path = write_stories(tmp_path / "c.txt", [*stories, *(f"{i} broke" for i in range(5))])
    run_prepare("--input", path, "--name=c", "--data_dir", tmp_path, "--val_share=.3")
    said = capsys.readouterr().out
    assert "WARNING 5 stories" in said and "=512" in said and "share 0.5" in said


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
        prepare(tmp_path / f"{len(stories)}-{seed}", [], stories, None, options)
        train = stories_in(tmp_path / f"{len(stories)}-{seed}", "train")
        val = stories_in(tmp_path / f"{len(stories)}-{seed}", "val")
        assert sorted(train + val) == sorted(STORIES)
        return set(val)

    val = validation_stories(STORIES, seed=0)
    assert validation_stories(STORIES[::-1] + STORIES[:300], seed=0) == val
    assert validation_stories(STORIES, seed=1) != val
    assert 80 < len(val) < 160  # 120 ± 4 standard deviations


def test_the_share_of_a_builtin_corpus_is_as_asked(tmp_path):
    """By default, about 250 stories."""
    sizes = {}
    for name, flags in (("default", ()), ("asked", ("--val_share", 0.02))):
        run_prepare("builtin", "--stories", 1000, "--name", name, "--data_dir", tmp_path, *flags)
        sizes[name] = load_meta(tmp_path / name)["splits"]["val"]["stories"]
    assert 200 < sizes["default"] < 300
    assert 5 < sizes["asked"] < 40


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


@pytest.mark.parametrize(
    "tokenizer", [cut(np.arange(GPT2_VOCAB_SIZE), 500), learn_bpe(SCRIPTS, 400)]
)
def test_a_corpus_with_the_vocabulary_of_a_model(tmp_path, tokenizer):
    config = GPTNeoConfig(tokenizer.vocab_size, 8, n_layer=1, n_head=1, n_embd=4)
    save_hf(GPTNeo(config), tmp_path / "model", tokenizer)
    flags = ("--vocabulary_of", f"hf:{tmp_path / 'model'}", "--data_dir", tmp_path)
    run_prepare("builtin", "--stories", 300, "--name", "x", *flags)
    assert load_meta(tmp_path / "x")["vocabulary"] == tokenizer.vocabulary


def prepare_from_hub(hub, folder, corpus) -> Path:
    command = [sys.executable, ROOT / "prepare.py", corpus, "--vocab_size", "300"]
    environment = hub.environment(folder / "cache")
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "data" / corpus


def test_parquet_corpora_of_the_hub(hub, tmp_path):
    """The published files' names and columns; what is not asked for is not downloaded."""
    shards = {
        "data/train-00000-of-00002": STORIES[:200],
        "data/train-00001-of-00002": STORIES[200:400],
        "data/test-00000-of-00001": STORIES[400:450],
        "processed": STORIES[450:],
    }
    files = {}
    for name, stories in shards.items():
        path = write_parquet(tmp_path / "x.parquet", stories, "story")
        files[f"{name}.parquet"] = path.read_bytes()
    hub.repositories["datasets/SimpleStories/SimpleStories"] = files
    directory = prepare_from_hub(hub, tmp_path, "simplestories")
    assert stories_in(directory, "train") == STORIES[:400]
    assert stories_in(directory, "val") == STORIES[400:450]
    first, *others = load_meta(directory)["source"]
    assert len(others) == 2 and first.endswith("00000-of-00002.parquet")
    assert not [request for request in hub.requests if "processed" in request["path"]]

    stories = [f"Story {i}." for i in range(20_100)]
    path = write_parquet(tmp_path / "x.parquet", stories)
    files = {"tinystories_gpt4_clean.parquet": path.read_bytes()}
    hub.repositories["datasets/karpathy/tinystories-gpt4-clean"] = files
    directory = prepare_from_hub(hub, tmp_path, "tinystories-clean")
    assert stories_in(directory, "train") == stories[20_000:]
    assert stories_in(directory, "val") == stories[10_000:20_000]
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
