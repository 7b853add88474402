"""From text to tokens: nothing is lost, nothing leaks, whatever the format of the files."""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from story_files import END, ODD_STORIES, STORIES, misread, run_prepare, stories_in, write_jsonl, write_stories

from corpus import builtin_stories, instruct_headers, preparation, sources
from corpus.preparation import prepare_builtin
from corpus.token_files import load_meta, load_meta_and_tokens
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut, gpt2


def test_round_trip_and_meta(tmp_path):
    train, val = ODD_STORIES + STORIES[:300], STORIES[300:320] + ["Only here: ñ 🦊."]
    write_jsonl(tmp_path / "train.jsonl", train)
    write_jsonl(tmp_path / "val.json", val, "story")
    paths = [str(tmp_path / "train.jsonl"), str(tmp_path / "val.json")]
    run_prepare("--input", paths[0], "--val", paths[1], "--name", "x", "--vocab_size", 700, "--data_dir", tmp_path)
    directory = tmp_path / "x"
    assert stories_in(directory, "train") == train
    assert stories_in(directory, "val") == val

    assert sorted(path.name for path in directory.iterdir()) == ["meta.json", "train.bin", "val.bin"]
    meta = load_meta(directory)
    assert list(meta) == ["format", "name", "source", "seed", "vocab_size", "gpt2_ids", "splits", "cleaning"]
    assert (meta["format"], meta["name"], meta["source"]) == (1, "x", paths)
    assert meta["seed"] == 0 and meta["vocab_size"] == 700 and len(meta["gpt2_ids"]) == 699
    assert len((directory / "meta.json").read_text().splitlines()) < 50  # gpt2_ids stand on one line
    tokenizer = Tokenizer(meta["gpt2_ids"])
    for split, stories in (("train", train), ("val", val)):
        data = (directory / f"{split}.bin").read_bytes()
        assert meta["splits"][split] == {
            "stories": len(stories),
            "tokens": len(data) // 2,
            "bytes": len("".join(stories).encode()),
            "sha256": hashlib.sha256(data).hexdigest(),
        }
        assert load_meta_and_tokens(directory, split)[1].tolist() == tokenizer.encode_stories(stories).tolist()
    assert isinstance(load_meta_and_tokens(directory, "val")[1], np.memmap)


def test_vocabulary_is_learned_from_train_alone(tmp_path):
    """The cut that counts of the training stories give, however much the validation stories would change it."""
    train, val = STORIES[:200], [f"Zebra zoo {i} wizard jazz quiz!" for i in range(400)]
    write_stories(tmp_path / "t.txt", train)
    write_stories(tmp_path / "v.txt", val)
    run_prepare("--input", tmp_path / "t.txt", "--val", tmp_path / "v.txt", "--name", "x", "--vocab_size", 280,
        "--data_dir", tmp_path)  # fmt: skip
    whole = gpt2()
    counts = sum(np.bincount(whole.encode(story), minlength=GPT2_VOCAB_SIZE) for story in train)
    assert load_meta(tmp_path / "x")["gpt2_ids"] == cut(counts, 280).gpt2_ids
    counts += sum(np.bincount(whole.encode(story), minlength=GPT2_VOCAB_SIZE) for story in val)
    assert load_meta(tmp_path / "x")["gpt2_ids"] != cut(counts, 280).gpt2_ids


