"""From text to tokens: nothing is lost, nothing leaks, nothing half written stays."""

import contextlib
import gzip
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, SAMPLE

import prepare
from corpus import preparation, sources, token_files
from corpus.cleaning import clean
from corpus.preparation import prepare_builtin
from corpus.token_files import load_meta, load_tokens
from corpus.tokenizer import GPT2_VOCAB_SIZE, Tokenizer, cut, gpt2

END = "<|endoftext|>"
STORIES = [f"Once there were {i} dragons.\nThey said, “Good night, number {i * i}!”" for i in range(600)]
ODD_STORIES = [
    "Tab\tand  two spaces — stay. 🐉👩‍👧!",
    "猫はいました。「おやすみ。」",
    "The sign said <|endoftext|> and they laughed.",
    "A blank line\n\nstays, and so does \x00 a zero.",
    "¡Mira mi muñeca! “CAFÉ,” said “MANHÃ” of JOSÉ’s âge, for 5 € (Â).",
]


def write(path: Path, stories: list[str]) -> Path:
    path.write_text("".join(f"{story}\n{END}\n" for story in stories), encoding="utf-8", newline="")
    return path


def write_jsonl(path: Path, stories: list[str], field: str = "text") -> Path:
    path.write_text("".join(json.dumps({"id": 1, field: story}) + "\n" for story in stories))
    return path


