"""
From scores to conclusions: means, differences, whether the judge can be trusted, and what may not be concluded.

Every figure is a Finding, with its 95% interval if it has one; tables, grades.csv and pictures show the same ones.

>>> findings = compare(rows, by_prompts(runs))
>>> warnings_of(findings, "gpt-4o-mini")
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from common import statistics
from common.tables import read_table, write_table
from grading.controls import SAFE_TEMPERATURE
from grading.scores import CUT, IMPORTED, OTHER, SAFE, SHUFFLED, TRUE, UNASKED, is_likelihood_judge, scores_of
from grading.stories import Row, Run, named

CONTROLS = (TRUE, SHUFFLED, OTHER, CUT, UNASKED, SAFE)


class Finding(NamedTuple):
    kind: str  # mean, difference (of two models, on the same prompts), paired_wins, spearman
    judge: str  # "": needs no judge
    subject: str  # a model, a kind of control, two models ("a - b") or two judges ("a, b")
    figure: str  # a score or metric (scores.py)
    value: float
    low: float = math.nan  # the 95% interval
    high: float = math.nan
    prompts: int = 0


def write_csv(path: Path, findings: Sequence[Finding]) -> None:
    write_table(path, [finding._asdict() for finding in findings], Finding._fields)


def read_csv(path: Path) -> list[Finding]:
    """The findings that write_csv wrote."""
    parse = {float: lambda text: float(text or "nan"), int: int, str: str}
    types = Finding.__annotations__
    return [Finding(*(parse[types[name]](row[name]) for name in Finding._fields)) for row in read_table(path)]


def find(findings: Sequence[Finding], kind: str, judge: str) -> dict[tuple[str, str], Finding]:
    """{(subject, figure): finding}."""
    return {(f.subject, f.figure): f for f in findings if f.kind == kind and f.judge == judge}


# ---- Means, differences, wins over the controls ----


def pivot(rows: Sequence[Row], groups: Mapping[str, Sequence[Run]]) -> dict[tuple[str, str], dict[str, dict]]:
    """{(judge, score): {subject: {prompt: mean over its completions}}}. Controls are split by group, so that a mean of
    true endings is over the prompts of the runs beside it; the prompt "" is a figure of a run as a whole."""
    group_of = {task: group for group, runs in groups.items() for run in runs for task in run.tasks}
    values = {}
    for judge, run, story, score, value in rows:
        subject = named(run, group_of[story.task]) if story and run in CONTROLS else run
        of_subject = values.setdefault((judge, score), {}).setdefault(subject, {})
        of_subject.setdefault(story.task if story else "", []).append(value)
    return {
        key: {subject: {task: np.mean(v) for task, v in tasks.items()} for subject, tasks in subjects.items()}
        for key, subjects in values.items()
    }


def compare(rows: Sequence[Row], groups: Mapping[str, Sequence[Run]]) -> list[Finding]:
    """Means of every subject and score; differences of the runs of a group; wins of true endings over controls."""
    findings = []
    for (judge, score), means in pivot(rows, groups).items():
        for subject, values in means.items():
            estimate = mean_of(judge, score, np.array(list(values.values())), is_whole="" in values)
            findings.append(Finding("mean", judge, subject, score, *estimate, 0 if "" in values else len(values)))
        pairs = [pair for runs in groups.values() for pair in itertools.combinations(runs, 2) if comparable(*pair)]
        for a, b in pairs:
            ours, theirs = paired(means.get(a.name, {}), means.get(b.name, {}))
            if len(ours):
                estimate = statistics.mean(ours - theirs)
                findings.append(Finding("difference", judge, f"{a.name} - {b.name}", score, *estimate, len(ours)))
        merged = {
            kind: {task: value for group in groups for task, value in means.get(named(kind, group), {}).items()}
            for kind in CONTROLS
        }
        for kind in CONTROLS[1:] if judge else ():
            true, spoiled = paired(merged[TRUE], merged[kind])
            if len(true):
                wins = statistics.paired_wins(true, spoiled)
                findings.append(Finding("paired_wins", judge, kind, score, *wins, len(true)))
    return findings + agreement(rows)


def comparable(a: Run, b: Run) -> bool:
    """Two models at the same temperature, or one model at two."""
    return a.model == b.model or a.rows[0].get("temperature") == b.rows[0].get("temperature")


def paired(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """The values of both on their common prompts, in the same order."""
    tasks = [task for task in a if task and task in b]
    return np.array([a[task] for task in tasks]), np.array([b[task] for task in tasks])


def mean_of(judge: str, score: str, values: np.ndarray, is_whole: bool) -> statistics.Estimate:
    """The mean, with an interval clipped to the scale. A share of stories has Wilson's: 50 of 50 is not ± 0."""
    if is_whole:
        return statistics.Estimate(float(values[0]), math.nan, math.nan)
    value, low, high = statistics.mean(values)
    if score == "ended" and len(values) > 1:
        return statistics.Estimate(value, *statistics.wilson(value, len(values)))
    return statistics.Estimate(value, *np.clip((low, high), *scores_of(judge)[score].scale))