def test_sample_for_the_vocabulary_is_spread_over_all_of_train(tmp_path, monkeypatch):
    """Of a text ten times too long, every tenth chunk is counted, not the beginning."""
    spool = preparation.Spool(tmp_path / "spool")
    for i in range(2000):
        word = "castle" if i < 1000 else "pirate"
        spool.add(f"The {word}.", 11)
    monkeypatch.setattr(preparation, "SAMPLE_BYTES", spool.bytes // 4)
    seen = []
    encode = Tokenizer.encode_stories
    monkeypatch.setattr(Tokenizer, "encode_stories", lambda self, chunk: seen.extend(chunk) or encode(self, chunk))
    preparation.learn_vocabulary(spool, 300, threads=1)
    assert 300 < len(seen) < 700
    assert 0.3 < sum("pirate" in story for story in seen) / len(seen) < 0.7


@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".jsonl", ".jsonl.gz", ".json"])
def test_every_kind_of_file_gives_the_same_data(tmp_path, ending):
    stories = [story for story in STORIES + ODD_STORIES if END not in story]
    path = tmp_path / f"stories{ending}"
    text = write_stories(tmp_path / "a.txt", stories).read_bytes()
    if "jsonl" in ending:
        text = write_jsonl(tmp_path / "a.jsonl", stories).read_bytes()
    elif "json" in ending:  # an array, as in the data set's TinyStories_all_data
        text = json.dumps([{"story": story, "source": "GPT-4"} for story in stories], indent=1).encode()
    path.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
    write_stories(tmp_path / "plain.txt", stories)
    for name, source in (("one", path), ("two", tmp_path / "plain.txt")):
        run_prepare("--input", source, "--name", name, "--vocab_size", 400, "--data_dir", tmp_path, "--val_share", 0.1)
    assert sorted(stories_in(tmp_path / "one", "train") + stories_in(tmp_path / "one", "val")) == sorted(stories)
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_text_is_cut_rightly_wherever_a_block_ends(tmp_path):
    """Separators and many-byte characters that lie across the blocks that are read."""
    stories = [f"Ünï 🐉 {i} " + "é" * (i % 7) + "." for i in range(120_000)]
    path = write_stories(tmp_path / "t.txt", stories)
    assert path.stat().st_size > 3 << 20
    assert [piece.strip() for piece in sources.read_stories(path)] == stories


def test_files_from_windows(tmp_path):
    """A byte order mark and \\r\\n are no part of the stories."""
    text = "".join(f"{story}\n{END}\n" for story in STORIES).replace("\n", "\r\n")
    (tmp_path / "t.txt").write_bytes(text.encode("utf-8-sig"))
    (tmp_path / "t.jsonl").write_bytes("\r\n".join(json.dumps({"text": s}) for s in STORIES).encode("utf-8-sig"))
    for name in ("t.txt", "t.jsonl"):
        run_prepare("--input", tmp_path / name, "--name", "x", "--vocab_size", 300, "--data_dir", tmp_path)
        assert set(stories_in(tmp_path / "x", "train") + stories_in(tmp_path / "x", "val")) == set(STORIES)


def test_same_bytes_whatever_the_threads_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "STORIES_PER_CHUNK", 3)  # many chunks, which could overtake each other
    path = write_stories(tmp_path / "t.txt", STORIES + ODD_STORIES)
    for name, threads in (("one", 1), ("two", 2), ("again", 2)):
        run_prepare("--input", path, "--name", name, "--threads", threads, "--vocab_size", 500, "--data_dir", tmp_path)
    metas = [{**load_meta(tmp_path / name), "name": ""} for name in ("one", "two", "again")]
    assert metas[0] == metas[1] == metas[2]


def test_split_by_hash(tmp_path):
    """About the share that was asked for; of the same stories in any order the same ones; others for another seed."""
    splits = {}
    for name, stories, seed in (("a", STORIES, 0), ("b", STORIES[::-1], 0), ("c", STORIES, 1)):
        path = write_stories(tmp_path / f"{name}.txt", stories)
        run_prepare("--input", path, "--name", name, "--seed", seed, "--val_share", 0.2, "--vocab_size", 300,
            "--data_dir", tmp_path)  # fmt: skip
        splits[name] = set(stories_in(tmp_path / name, "val"))
        assert splits[name] | set(stories_in(tmp_path / name, "train")) == set(STORIES)
    assert splits["a"] == splits["b"] != splits["c"]
    assert 80 < len(splits["a"]) < 160  # 120 ± 4 standard deviations


