"""grade.py --import: grades made elsewhere are shown beside our own, and kept apart from them."""

import csv
import json

import pytest
from grade_fixtures import table, write_samples

from grading.imported_grades import FILE


@pytest.fixture(autouse=True)
def fast(tables_only):
    pass


def write(tmp_path, rows: list[dict] | str, name: str = "teacher.csv"):
    """A CSV of a user, in the directory in which grade.py runs."""
    if isinstance(rows, str):
        return (tmp_path / name).write_text(rows)
    with (tmp_path / name).open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def gradings(judge: str = "a teacher", runs: str = "ab") -> list[dict]:
    return [
        dict(run=run, prompt=i, sample=j, judge=judge, grammar=(i + j) % 11, plot=7.5 if run == "a" else "", age="C")
        for run in runs for i in range(5) for j in range(2)
    ]  # fmt: skip


def means(tmp_path, kind: str = "mean") -> dict[tuple[str, str, str], dict]:
    rows = [row for row in table(tmp_path) if row["kind"] == kind and row["judge"]]
    return {(row["judge"], row["subject"], row["figure"]): row for row in rows}


def test_gradings_are_a_judge_of_their_own(grade_py, api, tmp_path):
    assert grade_py(judge="a teacher")[0] == 0  # of the same name, but asked by us
    asked, ours = len(api.requests), (tmp_path / "out" / "a" / "grades.jsonl").read_bytes()
    write(tmp_path, gradings())
    code, printed = grade_py("--import", "teacher.csv", judge=None)
    assert code == 0 and len(api.requests) == asked
    assert "teacher.csv: 20 gradings and 0 means by a teacher, kept in grades-imported.jsonl" in printed.out
    assert "a teacher (imported): 20 of 20 gradings, as recorded earlier" in printed.out
    assert "a teacher: 20 of 20 gradings, as recorded earlier" in printed.out
    assert "a teacher (imported) is unvalidated; no controls came with its grades" in printed.out
    found = means(tmp_path)
    mean = found["a teacher (imported)", "a", "grammar"]
    assert float(mean["value"]) == pytest.approx(sum((i + j) for i in range(5) for j in range(2)) / 10)
    assert float(mean["low"]) < float(mean["value"]) < float(mean["high"]) and mean["prompts"] == "5"
    assert found["a teacher (imported)", "a", "age"]["value"] == "6.5"
    assert ("a teacher (imported)", "b", "plot") not in found  # empty cells
    assert float(means(tmp_path, "difference")["a teacher (imported)", "a - b", "grammar"]["value"]) == 0
    assert (tmp_path / "out" / "a" / "grades.jsonl").read_bytes() == ours
    kept = (tmp_path / "out" / "a" / FILE).read_bytes()
    assert len(kept.splitlines()) == 10
    assert grade_py("--import", "teacher.csv", judge=None)[0] == 0  # once more adds nothing
    (tmp_path / "teacher.csv").unlink()
    before = table(tmp_path)
    assert grade_py("--no_judge", judge=None)[0] == 0 and table(tmp_path) == before
    assert (tmp_path / "out" / "a" / FILE).read_bytes() == kept


def test_completions_that_changed_are_left_out(grade_py, tmp_path):
    write(tmp_path, gradings())
    assert grade_py("--import", "teacher.csv", judge=None)[0] == 0
    write_samples(tmp_path / "out" / "b", 5, 2, seed=1)
    code, printed = grade_py("--no_judge", judge=None)
    assert "10 earlier grades are left out: their completions are no longer in samples.jsonl" in printed.out
    assert {subject for _, subject, _ in means(tmp_path)} == {"a"}


