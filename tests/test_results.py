"""Results as data: saved, loaded, shown; and whether their sources have changed."""

import html
import json

import numpy as np
import pytest

from nanostories.cli import UserError
from nanostories.figures import Figure
from nanostories.results import Table, load, outdated, save, to_html, to_text


def table(**others):
    rows = [
        {"run": "a<b>", "grammar": [7.125, 6.5, 7.75], "n": 20},
        {"run": "plain", "grammar": [np.float32(5), float("nan"), None], "n": np.float32(2)},
        {"run": "late", "grammar": None, "age": "7"},
    ]
    return Table("Scores", rows, {"grammar": ".1f"}, **others)


def test_a_result_is_the_same_after_saving_and_is_shown(tmp_path, capsys):
    source = tmp_path / "run" / "eval.jsonl"
    source.parent.mkdir()
    source.touch()
    path = tmp_path / "out" / "grades.json"
    notes = {"grammar": "blind", "late": "blind", "n": "few"}
    given = table(notes=notes, about="Means.", facts={"kind": "scores"})
    saved = save(path, "grade.py", [given], ["careful"], [source], Figure())
    found = load(path)
    text = to_text(found)
    assert text == to_text(saved) == capsys.readouterr().out.strip()
    (kept,) = found.tables
    assert kept.rows[0] == given.rows[0] and kept.rows[1]["grammar"] == [5.0, None, None]
    assert kept.facts == {"kind": "scores"} and list(found.sources) == ["../run/eval.jsonl"]
    assert path.with_suffix(".png").exists() and path.with_suffix(".svg").exists()
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    rows = [row for row in rows if row]
    assert rows[0] == ["run", "grammar ¹", "n ²", "age"]
    assert rows[2:] == [
        ["a<b>", "7.1 [6.5, 7.8]", "20", "–"],
        ["plain", "5.0", "2", "–"],
        ["late ¹", "–", "–", "7"],
    ]
    for line in ("¹ blind", "² few", "Means.", "WARNING careful"):
        assert line in text


def test_a_terminal_shows_the_clear_ones_of_many_differences(tmp_path, capsys):
    rows = [{"run": f"{i} minus x", "clear": "yes" if i % 10 == 0 else "no"} for i in range(40)]
    for n, shown in ((30, 30), (40, 4)):
        save(tmp_path / "grades.json", "grade.py", [Table("Differences", rows[:n])])
        printed = capsys.readouterr().out
        assert printed.count("minus x") == shown
        assert len(load(tmp_path / "grades.json").tables[0].rows) == n
    assert "36 that are not clear are left out" in printed


def test_html_is_escaped(tmp_path):
    result = save(tmp_path / "x.json", "grade.py", [table(about="<i>")], ["<script>"])
    page = to_html(result)
    for tag in ("<b>", "<script>", "<i>"):
        assert tag not in page and html.escape(tag) in page
    assert '<th class="number">grammar</th>' in page and "<th>age</th>" in page


def test_sources_that_changed_or_are_gone(tmp_path):
    sources = [tmp_path / name for name in "abc"]
    for source in sources:
        source.touch()
    result = save(tmp_path / "x.json", "grade.py", [], sources=sources)
    assert outdated(result, tmp_path) == []
    (tmp_path / "a").write_text("other")
    (tmp_path / "b").unlink()
    assert outdated(result, tmp_path) == ["a", "b"]


@pytest.mark.parametrize("content", ["{}", '{"format": 1}', "[]", '{"format": 1, "tables": [{}]}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match="x.json"):
        load(tmp_path / "x.json")
