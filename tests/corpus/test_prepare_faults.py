"""Bad input is one line that names it; whatever goes wrong, the data that were there stay, and
damage is found."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from story_files import END, STORIES, run_prepare, snapshot, write_parquet

from nanostories.checkpoints import huggingface
from nanostories.cli import UserError
from nanostories.corpus import sources
from nanostories.corpus.token_files import load_meta, load_meta_and_tokens

GOOD = "".join(f"{story}\n{END}\n" for story in STORIES).encode()
ROWS = [json.dumps({"text": story}) for story in STORIES]
BAD = {  # name of a file -> its content, and a word of the message
    "latin1.txt": (GOOD.decode().encode("cp1252"), "not UTF-8"),
    "one.txt": (b"A book without an end. " * 5000, END),
    "broken.jsonl": ("\n".join([*ROWS[:6], '{"text": "Oh', *ROWS]).encode(), "line 7"),
    "nofield.jsonl": ("\n".join([*ROWS[:2], '{"title": "Oh."}']).encode(), "row 3"),
    "number.jsonl": (b'{"text": 3}', "as a text"),
    "object.json": (b'{"stories": []}', "array"),
    "broken.json": (b'[{"text": "Oh."}', "not JSON"),
    "cut.txt.gz": (gzip.compress(GOOD)[:-1000], "gzip"),
    "cutoff.txt": (f"One and\n{END}\nTwo and\n{END}\n".encode(), "2 dropped as truncated"),
    "stories.odt": (b"text", ".jsonl"),
    "comma.csv": (b"text\nOne day,a fox ran.\n", "row 1 has more cells"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """good.txt, bad files, and data/x."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "good.txt").write_bytes(GOOD)
    for name, (data, _) in BAD.items():
        (folder / name).write_bytes(data)
    to = ("--name", "x", "--vocab_size", 300, "--data_dir", folder / "data")
    run_prepare("--input", folder / "good.txt", *to)
    return folder


def refused(folder: Path, *args) -> str:
    """The last line of a refusal, after which the data are as before."""
    before = snapshot(folder / "data")
    with pytest.raises(SystemExit) as stop:
        run_prepare(*args, "--data_dir", folder / "data")
    assert snapshot(folder / "data") == before and os.listdir(folder / "data") == ["x"]
    assert "\\n" not in str(stop.value)
    return str(stop.value)


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_and_change_nothing(folder, name):
    said = refused(folder, "--input", folder / name, "--name", "x")
    assert BAD[name][1] in said and name in said


def replace_in(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new, 1))


def test_a_damaged_parquet_is_named(tmp_path):
    """Damage among the stories shows only once they are read."""
    path = write_parquet(tmp_path / "stories.parquet", ["One story.", "The other."])
    replace_in(path, b"One story.", b"\xff" * 10)  # is not UTF-8
    with pytest.raises(UserError, match=r"stories.parquet: broken parquet"):
        list(sources.read_files([path]))


MISTAKES = {  # flags, and a word of the message
    "--input good.txt --name ../x": "--name",
    "--input good.txt --name x --val good.txt --val_share 0.1": "--val_share",
    "builtin --column x": "--column",
    "builtin-instruct --raw": "--raw",
    "builtin --vocabulary_of out/x --vocab_size 300": "--vocabulary_of",
    "--input good.txt --name x --stories 9": "--stories",
    "--input stories.odt --name x --split_on x": "--split_on",
    "--input good.txt --name x --split_on (": "not a regular expression",
}


@pytest.mark.parametrize("flags, word", MISTAKES.items())
def test_flags_that_do_not_apply_are_refused(folder, flags, word, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert refused(folder, *flags.split()) == "2"
    assert word in capsys.readouterr().err.splitlines()[-1]


def test_without_pyarrow_nothing_is_downloaded(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in refused(folder, "simplestories")


def test_a_vocabulary_of_too_many_ids_is_refused(folder, monkeypatch):
    tokenizer = SimpleNamespace(vocab_size=70_000, vocabulary={})
    monkeypatch.setattr(huggingface, "load_model", lambda name: (None, tokenizer))
    said = refused(folder, "builtin", "--name", "x", "--vocabulary_of", "hf:big")
    assert "hf:big: more than 65,536 ids" in said


def test_another_corpus_of_the_name_is_kept_under_a_new_one(folder, tmp_path):
    """Runs trained on the old one must not find their training stories among the new validation
    stories."""
    shutil.copytree(folder / "data", tmp_path, dirs_exist_ok=True)
    (tmp_path / "x" / "words.bin").write_text("made by another command")
    args = ("--input", folder / "good.txt", "--name", "x", "--data_dir", tmp_path)
    run_prepare(*args, "--vocab_size", 300)  # the same stories, the same splits
    assert os.listdir(tmp_path) == ["x"] and (tmp_path / "x" / "words.bin").exists()
    old = snapshot(tmp_path / "x")
    run_prepare(*args, "--seed", 1)
    assert snapshot(tmp_path / "x-1") == old and load_meta(tmp_path / "x")["seed"] == 1


def test_what_is_no_corpus_is_never_touched(folder, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious.py").touch()
    args = ("--input", folder / "good.txt", "--name", "mine", "--data_dir", tmp_path)
    with pytest.raises(SystemExit, match="mine.*; choose another --name"):
        run_prepare(*args)
    assert os.listdir(tmp_path / "mine") == ["precious.py"]


DAMAGES = {  # how to damage a corpus, and a word of the message
    "other": shutil.rmtree,  # the corpora that are there are named
    "format": lambda x: replace_in(x / "meta.json", b'format": 2', b'format": 1'),
    "val.bin": lambda x: (x / "val.bin").unlink(),
    "checksum": lambda x: replace_in(x / "train.bin", b"\0", b"\1"),
}


@pytest.mark.parametrize("word", DAMAGES)
def test_damage_is_found_by_who_reads(folder, tmp_path, word):
    directory = tmp_path / "tinystories"
    for name in ("tinystories", "other"):
        shutil.copytree(folder / "data" / "x", tmp_path / name)
    DAMAGES[word](directory)
    remedy = f"python prepare.py tinystories --data_dir {tmp_path}$"
    with pytest.raises(UserError, match=f"^{directory}.*{word}.*{remedy}"):
        load_meta_and_tokens(directory, "train", "val")
