"""Bad input is one line that says what to do, and the data directory stays as it was."""

import gzip
import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from story_files import END, STORIES, prepare_error, run_prepare, snapshot, stories_in, write_stories

from corpus.cleaning import clean
from corpus.sources import read_stories


def bad_inputs(folder: Path) -> dict[str, tuple[list, list[str]]]:
    """name -> arguments, and what the message must hold."""
    good = write_stories(folder / "good.txt", STORIES)
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
        "line\nbreak.txt": b"",
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
        "cut.txt.gz": ["gzip", "download or compress it again"],
        "flipped.jsonl.gz": ["gzip"],
        "no.txt.gz": ["gzip"],
        "line\nbreak.txt": ["line\\nbreak.txt: no stories left"],
        "empty.txt": ["no stories left", "of 0 read"],
        "cutoff.txt": ["no stories left for train of 2 read (2 truncated dropped); add more that end with a sentence"],
        "stories.parquet": [".txt, .jsonl"],
    }
    cases = {
        name: (["--input", folder / name], [name.replace("\n", "\\n"), *words]) for name, words in expected.items()
    }
    (folder / "folder.txt").mkdir()
    cases["a folder"] = (["--input", folder / "folder.txt"], ["folder.txt: no such file, or it cannot be read"])
    cases["second file"] = (["--input", good, folder / "cut.txt.gz"], ["cut.txt.gz", "gzip"])
    cases["bad val"] = (["--input", good, "--val", folder / "broken.jsonl"], ["broken.jsonl", "line 7 "])
    cases["train in val"] = (["--input", good, "--val", good], ["good.txt", "no stories left for train"])
    cases["no val"] = (["--input", good, "--val_share", 1e-9], ["good.txt", "no stories left for val", "--val"])
    for size in (0, 256, 50258):
        cases[f"vocab_size {size}"] = (["--input", good, "--vocab_size", size], [f"vocab_size {size}", "257", "50257"])
    for share in (0, 1, -0.5):
        cases[f"val_share {share}"] = (["--input", good, "--val_share", share], ["val_share"])
    return cases


def test_bad_input_is_one_line_and_changes_nothing(tmp_path):
    cases = bad_inputs(tmp_path)
    data = tmp_path / "data"
    run_prepare("--input", tmp_path / "good.txt", "--name", "x", "--vocab_size", 300, "--data_dir", data)
    before = snapshot(data)
    for name, (args, words) in cases.items():
        text = prepare_error(*args, "--name", "x", "--data_dir", data)
        assert all(word in text for word in words), (name, text)
        assert snapshot(data) == before, name
        assert sorted(path.name for path in data.iterdir()) == ["x"], name


@pytest.mark.parametrize(
    "args, message",
    [
        (("--input", "t.txt"), "--name must consist of"),
        (("--input", "t.txt", "--name", "x", "--stories", 10), "--stories is for builtin"),
        (("--input", "t.txt", "--name", "x", "--val", "v.txt", "--val_share", 0.1), "--val_share is for corpora"),
        (("tinystories-v2", "--val_share", 0.1), "--val_share is for corpora"),
        (("builtin", "--headers"), "give one of"),
    ],
)
def test_flags_that_do_not_apply_are_refused(args, message, capsys):
    with pytest.raises(SystemExit) as stop:
        run_prepare(*args)
    assert stop.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]


def test_nothing_left_says_what_was_dropped(tmp_path):
    """And speaks of --val_share only where it would help."""
    stories = ["No end", "Nor here", "", "One.", "One.", "Two."]
    text = prepare_error("--input", write_stories(tmp_path / "t.txt", stories), "--val",
        write_stories(tmp_path / "v.txt", ["One.", "Two."]), "--name", "x", "--data_dir", tmp_path)  # fmt: skip
    dropped = "1 empty dropped, 2 truncated dropped, 3 validation stories dropped from train"
    assert f"no stories left for train of 8 read ({dropped}); add more that end with a sentence" in text
    assert "val_share" not in text
    path = write_stories(tmp_path / "t.txt", ["One.", "Two."])
    text = prepare_error("--input", path, "--val_share", 1e-9, "--name", "x", "--data_dir", tmp_path)
    assert text.endswith("of 2 read (none dropped); add more, or give --val FILE, or raise --val_share")


def test_inputs_that_are_odd_but_good(tmp_path):
    """An integer longer than Python reads, more blanks than tiktoken does, thousands of fields where none belong."""
    rows = [f'{{"id": {"9" * 5000}, "text": "{STORIES[0][:20]}."}}', '{"text": "Two%sdragons."}' % (" " * 2_000_000)]
    rows.append(json.dumps({"text": "Three" + "\n" * 2_000_000 + "dragons <|endoftext|>."}))
    rows.append(json.dumps({"text": "Story:" + "\nWords: a" * 20_000 + "\nFour."}))  # which took minutes
    (tmp_path / "t.jsonl").write_text("\n".join(rows))
    for headers in ((), ("--headers",)):
        run_prepare("--input", tmp_path / "t.jsonl", "--val", write_stories(tmp_path / "v.txt", STORIES), *headers,
            "--name", "x", "--vocab_size", 300, "--data_dir", tmp_path)  # fmt: skip
        kept = [story.split("Story:\n\n")[-1] for story in stories_in(tmp_path / "x", "train")]
        assert kept == [clean(json.loads(row, parse_int=str)["text"])[0] for row in rows]


