"""People as judges: the page is blind and keeps what they type; its file is read as a judge; a
careful reading and a random one are told apart; judges that agree are seen to."""

import itertools
import json
import os
import random
import shutil
from dataclasses import replace

import numpy as np
import pytest
from conftest import page_data
from grade_fixtures import rows_of, wins, write_samples

from nanostories.grading.comparisons import FEWEST_PROMPTS, Comparison
from nanostories.grading.groups import group_runs
from nanostories.grading.people import SCORES, agreement, by_people, story_key
from nanostories.grading.scores import CUT, OTHER, SPOILED, TRUE_ENDING
from nanostories.grading.stories import read_runs
from nanostories.pages.reading_page import GRADED_STORIES, write_page

HEADER = "judge,story,grammar,creativity,consistency,plot"


@pytest.fixture
def groups(tmp_path):
    for name in ("careful", "other"):
        write_samples(tmp_path / "out" / name, 20, 1, seed=len(name))
    return group_runs(read_runs([tmp_path / "out"])[0])


def items_of(page) -> list[dict]:
    return page_data(page)["stories"]


def save_grades(group, out, judge: str, grade) -> None:
    """grade: source -> a number"""
    lines = [HEADER]
    for source, stories in group.sources(with_controls=True).items():
        for story in stories:
            lines.append(f"{judge},{story_key(story)}" + f",{grade(source)}" * len(SCORES))
    (out / f"read-{judge}.csv").write_text("\n".join(lines))


def test_the_page_is_blind_and_has_controls(groups, tmp_path):
    page = write_page(groups, tmp_path / "out")
    items = items_of(page)
    assert len(items) >= GRADED_STORIES
    assert "careful" not in page.read_text() and "(true ending)" not in page.read_text()
    keys = {item["key"] for item in items}
    for kind in (TRUE_ENDING, OTHER, CUT):
        controls = groups[0].controls[kind]
        assert sum(story_key(story) in keys for story in controls) >= FEWEST_PROMPTS, kind
    assert items_of(write_page(groups, tmp_path / "out")) == items  # the same when it is reopened


def test_a_careful_reading_and_a_random_one_are_told_apart(groups, graded, out):
    rng = random.Random(0)
    for name in "ab":  # grade_py's own
        shutil.rmtree(out / name)
    graded(judge="human")
    assert (out / "read.html").exists()
    assert not (out / "grades.json").exists()  # nobody has read yet: other tables would stay
    save_grades(groups[0], out, "Mia", lambda source: 3 if source in SPOILED else 8)
    save_grades(groups[0], out, "dice", lambda _: rng.randint(0, 10))
    graded(judge="human")
    found = {"human:Mia": [], "human:dice": []}
    for (judge, *_), win in wins(out).items():
        found[judge].append(win)
    assert min(found["human:Mia"]) == 1 and abs(np.mean(found["human:dice"]) - 0.5) < 0.25
    assert [row["score"] for row in rows_of(out, "agreement")] == list(SCORES)


def test_grades_that_are_none_are_named(groups, tmp_path):
    path = tmp_path / "read-Mia.csv"
    for value in ("11", "good", "nan"):
        path.write_text(f"{HEADER}\nMia,abc,{value},,,\n")
        with pytest.raises(ValueError, match="read-Mia.csv.*grammar"):
            by_people(groups, tmp_path)


def test_a_later_file_counts_and_grades_apply_to_the_same_text_alone(groups, tmp_path, capsys):
    """Browsers call a second download read-Mia (1).csv, which sorts before read-Mia.csv. A story
    may be written again: the grade of the old one is left out, and a line says so."""
    run = groups[0].runs[0]
    story = run.stories[0]
    keys = [story_key(story), story_key(replace(story, completion=" And then it rained."))]
    for i, (name, grade) in enumerate({"read-Mia": 7, "read-Mia (1)": 3}.items()):
        lines = [f"Mia,{key},{grade},,," for key in keys]
        path = tmp_path / f"{name}.csv"
        path.write_text("\n".join([HEADER, *lines]))
        os.utime(path, (i, i))
    (comparison,) = by_people(groups, tmp_path)
    assert comparison.scores["grammar"][run.name][0] == 3
    rows = comparison.score_table().rows
    assert sum(row["stories"] - row["ungraded"] for row in rows) == 1
    assert "human:Mia: 1 of 2 graded stories" in capsys.readouterr().out
    assert "human:Mia is untested" in comparison.warnings()[0]


def test_agreement_is_spearmans(groups):
    from scipy.stats import spearmanr

    (group,) = groups
    rng = np.random.default_rng(0)
    a = rng.normal(size=20)
    b = a + rng.normal(size=20)
    comparisons = []
    for judge, values in (("a", a), ("b", b), ("same for all", np.full(20, 4.5))):
        grades = dict.fromkeys(group.sources(), [{}] * 20)
        grades["careful"] = [{"plot": value} for value in values]
        comparisons.append(Comparison(judge, group, grades))
    row, *of_no_order = agreement(comparisons).rows
    assert np.isnan([row["rank correlation"] for row in of_no_order]).all()
    value, low, high = row["rank correlation"]
    assert low < value < high and value == pytest.approx(spearmanr(a, b).statistic)


def test_a_person_grades_by_keyboard_and_loses_nothing(groups, chromium, tmp_path):
    page = write_page(groups, tmp_path)
    chromium.open(page, width=360)
    chromium.press(*"7x05", "3")  # four scores of the first story, one of the second
    state = "[place, current, document.querySelector('#count').textContent]"
    assert chromium.run(state) == [1, 1, f"Story 2 of {len(items_of(page))}; 1 graded"]
    kept = chromium.run("JSON.stringify(ownGrades())")
    first, second = json.loads(kept).values()
    assert list(first.values()) == [7, 10, 0, 5] and second == {"grammar": 3}
    chromium.call(chromium.page.reload)
    assert chromium.run("[place, current]") == [1, 0]
    assert chromium.run("JSON.stringify(ownGrades())") == kept
    assert chromium.run("document.documentElement.scrollWidth") <= 360 and chromium.messages == []
    # On a phone, which has no keys: from the list of the last score
    chromium.run("""(() => {
      const list = document.querySelectorAll("select")[3];
      list.value = "10";
      list.dispatchEvent(new Event("change"));
    })()""")
    grades = chromium.run("ownGrades()[stories[1].key]")
    assert list(grades.values()) == [3, 10] and chromium.run("place") == 2


SAVED = """new Promise((done) => {
  HTMLAnchorElement.prototype.click = () => {};
  URL.createObjectURL = (blob) => (blob.text().then(done), "");
  save();
})"""


def test_the_file_that_the_page_saves_is_read(groups, chromium, tmp_path):
    """Digits in the name, or with Ctrl, are no grades."""
    chromium.open(write_page(groups, tmp_path))
    chromium.run("$('name').focus()")
    chromium.press(*"A B7")
    chromium.run("document.activeElement.blur()")
    chromium.press("Control+8", "7")
    (tmp_path / "read-me.csv").write_text(chromium.run(SAVED))
    # Another reader of the same browser begins anew
    chromium.run("$('name').value = 'Bob'; $('name').onchange()")
    assert chromium.run("ownGrades()") == {}
    (found,) = by_people(groups, tmp_path)
    graded = [scores for scores in itertools.chain(*found.grades.values()) if scores]
    assert found.judge == "human:A_B7" and graded == [{"grammar": 7}]
