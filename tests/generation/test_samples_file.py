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
DAMAGED = {
    "bytes that are not UTF-8": LINE.replace(b"dog.", b"d\xffg."),
    "null as the prompt": LINE.replace(b'"Words: dog\\n"', b"null"),
    "no object": b"[1]",
    "100,000 brackets": b"[" * 100_000,
}


@pytest.mark.parametrize("line", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "eval.jsonl"
    path.write_bytes(b"\n".join([LINE, b"", line, LINE]))
    with pytest.raises(ValueError, match="eval.jsonl: line 3 ") as caught:
        read_rows(path)
    assert "\n" not in str(caught.value)


def test_rows_come_back(tmp_path):
    path = tmp_path / "eval.jsonl"
    assert read_rows(path) == {}
    bare = dict(prompt_index=0, sample_index=2, completion="")
    write_rows(path, [ROW, bare])
    assert read_rows(path) == {(1, 0): ROW, (0, 2): bare | dict(prompt="", reference=None)}
