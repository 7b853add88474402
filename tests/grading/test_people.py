"""People as judges: the page is blind and keeps what they type; its file is read as a judge; a
careful reading and a random one are told apart; judges that agree are seen to."""

import json
import random
import re

import numpy as np
import pytest
from grade_fixtures import rows_of, true_endings, wins, write_samples

from nanostories.generation.samples_file import read_rows, write_rows
from nanostories.grading.comparisons import Comparison
from nanostories.grading.controls import make_controls
from nanostories.grading.groups import group_runs
from nanostories.grading.people import SCORES, agreement, by_people, story_key
from nanostories.grading.scores import TRUE_ENDING
from nanostories.grading.stories import read_runs, story_of
from nanostories.pages.reading_page import GRADED_STORIES, write_page


@pytest.fixture
def groups(tmp_path):
    for name in ("careful", "other"):
        write_samples(tmp_path / "out" / name, 20, 1, seed=len(name))
    return group_runs(read_runs([tmp_path / "out"])[0])


def items_of(page) -> list[dict]:
    data = re.search(r'id="data">(.*?)</script>', page.read_text(), re.DOTALL)[1]
    return json.loads(data)["stories"]


def save_grades(groups, path, judge: str, grade) -> None:
    """grade: (source, story) -> a number, for all that is on the page."""
    sources = {}
    for group in groups:
        for source, stories in (group.sources() | group.controls).items():
            sources |= {story_key(story): (source, story) for story in stories}
    lines = [",".join(["judge", "story", *SCORES])]
    for item in items_of(write_page(groups, path.parent)):
        value = grade(*sources[item["key"]])
        lines.append(",".join([judge, item["key"], *[str(value)] * len(SCORES)]))
    path.write_text("\n".join(lines) + "\n")


def test_the_page_is_blind_and_has_controls(groups, tmp_path):
    page = write_page(groups, tmp_path / "out")
    items = items_of(page)
    assert GRADED_STORIES <= len(items) < GRADED_STORIES + 4
    assert "careful" not in page.read_text() and "(true ending)" not in page.read_text()
    keys = {item["key"] for item in items}
    controls = groups[0].controls[TRUE_ENDING]
    assert sum(story_key(story) in keys for story in controls) >= 12
    assert items_of(write_page(groups, tmp_path / "out")) == items  # the same when it is reopened


def test_a_careful_reading_and_a_random_one_are_told_apart(groups, grade_py, tmp_path):
    rng = random.Random(0)
    out = tmp_path / "out"
    assert grade_py("out", judge="human")[0] == 0 and (out / "read.html").exists()
    assert not (out / "grades.json").exists()  # nobody has read yet: other tables would stay
    spoiled = ("(shuffled)", "(another ending)", "(cut off)")
    save_grades(
        groups, out / "read-Mia.csv", "Mia", lambda source, _: 3 if source in spoiled else 8
    )
    save_grades(groups, out / "read-dice.csv", "dice", lambda *_: rng.randint(0, 10))
    code, _ = grade_py("out", judge="human")
    assert code == 0
    careful = [win for (judge, *_), win in wins(out).items() if judge == "human:Mia"]
    dice = [win for (judge, *_), win in wins(out).items() if judge == "human:dice"]
    assert min(careful) == 1 and abs(np.mean(dice) - 0.5) < 0.25
    rows = {row["score"]: row for row in rows_of(out, "agreement")}
    _, low, high = rows["plot"]["rank correlation"]
    assert rows.keys() == set(SCORES) and low < 0 < high


def test_few_grades_by_a_person_are_shown_as_few(grade_py, tmp_path):
    out = tmp_path / "out"
    groups = group_runs(read_runs([out])[0])
    save_grades(groups, out / "read-Mia.csv", "Mia", lambda *_: 7)
    lines = (out / "read-Mia.csv").read_text().splitlines()
    (out / "read-Mia.csv").write_text("\n".join(lines[:3]) + "\n")
    code, printed = grade_py("out", "--controls", judge="human")
    rows = [row for row in rows_of(out, "scores") if row["judge"] == "human:Mia"]
    assert code == 0 and sum(row["stories"] - row["ungraded"] for row in rows) <= 2
    assert "WARNING human:Mia is untested; more grades" in printed.out


