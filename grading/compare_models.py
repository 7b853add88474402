"""
From scores to conclusions: means, differences, whether the judge can be trusted; grades.csv.

Every figure is a Finding, with an interval if it has one; tables, CSV and plot (scores_plot.py) show the same ones.

>>> findings = compare(dict(a=stories_of_a, b=stories_of_b), ["a", "b"], scores, ["grammar", "plot"], "gpt-4o-mini")
>>> warnings_of(findings, "gpt-4o-mini")
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import NormalDist

import numpy as np

from common import statistics
from common.tables import read_table, write_table
from grading.judge_controls import CUT, OTHER, SAFE, SAFE_TEMPERATURE, SHUFFLED, TRUE, UNASKED
from grading.rubrics import rubric_of
from grading.story import Story

Scores = Mapping[Story, Mapping[str, float]]  # of each story, by judge or metrics


@dataclass(frozen=True)
class Finding:
    kind: str  # mean, difference (of two models, on the same prompts), paired_wins, spearman, mean_absolute_difference
    judge: str  # "": needs no judge
    subject: str  # a model, a kind of control, two models ("a - b") or two judges ("a, b")
    figure: str  # grammar, ..., loss, ...
    value: float
    low: float = math.nan  # the 95% interval
    high: float = math.nan
    prompts: int = 0
    normalized: float = math.nan  # (s - min) / (max - min) over the models


def find(findings: Sequence[Finding], kind: str, judge: str) -> dict[tuple[str, str], Finding]:
    """{(subject, figure): finding}."""
    return {(f.subject, f.figure): f for f in findings if f.kind == kind and f.judge == judge}


def prompt_means(stories: Sequence[Story], scores: Scores, figure: str) -> dict[str, float]:
    """{task: mean of this figure over its completions that have it}."""
    values = {}
    for story in stories:
        value = scores.get(story, {}).get(figure, math.nan)
        if not math.isnan(value):
            values.setdefault(story.task, []).append(value)
    return {prompt: sum(several) / len(several) for prompt, several in values.items()}


SCALES = dict.fromkeys(("repeated", "unknown"), (0.0, 1.0))  # of metrics


def mean_of(figure: str, values: np.ndarray, judge: str) -> statistics.Estimate:
    """The mean, with an interval clipped to the scale. A share of stories has Wilson's: 50 of 50 is not ± 0."""
    value, low, high = statistics.mean(values)
    if figure == "ended" and len(values) > 1:
        return statistics.Estimate(value, *statistics.wilson(value, len(values)))
    scale = rubric_of(judge).scores[figure].scale if judge else SCALES.get(figure, (-math.inf, math.inf))
    return statistics.Estimate(value, *np.clip((low, high), *scale))


def paired(a: dict, b: dict) -> tuple[np.ndarray, np.ndarray]:
    """The values of both on their common prompts, in the same order."""
    prompts = [prompt for prompt in a if prompt in b]
    return np.array([a[prompt] for prompt in prompts]), np.array([b[prompt] for prompt in prompts])


def compare(
    sources: Mapping[str, Sequence[Story]], models: Sequence[str], scores: Scores, figures: Sequence[str], judge: str
) -> list[Finding]:
    """Means of every source and figure, normalized over the models; their differences; wins over the controls.

    sources: the stories of each model and each kind of control, by name.
    """
    findings = []
    for figure in figures:
        means = {name: prompt_means(stories, scores, figure) for name, stories in sources.items()}
        means = {name: values for name, values in means.items() if values}
        estimates = {name: mean_of(figure, np.array(list(values.values())), judge) for name, values in means.items()}
        graded = [model for model in models if model in means]
        normalized = dict.fromkeys(means, math.nan)
        if graded and judge:
            normalized |= zip(graded, statistics.normalized(np.array([estimates[model].value for model in graded])))
        for name, values in means.items():
            findings.append(Finding("mean", judge, name, figure, *estimates[name], len(values), normalized[name]))
        for a, b in itertools.combinations(graded, 2):
            ours, theirs = paired(means[a], means[b])
            if len(ours):
                difference = statistics.mean(ours - theirs)
                findings.append(Finding("difference", judge, f"{a} - {b}", figure, *difference, len(ours)))
        for control in rubric_of(judge).must_lower if judge else ():
            true, spoiled = paired(means.get(TRUE, {}), means.get(control, {}))
            if len(true):
                wins = statistics.paired_wins(true, spoiled)
                findings.append(Finding("paired_wins", judge, control, figure, *wins, len(true)))
    return findings


