"""
From scores to conclusions: means, differences, whether a judge can be trusted; tables and warnings
(grades.md).

Every figure is a Finding, with its 95% interval if it has one; tables, grades.csv and pictures show
the same ones.

>>> findings = compare(rows, runs)
>>> print(report(findings, {"gpt-4o-mini": "1,000 of 1,000 gradings"}))
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from nanostories import statistics
from nanostories.grading.scores import (
    CONTROLS,
    IMPORTED,
    SPOILED,
    TRUE_ENDING,
    is_likelihood_judge,
    score_of,
)
from nanostories.grading.stories import Row, Run
from nanostories.tables import table_text


class Finding(NamedTuple):
    # mean, difference (of two models, on the same prompts), difference_from_true_ending,
    # paired_wins
    kind: str
    judge: str  # "": needs no judge
    subject: str  # a model, a kind of control, or two models ("a - b")
    figure: str  # a score or metric (scores.py)
    value: float
    low: float = math.nan  # the 95% interval
    high: float = math.nan
    prompts: int = 0


def find(findings: Sequence[Finding], kind: str, judge: str) -> dict[tuple[str, str], Finding]:
    """{(subject, figure): finding}."""
    return {(f.subject, f.figure): f for f in findings if f.kind == kind and f.judge == judge}


# ---- Means, differences, wins over the controls ----
def pivot(rows: Sequence[Row]) -> dict[tuple[str, str], dict[str, dict[str, float]]]:
    """{(judge, score): {subject: {prompt: mean over its completions}}}; the prompt "": a figure of
    a run as a whole."""
    values = {}
    for judge, subject, story, score, value in rows:
        prompts = values.setdefault((judge, score), {}).setdefault(subject, {})
        prompts.setdefault(story.beginning if story else "", []).append(value)
    return {
        key: {
            subject: {task: np.mean(v) for task, v in prompts.items()}
            for subject, prompts in subjects.items()
        }
        for key, subjects in values.items()
    }


def compare(rows: Sequence[Row], runs: Sequence[Run]) -> list[Finding]:
    """Means of every subject and score, differences of runs, wins of true endings over spoiled
    ones."""
    findings, table, groups = [], pivot(rows), same_prompts(runs)
    pairs = [pair for pair in itertools.combinations(runs, 2) if comparable(*pair)]
    for (judge, score), means in table.items():
        for subject, values in means.items():
            parts = groups if subject in CONTROLS else {"": values.keys()}
            for note, prompts in parts.items():
                if some := {prompt: values[prompt] for prompt in values if prompt in prompts}:
                    estimate = mean_of(score, score_of(judge, score).scale, some)
                    findings.append(
                        Finding(
                            "mean", judge, subject + note, score, *estimate, len(some.keys() - {""})
                        )
                    )
        for a, b in pairs:
            ours, theirs = paired(means, a.name, b.name)
            if len(ours) > 1:
                difference = statistics.mean(ours - theirs)
                findings.append(
                    Finding(
                        "difference", judge, f"{a.name} - {b.name}", score, *difference, len(ours)
                    )
                )
        for run in runs if judge else ():
            ours, theirs = paired(means, run.name, TRUE_ENDING)
            if len(ours) >= FEWEST_PROMPTS:
                difference = statistics.mean(ours - theirs)
                kind = "difference_from_true_ending"
                findings.append(Finding(kind, judge, run.name, score, *difference, len(ours)))
        for kind in SPOILED if judge else ():
            better, worse = paired(means, TRUE_ENDING, kind)
            if len(better):
                wins = paired_wins(better, worse)
                findings.append(Finding("paired_wins", judge, kind, score, *wins, len(better)))
    return findings


def same_prompts(runs: Sequence[Run]) -> dict[str, frozenset[str]]:
    """{note: prompts} for each group of runs that continue the same prompts. The note follows the
    names of controls: which runs their figures stand beside; "" if all runs are one group."""
    groups = {}
    for run in runs:
        groups.setdefault(frozenset(run.beginnings), []).append(run.name)
    if len(groups) == 1:
        return {"": next(iter(groups))}
    others = (f", {len(names) - 2} more" * (len(names) > 2) for names in groups.values())
    return {
        f" for {', '.join(names[:2])}{more}": group
        for (group, names), more in zip(groups.items(), others)
    }


def control_notes(runs: Sequence[Run]) -> dict[str, str]:
    """{name of a run: the note on the controls of its prompts}"""
    groups = same_prompts(runs)
    return {run.name: note for run in runs for note in groups if groups[note] == run.beginnings}


def comparable(a: Run, b: Run) -> bool:
    """Two models at the same temperature, or one model at two."""
    return a.model == b.model or a.rows[0].get("temperature") == b.rows[0].get("temperature")


def paired(
    means: Mapping[str, Mapping[str, float]], a: str, b: str
) -> tuple[np.ndarray, np.ndarray]:
    """The values of both on their common prompts, in the same order."""
    ours, theirs = means.get(a, {}), means.get(b, {})
    tasks = [task for task in ours if task and task in theirs]
    return np.array([ours[task] for task in tasks]), np.array([theirs[task] for task in tasks])


def paired_wins(better: np.ndarray, worse: np.ndarray) -> statistics.OldEstimate:
    """How often `better` scores above `worse` on the same prompt, both (prompts,); a tie is half a
    win. 0.5 is chance.

    Its interval adds one win and one loss (Bonett and Price, 2012), so that n wins of n do not look
    certain, and uses Student's t. Unlike Wilson's, it accounts for ties: over all outcomes of 5 to
    40 prompts, up to 90% ties and 50 to 99% wins, its coverage is at least 93%.
    """
    n, wins, losses = len(better), (better > worse).sum(), (better < worse).sum()
    value = float(0.5 + (wins - losses) / (2 * n))
    if n < 2:
        return statistics.OldEstimate(value, np.nan, np.nan)
    wins, losses = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    lead, margin = (
        wins - losses,
        statistics.student(n - 1) * ((wins + losses - (wins - losses) ** 2) / (n + 2)) ** 0.5,
    )
    return statistics.OldEstimate(
        value, *np.clip([(1 + lead - margin) / 2, (1 + lead + margin) / 2], 0, 1).tolist()
    )


def mean_of(
    score: str, scale: tuple[float, float], values: Mapping[str, float]
) -> statistics.OldEstimate:
    """The mean, with an interval clipped to the scale. A share of stories has Wilson's: 50 of 50 is
    not ± 0."""
    value, low, high = statistics.mean(np.array(list(values.values())))
    if score == "ended" and len(values) > 1:
        return statistics.OldEstimate(value, *statistics.wilson(value, len(values)))
    return statistics.OldEstimate(value, *np.clip((low, high), *scale))


# ---- Which conclusions hold ----
def checks_of(findings: Sequence[Finding], judge: str) -> list[Finding]:
    """The paired wins that should be above 0.5, because the control is spoiled in exactly that
    respect."""
    wins = find(findings, "paired_wins", judge).values()
    return [f for f in wins if f.subject in score_of(judge, f.figure).tested_by]


def blind(findings: Sequence[Finding], judge: str) -> list[Finding]:
    """The checks that the judge does not pass."""
    return [f for f in checks_of(findings, judge) if not f.low > 0.5]


def judge_sees(findings: Sequence[Finding], judge: str, figure: str) -> str:
    """ "untested" (by any control), "blind" (to at least one) or "seen"; "seen" for a metric, which
    needs no judge."""
    if judge and figure not in {f.figure for f in checks_of(findings, judge)}:
        return "untested"
    return "blind" if figure in {f.figure for f in blind(findings, judge)} else "seen"


ALPHA = 0.05  # the chance that any of a judge's differences is shown although none exists


def shown_differences(
    findings: Sequence[Finding], judge: str, kind: str = "difference"
) -> set[tuple[str, str]]:
    """(models, figure) of the differences that remain after Holm's correction over all models and
    figures.

    In 1,000 simulated experiments with 4 equal models, 5 scores and so 30 differences, any was
    shown in 4 to 6% (10 to 100 prompts); without the correction, in 70%.
    """
    differences = find(findings, kind, judge)
    corrected = statistics.holm(np.array([p_value(f) for f in differences.values()]))
    return {key for key, p in zip(differences, corrected) if p < ALPHA}


def p_value(difference: Finding) -> float:
    """From Student's t: by how much wider the interval would have to be to reach 0."""
    value, n = difference.value, difference.prompts
    margin = value - difference.low if value > 0 else difference.high - value
    if margin > 1e-9:  # more than the rounding of equal differences
        from scipy.special import stdtr  # here, as SciPy is slow to import

        return float(2 * stdtr(n - 1, -abs(value) / margin * statistics.student(n - 1)))
    return (
        2.0 ** (1 - n) if value else 1.0
    )  # the same on every prompt: no spread, so as with n coins


