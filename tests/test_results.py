"""Results as data: saved, loaded, shown; and whether their sources have changed."""

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


def test_a_result_is_the_same_after_saving(tmp_path, capsys):
    (tmp_path / "run" / "samples").mkdir(parents=True)
    (tmp_path / "run" / "samples/eval.jsonl").write_text("{}")
    path = tmp_path / "out" / "grades.json"
    notes = {"grammar": "fails its controls", "late": "fails its controls", "n": "few"}
    given = table(notes=notes, about="Means.", facts={"kind": "scores"})
    sources = [tmp_path / "run" / "samples/eval.jsonl"]
    figure = Figure()
    saved = save(path, "grade.py", [given], ["too few"], sources, figure)
    found = load(path)
    assert to_text(found) == to_text(saved) == capsys.readouterr().out.strip()
    assert found.tables[0].rows[0] == given.rows[0]
    assert found.tables[0].rows[1]["grammar"] == [5.0, None, None]
    assert found.tables[0].facts == {"kind": "scores"}
    assert list(found.sources) == ["../run/samples/eval.jsonl"]
    assert path.with_suffix(".png").exists() and path.with_suffix(".svg").exists()
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN


def test_cells_notes_and_warnings_are_shown(tmp_path):
    notes = {"grammar": "blind", "late": "blind", "n": "few"}
    text = to_text(save(tmp_path / "x.json", "grade.py", [table(notes=notes)], ["careful"]))
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    rows = [row for row in rows if row]
    assert rows[0] == ["run", "grammar ¹", "n ²", "age"]
    assert rows[2:] == [
        ["a<b>", "7.1 [6.5, 7.8]", "20", "–"],
        ["plain", "5.0", "2", "–"],
        ["late ¹", "–", "–", "7"],
    ]
    assert "¹ blind" in text and "² few" in text and "WARNING careful" in text


def test_html_is_escaped(tmp_path):
    result = save(tmp_path / "x.json", "grade.py", [table(about="<i>")], ["<script>"])
    page = to_html(result)
    assert "a&lt;b&gt;" in page and "&lt;script&gt;" in page and "&lt;i&gt;" in page
    assert "<b>" not in page and "<script>" not in page and "<i>" not in page
    assert '<th class="number">grammar</th>' in page and "<th>age</th>" in page


def test_sources_that_changed_or_are_gone(tmp_path):
    for name in "abc":
        (tmp_path / name).write_text(name)
    sources = [tmp_path / name for name in "abc"]
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