def test_means_are_shown_as_such(grade_py, tmp_path):
    write(tmp_path, "run;judge;grammar;consistency\na;GPT-4;8.2;7\nb;GPT-4;6.2;\n")
    code, printed = grade_py("--import", "teacher.csv", judge=None)
    assert code == 0 and "0 gradings and 2 means by GPT-4" in printed.out
    assert "GPT-4 (imported means): means only, no single gradings" in printed.out
    assert "is unvalidated; means alone have no intervals" in printed.out and "not compared" not in printed.out
    found = means(tmp_path)
    row = found["GPT-4 (imported means)", "a", "grammar"]
    assert (row["value"], row["low"], row["high"], row["prompts"], row["normalized"]) == ("8.2", "", "", "0", "1")
    assert found["GPT-4 (imported means)", "b", "grammar"]["normalized"] == "0" and len(found) == 3
    assert means(tmp_path, "difference") == {}
    line = next(line for line in printed.out.splitlines() if line.startswith("a ") and "8.2" in line)
    assert "8.2 ±" not in line
    write(tmp_path, gradings("GPT-4"))
    assert grade_py("--import", "teacher.csv", judge=None)[0] == 0
    assert {judge for judge, *_ in means(tmp_path)} == {"GPT-4 (imported)", "GPT-4 (imported means)"}


GOOD = "run,prompt,sample,judge,grammar\na,0,0,x,5\n"


@pytest.mark.parametrize(
    "text, message",
    [
        (GOOD + "c,0,0,x,5\n", "bad.csv, line 3: there is no run 'c' here, only a, b"),
        (GOOD + "a,9,0,x,5\n", "bad.csv, line 3: a has no prompt '9' with a sample '0'; both count from 0"),
        (GOOD + "a,1,,x,5\n", "bad.csv, line 3: a has no prompt '1' with a sample ''"),
        (GOOD + "a,1,0,x,eleven\n", "bad.csv, line 3: grammar is 'eleven', not a number from 0 to 10"),
        (GOOD + "a,1,0,x,11\n", "bad.csv, line 3: grammar is '11', not a number from 0 to 10"),
        (GOOD + "a,1,0,x,nan\n", "bad.csv, line 3: grammar is 'nan', not a number"),
        (GOOD + "a,1,0,x,\n", "bad.csv, line 3: no score in it; the scores are grammar,"),
        (GOOD + "a,1,0,,5\n", "bad.csv, line 3: '' is not a name for a judge"),
        (GOOD + "a,1,0,lm:out/a,5\n", "bad.csv, line 3: 'lm:out/a' is not a name for a judge"),
        (GOOD + "a,1,0,x\n", "bad.csv, line 3: 4 cells, but the first line names 5 columns"),
        (GOOD + "a,0,0,x,6\n", "bad.csv, line 3: x has graded this already (grammar 5); to replace"),
        (GOOD.replace("grammar", "gramar"), "bad.csv, line 2: 'gramar' is not a score; the scores are grammar,"),
        (GOOD.replace("judge", "who"), "bad.csv: its first line must name the columns run, judge; no judge"),
        ("", "bad.csv: its first line must name the columns run, judge"),
    ],
)
def test_a_bad_line_is_named_and_nothing_is_kept(grade_py, tmp_path, text, message):
    write(tmp_path, text, "bad.csv")
    code, _ = grade_py("--import", "bad.csv", judge=None)
    assert code.startswith("grade.py: ") and message in code and "\n" not in code
    assert not list((tmp_path / "out").rglob(FILE))


def test_what_was_imported_is_never_overwritten(grade_py, tmp_path):
    write(tmp_path, gradings())
    assert grade_py("--import", "teacher.csv", judge=None)[0] == 0
    kept = (tmp_path / "out" / "a" / FILE).read_bytes()
    write(tmp_path, [row | dict(grammar=10) for row in gradings()])
    code, _ = grade_py("--import", "teacher.csv", judge=None)
    assert "line 2: a teacher has graded this already (grammar 0, plot 7.5, age 6.5)" in code
    assert "nowhere.csv: cannot be read (No such file" in grade_py("--import", "nowhere.csv", judge=None)[0]
    assert (tmp_path / "out" / "a" / FILE).read_bytes() == kept
    assert all(json.loads(line)["file"] == "teacher.csv" for line in kept.splitlines())
