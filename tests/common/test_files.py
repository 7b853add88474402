"""Files are the old ones or the new ones, never half of one."""

import os

import pytest

from common.files import write_bytes, write_json


def test_a_file_takes_its_name_when_it_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    write_json(path, dict(old=1))

    def refuse(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)  # what was written was only in memory, and is lost
    with pytest.raises(OSError, match="Input/output"):
        write_bytes(path, b"new")
    assert path.read_text() == '{\n  "old": 1\n}\n' and list(tmp_path.iterdir()) == [path]
