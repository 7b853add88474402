"""
People as judges: the grades that they saved on the page of pages/reading_page.py, and whether
judges agree.

>>> by_people(groups, Path("out"))  # of out/read-*.csv

A story is known by its text alone: so nothing on the page says who wrote it, and one that two
models wrote has one grade.
"""

import hashlib
import itertools
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nanostories.cli import UserError
from nanostories.grading.chat_judge import checked
from nanostories.grading.comparisons import Comparison, compare
from nanostories.grading.groups import Group
from nanostories.grading.scores import HUMAN
from nanostories.grading.stories import Story
from nanostories.results import Table
from nanostories.statistics import around
from nanostories.tables import read_user_table

SCORES = ("grammar", "creativity", "consistency", "plot")
FEWEST = 10  # stories that two judges have both graded, for their agreement


def story_key(story: Story) -> str:
    text = f"{story.prompt}\0{story.completion}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def by_people(groups: Sequence[Group], directory: Path) -> list[Comparison]:
    """A grade belongs to the text that was graded: those of other texts are left out, with a line.
    UserError if a file has one that is not a grade."""
    by_judge = {}
    files = directory.glob("read-*.csv")
    for path in sorted(files, key=lambda path: (path.stat().st_mtime, path)):  # newer grades count
        for where, cells in read_user_table(path, ("judge", "story", *SCORES)):
            try:
                scores = {name: checked(name, cells[name]) for name in SCORES if cells[name]}
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            judge = f"{HUMAN}:{cells['judge']}"
            by_judge.setdefault(judge, {})[cells["story"]] = scores
    keys = {}
    for group in groups:
        keys |= {story: story_key(story) for story in group.stories(with_controls=True)}
    comparisons = []
    for judge, by_key in by_judge.items():
        scores = {story: by_key.get(key, {}) for story, key in keys.items()}
        comparisons += [compare(judge, group, scores.get) for group in groups]
        n_gone = len(by_key.keys() - set(keys.values()))
        if n_gone:
            gone = f"{n_gone} of {len(by_key)} graded stories are not among those graded now"
            print(f"{judge}: {gone} (another set, or other texts); their grades are not used")
    return comparisons


# ---- Do judges agree? ----
def agreement(comparisons: Sequence[Comparison]) -> Table:
    """Rank correlation (Spearman's) of each pair of judges, people and models alike, on the runs'
    stories that both have graded."""
    true_stories = {}  # by prompt: other instructions for one story are no independent trials
    for comparison in comparisons:
        true_stories |= comparison.group.story_of_prompt
    rows = []
    for name, by_judge in values_by_judge(comparisons).items():
        for first, second in itertools.combinations(by_judge, 2):
            shared = [story for story in by_judge[first] if story in by_judge[second]]
            if len(shared) < FEWEST:
                continue
            values = [(by_judge[first][story], by_judge[second][story]) for story in shared]
            prompts = [true_stories[story.prompt] for story in shared]
            row = {"judges": f"{first}, {second}", "score": name, "stories": len(shared)}
            rows.append(row | {"rank correlation": rank_correlation(values, prompts)})
    about = (
        "1: both put the stories in the same order; 0: their orders have nothing in common. Judges"
        f" that have graded fewer than {FEWEST} stories in common are left out. 95% intervals over"
        " prompts."
    )
    formats = {"rank correlation": ".2f"}
    facts = {"kind": "agreement"}
    return Table("Agreement of judges", rows, formats, about=about, facts=facts)


def values_by_judge(comparisons: Sequence[Comparison]) -> dict:
    """{score: {judge: {story: value}}}"""
    found = {}
    for comparison in comparisons:
        if not comparison.judge:  # the metrics
            continue
        # not of controls: that spoiled endings are worse says nothing about models
        for source, stories in comparison.group.sources().items():
            for story, scores in zip(stories, comparison.grades[source]):
                for name, value in (scores or {}).items():
                    by_judge = found.setdefault(name, {})
                    by_judge.setdefault(comparison.judge, {})[story] = value
    return found


def rank_correlation(values: Sequence, prompts: Sequence[str]) -> list[float]:
    """[value, low, high] of the pairs of grades that two judges gave stories after these prompts;
    NaN if a judge gave all stories the same grade. The interval is that of the jackknife, which
    leaves out one prompt at a time: stories after one prompt are alike."""
    from scipy.stats import rankdata  # here, as SciPy is slow to import

    ranks = rankdata(values, axis=0).T  # (judges, stories)
    groups = [np.array(prompts) == prompt for prompt in dict.fromkeys(prompts)]
    with np.errstate(invalid="ignore"):  # of equal grades
        value = np.corrcoef(ranks)[0, 1]
        if len(groups) < 3:
            return [value, math.nan, math.nan]
        without = np.array([np.corrcoef(ranks[:, ~group])[0, 1] for group in groups])
    error = without.std() * (len(groups) - 1) ** 0.5
    found = around(value, error, len(groups))
    return [value, *np.clip([found.low, found.high], -1, 1)]
