"""Marks of completions by a reader: kept, counted, never asked for twice."""

import csv
import io
import re

import pytest
from conftest import page_data
from models_to_probe import random_model, save_run

import probe
from common.statistics import wilson
from grading import human_marks


@pytest.fixture
def probe_py(command_line, tmp_path, monkeypatch):
    """probe.py, whose reader types `answers`."""
    call = command_line(probe, tmp_path)

    def typed(*args, answers: str = ""):
        monkeypatch.setattr("sys.stdin", io.StringIO(answers))
        return call(*args)

    return typed


@pytest.fixture
def out(tmp_path, probe_py):
    """out/ with two models, of which one is there twice, and three plain prompts that they have continued."""
    save_run(tmp_path / "out" / "a", random_model())
    save_run(tmp_path / "out" / "b", random_model(n_layer=1))
    save_run(tmp_path / "out" / "c", random_model())
    (tmp_path / "mine.txt").write_text('Once upon\n"Can cows, or pigs, fly?"\nThere was\n')
    code, printed = probe_py("out", "--prompts", "mine.txt", "--max_new_tokens", "4")
    assert code == 0 and "mark 6 completions: python probe.py out --mark" in printed.out
    return tmp_path / "out"


def table_of(path) -> list[dict]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_each_completion_is_marked_once(out, probe_py, tmp_path):
    code, printed = probe_py("out", "--mark", answers="r\nx\nwrong\n\nn\nq\n")
    assert code == 0 and "3 are not marked yet" in printed.out
    assert "out/a" not in printed.out.split("by a reader")[0]  # no model is named while it asks
    kept = table_of(out / "marks.csv")
    assert [row["mark"] for row in kept] == ["right", "wrong", "", "nearly", "", ""]
    code, again = probe_py("out", "--mark", answers="w\nw\nw\n")
    assert [row["mark"] for row in table_of(out / "marks.csv")] == [
        "right",
        "wrong",
        "wrong",
        "nearly",
        "wrong",
        "wrong",
    ]
    asked = [re.findall(r"\n\n(.* \*\*\*.*)\n\n", said.out) for said in (printed, again)]
    assert len(set(asked[0]) | set(asked[1])) == 6 and set(asked[0]) & set(asked[1]) == {asked[0][2], asked[0][4]}
    assert "open the page" in again.out
    assert probe_py("out", "--mark", answers="r\n" * 9)[0] == 0  # nothing is left to ask
    assert [row["mark"] for row in table_of(out / "marks.csv")].count("right") == 1
    verdicts = {(row["prompt"], row["completion"]): row["mark"] for row in kept}
    verdicts |= {(row["prompt"], row["completion"]): row["mark"] for row in table_of(out / "marks.csv")}
    for row in table_of(out / "probe-prompts.csv"):
        for model in ("out/a", "out/b", "out/c"):
            assert row[f"{model} verdict"] == verdicts[row["prompt"], row[f"{model} greedy"]]


def test_marks_are_counted_and_shown(out, probe_py):
    code, printed = probe_py("out", "--mark", answers="r\nr\nr\nw\nn\n")
    rows = table_of(out / "probe-prompts.csv")
    verdicts = [row["out/a verdict"] for row in rows]
    assert set(verdicts) <= {"right", "nearly", "wrong", ""} and len(verdicts) == 3
    line = next(line for line in printed.out.splitlines() if line.startswith("out/a "))
    counts = [verdicts.count(mark) for mark in human_marks.MARKS]
    assert " / ".join(map(str, counts)) in line
    low, high = wilson(counts[0] / sum(counts), sum(counts))
    assert f"{counts[0] / sum(counts):.1%} [{low:.1%}, {high:.1%}]" in line
    bars, answers = page_data(out / "probe-prompts.html")["sections"][0]["parts"]
    assert bars["panels"][0]["bars"][0] == ["out/a", counts[0] / sum(counts), low, high]
    assert [row[4][0][0] for row in answers["rows"]] == verdicts and "as marked by a reader" in answers["caption"]
    assert "| right / nearly / wrong, by a reader | mine |" in probe_py("out", "--mark", "--markdown")[1].out


def test_marks_outlive_new_models_and_longer_completions(out, probe_py):
    assert probe_py("out", "--mark", answers="r\n" * 6)[0] == 0
    save_run(out / "d", random_model(n_embd=16))
    code, printed = probe_py("out", "--prompts", "mine.txt", "--max_new_tokens", "4")
    assert "mark 3 completions" in printed.out  # those of the new model
    assert "3 / 0 / 0" in printed.out
    assert probe_py("out", "--prompts", "mine.txt", "--max_new_tokens", "6")[0] == 0
    assert probe_py("out", "--prompts", "mine.txt", "--max_new_tokens", "4")[0] == 0
    assert sum(row["mark"] == "right" for row in table_of(out / "marks.csv")) == 6


def test_marks_may_be_filled_in_by_hand(out, probe_py):
    """By a spreadsheet that writes semicolons, a byte order mark, and capitals."""
    rows = table_of(out / "marks.csv")
    file = io.StringIO(newline="")
    table = csv.writer(file, delimiter=";")
    table.writerows([["prompt", "completion", "mark "], *([r["prompt"], r["completion"], "Nearly"] for r in rows), []])
    (out / "marks.csv").write_bytes(b"\xef\xbb\xbf" + file.getvalue().encode())
    code, printed = probe_py("out", "--mark")
    assert code == 0 and "0 / 3 / 0" in printed.out and "not marked" not in printed.out


def twice(text: str, *marks: str) -> str:
    """The first pair again, with these marks."""
    return "".join(f"{text.splitlines()[1]}{mark}\r\n" for mark in marks)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda text: text.replace(",\r\n", ",,\r\n", 1), "marks.csv, line 2: 4 cells, but the first line names 3"),
        (
            lambda text: text.replace(",\r\n", ",good\r\n"),
            "marks.csv, line 2: a mark is right, nearly, wrong, or empty",
        ),
        (lambda text: text.replace("mark", "note"), "must name the columns prompt, completion, mark; no mark"),
        (lambda text: "", "its first line must name the columns"),
        (lambda text: text.replace("Once", "\ufffd").encode("latin-1", "replace") + b"\xff", "not UTF-8 text"),
        (lambda text: text + 2 * text.splitlines()[1] + "wrong\r\n", "line 8: "),
        (lambda text: text + twice(text, "right", "wrong"), "line 9: marked wrong here and right above; keep one"),
    ],
)
def test_a_bad_line_is_named(out, probe_py, change, message):
    text = (out / "marks.csv").read_bytes().decode()
    changed = change(text)
    (out / "marks.csv").write_bytes(changed if isinstance(changed, bytes) else changed.encode())
    before = (out / "marks.csv").read_bytes()
    code, _ = probe_py("out", "--mark")
    assert code.startswith("probe.py: ") and message in code and "\n" not in code
    assert (out / "marks.csv").read_bytes() == before


def test_without_completions_there_is_nothing_to_mark(tmp_path, probe_py):
    (tmp_path / "empty").mkdir()
    code, _ = probe_py("empty", "--mark")
    assert code == (
        "probe.py: empty/probe-prompts.csv: not found; first have models continue prompts: "
        "python probe.py RUN --prompts FILE"
    )