def agreement(stories: Sequence[Story], judges: Mapping[str, Scores]) -> list[Finding]:
    """Rank correlation and mean absolute difference of every pair of judges, on the stories that both graded."""
    findings = []
    for (a, grades_a), (b, grades_b) in itertools.combinations(judges.items(), 2):
        scores_a, scores_b = rubric_of(a).scores, rubric_of(b).scores
        for figure in [figure for figure in scores_a if figure in scores_b]:
            prompts = {}  # prompt -> the two grades of each of its completions
            for story in dict.fromkeys(stories):
                if figure in grades_a.get(story, {}) and figure in grades_b.get(story, {}):
                    both = grades_a[story][figure], grades_b[story][figure]
                    prompts.setdefault(story.task, []).append(both)
            if not prompts:
                continue
            pairs = np.full((len(prompts), max(map(len, prompts.values())), 2), np.nan)
            for row, grades in zip(pairs, prompts.values()):
                row[: len(grades)] = grades
            kinds = dict(spearman=statistics.spearman)
            if scores_a[figure].scale == scores_b[figure].scale:
                kinds |= dict(mean_absolute_difference=absolute_difference)
            for kind, statistic in kinds.items():
                estimate = statistics.bootstrap(statistic, pairs)
                findings.append(Finding(kind, "", f"{a}, {b}", figure, *estimate, len(prompts)))
    return findings


def absolute_difference(x: np.ndarray, y: np.ndarray, times: np.ndarray) -> np.ndarray:
    return np.abs(x - y) @ times / times.sum(0)


# ---- Which conclusions hold ----


def tests_of(findings: Sequence[Finding], judge: str) -> list[Finding]:
    """The paired wins that should be above 0.5, because the control is spoiled in exactly that respect."""
    must_lower = rubric_of(judge).must_lower
    return [f for f in find(findings, "paired_wins", judge).values() if f.figure in must_lower[f.subject]]


def blind_spots(findings: Sequence[Finding], judge: str) -> list[Finding]:
    """The tests that the judge fails."""
    return [f for f in tests_of(findings, judge) if not f.low > 0.5]


def judge_sees(findings: Sequence[Finding], judge: str, figure: str) -> str:
    """ "untested" (by any control), "blind" (to at least one) or "seen"; "seen" for a figure that needs no judge."""
    if judge and figure not in {f.figure for f in tests_of(findings, judge)}:
        return "untested"
    return "blind" if figure in {f.figure for f in blind_spots(findings, judge)} else "seen"


CHANCE = 0.05  # the chance that any of a judge's differences is shown although none exists


def shown_differences(findings: Sequence[Finding], judge: str) -> set[tuple[str, str]]:
    """(models, figure) of the differences that remain after Holm's correction over all models and figures.

    In 1,000 simulated experiments with 4 equal models, 5 scores and so 30 differences, any was shown in 4 to 6% (10 to
    100 prompts); without the correction, in 70%.
    """
    differences = with_interval(find(findings, "difference", judge))
    corrected = statistics.holm(np.array([p_value(f) for f in differences.values()]))
    return {key for key, p in zip(differences, corrected) if p < CHANCE}


def with_interval(figures: Mapping) -> dict:
    return {key: finding for key, finding in figures.items() if not math.isnan(finding.low)}