def agreement(rows: Sequence[Row]) -> list[Finding]:
    """Rank correlation of every pair of judges, on the stories that both graded."""
    grades = {}  # score -> judge -> story -> its mean over repeats
    for judge, run, story, score, value in rows:
        if judge and story and run not in CONTROLS:
            grades.setdefault(score, {}).setdefault(judge, {}).setdefault(story, []).append(value)
    findings = []
    for score, judges in grades.items():
        for a, b in itertools.combinations(judges, 2):
            prompts = {}  # prompt -> the two grades of each of its completions
            for story in [story for story in judges[a] if story in judges[b]]:
                prompts.setdefault(story.task, []).append([np.mean(judges[judge][story]) for judge in (a, b)])
            if not prompts:
                continue
            pairs = np.full((len(prompts), max(map(len, prompts.values())), 2), np.nan)
            for row, both in zip(pairs, prompts.values()):
                row[: len(both)] = both
            estimate = statistics.bootstrap(statistics.spearman, pairs)
            findings.append(Finding("spearman", "", f"{a}, {b}", score, *estimate, len(prompts)))
    return findings


# ---- Which conclusions hold ----


def checks_of(findings: Sequence[Finding], judge: str) -> list[Finding]:
    """The paired wins that should be above 0.5, because the control is spoiled in exactly that respect."""
    scores = scores_of(judge)
    return [f for f in find(findings, "paired_wins", judge).values() if f.subject in scores[f.figure].tested_by]


def judge_sees(findings: Sequence[Finding], judge: str, figure: str) -> str:
    """ "untested" (by any control), "blind" (to at least one) or "seen"; "seen" for a metric, which needs no judge."""
    tests = [f for f in checks_of(findings, judge) if f.figure == figure] if judge else []
    if judge and not tests:
        return "untested"
    return "seen" if all(f.low > 0.5 for f in tests) else "blind"


ALPHA = 0.05  # the chance that any of a judge's differences is shown although none exists


def shown_differences(findings: Sequence[Finding], judge: str) -> set[tuple[str, str]]:
    """(models, figure) of the differences that remain after Holm's correction over all models and figures.

    In 1,000 simulated experiments with 4 equal models, 5 scores and so 30 differences, any was shown in 4 to 6% (10 to
    100 prompts); without the correction, in 70%.
    """
    differences = {k: f for k, f in find(findings, "difference", judge).items() if not math.isnan(f.low)}
    corrected = statistics.holm(np.array([p_value(f) for f in differences.values()]))
    return {key for key, p in zip(differences, corrected) if p < ALPHA}


def p_value(difference: Finding) -> float:
    """From Student's t: by how much wider the interval would have to be to reach 0."""
    value, n = difference.value, difference.prompts
    margin = value - difference.low if value > 0 else difference.high - value
    if margin > 1e-9:  # more than the rounding of equal differences
        return statistics.student_p(abs(value) / margin * statistics.student(n - 1), n - 1)
    return 2.0 ** (1 - n) if value else 1.0  # the same on every prompt: no spread, so as with n coins


# ---- Warnings ----

