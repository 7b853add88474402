"""report.py: the figures of runs that were sampled at several temperatures, and what a reader marked."""

import base64
import json

import pytest
from conftest import page_data
from grade_fixtures import write_samples

import report
from common.tables import write_table
from grading import compare_models
from grading.compare_models import Finding


@pytest.fixture
def out(tmp_path):
    """out/a at two temperatures, graded from out/; and its plain prompts, marked."""
    for x in ("0", "0.7"):
        write_samples(tmp_path / "out" / "a" / f"temperature-{x}", 3, 1)
    (tmp_path / "out" / "a" / "log.csv").write_text(
        "step,tokens,train_loss,val_loss,bpb,tokens_per_s\n10,100,3,2.5,0.9,5\n"
    )
    findings = [Finding("mean", "j", f"a/temperature-{x}", "plot", y, y, y, 3) for x, y in (("0", 3.0), ("0.7", 5.0))]
    compare_models.write_csv(tmp_path / "out" / "grades.csv", findings)
    row = {"set": "mine.txt", "prompt": "A", "right": "", "wrong": ""}
    marked = {"out/a verdict": "nearly", "out/a lead": "", "out/a greedy": " b"}
    write_table(tmp_path / "out" / "probe-prompts.csv", [row | marked])
    return tmp_path / "out"


def parts(directory, title: str, kind: str) -> list[dict]:
    page, damaged = report.make_report(directory)
    assert not damaged
    (section,) = [section for section in page_data(page)["sections"] if section["title"] == title]
    return [part for part in section["parts"] if part["type"] == kind]


def test_the_picture_is_there(out):
    for directory in (out, out / "a"):  # of one run, whose grades stand in the directory above
        (picture,) = parts(directory, "Scores", "picture")
        assert base64.b64decode(picture["data"])[:4] == b"\x89PNG"
    (out / "grades.csv").rename(out / "a" / "grades.csv")
    findings = compare_models.read_csv(out / "a" / "grades.csv")
    names = [Finding(f.kind, f.judge, f.subject.removeprefix("a/"), *list(vars(f).values())[3:]) for f in findings]
    compare_models.write_csv(out / "a" / "grades.csv", names)  # as of grade.py out/a
    for directory in (out, out / "a"):
        assert len(parts(directory, "Scores", "picture")) == 1
    compare_models.write_csv(out / "a" / "grades.csv", names[:1])
    assert parts(out, "Scores", "picture") == []


def test_a_run_at_several_temperatures_is_one_run(out):
    for directory in (out, out / "a"):
        assert b'<p class="quiet">1 run</p>' in report.make_report(directory)[0]


def test_damaged_novelty_is_named_once(out):
    (out / "a" / "temperature-0" / "rouge.json").write_text(json.dumps(dict(format=0)))
    _, damaged = report.make_report(out)
    assert len(damaged) == 1 and "temperature-0/rouge.json: left out" in damaged[0]


def test_marks_are_shown(out):
    (bars,) = parts(out, "Facts, reasoning, context", "bars")
    assert bars["panels"][0]["title"] == "mine" and bars["panels"][0]["bars"][0][:2] == ["a", 0.0]
    (answers,) = parts(out, "Facts, reasoning, context", "answers")
    assert answers["rows"] == [["mine.txt", "A", "", "", [["nearly", "", " b"]]]]
