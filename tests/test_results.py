"""Results as data: saved, loaded, shown; and whether their sources have changed."""

import html
import json

import numpy as np
import pytest

from nanostories.cli import UserError
from nanostories.figures import Figure
from nanostories.results import Result, Table, load, outdated, save, to_html, to_text

TABLE = Table(
    "Scores",
    [
        {"run": "a<b>", "grammar": [7.125, 6.5, 7.75], "n": 20},
        {"run": "late", "grammar": [np.float32(5), float("nan"), None], "age": "7"},
    ],
    formats={"grammar": ".1f"},
    notes={"grammar": "blind", "late": "blind", "n": "few"},
    about="<i>",
    facts={"kind": "scores"},
)


def test_a_result_is_the_same_after_saving_and_is_shown(tmp_path, capsys):
    source = tmp_path / "eval.jsonl"
    source.touch()
    path = tmp_path / "out" / "grades.json"
    save(path, "grade.py", [TABLE], ["careful"], [source], Figure())
    found = load(path)
    text = to_text(found)
    assert text == capsys.readouterr().out.strip()
    (kept,) = found.tables
    assert kept.rows[0] == TABLE.rows[0] and kept.rows[1]["grammar"] == [5, None, None]
    assert kept.facts == TABLE.facts and list(found.sources) == ["../eval.jsonl"]
    assert path.with_suffix(".png").exists() and path.with_suffix(".svg").exists()
    json.loads(path.read_text(), parse_constant=pytest.fail)  # no NaN
    for line in (
        "| run    |      grammar ¹ | n ² | age |",
        "| a<b>   | 7.1 [6.5, 7.8] |  20 | –   |",
        "| late ¹ |            5.0 |   – | 7   |",
        "¹ blind",
        "² few",
        TABLE.about,
        "WARNING careful",
    ):
        assert line in text


@pytest.mark.parametrize("n, shown", [(30, 30), (40, 4)])
def test_a_terminal_shows_the_clear_ones_of_many_differences(n, shown):
    rows = [{"run": f"run {i}", "clear": "yes" if i % 10 == 0 else "no"} for i in range(n)]
    result = Result("grade.py", [Table("Differences", rows)], [], {})
    assert to_text(result).count("run ") == 1 + shown
    assert to_html(result).count("run ") == n


def test_html_is_escaped(tmp_path):
    page = to_html(save(tmp_path / "x.json", "grade.py", [TABLE], ["<script>"]))
    for tag in ("<b>", "<script>", "<i>"):
        assert tag not in page and html.escape(tag) in page
    assert '<th class="number">n' in page and "<th>age" in page


def test_sources_that_changed_or_are_gone(tmp_path):
    sources = [tmp_path / name for name in "abc"]
    for source in sources:
        source.touch()
    result = save(tmp_path / "x.json", "grade.py", [], sources=sources)
    (tmp_path / "a").write_text("other")
    (tmp_path / "b").unlink()
    assert outdated(result, tmp_path) == ["a", "b"]


@pytest.mark.parametrize("content", ["{}", '{"format": 1, "tables": [{}]}'])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match="x.json"):
        load(tmp_path / "x.json")