SPOILED_HOW = {SHUFFLED: "one with its sentences shuffled", OTHER: "that of another story", CUT: "one that is cut off"}
SPOILED_HOW |= {UNASKED: "the story for another instruction"}

# Counted over the outcomes of paired wins: with 20% ties and 90% wins among the rest, a judge passes the test with 12
# prompts in 78% of cases, with 10 in 68% (tests/common/test_statistics.py).
FEWEST_PROMPTS = 12


def warnings_of(findings: Sequence[Finding], judge: str) -> list[str]:
    """What a reader of this judge's table must also know."""
    wins = find(findings, "paired_wins", judge)
    lines = [] if wins else [f"{judge} is unvalidated; {how_to_validate(judge)}"]
    blind = [f for f in checks_of(findings, judge) if not f.low > 0.5]
    n = min((f.prompts for f in blind), default=FEWEST_PROMPTS)
    if n < FEWEST_PROMPTS:
        lines.append(
            f"too few prompts ({n}) to say what {judge} sees: below {FEWEST_PROMPTS}, any judge may seem blind"
        )
    lines += [blindness(findings, judge, figure) for figure in dict.fromkeys(f.figure for f in blind)]
    safe = "{}: {} prefers safe endings, which it wrote itself at temperature {}, to the true ones (whose paired wins "
    safe += "are {:.2f}, {:.2f} to {:.2f}); it rewards what is likely, so compare models at the same temperature"
    lines += [
        safe.format(f.figure, judge, SAFE_TEMPERATURE, f.value, f.low, f.high)
        for f in wins.values()
        if f.subject == SAFE and f.high < 0.5
    ]
    lines += constant_scores(findings, judge, {f.figure for f in blind})
    return lines + close_calls(findings, judge)


def how_to_validate(judge: str) -> str:
    if judge.endswith(IMPORTED):
        return "no controls came with its grades, so nothing shows what it sees"
    if is_likelihood_judge(judge):
        return "its controls need true endings, which `python sample.py --eval 50` keeps"
    return "run grade.py with --controls"


def blindness(findings: Sequence[Finding], judge: str, figure: str) -> str:
    """From which spoiled endings the judge cannot tell the true one by this score."""
    tests = [f for f in checks_of(findings, judge) if f.figure == figure]
    blind = [f for f in tests if not f.low > 0.5]
    what = (f"{SPOILED_HOW[f.subject]} (paired wins {f.value:.2f}, {f.low:.2f} to {f.high:.2f})" for f in blind)
    seen = " and ".join(SPOILED_HOW[f.subject] for f in tests if f not in blind)
    so = f"it only notices {seen}" if seen else f"its scores of the models' {figure} mean nothing"
    if all(f.value > 0.5 for f in blind):  # it leans the right way
        so += f", unless more than {max(f.prompts for f in blind)} prompts show otherwise"
    return f"{figure}: {judge} cannot tell the true ending from {' nor '.join(what)}; {so}"


def constant_scores(findings: Sequence[Finding], judge: str, blind: set[str]) -> list[str]:
    """A line for each score that is the same for everything: with or without controls, it says nothing."""
    ends = {}
    for f in find(findings, "mean", judge).values():
        ends.setdefault(f.figure, set()).update(round(end, 9) for end in (f.value, f.low, f.high))
    constant = {figure: min(values) for figure, values in ends.items() if len(values) == 1 and figure not in blind}
    line = "{}: {} always answers {:g}, which says nothing about the models"
    return [line.format(figure, judge, value) for figure, value in constant.items()]


def close_calls(findings: Sequence[Finding], judge: str) -> list[str]:
    """Differences that are too small for this judge to resolve with these prompts."""
    shown, lines = shown_differences(findings, judge), []
    close = [f for key, f in find(findings, "difference", judge).items() if key not in shown and not math.isnan(f.low)]
    for figure in dict.fromkeys(f.figure for f in close):
        calls = [f for f in close if f.figure == figure]
        pairs = "; ".join(f.subject for f in calls[:4]) + f"; {len(calls) - 4} more" * (len(calls) > 4)
        lines.append(f"{figure}: too close to call with {max(f.prompts for f in calls)} prompts: {pairs}")
    return lines
