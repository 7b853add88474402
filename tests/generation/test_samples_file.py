"""samples_file.py: damaged lines are nobody's completions, and are written again."""

import json

import pytest

from generation.samples_file import read_rows, write_rows
from grading.instruction_following import measure_run, read_instructed
from grading.ledger import read_runs
from novelty.compare_texts import read_completions
from pages.read_results import Results
from pages.sections_stories import side_by_side_section

GOOD = [
    dict(prompt_index=i, sample_index=0, prompt=f"Words: {word}\n", reference=f" A {word}.", completion=f" The {word}.",
         instruction=dict(words=[word]))
    for i, word in enumerate(["cat", "dog", "pig"])
]  # fmt: skip
LINE = json.dumps(GOOD[1]).encode()
DAMAGED = {
    "bytes that are not UTF-8": LINE.replace(b"The dog", b"The d\xffg"),
    "half a character": LINE.replace(b"The dog", b"The d\\ud83dg"),
    "no completion": LINE.replace(b'"completion"', b'"completely"'),
    "a number as the completion": LINE.replace(b'" The dog."', b"7"),
    "null as the prompt": LINE.replace(b'"Words: dog\\n"', b"null"),
    "a text as the number of the prompt": LINE.replace(b'"prompt_index": 1', b'"prompt_index": "1"'),
    "an instruction of another kind": LINE.replace(b'{"words": ["dog"]}', b"3"),
    "a line cut short": LINE[:40],
    "5,000 digits": b"9" * 5000,
    "100,000 brackets": b"[" * 100_000,
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_line_is_named_and_no_reader_takes_it(tmp_path, what, capsys):
    path = tmp_path / "run" / "samples.jsonl"
    write_rows(path, GOOD)
    path.write_bytes(path.read_bytes().replace(LINE, DAMAGED[what]))
    assert read_rows(path) == {(0, 0): GOOD[0], (2, 0): GOOD[2]}
    said = "1 damaged line left out, the first is line 2; run the same sample.py command to write them again"
    assert capsys.readouterr().err == f"{path}: {said}\n"
    rows = [GOOD[0], GOOD[2]]
    assert read_completions(path) == rows == read_instructed(path.parent)[1] == read_runs([tmp_path])[0][0].rows
    assert measure_run("run", rows)
    assert next(iter(side_by_side_section(Results(tmp_path))))["all"] == 2


def test_the_cut_line_of_a_kill_is_left_out_silently(tmp_path, capsys):
    (tmp_path / "samples.jsonl").write_bytes(json.dumps(GOOD[0]).encode() + b"\n\n" + LINE[:40])
    assert list(read_rows(tmp_path / "samples.jsonl")) == [(0, 0)] and capsys.readouterr().err == ""


def test_a_row_needs_neither_prompt_nor_reference(tmp_path):
    row = {name: value for name, value in GOOD[0].items() if name not in ("prompt", "reference")}
    write_rows(tmp_path / "samples.jsonl", [row])
    assert read_rows(tmp_path / "samples.jsonl") == {(0, 0): row | dict(prompt="", reference=None)}
    assert measure_run(*read_instructed(tmp_path))
