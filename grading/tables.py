"""
The tables that grade.py prints and keeps in grades.md: metrics, means, differences, paired wins, warnings, agreement.

>>> print(report(findings, groups, {"gpt-4o-mini": "1,000 of 1,000 gradings"}))
"""

import math
from collections.abc import Callable, Mapping, Sequence

from common.tables import table_text
from grading.findings import CONTROLS, Finding, checks_of, find, judge_sees, shown_differences, warnings_of
from grading.scores import CHAT, LIKELIHOOD, Score, scores_of
from grading.stories import Run, named

MEANS = "Means over prompts, ± half of the 95% interval"


def cell(finding: Finding | None, form: str, mark: str = "") -> str:
    if finding is None or math.isnan(finding.value):
        return "–"
    low, value, high = finding.low, finding.value, finding.high
    width = "" if math.isnan(low) else f" ±{(high - low) / 2:{form}}"
    if max(value - low, high - value) > 2 * min(value - low, high - value):  # clipped to the scale
        width = f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{width}{mark}"


def table(
    figures: Mapping[tuple[str, str], Finding],  # from find()
    scores: Mapping[str, Score],
    subjects: Sequence[str] | None = None,  # None: all, in their order
    mark: Callable[[Finding], str] = lambda finding: "",
    form: str = "",  # instead of each score's own
) -> str:
    """Subjects down, scores across, in the order of both, as far as there are any."""
    shown = [name for name in scores if any(figure == name for _, figure in figures)]
    known = dict.fromkeys(subject for subject, _ in figures)
    rows = []
    for subject in known if subjects is None else [subject for subject in subjects if subject in known]:
        cells = [(figures.get((subject, name)), form or scores[name].form) for name in shown]
        rows.append([subject, *(cell(f, form, mark(f) if f else "") for f, form in cells)])
    return table_text(["", *shown], rows)


def legend(scores: Mapping[str, Score]) -> str:
    """A row for each score: a sentence, its unit, and which way is better."""
    rows = [[f"{name}: {score.about}", score.unit, score.better] for name, score in scores.items()]
    return table_text(["", "unit", "better"], rows)


def report(findings: Sequence[Finding], groups: Mapping[str, Sequence[Run]], counts: Mapping[str, str]) -> str:
    """All tables and warnings, as Markdown. counts: {judge: how many gradings succeeded}, in order."""
    subjects = []
    for group, runs in groups.items():
        subjects += [*(run.name for run in runs), *(named(control, group) for control in CONTROLS)]
    metrics = find(findings, "mean", "")
    parts = ["## Metrics", MEANS, table(metrics, scores_of(""), subjects)]
    for judge, count in counts.items():
        parts += [f"## {judge}", count, *judge_parts(findings, judge, subjects)]
        parts.append("\n".join(f"WARNING {line}" for line in warnings_of(findings, judge)))
    if figures := find(findings, "spearman", ""):
        parts += ["## Agreement of the judges: rank correlation", table(figures, CHAT | LIKELIHOOD, form=".2f")]
    kinds = {str(scores_in(judge, find(findings, "mean", judge))): judge for judge in ("", *counts)}
    parts += ["## Meaning", *(legend(scores_in(judge, find(findings, "mean", judge))) for judge in kinds.values())]
    return "\n\n".join(filter(None, parts))


def scores_in(judge: str, means: Mapping[tuple[str, str], Finding]) -> dict[str, Score]:
    """The scores among these means."""
    return {name: score for name, score in scores_of(judge).items() if any(figure == name for _, figure in means)}


def judge_parts(findings: Sequence[Finding], judge: str, subjects: Sequence[str]) -> list[str]:
    means = find(findings, "mean", judge)
    scores, parts = scores_in(judge, means), []
    if means:
        parts += [MEANS, table(means, scores, subjects)]
    if differences := find(findings, "difference", judge):
        shown, n = shown_differences(findings, judge), sum(not math.isnan(f.low) for f in differences.values())
        about = "Differences on the same prompts, each ± half of its own 95% interval (?: not significant, by Holm's "
        parts.append(f"{about}correction for all {n})")
        parts.append(table(differences, scores, mark=lambda f: "" if (f.subject, f.figure) in shown else "?"))
    if wins := find(findings, "paired_wins", judge):
        blind = [f for f in checks_of(findings, judge) if not f.low > 0.5]
        untested = [name for name in scores if judge_sees(findings, judge, name) == "untested"]
        about = f"Does {judge} prefer the true ending to a spoiled one of the same prompt? Paired wins: 1 is always, "
        about += "0.5 is chance (!: no preference shown"
        parts.append(f"{about}{'; untested: ' * bool(untested)}{', '.join(untested)})")
        parts.append(table(wins, scores, mark=lambda f: "!" if f in blind else "", form=".2f"))
    return parts