def test_a_long_line_is_read_in_few_growing_pieces(tmp_path, monkeypatch):
    """In pieces of one size, each split and joined with all before it, the time grows with the square of its length."""
    pieces = []

    class Counted(io.TextIOWrapper):
        def read(self, size):
            pieces.append(size)
            return super().read(size)

    monkeypatch.setattr(io, "TextIOWrapper", Counted)
    story = "Once upon a time. " * 1_000_000
    (tmp_path / "t.jsonl").write_text(json.dumps({"text": story}) + "\n" + json.dumps({"text": "Two."}))
    assert list(read_stories(tmp_path / "t.jsonl")) == [story, "Two."] and len(pieces) < 10


def test_a_flag_given_twice_loses_no_file(tmp_path):
    paths = [write_stories(tmp_path / f"{i}.txt", STORIES[i::4]) for i in range(4)]
    files = ("--input", paths[0], "--input", paths[1], "--val", paths[2], "--val", paths[3])
    run_prepare(*files, "--name", "x", "--vocab_size", 300, "--data_dir", tmp_path)
    assert [len(stories_in(tmp_path / "x", split)) for split in ("train", "val")] == [300, 300]


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
    write_stories(tmp_path / "t.txt", STORIES)
    assert "tests" in prepare_error("--input", tmp_path / "t.txt", "--name", "tests", "--data_dir", tmp_path)
    assert (tmp_path / "tests" / "precious.py").read_text() == "print('mine')"
    (tmp_path / "file").write_text("mine")
    assert "file: not written by prepare.py" in prepare_error(
        "--input", tmp_path / "t.txt", "--name", "file", "--data_dir", tmp_path
    )
    for name in ("../out", "a/b", ".hidden"):
        with pytest.raises(SystemExit):
            run_prepare("--input", tmp_path / "t.txt", "--name", name, "--data_dir", tmp_path)


def test_only_a_corpus_and_nothing_else_is_replaced(tmp_path):
    """A meta.json is not enough, nor is a corpus that somebody keeps other files in. Nothing is read before that."""
    path = write_stories(tmp_path / "t.txt", STORIES)
    args = ("--input", path, "--vocab_size", 300, "--data_dir", tmp_path, "--name")
    run_prepare(*args, "x")
    (tmp_path / "x" / "words").mkdir()
    for name in ("words/words.bin", "words/ends.bin", "words/meta.json"):  # as rouge.py builds them
        (tmp_path / "x" / name).write_text("{}")
    (tmp_path / "x" / ".words.tmp-abc").mkdir()  # left behind by a killed rouge.py
    run_prepare(*args, "x")
    assert sorted(os.listdir(tmp_path / "x")) == ["meta.json", "train.bin", "val.bin"]

    meta = (tmp_path / "x" / "meta.json").read_text()
    cases = {
        "thesis": {"meta.json": '{"title": "On stories"}', "chapter1.tex": "Once"},
        "ours and a note": {"meta.json": meta, "train.bin": "", "val.bin": "", "note.txt": "mine"},
        "a note below": {"meta.json": meta, "words/note.txt": "mine"},
        "another meta": {"meta.json": '{"title": "On stories"}'},
        "no JSON": {"meta.json": "{"},
    }
    path.write_text("broken, were it read")
    for i, files in enumerate(cases.values()):
        for name, text in files.items():
            (tmp_path / f"case{i}" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / f"case{i}" / name).write_text(text)
        before = snapshot(tmp_path)
        assert "not replaced; choose another --name" in prepare_error(*args, f"case{i}")
        assert snapshot(tmp_path) == before


def test_a_link_to_itself_is_one_line(tmp_path):
    (tmp_path / "x").symlink_to("x")
    path = write_stories(tmp_path / "t.txt", STORIES)
    assert "x: not written by prepare.py" in prepare_error(
        "--input", path, "--name", "x", "--vocab_size", 300, "--data_dir", tmp_path
    )
    assert sorted(os.listdir(tmp_path)) == ["t.txt", "x"]
    assert "t.txt" in prepare_error("--input", path, "--name", "x", "--data_dir", path)


def test_no_room_on_the_disk(tmp_path):
    """A limit on the size of a file stands for a full disk: the system refuses to write on, for root too."""
    path = write_stories(tmp_path / "t.txt", STORIES)
    run_prepare("--input", path, "--name", "x", "--vocab_size", 300, "--data_dir", tmp_path / "data")
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