def run(*args) -> None:
    """The command line, in this process; a message to the user comes back as SystemExit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["prepare.py", *map(str, args)])
        prepare.main()


def message(*args) -> str:
    """The one line that a run on bad input ends with."""
    with pytest.raises(SystemExit) as stop:
        run(*args)
    assert isinstance(stop.value.code, str) and "\n" not in stop.value.code
    return stop.value.code


def stories_in(directory: Path, split: str) -> list[str]:
    """The stories in a .bin, by tiktoken and numpy alone."""
    meta = json.loads((directory / "meta.json").read_text(encoding="utf-8"))
    ids = np.fromfile(directory / f"{split}.bin", dtype="<u2")
    assert ids[-1] == meta["vocab_size"] - 1  # every story ends
    ends = np.flatnonzero(ids == meta["vocab_size"] - 1)
    gpt2_ids = np.array([*meta["gpt2_ids"], GPT2_VOCAB_SIZE - 1])
    encoding = gpt2().encoding
    bounds = zip([0, *(ends[:-1] + 1)], ends, strict=True)
    return [encoding.decode(gpt2_ids[ids[start:end]].tolist()) for start, end in bounds]


def snapshot(folder: Path) -> dict:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# ---- What is written ----
def test_round_trip_and_meta(tmp_path):
    train, val = ODD_STORIES + STORIES[:300], STORIES[300:320] + ["Only here: ñ 🦊."]
    write_jsonl(tmp_path / "train.jsonl", train)
    write_jsonl(tmp_path / "val.json", val, "story")
    paths = [str(tmp_path / "train.jsonl"), str(tmp_path / "val.json")]
    run("--input", paths[0], "--val", paths[1], "--name", "x", "--vocab_size", 700, "--data_dir", tmp_path)
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
        assert load_tokens(directory, split).tolist() == tokenizer.encode_stories(stories).tolist()
    assert isinstance(load_tokens(directory, "val"), np.memmap)


def test_vocabulary_is_learned_from_train_alone(tmp_path):
    """The cut that counts of the training stories give, however much the validation stories would change it."""
    train, val = STORIES[:200], [f"Zebra zoo {i} wizard jazz quiz!" for i in range(400)]
    write(tmp_path / "t.txt", train)
    write(tmp_path / "v.txt", val)
    run("--input", tmp_path / "t.txt", "--val", tmp_path / "v.txt", "--name", "x", "--vocab_size", 280,
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
    text = write(tmp_path / "a.txt", stories).read_bytes()
    if "jsonl" in ending:
        text = write_jsonl(tmp_path / "a.jsonl", stories).read_bytes()
    elif "json" in ending:  # an array, as in the data set's TinyStories_all_data
        text = json.dumps([{"story": story, "source": "GPT-4"} for story in stories], indent=1).encode()
    path.write_bytes(gzip.compress(text) if ending.endswith(".gz") else text)
    write(tmp_path / "plain.txt", stories)
    for name, source in (("one", path), ("two", tmp_path / "plain.txt")):
        run("--input", source, "--name", name, "--vocab_size", 400, "--data_dir", tmp_path, "--val_share", 0.1)
    assert sorted(stories_in(tmp_path / "one", "train") + stories_in(tmp_path / "one", "val")) == sorted(stories)
    for name in ("train.bin", "val.bin"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_text_is_cut_rightly_wherever_a_block_ends(tmp_path):
    """Separators and many-byte characters that lie across the blocks that are read."""
    stories = [f"Ünï 🐉 {i} " + "é" * (i % 7) + "." for i in range(120_000)]
    path = write(tmp_path / "t.txt", stories)
    assert path.stat().st_size > 3 << 20
    assert [piece.strip() for piece in sources.read_stories(path)] == stories


def test_files_from_windows(tmp_path):
    """A byte order mark and \\r\\n are no part of the stories."""
    text = "".join(f"{story}\n{END}\n" for story in STORIES).replace("\n", "\r\n")
    (tmp_path / "t.txt").write_bytes(text.encode("utf-8-sig"))
    (tmp_path / "t.jsonl").write_bytes("\r\n".join(json.dumps({"text": s}) for s in STORIES).encode("utf-8-sig"))
    for name in ("t.txt", "t.jsonl"):
        run("--input", tmp_path / name, "--name", "x", "--vocab_size", 300, "--data_dir", tmp_path)
        assert set(stories_in(tmp_path / "x", "train") + stories_in(tmp_path / "x", "val")) == set(STORIES)


def test_same_bytes_whatever_the_threads_and_again(tmp_path, monkeypatch):
    monkeypatch.setattr(preparation, "STORIES_PER_CHUNK", 3)  # many chunks, which could overtake each other
    path = write(tmp_path / "t.txt", STORIES + ODD_STORIES)
    for name, threads in (("one", 1), ("two", 2), ("again", 2)):
        run("--input", path, "--name", name, "--threads", threads, "--vocab_size", 500, "--data_dir", tmp_path)
    metas = [{**load_meta(tmp_path / name), "name": ""} for name in ("one", "two", "again")]
    assert metas[0] == metas[1] == metas[2]


def test_split_by_hash(tmp_path):
    """About the share that was asked for; of the same stories in any order the same ones; others for another seed."""
    splits = {}
    for name, stories, seed in (("a", STORIES, 0), ("b", STORIES[::-1], 0), ("c", STORIES, 1)):
        path = write(tmp_path / f"{name}.txt", stories)
        run("--input", path, "--name", name, "--seed", seed, "--val_share", 0.2, "--vocab_size", 300,
            "--data_dir", tmp_path)  # fmt: skip
        splits[name] = set(stories_in(tmp_path / name, "val"))
        assert splits[name] | set(stories_in(tmp_path / name, "train")) == set(STORIES)
    assert splits["a"] == splits["b"] != splits["c"]
    assert 80 < len(splits["a"]) < 160  # 120 ± 4 standard deviations


def test_builtin(tmp_path):
    directory = prepare_builtin(tmp_path, n_stories=1500, vocab_size=1000, seed=3)
    meta = load_meta(directory)
    assert directory == tmp_path / "builtin" and meta["source"] == ["builtin"] and meta["seed"] == 3
    assert meta["splits"]["val"]["stories"] >= 200
    told = {story.text for story in preparation.builtin_stories.stories(1500, seed=3)}
    train, val = (stories_in(directory, split) for split in ("train", "val"))
    assert len(train) + len(val) == len(told)
    assert set(train) | set(val) == told
    assert meta["cleaning"]["truncated dropped"] == meta["cleaning"]["mojibake mended"] == 0


# ---- Cleaning ----
GOOD = "“Hi,” said Zoë’s naïve piñata — “it’s 5 € … ÉCLAIR à la ½ carte for São João!” ★ ♥ ❤ ✨ 🐉😊 Ñandú ‘Öl’."


def misread(text: str, undefined: str) -> str:
    """UTF-8 read as cp1252, by Python's own tables; what cp1252 leaves undefined kept, lost, or made U+FFFD."""
    read = ""
    for byte in text.encode():
        try:
            read += bytes([byte]).decode("cp1252")
        except UnicodeDecodeError:
            read += {"kept": chr(byte), "lost": "", "replaced": "\ufffd"}[undefined]
    return read


