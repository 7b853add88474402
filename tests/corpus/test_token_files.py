"""Killed runs leave the old data directory or the new one, and damage to it is found."""

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from story_files import STORIES, run_prepare, snapshot, write_stories

from common import files
from corpus import token_files
from corpus.preparation import prepare
from corpus.token_files import load_meta, load_meta_and_tokens


@pytest.mark.slow
def test_kill_in_the_middle_leaves_the_old_data(tmp_path):
    data = tmp_path / "data"
    write_stories(tmp_path / "old.txt", STORIES)
    big = write_stories(tmp_path / "big.txt", [f"{i}. {story}" for i in range(250) for story in STORIES])
    run_prepare("--input", tmp_path / "old.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
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
    run_prepare("--input", tmp_path / "old.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
    assert leftover.exists()  # it might be another run at work
    for path in [leftover, *leftover.rglob("*")]:
        os.utime(path, (time.time() - 4000,) * 2)
    run_prepare("--input", tmp_path / "old.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
    assert os.listdir(data) == ["x"] and snapshot(data) == before


def test_kill_at_any_step_of_the_replacement(tmp_path, monkeypatch):
    """Stop `install` before each of its renames and removals: what load_meta then finds is the old or the new."""
    write_stories(tmp_path / "t.txt", STORIES)
    for name, seed in (("old", 1), ("new", 2)):
        run_prepare(
            "--input", tmp_path / "t.txt", "--name", name, "--seed", seed, "--vocab_size", 300, "--data_dir", tmp_path
        )

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


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path):
    data, disk = tmp_path / "data", tmp_path / "disk"
    (disk / "big").mkdir(parents=True)
    data.mkdir()
    (data / "x").symlink_to("../disk/big")
    (disk / ".big.old").symlink_to("nowhere")  # what an earlier version left
    write_stories(tmp_path / "t.txt", STORIES)
    for seed in (1, 2, 3):
        run_prepare(
            "--input", tmp_path / "t.txt", "--name", "x", "--seed", seed, "--vocab_size", 300, "--data_dir", data
        )
        assert (data / "x").is_symlink() and load_meta(data / "x")["seed"] == seed
        assert load_meta(data / "x")["name"] == "x"
        assert os.listdir(data) == ["x"] and os.listdir(disk) == ["big"]
    (disk / "big").rename(disk / ".big.old")  # killed between the two renames
    assert load_meta(data / "x")["seed"] == 3 and len(load_meta_and_tokens(data / "x", "val")[1])
    assert os.listdir(disk) == [".big.old"]


def test_two_writers_of_one_name(tmp_path):
    """The second is told so in one line, before it reads anything; the first is not disturbed."""

    def stories():
        with pytest.raises(ValueError, match="data: another prepare.py is writing x there; wait for it, or choose"):
            prepare(tmp_path / "data" / "x", ["b"], iter(lambda: pytest.fail("stories are read"), 0), None)
        prepare(tmp_path / "data" / "y", ["c"], STORIES, None, vocab_size=300)
        yield from STORIES

    prepare(tmp_path / "data" / "x", ["a"], stories(), None, vocab_size=300)
    assert sorted(os.listdir(tmp_path / "data")) == ["x", "y"] and load_meta(tmp_path / "data" / "x")["source"] == ["a"]


def test_readers_never_fail_while_a_corpus_is_replaced(small, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(small, data / "x")
    done = threading.Event()

    def write():
        for _ in range(150):
            with token_files.replacing(data / "x") as temporary:
                shutil.copytree(small, temporary / "new")
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert load_meta(data / "x")["seed"] == 0
        assert len(load_meta_and_tokens(data / "x", "train")[1])
    writer.join()
    assert os.listdir(data) == ["x"]


def test_meta_and_tokens_are_of_one_corpus(small, tmp_path, monkeypatch):
    """Another corpus takes its place after meta.json was read, and again after train.bin was."""
    shutil.copytree(small, tmp_path / "x")
    seeds, memmap = iter((1, 2)), np.memmap

    def replaced_meanwhile(path, **settings):
        if seed := next(seeds, None):
            prepare(tmp_path / "x", ["other"], [f"Story {seed} of {i}." for i in range(99)], None, 300, seed=seed)
        return memmap(path, **settings)

    monkeypatch.setattr(np, "memmap", replaced_meanwhile)
    meta, *tokens = load_meta_and_tokens(tmp_path / "x", "train", "val")
    assert meta["seed"] == 2
    for split, ids in zip(("train", "val"), tokens):
        assert hashlib.sha256(ids).hexdigest() == meta["splits"][split]["sha256"]


def test_a_reader_renames_nothing(small, tmp_path):
    shutil.copytree(small, tmp_path / ".x.old")
    assert len(load_meta_and_tokens(tmp_path / "x", "val")[1]) and load_meta(tmp_path / "x")
    assert os.listdir(tmp_path) == [".x.old"]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    write_stories(folder / "t.txt", STORIES)
    run_prepare("--input", folder / "t.txt", "--name", "x", "--vocab_size", 300, "--data_dir", folder)
    return folder / "x"


def damage_meta(directory):
    (directory / "meta.json").write_text((directory / "meta.json").read_text()[:-50])


def other_format(directory):
    (directory / "meta.json").write_text((directory / "meta.json").read_text().replace('"format": 1', '"format": 2'))


def test_a_corpus_is_hashed_once(small, tmp_path, monkeypatch):
    shutil.copytree(small, tmp_path / "x")
    load_meta(tmp_path / "x")
    monkeypatch.setattr(files, "sha256_of", lambda path: pytest.fail("hashed again"))
    load_meta(tmp_path / "x")


def flip_a_byte(directory):
    data = bytearray((directory / "train.bin").read_bytes())
    data[100] ^= 1
    (directory / "train.bin").write_bytes(data)


DAMAGES = {
    "no directory": (shutil.rmtree, "meta.json: cannot be read as JSON (No such file"),
    "meta cut off": (damage_meta, "meta.json: cannot be read"),
    "another format": (other_format, "meta.json: not in format 1"),
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
    refused = damage in ("meta cut off", "another format", "no meta")  # by prepare.py: this is not known to be ours
    assert ("move it away, then rebuild it" in str(error.value)) == refused