def p_value(difference: Finding) -> float:
    """From Student's t: by how much wider the interval would have to be to reach 0."""
    value, n = difference.value, difference.prompts
    reach = value - difference.low if value > 0 else difference.high - value
    if reach > 1e-9:  # more than the rounding of equal differences
        return statistics.student_p(abs(value) / reach * statistics.student(n - 1), n - 1)
    return 2.0 ** (1 - n) if value else 1.0  # the same on every prompt: no spread, so as with n coins


# ---- Warnings ----


def warnings_of(findings: Sequence[Finding], judge: str) -> list[str]:
    """What a reader of this judge's table must also know."""
    validity = (warn_of_no_controls, warn_of_few_prompts, warn_of_blindness, warn_of_safe_endings)
    return [
        line for warn in (*validity, warn_of_constant_scores, warn_of_close_calls) for line in warn(findings, judge)
    ]


def warn_of_no_controls(findings: Sequence[Finding], judge: str) -> list[str]:
    """A line if no control says what the judge sees."""
    if find(findings, "paired_wins", judge):
        return []
    if find(findings, "auc", judge):  # in grades.csv of earlier versions
        again = "run grade.py --no_judge to have them compared in pairs, at no cost"
        return [f"{judge} was compared with its controls by an earlier version; {again}"]
    return [f"{judge} is unvalidated; {rubric_of(judge).validate}"]


def warn_of_safe_endings(findings: Sequence[Finding], judge: str) -> list[str]:
    """A line for each score by which safe endings beat the true ones."""
    return [
        f"{wins.figure}: {judge} prefers safe endings, which it wrote itself at temperature {SAFE_TEMPERATURE}, to the "
        f"true ones (whose paired wins are {wins.value:.2f}, {wins.low:.2f} to {wins.high:.2f}); it rewards what is "
        "likely, so compare models at the same temperature"
        for wins in find(findings, "paired_wins", judge).values()
        if wins.subject == SAFE and wins.high < 0.5
    ]


SPOILED_HOW = {SHUFFLED: "one with its sentences shuffled", OTHER: "that of another story", CUT: "one that is cut off"}
SPOILED_HOW |= {UNASKED: "the story for another instruction"}


def warn_of_blindness(findings: Sequence[Finding], judge: str) -> list[str]:
    """A line for each score whose controls the judge cannot tell from the true ending."""
    lines, missed, needed = [], {}, {}
    for spot in blind_spots(findings, judge):
        interval = f"paired wins {spot.value:.2f}, {spot.low:.2f} to {spot.high:.2f}"
        missed.setdefault(spot.figure, {})[spot.subject] = interval
        needed.setdefault(spot.figure, []).append(prompts_needed(spot))
    for figure, spots in missed.items():
        what = " nor ".join(f"{SPOILED_HOW[kind]} ({wins})" for kind, wins in spots.items())
        seen = [SPOILED_HOW[f.subject] for f in tests_of(findings, judge) if f.figure == figure]
        seen = [how for how in seen if how not in map(SPOILED_HOW.get, spots)]
        so = f"it only notices {' and '.join(seen)}" if seen else f"its scores of the models' {figure} mean nothing"
        verb = "cannot tell"
        if max(needed[figure]) <= MANY_PROMPTS:  # it leans the right way
            verb = "has too few prompts to show that it can tell"
            so = f"about {max(needed[figure]):.0f} would be enough, if it sees this well"
        lines.append(f"{figure}: {judge} {verb} the true ending from {what}; {so}")
    return lines


# Both come from counting the outcomes of paired wins (tests/common/test_statistics.py) and from simulated judges with
# integer grades and noise of standard deviation 1. A judge that needs more than 300 prompts wins fewer than 58 pairs
# in 100 and is as good as blind. Of judges that grade a spoiled ending one point lower, 8% are then called blind at 12
# prompts, 1% at 25; of blind judges, 15% and 9% are told that they need more prompts.
MANY_PROMPTS = 300
FEWEST_PROMPTS = 12  # with 20% ties and 90% wins among the rest, 78% pass the test (with 10 prompts, 68%)


