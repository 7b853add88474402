"""Files are the old ones or the new ones, never half of one."""

import os
import threading
import time

import pytest

from common import files
from common.files import Busy, has_sha256, lock, sha256_of, write_bytes, write_json


def test_a_file_takes_its_name_when_it_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    write_json(path, dict(old=1))

    def refuse(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)  # what was written was only in memory, and is lost
    with pytest.raises(OSError, match="Input/output"):
        write_bytes(path, b"new")
    assert path.read_text() == '{\n  "old": 1\n}\n' and list(tmp_path.iterdir()) == [path]


def test_a_lock_keeps_others_out_or_waiting(tmp_path, capsys):
    with (
        lock(tmp_path / "run"),
        pytest.raises(Busy, match="run: wait, please"),
        lock(tmp_path / "run", busy="wait, please"),
    ):
        pass
    assert (tmp_path / "run" / ".lock").exists()


def test_one_at_a_time_though_the_lock_is_deleted_each_time(tmp_path):
    """Eight threads come and go, and a waiting one never locks a file that another has just deleted."""
    inside, most = [], []

    def work():
        for _ in range(100):
            with lock(tmp_path, ".x.lock", wait=True, keep=False):
                inside.append(1)
                time.sleep(0)
                most.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 800 and max(most) == 1
    assert os.listdir(tmp_path) == []


def test_a_file_is_hashed_again_when_it_changed(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hashed = []
    monkeypatch.setattr(files, "sha256_of", lambda path: hashed.append(path) or sha256_of(path))
    path, other = tmp_path / "train.bin", tmp_path / "other.bin"
    path.write_bytes(b"one")
    sha256, before = sha256_of(path), path.stat()
    assert all(has_sha256(path, sha256) for _ in range(3)) and len(hashed) == 1
    assert not has_sha256(path, "0" * 64) and len(hashed) == 2

    path.write_bytes(b"two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as if it were the old one
    assert not has_sha256(path, sha256) and not has_sha256(path, sha256) and len(hashed) == 4
    other.write_bytes(b"two")
    assert has_sha256(other, sha256_of(other))
    other.replace(path)
    assert not has_sha256(path, sha256) and has_sha256(path, sha256_of(path)) and len(hashed) == 7

    monkeypatch.setenv("XDG_CACHE_HOME", str(path))  # where nothing can be kept
    assert has_sha256(path, sha256_of(path)) and has_sha256(path, sha256_of(path)) and len(hashed) == 9