def test_mojibake_is_mended():
    assert clean("â€œDonâ€™t,â€\x9d he said.") == ("“Don’t,” he said.", True)
    assert clean("â€œDonâ€™t,â€ he said.") == ("“Don’t,” he said.", True)  # the last byte of ” lost
    assert clean("She said, â€œYes!â€") == ("She said, “Yes!”", True)
    assert clean("â€œNo!â€â€œYes!â€") == ("“No!”“Yes!”", True)
    assert clean("wellâ€¦ aâ€”b â€“ cafÃ© PiÃ±ata, Â½ Â£5") == ("well… a—b – café Piñata, ½ £5", True)
    assert clean(misread(GOOD, "kept")) == (GOOD, True)
    assert clean(GOOD.encode().decode("latin-1")) == (GOOD, True)
    quotes = "“Yes,” he said. “No!”"
    assert clean(misread(quotes, "lost"))[0] == clean(misread(quotes, "replaced"))[0] == quotes


LEGITIMATE = [
    GOOD,
    *ODD_STORIES,
    "“CAFÉ”, ‘Café’, “‘Café’”, JOSÉ’s, «MANHÃ», “MANHÃ”, IRMÃ’S, NÃO, AMANHÃ…",
    "Â, Ã, â, ð. Ânes, château, âge, bâton, pâté; «là»; “voilà”… à “lui” — é—è.",
    "Það var ð… Ðe. €5, €â, â‚ ‡",
    "çÇ ãÃ õÕ êÊ ÀÈÌÒÙ “È”“É”“Ê”“À”",
    "Ελληνικά, Русский, 日本語。",
]


@pytest.mark.parametrize("text", LEGITIMATE)
def test_legitimate_text_stays(text):
    assert clean(text) == (text, False)


def test_white_space():
    assert clean("\r\n One.  \r\nTwo. \t \n\n  Three.\rFour. \n") == ("One.\nTwo.\n\n  Three.\nFour.", False)


def test_cleaning_is_counted(tmp_path):
    train = [
        "", "  \n ", "No end", "It said:", "Then she said, “Yes,", "and a \"", "From then on, the",  # 2 empty, 5 cut
        "One.", "Two!", "Three?”", "Four.\")", "Five.'", "Six…", "Seven.»", "Eight.\n\nThe End", "THE END", "Nine.\".",
        "One.", " One. \r\n", "Two!",  # 3 copies
        "Donâ€™t.", "Don’t.",  # mended, then a copy
        "Val one.", "Val two!", "Val two!",  # 3 that are in val
    ]  # fmt: skip
    val = ["Val one.", "Val two! ", "Val two!", "Three", "Ten."]  # a copy, a cut one
    write_jsonl(tmp_path / "t.jsonl", train)
    write_jsonl(tmp_path / "v.jsonl", val)
    run("--input", tmp_path / "t.jsonl", "--val", tmp_path / "v.jsonl", "--name", "x", "--vocab_size", 257,
        "--data_dir", tmp_path)  # fmt: skip
    assert stories_in(tmp_path / "x", "train") == [*train[7:17], "Don’t."]
    assert stories_in(tmp_path / "x", "val") == ["Val one.", "Val two!", "Ten."]
    assert load_meta(tmp_path / "x")["cleaning"] == {
        "stories read": 30,
        "mojibake mended": 1,
        "empty dropped": 2,
        "truncated dropped": 6,
        "duplicates dropped": 5,
        "validation stories dropped from train": 3,
    }


def test_no_leak_when_split_by_hash(tmp_path):
    write(tmp_path / "t.txt", STORIES + [f"  {story}\r\n" for story in STORIES[::-1]])
    run("--input", tmp_path / "t.txt", "--name", "x", "--val_share", 0.3, "--vocab_size", 300, "--data_dir", tmp_path)
    train, val = (stories_in(tmp_path / "x", split) for split in ("train", "val"))
    assert len(train) + len(val) == len(set(train) | set(val)) == len(STORIES)