def prompts_needed(wins: Finding) -> float:
    """How many prompts would show, four times out of five, that a judge who wins this often can see.

    Intervals shrink with the square root of the number; twice the prompts that bring the lower end to 0.5 give this
    chance (82 to 93%, simulated for 12 to 50 prompts).
    """
    if not wins.value > 0.5 or math.isnan(wins.low):
        return math.inf
    return math.ceil(2 * wins.prompts * ((wins.value - wins.low) / (wins.value - 0.5)) ** 2)


def warn_of_few_prompts(findings: Sequence[Finding], judge: str) -> list[str]:
    """A line if there are too few prompts to call the judge blind."""
    n = min((f.prompts for f in blind_spots(findings, judge)), default=FEWEST_PROMPTS)
    line = f"too few prompts ({n}) to say what {judge} sees: below {FEWEST_PROMPTS}, even a good judge may seem blind"
    return [line] * (n < FEWEST_PROMPTS)


def warn_of_constant_scores(findings: Sequence[Finding], judge: str) -> list[str]:
    """A line for each score that is the same for everything: with or without controls, it says nothing."""
    lines, spots = [], {f.figure for f in blind_spots(findings, judge)}
    for figure in rubric_of(judge).scores:
        means = [f for f in find(findings, "mean", judge).values() if f.figure == figure]
        ends = {round(end, 9) for f in means for end in (f.value, f.low, f.high)}  # a single prompt has NaN, too
        if len(ends) == 1 and figure not in spots:
            lines.append(f"{figure}: {judge} always answers {means[0].value:g}, which says nothing about the models")
    return lines


def warn_of_close_calls(findings: Sequence[Finding], judge: str) -> list[str]:
    """Differences that are too small for this judge to resolve with these prompts."""
    lines, close, differences = [], {}, find(findings, "difference", judge)
    shown = shown_differences(findings, judge)
    for key, difference in with_interval(differences).items():
        if key not in shown:
            close.setdefault(difference.figure, []).append(difference)
    means = find(findings, "mean", judge)
    known = (TRUE, *rubric_of(judge).must_lower)
    models = dict.fromkeys(subject for (subject, _), f in means.items() if f.prompts and subject not in known)
    compared = {subject for subject, _ in differences}
    apart = [pair for pair in map(" - ".join, itertools.combinations(models, 2)) if pair not in compared]
    if apart:
        more = f"; {len(apart) - 4} more" * (len(apart) > 4)
        reason = "no prompts in common, or graded by separate calls; run grade.py on the directory of both"
        lines.append(f"not compared ({reason}): {'; '.join(apart[:4])}{more}")
    z = NormalDist().inv_cdf(1 - CHANCE / 2 / max(1, len(with_interval(differences))))  # for the largest of them
    for figure, calls in close.items():
        n = max(f.prompts for f in calls)
        widths = [(f.high - f.low) / 2 * statistics.student(n - 1, z) / statistics.student(n - 1) for f in calls]
        resolved = f", which resolve about {np.mean(widths):.2f}" if any(widths) else ""
        resolved = resolved or ", on which they are equal" * (not any(f.value for f in calls))
        pairs = "; ".join(f.subject for f in calls[:4]) + f"; {len(calls) - 4} more" * (len(calls) > 4)
        lines.append(f"{figure}: too close to call with {n} prompts{resolved}: {pairs}")
    return lines


# ---- Files ----


def write_csv(path: Path, findings: Sequence[Finding]) -> None:
    """One finding per line; NaN is an empty cell."""
    write_table(path, list(map(asdict, findings)), [field.name for field in fields(Finding)])


def read_csv(path: Path) -> list[Finding]:
    """The findings that write_csv wrote; earlier versions spelled one column differently."""
    parse = {float: lambda text: float(text or "nan"), int: int, str: str}
    rows = [row | dict(normalized=row["normalised"]) if "normalised" in row else row for row in read_table(path)]
    return [Finding(*(parse[c.type](row[c.name]) for c in fields(Finding))) for row in rows]
