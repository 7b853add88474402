"""
People as judges: the grades that they saved on the page of pages/reading_page.py, and whether
judges agree.

>>> by_people(groups, Path("out"))  # of out/read-*.csv

A story is known by its text alone: so nothing on the page says who wrote it, and one that two
models wrote has one grade.
"""

import hashlib
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nanostories.cli import UserError
from nanostories.grading.chat_judge import checked
from nanostories.grading.comparisons import Comparison
from nanostories.grading.groups import Group
from nanostories.grading.stories import Story
from nanostories.results import Table
from nanostories.tables import read_user_table

JUDGE = "human"
SCORES = ("grammar", "creativity", "consistency", "plot")
FEWEST = 10  # stories that two judges have both graded, for their agreement


def story_key(story: Story) -> str:
    text = f"{story.beginning}\0{story.completion}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def by_people(groups: Sequence[Group], directory: Path) -> list[Comparison]:
    """A grade belongs to the text that was graded: those of other texts are left out, with a line.
    UserError if a file has a grade that is none."""
    by_judge = {}
    for path in sorted(directory.glob("read-*.csv")):
        for where, cells in read_user_table(path, ("judge", "story", *SCORES)):
            scores = {}
            for name in SCORES:
                if cells[name]:
                    scores[name] = read_grade(where, name, cells[name])
            judge = f"{JUDGE}:{cells['judge']}"
            by_judge.setdefault(judge, {})[cells["story"]] = scores
    comparisons = []
    for judge, scores in by_judge.items():
        here = set()
        for group in groups:
            grades = {}
            for source, stories in (group.sources() | group.controls).items():
                keys = list(map(story_key, stories))
                here.update(keys)
                grades[source] = [scores.get(key, {}) for key in keys]
            comparisons.append(Comparison(judge, group, grades))
        n_gone = len(scores.keys() - here)
        if n_gone:
            graded = f"{n_gone} of {len(scores)} stories that were graded"
            print(f"{judge}: {graded} are not here, by their texts' checksums, and are left out")
    return comparisons


def read_grade(where: str, name: str, text: str) -> float:
    try:
        return checked(name, float(text))
    except ValueError:
        raise UserError(f"{where}: {name} is {text!r}, no grade from 0 to 10") from None


# ---- Do judges agree? ----
def agreement(comparisons: Sequence[Comparison]) -> Table:
    """Rank correlation (Spearman's) of each pair of judges, people and models alike, on the stories
    that both have graded; its interval by Fisher's transformation."""
    from scipy.stats import spearmanr  # here, as SciPy is slow to import

    values = {}  # (judge, score) -> {story: value}
    for each in comparisons:
        stories = each.group.sources() | each.group.controls
        for source, grades in each.grades.items():
            for story, scores in zip(stories[source], grades):
                for name, value in (scores or {}).items():
                    values.setdefault((each.judge, name), {})[story] = value
    rows = []
    for (first, name), (second, other) in itertools.combinations(values, 2):
        shared = values[first, name].keys() & values[second, other].keys()
        if not first or not second or first == second or name != other or len(shared) < FEWEST:
            continue
        by_first = [values[first, name][story] for story in shared]
        by_second = [values[second, name][story] for story in shared]
        r = spearmanr(by_first, by_second).statistic
        margin = 1.96 / (len(shared) - 3) ** 0.5
        low, high = np.tanh(np.arctanh(np.clip(r, -0.999999, 0.999999)) + [-margin, margin])
        row = {"judges": f"{first}, {second}", "score": name, "stories": len(shared)}
        rows.append(row | {"rank correlation": [r, low, high]})
    about = "1: both put the stories in the same order; 0: their orders have nothing in common."
    formats = {"rank correlation": ".2f"}
    return Table("Agreement of judges", rows, formats, {}, about, {"kind": "agreement"})