# ---- Warnings ----

# Counted over the outcomes of paired wins: with 20% ties and 90% wins among the rest, a judge
# passes the test with 12 prompts in 78% of cases, with 10 in 68% (tests/test_statistics.py).
FEWEST_PROMPTS = 12


def warnings_of(findings: Sequence[Finding], judge: str) -> list[str]:
    """Reasons to distrust this judge's scores."""
    lines, missed = [], blind(findings, judge)
    if not find(findings, "paired_wins", judge):
        how = "its controls need true endings, which `python sample.py --eval 50` keeps"
        how = how if is_likelihood_judge(judge) else "run grade.py with --controls"
        how = "no controls came with its grades" if judge.endswith(IMPORTED) else how
        lines.append(f"{judge} is unvalidated; {how}")
    if (n := min((f.prompts for f in missed), default=FEWEST_PROMPTS)) < FEWEST_PROMPTS:
        lines.append(
            f"too few prompts ({n}) to test {judge}: below {FEWEST_PROMPTS}, any judge may seem"
            " blind"
        )
    for figure in dict.fromkeys(f.figure for f in missed):
        own = [f for f in checks_of(findings, judge) if f.figure == figure]
        wins = " nor ".join(
            f"{f.subject} (paired wins {cell(f, '.2f')})" for f in own if f in missed
        )
        seen = " and ".join(f.subject for f in own if f not in missed)
        so = (
            f"it only notices {seen}"
            if seen
            else f"its scores of the models' {figure} mean nothing"
        )
        lines.append(f"{figure}: {judge} cannot tell the true ending from {wins}; {so}")
    return lines


