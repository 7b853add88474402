"""Bad input is one line that names it; whatever goes wrong, the data that were there stay, and
damage is found."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from story_files import END, STORIES, run_prepare, snapshot

from nanostories.corpus.token_files import load_meta, load_meta_and_tokens

GOOD = "".join(f"{story}\n{END}\n" for story in STORIES).encode()
ROWS = [json.dumps({"text": story}) for story in STORIES]
BAD = {  # name of a file -> its content, and a word of the message
    "latin1.txt": (GOOD.decode().encode("cp1252"), "UTF-8"),
    "one.txt": (b"A book without an end. " * 5000, END),
    "broken.jsonl": ("\n".join([*ROWS[:6], '{"text": "Oh', *ROWS]).encode(), "line 7"),
    "nofield.jsonl": ("\n".join([*ROWS[:2], "", '{"title": "Oh."}']).encode(), "line 4"),
    "nested.jsonl": (b'{"a":' * 10**5, "line 1"),
    "cut.txt.gz": (gzip.compress(GOOD)[:-1000], "gzip"),
    "line\nbreak.txt": (b"", "no stories left"),
    "cutoff.txt": (f"One and\n{END}\nTwo and\n{END}\n".encode(), "2 truncated dropped"),
    "stories.parquet": (b"PAR1", "parquet"),
    "stories.csv": (b"text", ".jsonl"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """good.txt, bad files, and data/x."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "good.txt").write_bytes(GOOD)
    for name, (data, _) in BAD.items():
        (folder / name).write_bytes(data)
    run_prepare(
        "--input",
        folder / "good.txt",
        "--name",
        "x",
        "--vocab_size",
        300,
        "--data_dir",
        folder / "data",
    )
    return folder


def refused(folder: Path, *args) -> str:
    """The last line of a refusal, after which the data are as before."""
    before = snapshot(folder / "data")
    with pytest.raises(SystemExit) as stop:
        run_prepare(*args, "--data_dir", folder / "data")
    assert stop.value.code not in (0, None) and "\n" not in str(stop.value.code)
    assert snapshot(folder / "data") == before and os.listdir(folder / "data") == ["x"]
    return str(stop.value.code)


@pytest.mark.parametrize("name", BAD, ids=repr)
def test_bad_files_are_named_and_change_nothing(folder, name):
    said = refused(folder, "--input", folder / name, "--name", "x")
    assert BAD[name][1] in said and ("needs pyarrow" in said or name.replace("\n", "\\n") in said)


@pytest.mark.parametrize(
    ("args", "word"),
    [
        ("--input missing.txt --name x", "no such file"),
        ("--input . --name x", "a directory"),
        ("--input good.txt --name ../x", "--name"),
        ("--input good.txt --name x --val good.txt --val_share 0.1", "--val_share"),
        ("--input good.txt --name x --vocab_size 256", "--vocab_size"),
        ("", "give one of"),
        ("builtin --split_on x", "give one of"),
        ("builtin --vocabulary_of out/x --vocab_size 300", "--vocabulary_of"),
        ("--input good.txt --name x --stories 9", "--stories"),
        ("--input stories.parquet --name x --split_on x", "--split_on"),
        ("--input good.txt --name x --split_on (", "not a regular expression"),
        ("--inptu good.txt --name x", "did you mean --input?"),
    ],
)
def test_flags_that_do_not_apply_are_refused(folder, args, word, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert (
        refused(folder, *args.split()) == "2" and word in capsys.readouterr().err.splitlines()[-1]
    )


def test_without_pyarrow_nothing_is_downloaded(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert "pip install pyarrow" in refused(folder, "simplestories")


def test_another_corpus_of_the_name_is_kept_under_a_new_one(folder, tmp_path, capsys):
    """Runs trained on the old one must not find their training stories among the new validation
    stories."""
    shutil.copytree(folder / "data", tmp_path, dirs_exist_ok=True)
    (tmp_path / "x" / "words.bin").write_text("made by another command")
    shutil.copy(folder / "good.txt", folder / "copy.txt")
    args = (
        "--input",
        folder / "copy.txt",
        "--name",
        "x",
        "--vocab_size",
        300,
        "--data_dir",
        tmp_path,
    )
    run_prepare(*args)  # the same stories, the same splits
    assert os.listdir(tmp_path) == ["x"] and "same tokens" in capsys.readouterr().out
    assert (tmp_path / "x" / "words.bin").exists() and load_meta(tmp_path / "x")["source"] == [
        str(folder / "copy.txt")
    ]
    old = snapshot(tmp_path / "x")
    run_prepare(*args, "--seed", 1)
    assert snapshot(tmp_path / "x-1") == old and sorted(os.listdir(tmp_path)) == ["x", "x-1"]
    assert (
        load_meta(tmp_path / "x")["seed"] == 1
        and f"{tmp_path / 'x-1'}\n" in capsys.readouterr().out
    )


def test_another_directory_is_never_touched(folder, tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "precious.py").write_text("print('mine')")
    with pytest.raises(SystemExit, match="tests: not written by prepare.py"):
        run_prepare("--input", folder / "good.txt", "--name", "tests", "--data_dir", tmp_path)
    assert list(snapshot(tmp_path)) == ["tests/precious.py"]


def rewrite(path: Path, change) -> None:
    path.write_bytes(change(path.read_bytes()))


DAMAGES = {  # how to damage a corpus, and a word of the message
    "no directory": (shutil.rmtree, "other"),  # the corpora that are there are named
    "meta cut off": (lambda x: rewrite(x / "meta.json", lambda data: data[:-50]), "meta.json"),
    "another format": (
        lambda x: rewrite(x / "meta.json", lambda d: d.replace(b'format": 2', b'format": 1')),
        "format",
    ),
    "no val.bin": (lambda x: (x / "val.bin").unlink(), "val.bin"),
    "cut off": (lambda x: os.truncate(x / "train.bin", 100), "train.bin"),
    "a bit flipped": (
        lambda x: rewrite(x / "train.bin", lambda d: d[:9] + bytes([d[9] ^ 1]) + d[10:]),
        "checksum",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_found_by_who_reads(folder, tmp_path, damage):
    directory = tmp_path / "tinystories"
    for name in ("tinystories", "other"):
        shutil.copytree(folder / "data" / "x", tmp_path / name)
    load_meta_and_tokens(directory, "train")
    harm, word = DAMAGES[damage]
    harm(directory)
    with pytest.raises(ValueError, match=word) as error:
        load_meta_and_tokens(directory, "train")
    said = str(error.value)
    assert f"python prepare.py tinystories --data_dir {tmp_path}" in said and str(directory) in said
    assert "\n" not in said