def test_real_stories(tmp_path):
    """The sample: but for spaces at line ends and the stories that break off, all of it comes back."""
    if not SAMPLE.exists():
        pytest.skip("needs ../shared/data/tinystories-sample")
    run("--input", SAMPLE / "train.txt", "--val", SAMPLE / "valid.txt", "--name", "x", "--data_dir", tmp_path)
    for split, file in (("train", "train.txt"), ("val", "valid.txt")):
        real = [story.strip() for story in (SAMPLE / file).read_text(encoding="utf-8").split(END) if story.strip()]
        real = [re.sub(r"[ \t]+\n", "\n", story) for story in real]
        kept = stories_in(tmp_path / "x", split)
        assert [story for story in real if story in set(kept)] == kept
        dropped = set(real) - set(kept)
        assert all(story[-1].isalnum() or story[-1] in ":—" for story in dropped)
        assert len(dropped) < 0.01 * len(real)
    assert load_meta(tmp_path / "x")["cleaning"]["mojibake mended"] == 0
    rate = {split: facts["bytes"] / facts["tokens"] for split, facts in load_meta(tmp_path / "x")["splits"].items()}
    assert 3.9 < rate["train"] < 4.2 and 3.9 < rate["val"] < 4.2


# ---- Bad input ----
def bad_inputs(folder: Path) -> dict[str, tuple[list, list[str]]]:
    """name -> arguments, and what the message must hold."""
    good = write(folder / "good.txt", STORIES)
    rows = [json.dumps({"text": story}) for story in STORIES]
    files = {
        "latin1.txt": f"{END}\n".join(STORIES).encode("cp1252"),
        "late.txt": good.read_bytes() * 80 + b"caf\xe9.",
        "one.txt": b"A book without an end. " * 5000,
        "broken.jsonl": "\n".join([*rows[:6], '{"text": "Oh', *rows]).encode(),
        "nofield.jsonl": "\n".join([*rows[:2], "", '{"title": "Oh."}']).encode(),
        "number.jsonl": b'{"text": 5}\n',
        "list.jsonl": b'"Once upon a time."\n',
        "half.jsonl": b'{"text": "Once \\ud83d upon."}\n',
        "array.json": b'[{"text": "One."},\n{"text": "Two."},\n{"text" "Three."}]',
        "fields.json": b'[{"text": "One."}, {"title": "Two."}]',
        "cut.txt.gz": gzip.compress(good.read_bytes())[:-1000],
        "flipped.jsonl.gz": gzip.compress("\n".join(rows).encode())[:2000] + b"\x00" * 3000,
        "no.txt.gz": b"This is no gzip.",
        "empty.txt": b"",
        "cutoff.txt": f"One and\n{END}\nTwo and\n{END}\n".encode(),
        "stories.parquet": b"PAR1",
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    expected = {
        "missing.txt": ["no such file", "--input"],
        "latin1.txt": ["not UTF-8"],
        "late.txt": ["not UTF-8"],
        "one.txt": [END],
        "broken.jsonl": ["line 7 ", '{"text":'],
        "nofield.jsonl": ["line 4 ", '"text"', '"story"'],
        "number.jsonl": ["line 1 "],
        "list.jsonl": ["line 1 "],
        "half.jsonl": ["line 1 "],
        "array.json": ["line 3 "],
        "fields.json": ["object 2 "],
        "cut.txt.gz": ["gzip", "anew"],
        "flipped.jsonl.gz": ["gzip"],
        "no.txt.gz": ["gzip"],
        "empty.txt": ["no story left", "of 0 read"],
        "cutoff.txt": ["no story left", "of 2 read"],
        "stories.parquet": [".txt, .jsonl"],
    }
    cases = {name: (["--input", folder / name], [name, *words]) for name, words in expected.items()}
    cases["second file"] = (["--input", good, folder / "cut.txt.gz"], ["cut.txt.gz", "gzip"])
    cases["bad val"] = (["--input", good, "--val", folder / "broken.jsonl"], ["broken.jsonl", "line 7 "])
    cases["train in val"] = (["--input", good, "--val", good], ["good.txt", "no story left for train"])
    cases["no val"] = (["--input", good, "--val_share", 1e-9], ["good.txt", "no story left for val", "--val"])
    for size in (0, 256, 50258):
        cases[f"vocab_size {size}"] = (["--input", good, "--vocab_size", size], [f"vocab_size {size}", "257", "50257"])
    for share in (0, 1, -0.5):
        cases[f"val_share {share}"] = (["--input", good, "--val_share", share], ["val_share"])
    return cases


def test_bad_input_is_one_line_and_changes_nothing(tmp_path):
    cases = bad_inputs(tmp_path)
    data = tmp_path / "data"
    run("--input", tmp_path / "good.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
    before = snapshot(data)
    for name, (args, words) in cases.items():
        text = message(*args, "--name", "x", "--data_dir", data)
        assert all(word in text for word in words), (name, text)
        assert snapshot(data) == before, name
        assert sorted(path.name for path in data.iterdir()) == ["x"], name


def test_exit_status_and_one_line_on_stderr(tmp_path):
    (tmp_path / "bad.jsonl").write_text('{"text": 5}\n')
    command = [sys.executable, ROOT / "prepare.py", "--input", "bad.jsonl", "--name", "x"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1 and "bad.jsonl: line 1 " in done.stderr
    assert list((tmp_path / "data").iterdir()) == []


def test_another_directory_is_never_replaced(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "precious.py").write_text("print('mine')")
    write(tmp_path / "t.txt", STORIES)
    assert "tests" in message("--input", tmp_path / "t.txt", "--name", "tests", "--data_dir", tmp_path)
    assert (tmp_path / "tests" / "precious.py").read_text() == "print('mine')"
    for name in ("../out", "a/b", ".hidden"):
        with pytest.raises(SystemExit):
            run("--input", tmp_path / "t.txt", "--name", name, "--data_dir", tmp_path)


def test_no_room_on_the_disk(tmp_path):
    """A limit on the size of a file stands for a full disk: the system refuses to write on, for root too."""
    path = write(tmp_path / "t.txt", STORIES)
    run("--input", path, "--name", "x", "--vocab_size", 300, "--data_dir", tmp_path / "data")
    before = snapshot(tmp_path / "data")
    command = [sys.executable, ROOT / "prepare.py", "--input", path, "--name", "x", "--data_dir", tmp_path / "data"]
    command += ["--vocab_size", "257"]  # two bytes on disk for a byte of text
    assert 20_000 < len("".join(STORIES).encode()) < 50_000 < 80_000 < 2 * len("".join(STORIES).encode())
    for limit in (10_000, 60_000):  # while the stories are spooled; while the tokens are written

        def limit_files(limit=limit):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=limit_files)
        assert done.returncode == 1 and len(done.stderr.splitlines()) == 1, done.stderr
        assert str(tmp_path / "data" / "x") in done.stderr and "File too large; make room" in done.stderr
        assert snapshot(tmp_path / "data") == before
    assert os.listdir(tmp_path / "data") == ["x"]


# ---- Killed runs ----
def test_kill_in_the_middle_leaves_the_old_data(tmp_path):
    data = tmp_path / "data"
    write(tmp_path / "old.txt", STORIES)
    big = write(tmp_path / "big.txt", [f"{i}. {story}" for i in range(250) for story in STORIES])
    run("--input", tmp_path / "old.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
    before = snapshot(data)
    process = subprocess.Popen([sys.executable, ROOT / "prepare.py", "--input", big, "--name", "x", "--data_dir", data])
    deadline = time.monotonic() + 20
    while not any(data.glob(".x.tmp-*/new")) and time.monotonic() < deadline:  # until tokens are being written
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert {name: content for name, content in snapshot(data).items() if name.startswith("x/")} == before
    load_meta(data / "x")

    (leftover,) = data.glob(".x.tmp-*")
    run("--input", tmp_path / "old.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
    assert leftover.exists()  # it might be another run at work
    for path in [leftover, *leftover.rglob("*")]:
        os.utime(path, (time.time() - 4000,) * 2)
    run("--input", tmp_path / "old.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
    assert os.listdir(data) == ["x"] and snapshot(data) == before


def test_kill_at_any_step_of_the_replacement(tmp_path, monkeypatch):
    """Stop `install` before each of its renames and removals: what load_meta then finds is the old or the new."""
    write(tmp_path / "t.txt", STORIES)
    for name, seed in (("old", 1), ("new", 2)):
        run("--input", tmp_path / "t.txt", "--name", name, "--seed", seed, "--vocab_size", 300, "--data_dir", tmp_path)

    class Killed(BaseException):
        pass

    seeds = []
    for last_step in range(5):
        data = tmp_path / f"data{last_step}"
        shutil.copytree(tmp_path / "old", data / "x")
        shutil.copytree(tmp_path / "new", data / "temporary")
        steps = iter(range(5))

        def step(function, *args, last_step=last_step, steps=steps, **settings):
            if next(steps) == last_step:
                raise Killed
            return function(*args, **settings)

        with monkeypatch.context() as patch:
            rename, rmtree = Path.rename, shutil.rmtree
            patch.setattr(Path, "rename", lambda *args, s=step, r=rename: s(r, *args))
            patch.setattr(shutil, "rmtree", lambda *args, s=step, r=rmtree, **settings: s(r, *args, **settings))
            with contextlib.suppress(Killed):
                token_files.install(data / "temporary", data / "x")
        seeds.append(load_meta(data / "x")["seed"])
    assert seeds == [1, 1, 1, 2, 2]


# ---- Reading it back ----
@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write(folder / "t.txt", STORIES)
    run("--input", folder / "t.txt", "--name", "x", "--vocab_size", 300, "--data_dir", folder)
    return folder / "x"


def damage_meta(directory):
    (directory / "meta.json").write_text((directory / "meta.json").read_text()[:-50])


def other_format(directory):
    (directory / "meta.json").write_text((directory / "meta.json").read_text().replace('"format": 1', '"format": 2'))


def flip_a_byte(directory):
    data = bytearray((directory / "train.bin").read_bytes())
    data[100] ^= 1
    (directory / "train.bin").write_bytes(data)


DAMAGES = {
    "no directory": (shutil.rmtree, "meta.json: cannot be read (No such file"),
    "meta cut off": (damage_meta, "meta.json: cannot be read"),
    "another format": (other_format, "meta.json: is not of format 1"),
    "no meta": (lambda directory: (directory / "meta.json").unlink(), "meta.json"),
    "no val.bin": (lambda directory: (directory / "val.bin").unlink(), "val.bin: missing"),
    "cut off": (lambda directory: os.truncate(directory / "train.bin", 100), "train.bin: missing, or not"),
    "a bit flipped": (flip_a_byte, "train.bin: does not have the checksum"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_load_meta_finds_damage(small, tmp_path, damage):
    directory = tmp_path / "tinystories"
    shutil.copytree(small, directory)
    load_meta(directory)
    harm, words = DAMAGES[damage]
    harm(directory)
    with pytest.raises(ValueError) as error:
        load_meta(directory)
    assert f"{directory}/{words}" in str(error.value) and "\n" not in str(error.value)
    assert f"python prepare.py tinystories --data_dir {tmp_path}" in str(error.value)


def test_input_streams_through(tmp_path):
    """60 MB of text in a process of its own: the peak of memory hardly moves from that of 6 MB."""
    if not Path("/proc/self/status").exists():
        pytest.skip("needs /proc: getrusage's peak begins with that of the process that started it")
    show_peak = "import prepare; prepare.main(); print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])"
    peaks = []
    for n in (6_000, 60_000):
        texts = [f"Story {i}. " + "They ran and ran all day long. " * 32 for i in range(n)]
        source = write(tmp_path / f"{n}.txt", texts)
        args = ["--input", source, "--name", f"n{n}", "--data_dir", tmp_path / "data"]
        command = [sys.executable, "-c", show_peak, *args]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        peaks.append(int(done.stdout.split()[-1]) // 1024)  # MB
    assert source.stat().st_size > 55e6
    assert peaks[1] - peaks[0] < 40
