"""
The tables that grade.py prints: means, differences, paired wins, warnings, agreement.

>>> print(report(findings, ["a", "b"], {"gpt-4o-mini": "1,000 of 1,000 gradings"}))
"""

import math
from collections.abc import Callable, Mapping, Sequence

from common.tables import table_text
from grading.compare_models import Finding, blind_spots, find, judge_sees, shown_differences, warnings_of, with_interval
from grading.rubrics import CHAT, LIKELIHOOD, rubric_of

SHOWN = {  # metrics: column head, factor, format
    "loss": ("loss", 1, ".3f"),
    "bpb": ("bpb", 1, ".3f"),
    "ended": ("ended %", 100, ".0f"),
    "repeated": ("repeat %", 100, ".1f"),
    "distinct-2": ("distinct-2", 1, ".3f"),
    "words": ("words", 1, ".0f"),
    "unknown": ("unknown %", 100, ".2f"),
}


Formats = Mapping[str, tuple[str, float, str]]  # figure -> the same


def cell(finding: Finding | None, factor: float = 1, form: str = ".2f", mark: str = "") -> str:
    if finding is None or math.isnan(finding.value):
        return "–"
    low, value, high = (factor * end for end in (finding.low, finding.value, finding.high))
    width = "" if math.isnan(low) else f" ±{(high - low) / 2:{form}}"
    if max(value - low, high - value) > 2 * min(value - low, high - value):  # clipped to the scale
        width = f" [{low:{form}}, {high:{form}}]"
    return f"{value:{form}}{width}{mark}"


def figures_table(
    figures: Mapping[tuple[str, str], Finding],  # from find()
    formats: Formats,  # in the order of the columns
    subjects: Sequence[str] | None = None,  # None: all, in their order
    mark: Callable[[Finding], str] = lambda finding: "",
    markdown: bool = False,
) -> str:
    """Subjects down, figures across."""
    formats = {name: shown for name, shown in formats.items() if any(figure == name for _, figure in figures)}
    rows = []
    for subject in dict.fromkeys(subject for subject, _ in figures) if subjects is None else subjects:
        cells = {name: figures.get((subject, name)) for name in formats}
        rows.append([subject, *(cell(f, *formats[name][1:], mark(f) if f else "") for name, f in cells.items())])
    return table_text(["", *(title for title, _, _ in formats.values())], rows, markdown)


TWO_DIGITS = {name: (name, 1, ".2f") for name in (*CHAT.scores, *LIKELIHOOD.scores)}


def report(
    findings: Sequence[Finding],
    sources: Sequence[str],  # models and controls, to be shown in this order; a control only where it was graded
    counts: Mapping[str, str],  # judge, in the order of the tables -> how many gradings succeeded, how many failed
    markdown: bool = False,
) -> str:
    """All tables and warnings, as text."""
    parts, gap = [], "\n\n" if markdown else "\n"

    def add(head: str, figures: Mapping, formats: Formats, *args, **kwargs):
        parts.append(head + gap + figures_table(figures, formats, *args, **kwargs, markdown=markdown))

    for judge in counts or [""]:
        head = f"{judge}: {counts[judge]}{gap}" if judge else ""
        head += "Means over prompts, ± half of the 95% interval"
        scores = rubric_of(judge).scores if judge else {}
        means = find(findings, "mean", judge) | find(findings, "mean", "")
        graded = {subject for subject, _ in means}
        shown = [name for name in sources if name in graded or not name.startswith("(")]
        add(head, means, {name: (name, 1, score.form) for name, score in scores.items()} | SHOWN, shown)
        if not judge:
            continue
        if differences := find(findings, "difference", judge):
            shown = shown_differences(findings, judge)
            head = "Differences on the same prompts, each ± half of its own 95% interval "
            head += f"(?: not significant, by Holm's correction for all {len(with_interval(differences))})"
            formats = {name: (name, 1, score.fine) for name, score in scores.items()}
            add(head, differences, formats, mark=lambda f, s=shown: " " if (f.subject, f.figure) in s else "?")
        if wins := find(findings, "paired_wins", judge):
            spots, graded = blind_spots(findings, judge), dict.fromkeys(figure for _, figure in wins)
            untested = [figure for figure in graded if judge_sees(findings, judge, figure) == "untested"]
            head = f"Does {judge} prefer the true ending to a spoiled one of the same prompt? "
            head += "Paired wins: 1 is always, 0.5 is chance (!: no preference shown"
            head += f"; untested: {', '.join(untested)})" if untested else ")"
            formats = {name: (name, 1, ".2f") for name in scores}
            add(head, wins, formats, mark=lambda f, spots=spots: "!" if f in spots else " ")
        if lines := [f"WARNING {line}" for line in warnings_of(findings, judge)]:
            parts.append("\n".join(lines))
    for kind, head in (("spearman", "rank correlation"), ("mean_absolute_difference", "mean absolute difference")):
        if figures := find(findings, kind, ""):
            add(f"Agreement of the judges: {head}", figures, TWO_DIGITS)
    return "\n\n".join(parts)