# ---- Tables ----
def summary(findings: Sequence[Finding], statuses: Mapping[str, str], runs: Sequence[Run]) -> str:
    """For the terminal, as Markdown: for each judge the means of all that it graded, each run
    beside true endings, reasons to distrust it. statuses: {judge: how many gradings succeeded, in
    words}, in order."""
    notes, parts = (
        control_notes(runs),
        ["## Summary", "Means over prompts, ± half of the 95% interval"],
    )
    groups = dict.fromkeys(note.removeprefix(" for ") for note in notes.values())
    if len(groups) > 1 and any(run.true_endings for run in runs):
        compare_with = (
            "compare each run only with the true endings of its own; judges are tested on all"
            " controls"
        )
        parts.append(f"WARNING different prompts ({'; '.join(groups)}): {compare_with}")
    for judge in statuses or [""]:
        graded = [
            run
            for run in notes
            if any(run == subject for subject, _ in find(findings, "mean", judge))
        ]
        subjects = [*graded, *dict.fromkeys(TRUE_ENDING + notes[run] for run in graded)]
        means = find(findings, "mean", "") | find(findings, "mean", judge)
        means = {
            (s, figure): f
            for s in subjects
            for (subject, figure), f in means.items()
            if subject == s
        }
        sees = {
            figure: judge_sees(findings, judge, figure)
            for _, figure in find(findings, "mean", judge)
        }
        marks = {
            key: dict(seen="", blind="!", untested="?")[sees.get(key[1], "seen")] for key in means
        }
        parts.append(table(means, marks))
        if set(marks.values()) - {""}:
            parts.append("!: the judge fails the controls of this score; ?: no control tests it")
        kind, places = "difference_from_true_ending", {}
        clear = shown_differences(findings, judge, kind)
        for (run, figure), f in find(findings, kind, judge).items():
            if sees[figure] == "seen":
                place = (
                    "too close to call"
                    if (run, figure) not in clear
                    else "higher"
                    if f.value > 0
                    else "lower"
                )
                places.setdefault(run, []).append(f"{figure} {place}")
        parts += [f"{run} beside true endings: {', '.join(own)}" for run, own in places.items()]
        if above := ", ".join(
            run for run, own in places.items() if any(place.endswith(" higher") for place in own)
        ):
            parts.append(
                f"WARNING {judge} scores {above} above true endings: no merit, as judges like"
                " likely text"
            )
        parts += [f"{judge}: {statuses[judge]}"] if judge else []
        parts += [f"WARNING {line}" for line in warnings_of(findings, judge)] if judge else []
    return "\n\n".join(parts)