def test_grades_that_are_none_are_named(groups, tmp_path):
    path = tmp_path / "read-Mia.csv"
    for value in ("11", "good", "nan"):
        path.write_text(f"judge,story,{','.join(SCORES)}\nMia,abc,{value},,,\n")
        with pytest.raises(ValueError, match="read-Mia.csv.*grammar"):
            by_people(groups, tmp_path)


def test_grades_never_apply_to_another_text(groups, tmp_path, capsys):
    """A story is written again under its old number: the grade of the old one is left out, and a
    line says so."""
    out = tmp_path / "out"
    save_grades(groups, out / "read-Mia.csv", "Mia", lambda *_: 8)

    def n_graded() -> int:
        (group,) = group_runs(read_runs([out])[0])
        (comparison,) = by_people([group], out)
        return sum(bool(scores) for scores in comparison.grades["other"])

    before = n_graded()
    assert before > 1 and "left out" not in capsys.readouterr().out
    path = out / "other" / "samples" / "eval.jsonl"
    rows = list(read_rows(path).values())
    graded = {line.split(",")[1] for line in (out / "read-Mia.csv").read_text().splitlines()}
    changed = next(row for row in rows if story_key(story_of(row)) in graded)
    changed["completion"] += " And then it rained."
    write_rows(path, rows)
    assert n_graded() == before - 1
    assert re.search(r"human:Mia: 1 of \d+ stories .* left out", capsys.readouterr().out)


def test_agreement_is_spearmans():
    from scipy.stats import spearmanr

    (group,) = groups_of_true_endings()
    stories = group.controls[TRUE_ENDING]
    rng = np.random.default_rng(0)
    a = rng.normal(size=len(stories))
    b = a + rng.normal(size=len(stories))
    comparisons = []
    for judge, values in (("a", a), ("b", b)):
        grades = {TRUE_ENDING: [{"plot": float(value)} for value in values]}
        comparisons.append(Comparison(judge, group, grades))
    (row,) = agreement(comparisons).rows
    value, low, high = row["rank correlation"]
    assert value == pytest.approx(spearmanr(a, b).statistic)
    interval = [np.arctanh(value) - np.arctanh(low), np.arctanh(high) - np.arctanh(value)]
    assert interval == pytest.approx([1.96 / (len(stories) - 3) ** 0.5] * 2, rel=1e-4)


def groups_of_true_endings():
    from test_comparisons import run

    groups = group_runs([run("a")])
    groups[0].controls = make_controls(true_endings(30))
    return groups


def test_a_person_grades_by_keyboard_and_loses_nothing(groups, chromium, tmp_path):
    page = write_page(groups, tmp_path)
    chromium.open(page, width=360)
    chromium.press(*"7x05", "3")  # four scores of the first story, one of the second
    state = "[place, current, document.querySelector('#count').textContent]"
    assert chromium.run(state) == [1, 1, f"Story 2 of {len(items_of(page))}; 1 graded"]
    kept = chromium.run("JSON.stringify(kept.grades)")
    first, second = json.loads(kept).values()
    assert list(first.values()) == [7, 10, 0, 5] and second == {"grammar": 3}
    chromium.run("location.reload()")
    chromium.wait_for(
        "typeof place !== 'undefined' && document.querySelector('#count').textContent"
    )
    assert chromium.run("JSON.stringify(kept.grades)") == kept and chromium.run("place") == 1
    assert chromium.run("document.documentElement.scrollWidth") <= 360 and chromium.messages == []
    # On a phone, which has no keys: from the list of the last score
    chromium.run("""(() => {
      const list = document.querySelectorAll("select")[3];
      list.value = "10";
      list.dispatchEvent(new Event("change"));
    })()""")
    grades = chromium.run("kept.grades[stories[1].key]")
    assert list(grades.values()) == [3, 10] and chromium.run("place") == 2