def test_builtin(tmp_path):
    directory = tmp_path / "builtin"
    prepare_builtin(directory, n_stories=1500, vocab_size=1000, seed=3)
    meta = load_meta(directory)
    assert meta["name"] == "builtin" and meta["source"] == ["builtin"] and meta["seed"] == 3
    assert meta["splits"]["val"]["stories"] >= 200
    told = {story.text for story in builtin_stories.stories(1500, seed=3)}
    train, val = (stories_in(directory, split) for split in ("train", "val"))
    assert len(train) + len(val) == len(told)
    assert set(train) | set(val) == told
    assert meta["cleaning"]["truncated dropped"] == meta["cleaning"]["mojibake repaired"] == 0


def test_tinystories_from_a_mirror(server, tmp_path):
    """The whole way, by command line: HF_ENDPOINT, the addresses, the files kept for next time."""
    server.content = "".join(f"{story}\n{END}\n" for story in STORIES).encode()
    command = [sys.executable, ROOT / "prepare.py", "tinystories-v2", "--vocab_size", "300"]
    environment = os.environ | {"HF_ENDPOINT": server.url + "/", "HF_TOKEN": "hf_secret"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    address = "/datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-"
    assert sorted(request["path"] for request in server.requests) == [address + "train.txt", address + "valid.txt"]
    assert {request["Authorization"] for request in server.requests} == {"Bearer hf_secret"}
    # Here both files are the same, so that all of train is dropped: they would leak.
    assert done.returncode == 1 and "no stories left for train" in done.stderr and "hf_secret" not in done.stderr
    write_stories(
        tmp_path / "data" / "download" / "TinyStoriesV2-GPT4-train.txt", [f"{story} Bye." for story in STORIES]
    )
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert len(server.requests) == 2
    assert "next: python train.py configs/cpu_1m.py --data=tinystories-v2" in done.stdout
    meta = load_meta(tmp_path / "data" / "tinystories-v2")
    assert meta["source"] == [f"{server.url}{address}train.txt", f"{server.url}{address}valid.txt"]
    assert meta["splits"]["train"]["stories"] == meta["splits"]["val"]["stories"] == len(STORIES)


@pytest.mark.slow
def test_input_streams_through(tmp_path):
    """60 MB of text in a process of its own: the peak of memory hardly moves from that of 6 MB."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc: getrusage's peak begins with that of the process that started it")
    show_peak = "import prepare; prepare.main(); print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    peaks = []
    for n in (6_000, 60_000):
        texts = [f"Story {i}. " + "They ran and ran all day long. " * 32 for i in range(n)]
        source = write_stories(tmp_path / f"{n}.txt", texts)
        args = ["--input", source, "--name", f"n{n}", "--data_dir", tmp_path / "data"]
        command = [sys.executable, "-c", show_peak, *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) // 1024)  # MB
    assert source.stat().st_size > 55e6
    assert peaks[1] - peaks[0] < 40


def test_headers_are_of_the_cleaned_text(tmp_path):
    """Quotes behind mojibake are seen, ’ is an apostrophe, and no sentence is blank or cut out of speech."""
    text = "He said, “I won’t run. I can’t.” Then {} ate.\n\n\n\n\nBye."
    stories = [text.format(f"Tom {i}") for i in range(300)]
    for name, texts in (("clean", stories), ("mojibake", [misread(story, "kept") for story in stories])):
        path = write_stories(tmp_path / f"{name}.txt", texts)
        run_prepare("--input", path, "--headers", "--name", name, "--val_share", 0.1, "--vocab_size", 300,
            "--data_dir", tmp_path)  # fmt: skip
    assert load_meta(tmp_path / "mojibake")["cleaning"]["mojibake repaired"] == 300
    kept = [story for split in ("train", "val") for story in stories_in(tmp_path / "clean", split)]
    assert kept == [story for split in ("train", "val") for story in stories_in(tmp_path / "mojibake", split)]
    fields = [instruct_headers.read(story).fields for story in kept]
    assert {field.get("features", "Dialogue") for field in fields} == {"Dialogue"} and len(fields) == 300
    assert sum("features" in field for field in fields) > 100
    assert all("win" not in field.get("words", "") for field in fields)
    sentences = {re.sub(r"\d+", "", field["sentence"]) for field in fields if "sentence" in field}
    assert sentences == {"Then Tom  ate.", "Bye."}