def report(findings: Sequence[Finding], judges: Iterable[str]) -> str:
    """After the summary: the tables of each judge, as Markdown."""
    parts = []
    for judge in judges:
        means, differences, wins = (
            find(findings, kind, judge) for kind in ("mean", "difference", "paired_wins")
        )
        missed = {f.figure for f in blind(findings, judge)}
        parts.append(f"## {judge}" + " (!: it fails the controls of this score)" * bool(missed))
        if means := {
            key: f for key, f in means.items() if not key[0].startswith(SPOILED)
        }:  # of fewer prompts
            marks = {(subject, figure): "!" for subject, figure in means if figure in missed}
            parts += ["Means over prompts, ± half of the 95% interval", table(means, marks)]
        if differences:
            shown = shown_differences(findings, judge)
            about = "Differences on the same prompts, each ± half of its own 95% interval"
            parts.append(
                f"{about} (?: not significant, by Holm's correction for all {len(differences)})"
            )
            marks = {
                key: "!" * (key[1] in missed) + "?" * (key not in shown) for key in differences
            }
            parts.append(table(differences, marks))
        if wins:
            names = dict.fromkeys(figure for _, figure in means)
            untested = [name for name in names if judge_sees(findings, judge, name) == "untested"]
            about = (
                f"Does {judge} prefer the true ending to a spoiled one of the same prompt? Paired"
                " wins: 1 is always"
            )
            parts.append(
                f"{about}, 0.5 is chance (!: no preference shown; untested:"
                f" {', '.join(untested) or 'none'})"
            )
            marks = {(f.subject, f.figure): "!" for f in blind(findings, judge)}
            parts.append(table(wins, marks, form=".2f"))
    known = dict.fromkeys(
        (f.figure, score_of(f.judge, f.figure)) for f in findings if f.kind == "mean"
    )
    meaning = table_text(
        ["", "unit", "better"], [[f"{name}: {s.about}", s.unit, s.better] for name, s in known]
    )
    return "\n\n".join(filter(None, [*parts, "## Definitions", meaning]))


def table(
    figures: Mapping[tuple[str, str], Finding], marks: Mapping | None = None, form: str = ""
) -> str:
    """figures: {(subject, score): finding}, subjects down, scores across; form: instead of each
    score's own."""
    names = dict.fromkeys(name for _, name in figures)
    cells = {
        key: cell(finding, form) + (marks or {}).get(key, "") for key, finding in figures.items()
    }
    subjects = dict.fromkeys(subject for subject, _ in figures)
    rows = [[subject, *(cells.get((subject, name), "–") for name in names)] for subject in subjects]
    return table_text(["", *names], rows)


def cell(finding: Finding, form: str) -> str:
    low, value, high = finding.low, finding.value, finding.high
    form = form or score_of(finding.judge, finding.figure).form
    if math.isnan(value):
        return "–"
    width = "" if math.isnan(low) else f" ±{(high - low) / 2:{form}}"
    if max(value - low, high - value) > 2 * min(value - low, high - value):  # clipped to the scale
        width = f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{width}"
