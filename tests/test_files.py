"""Files are the old ones or the new ones, never half of one; tables; flags."""

import io
import os
import sys

import pytest

from nanostories.cli import Parser, UserError, one_line_errors, positive, share
from nanostories.files import append_json, read_json, read_json_lines, write_bytes
from nanostories.tables import read_table, read_user_table, write_table


def test_a_file_takes_its_name_when_it_is_on_the_disk(tmp_path, monkeypatch):
    path = tmp_path / "facts.json"
    write_bytes(path, b'{"old": 1}')

    def refuse(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)  # what was written was only in memory, and is lost
    with pytest.raises(OSError, match="Input/output"):
        write_bytes(path, b"new")
    assert read_json(path) == dict(old=1) and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("text", [b"", b"\x00\xff", b"[1]", b"[" * 10**5])
def test_no_json_object(tmp_path, text):
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(UserError, match="a.json: .*$"):
        read_json(tmp_path / "a.json")


def test_lines_are_whole_also_after_one_that_was_cut(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": ')
    append_json(path, dict(a=2))
    append_json(path, dict(a=3))
    assert path.read_text() == '{"a": 1}\n{"a": \n{"a": 2}\n{"a": 3}\n'
    assert list(read_json_lines(path)) == [dict(a=1), dict(a=2), dict(a=3)]


@pytest.mark.parametrize(
    "error, kind, message",
    [
        (UserError("a\nb: no such run"), SystemExit, r"^grade.py: a\\nb: no such run$"),
        (OSError(2, "No such file", "none.txt"), SystemExit, "none.txt: No such file; free some"),
        (BrokenPipeError(), SystemExit, "^1$"),  # `| head` has seen enough
        (ValueError("not enough values"), ValueError, "not enough values"),
    ],
)
def test_only_what_a_user_can_mend_becomes_one_line(error, kind, message, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())  # which may be closed
    with pytest.raises(kind, match=message):
        with one_line_errors("grade.py", interrupted=""):
            raise error


def test_tables(tmp_path):
    path = tmp_path / "a.csv"
    write_table(path, [dict(run="a, b", loss=1.23456789), dict(run="c", loss=None, n=3)])
    rows = [dict(run="a, b", loss="1.23457", n=""), dict(run="c", loss="", n="3")]
    assert read_table(path) == rows


@pytest.mark.parametrize("delimiter", ",;\t")
def test_tables_of_users(tmp_path, delimiter):
    path = tmp_path / "u.csv"
    text = "\r\n".join(["run,story", 'a,"x ""y"""', ",", "b,z"]).replace(",", delimiter) + "\r\n"
    path.write_bytes(text.encode("utf-8-sig"))
    assert read_user_table(path, ["story", "run"]) == [
        (f"{path}, line 2", dict(run="a", story='x "y"')),
        (f"{path}, line 4", dict(run="b", story="z")),
    ]


DAMAGED_TABLES = {  # and a word of the message
    b"run,story\na": "line 2",
    b"run,story\na,b,c": "line 2",
    b"\xff,\xfe": "UTF-8",
    b"": "run",
    b'run,story\n"a,b': "CSV",
}


@pytest.mark.parametrize("data, word", DAMAGED_TABLES.items())
def test_damaged_tables_of_users(tmp_path, data, word):
    (tmp_path / "u.csv").write_bytes(data)
    with pytest.raises(UserError, match=f"u.csv.*{word}.*$"):
        read_user_table(tmp_path / "u.csv", ["run", "story"])


WRONG_FLAGS = [
    "--max_tokens=0",
    "--max_tokens=1.5",
    "--val_share=1",
    "--seed=-1",
    "--timeout=inf",
    "--base_url=me:secret@x",
    "--base_url=http://me:secret@x",
    "--base_url=http://x?key=secret",
    "--extra=[]",
    '--extra={"n":2}',
    "--spending=x",
    "--price_in=1",
]


def test_flags(capsys):
    parser = Parser("A command.")
    parser.add_argument("--max_tokens", type=positive)
    parser.add_argument("--val_share", type=share)
    parser.add_shared("seed", default=3)
    parser.add_api("API")
    args = parser.parse_args(["--max_tokens=7", "--price_in=1", "--price_out=0"])
    assert args.max_tokens == 7 and args.seed == 3
    assert parser.require_api(args) == dict(price_in=1, price_out=0)
    for flag in WRONG_FLAGS:
        with pytest.raises(SystemExit):
            parser.require_api(parser.parse_args([flag]))
        said = capsys.readouterr().err
        assert flag.partition("=")[0] in said and "secret" not in said
