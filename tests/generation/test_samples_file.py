"""samples_file.py: rows come back as they were written; a damaged line is named, and no reader
takes it."""

import json

import pytest

from nanostories.generation.samples_file import read_rows, write_rows

ROW = dict(
    prompt_index=1,
    sample_index=0,
    prompt="Words: dog\n",
    reference=" A dog.",
    completion=" Thé\u2028dog.",
)
LINE = json.dumps(ROW).encode()


@pytest.mark.parametrize("line", [LINE.replace(b"dog.", b"d\xffg."), b"[1]", b'{"prompt": "a"}'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "eval.jsonl"
    path.write_bytes(b"\n".join([LINE, b"", line, LINE]))
    with pytest.raises(ValueError, match="eval.jsonl: line 3 "):
        read_rows(path)


def test_rows_come_back(tmp_path):
    path = tmp_path / "eval.jsonl"
    assert read_rows(path) == {}
    bare = dict(prompt_index=0, sample_index=2, completion="")
    write_rows(path, [ROW, bare])
    assert read_rows(path) == {(1, 0): ROW, (0, 2): bare | dict(prompt="", reference=None)}
