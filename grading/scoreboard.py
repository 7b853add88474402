"""
From grades to what may be concluded of them: means, differences, and whether the judge can be believed.

Everything is a Finding, with its interval where there is one; the table, grades.csv and grades.png show the same ones.
"""

import io
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common import statistics
from common.files import write_bytes
from common.tables import read_table, write_table
from grading.controls import CUT, OTHER, SHUFFLED, SPOILED, TRUE
from grading.judge import INSTRUCTIONS, SCORES, Story

ASPECTS = (*SCORES, *INSTRUCTIONS, "age")

Vectors = Mapping[Story, Mapping[str, float]]  # the figures of each story


@dataclass(frozen=True)
class Finding:
    kind: str  # mean, difference (of two models, on the same prompts), auc, spearman, mean_absolute_difference
    judge: str  # "": no judge was needed
    subject: str  # the model or kind of control; two of them, as in "a - b"; two judges
    figure: str  # grammar, ..., loss, ...
    value: float
    low: float = math.nan  # the 95 % interval
    high: float = math.nan
    prompts: int = 0
    normalised: float = math.nan  # (s - min) / (max - min) over the models

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def prompt_means(stories: Sequence[Story], vectors: Vectors, figure: str) -> dict[str, float]:
    """{task: mean over its completions}, of those that have this figure."""
    values = {}
    for story in stories:
        value = vectors.get(story, {}).get(figure, math.nan)
        if not math.isnan(value):
            values.setdefault(story.task, []).append(value)
    return {prompt: sum(of_one) / len(of_one) for prompt, of_one in values.items()}


def paired(a: dict, b: dict) -> tuple[np.ndarray, np.ndarray]:
    """The values of both on the prompts that both have."""
    prompts = [prompt for prompt in a if prompt in b]
    return np.array([a[prompt] for prompt in prompts]), np.array([b[prompt] for prompt in prompts])


def compare(
    sources: Mapping[str, Sequence[Story]], models: Sequence[str], vectors: Vectors, figures: Sequence[str], judge: str
) -> list[Finding]:
    """Means of every source and figure, normalised over the models; their differences; the AUC against the controls.

    sources: the stories of each model and each kind of control, by name.
    """
    findings = []
    for figure in figures:
        means = {name: prompt_means(stories, vectors, figure) for name, stories in sources.items()}
        means = {name: values for name, values in means.items() if values}
        estimates = {name: statistics.mean(np.array(list(values.values()))) for name, values in means.items()}
        graded = [model for model in models if model in means]
        normalised = dict.fromkeys(means, math.nan)
        if graded and judge:
            normalised |= zip(graded, statistics.normalised(np.array([estimates[model].value for model in graded])))
        for name, values in means.items():
            findings.append(Finding("mean", judge, name, figure, *estimates[name], len(values), normalised[name]))
        for a, b in itertools.combinations(graded, 2):
            ours, theirs = paired(means[a], means[b])
            if len(ours):
                difference = statistics.mean(ours - theirs)
                findings.append(Finding("difference", judge, f"{a} - {b}", figure, *difference, len(ours)))
        for control in SPOILED if judge else ():
            true, spoiled = paired(means.get(TRUE, {}), means.get(control, {}))
            if len(true):
                findings.append(
                    Finding(
                        "auc", judge, control, figure, *statistics.bootstrap(statistics.auc, true, spoiled), len(true)
                    )
                )
    return findings


def agreement(stories: Sequence[Story], judges: Mapping[str, Vectors]) -> list[Finding]:
    """Of every two judges on the stories that both have graded: rank correlation, mean absolute difference."""
    findings = []
    for (a, grades_a), (b, grades_b) in itertools.combinations(judges.items(), 2):
        for figure in ASPECTS:
            prompts = {}  # prompt -> the two grades of each of its completions
            for story in dict.fromkeys(stories):
                if figure in grades_a.get(story, {}) and figure in grades_b.get(story, {}):
                    both = grades_a[story][figure], grades_b[story][figure]
                    prompts.setdefault(story.task, []).append(both)
            if not prompts:
                continue
            pairs = np.full((len(prompts), max(map(len, prompts.values())), 2), np.nan)
            for row, of_one in zip(pairs, prompts.values()):
                row[: len(of_one)] = of_one
            for kind, statistic in (
                ("spearman", statistics.spearman),
                ("mean_absolute_difference", absolute_difference),
            ):
                estimate = statistics.bootstrap(lambda drawn, s=statistic: s(*drawn[~np.isnan(drawn[..., 0])].T), pairs)
                findings.append(Finding(kind, "", f"{a}, {b}", figure, *estimate, len(prompts)))
    return findings


def absolute_difference(x: np.ndarray, y: np.ndarray) -> float:
    return float(np.abs(x - y).mean())


# ---- What may not be concluded ----


def blind_spots(findings: Sequence[Finding], judge: str) -> list[Finding]:
    """The AUCs that ought to be above 0.5, as the control is spoiled in just that, and are not."""
    aucs = (f for f in findings if f.kind == "auc" and f.judge == judge and f.figure in SPOILED[f.subject])
    return [f for f in aucs if not f.low > 0.5]


def is_resolved(difference: Finding) -> bool:
    return difference.low > 0 or difference.high < 0


SPOILED_HOW = {SHUFFLED: "one with its sentences shuffled", OTHER: "that of another story", CUT: "one cut off"}


def warn_of_blindness(findings: Sequence[Finding], judge: str) -> list[str]:
    """Where the judge does not see what a score is about."""
    lines, missed = [], {}
    for spot in blind_spots(findings, judge):
        missed.setdefault(spot.figure, {})[spot.subject] = f"AUC {spot.value:.2f}, {spot.low:.2f} to {spot.high:.2f}"
    for figure, spots in missed.items():
        what = " nor ".join(f"{SPOILED_HOW[kind]} ({auc})" for kind, auc in spots.items())
        seen = [SPOILED_HOW[kind] for kind in SPOILED if figure in SPOILED[kind] and kind not in spots]
        so = f"it only sees {' and '.join(seen)}" if seen else f"what it says of the models' {figure} means nothing"
        lines.append(f"{figure}: {judge} cannot tell the true ending from {what}; {so}")
    return lines


# Of intervals of an AUC, which should hold the truth in 95 %, 81 % did with 4 prompts, 87 % with 8, 92 % with 10, 95 %
# with 40 (400 simulated experiments each, as in test_stats.py).
FEWEST_PROMPTS = 10


def warn_of_few_prompts(findings: Sequence[Finding], judge: str) -> list[str]:
    """Where it is too early to say what the judge can see."""
    n = min((f.prompts for f in find(findings, "auc", judge).values()), default=FEWEST_PROMPTS)
    line = f"too few prompts ({n}) to say what {judge} sees: below {FEWEST_PROMPTS}, intervals of AUC are too narrow"
    return [line] * (n < FEWEST_PROMPTS)


def warn_of_close_calls(findings: Sequence[Finding], judge: str) -> list[str]:
    """Differences smaller than what this judge can resolve with these prompts."""
    lines, close = [], {}
    for difference in find(findings, "difference", judge).values():
        if not is_resolved(difference) and not math.isnan(difference.half_width):
            close.setdefault(difference.figure, []).append(difference)
    for figure, calls in close.items():
        widths, n = [f.half_width for f in calls if f.half_width], max(f.prompts for f in calls)
        resolved = f", which resolve about {np.mean(widths):.2f}" if widths else ", on which they are equal"
        pairs = "; ".join(f.subject for f in calls[:4]) + f"; {len(calls) - 4} more" * (len(calls) > 4)
        lines.append(f"{figure}: too close to call with {n} prompts{resolved}: {pairs}")
    return lines


# ---- The table ----

SHOWN = {  # judge-free figures: head of the column, factor, format
    "loss": ("loss", 1, ".3f"),
    "bpb": ("bpb", 1, ".3f"),
    "ended": ("ended %", 100, ".0f"),
    "repeated": ("repeat %", 100, ".1f"),
    "distinct-2": ("distinct-2", 1, ".3f"),
    "words": ("words", 1, ".0f"),
    "unknown": ("unknown %", 100, ".2f"),
}


def cell(finding: Finding | None, factor: float = 1, form: str = ".2f", mark: str = "") -> str:
    if finding is None or math.isnan(finding.value):
        return "–"
    width = "" if math.isnan(finding.half_width) else f" ±{factor * finding.half_width:{form}}"
    return f"{factor * finding.value:{form}}{width}{mark}"


def aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = (
        "  ".join(text.rjust(width) if i else text.ljust(width) for i, (text, width) in enumerate(zip(row, widths)))
        for row in rows
    )
    return "\n".join(lines)


def find(findings: Sequence[Finding], kind: str, judge: str) -> dict[tuple[str, str], Finding]:
    return {(f.subject, f.figure): f for f in findings if f.kind == kind and f.judge == judge}


def text_table(findings: Sequence[Finding], kind: str, judge: str, form: str = ".2f", mark=lambda f: "") -> str:
    """Subjects down, aspects across."""
    found = find(findings, kind, judge)
    names = [name for name in ASPECTS if any(figure == name for _, figure in found)]
    rows = [["", *names]]
    for subject in dict.fromkeys(subject for subject, _ in found):
        cells = [found.get((subject, name)) for name in names]
        rows.append([subject, *(cell(f, form=form, mark=mark(f) if f else "") for f in cells)])
    return aligned(rows)


def main_table(findings: Sequence[Finding], sources: Sequence[str], judge: str) -> str:
    """Models and controls down; the judge's scores, then what needs no judge, across."""
    by_judge, free = find(findings, "mean", judge) if judge else {}, find(findings, "mean", "")
    names = [name for name in ASPECTS if any(figure == name for _, figure in by_judge)]
    shown = [name for name in SHOWN if any(figure == name for _, figure in free)]
    rows = [["", *names, *(SHOWN[name][0] for name in shown)]]
    for source in sources:
        scores = [cell(by_judge.get((source, name)), form=".1f") for name in names]
        figures = [cell(free.get((source, name)), *SHOWN[name][1:]) for name in shown]
        rows.append([source, *scores, *figures])
    return aligned(rows)


def report(findings: Sequence[Finding], sources: Sequence[str], judges: Sequence[str], facts: Mapping[str, str]) -> str:
    """All of it, as text. facts: judge -> how many gradings, what failed."""
    parts = []
    for judge in judges or [""]:
        head = f"{judge}: {facts[judge]}\n" if judge else ""
        parts.append(f"{head}Means over prompts, ± half of the 95 % interval\n{main_table(findings, sources, judge)}")
        if find(findings, "difference", judge) and judge:
            marked = text_table(findings, "difference", judge, mark=lambda f: " " if is_resolved(f) else "?")
            parts.append(f"Differences on the same prompts (? where the interval holds 0)\n{marked}")
        if find(findings, "auc", judge):
            spots = blind_spots(findings, judge)
            marked = text_table(findings, "auc", judge, mark=lambda f, spots=spots: "!" if f in spots else " ")
            head = f"Does {judge} tell the true ending from a spoiled one? AUC: 1 always, 0.5 no better than a coin"
            parts.append(f"{head} (! where that is a fault)\n{marked}")
        elif judge:
            parts.append(f"What {judge} can see nobody knows: --controls finds out")
        warnings = (warn_of_few_prompts, warn_of_blindness, warn_of_close_calls) if judge else ()
        if lines := [f"WARNING {line}" for warn in warnings for line in warn(findings, judge)]:
            parts.append("\n".join(lines))
    for kind, head in (("spearman", "rank correlation"), ("mean_absolute_difference", "mean absolute difference")):
        if find(findings, kind, ""):
            parts.append(f"Agreement of the judges: {head}\n{text_table(findings, kind, '')}")
    return "\n\n".join(parts)


# ---- Files ----

LONGEST_NAME = 48  # characters, in the picture


def write_csv(path: Path, findings: Sequence[Finding]) -> None:
    """One finding a line; what is not known is empty."""
    write_table(path, list(map(asdict, findings)), [field.name for field in fields(Finding)])


def read_csv(path: Path) -> list[Finding]:
    """What write_csv wrote."""
    parse = {float: lambda text: float(text or "nan"), int: int, str: str}
    columns = fields(Finding)
    return [Finding(*(parse[c.type](row[c.name]) for c in columns)) for row in read_table(path)]


def plot(path: Path, findings: Sequence[Finding], models: Sequence[str], judges: Sequence[str]) -> None:
    """Bars with intervals, a row for each judge, and the normalised scores; without a judge, what needs none."""
    shown = {(f.judge, f.figure) for f in findings if f.kind == "mean"}
    rows = {judge: [name for name in ASPECTS if (judge, name) in shown] for judge in judges}
    judges = [judge for judge in judges if rows[judge]]
    rows = {judge: rows[judge] for judge in judges} or {"": [name for name in SHOWN if ("", name) in shown]}
    columns = max(map(len, rows.values()))
    ratios = [1] * columns + [0.36 * columns] * bool(judges)
    names_width = 0.065 * min(LONGEST_NAME, max(map(len, models)))  # inches
    size = (names_width + 1 + 1.3 * sum(ratios), 0.4 + len(rows) * (1.2 + 0.3 * len(models)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows), len(ratios), squeeze=False, width_ratios=ratios)
    for axes, (judge, names) in zip(grid, rows.items()):
        found, blind = find(findings, "mean", judge), {f.figure for f in blind_spots(findings, judge)}
        for axis in axes[len(names) : columns]:
            axis.set_axis_off()
        for axis, name in zip(axes, names):
            draw_bars(axis, found, models, name, "#b8b8b8" if name in blind else "#5b8db8")
            axis.set_yticks(range(len(models)), [""] * len(models))
        axes[0].set_yticks(range(len(models)), [shorten(model, LONGEST_NAME) for model in models])
        axes[0].set_ylabel(shorten(judge, 12 + 3 * len(models)))
        if judge:
            draw_heat_map(axes[-1], found, models, names)
    notes = ["lines: 95 % intervals", "dashed: the true endings"] + ["gray: the judge is blind to it, or half"] * any(
        blind_spots(findings, judge) for judge in judges
    )
    figure.supxlabel("; ".join(notes), fontsize=8, color="#555555")
    file = io.BytesIO()
    figure.savefig(file, dpi=120, format="png")
    write_bytes(path, file.getvalue())


def shorten(name: str, width: int) -> str:
    """Both ends of it, where it is too long."""
    return name if len(name) <= width else f"{name[: width // 2]}…{name[-(width // 2 - 1) :]}"


def draw_bars(axis, found: Mapping, models: Sequence[str], name: str, color: str) -> None:
    """One figure, a bar for each model; a dashed line where the true endings are."""
    title, factor, _ = SHOWN.get(name, ("age (years)" if name == "age" else name, 1, ""))
    for y, model in enumerate(models):
        if finding := found.get((model, name)):
            axis.barh(y, factor * finding.value, color=color, height=0.7)
            axis.plot([factor * finding.low, factor * finding.high], [y, y], color="#222222", linewidth=1.3)
    if true := found.get((TRUE, name)):
        axis.axvline(factor * true.value, color="#222222", linewidth=1, linestyle=(0, (3, 3)))
    axis.set_title(title, fontsize=9)
    axis.set_ylim(len(models) - 0.5, -0.5)
    if name in ASPECTS and name != "age":
        axis.set_xlim(0, 10)
        axis.set_xticks([0, 5, 10])
    axis.locator_params(axis="x", nbins=3)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def draw_heat_map(axis, found: Mapping, models: Sequence[str], names: Sequence[str]) -> None:
    """In the order of the bars beside it."""
    values = [[found[model, name].normalised if (model, name) in found else math.nan for name in names]
              for model in models]  # fmt: skip
    axis.imshow(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=1.7, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(x, y, "–" if math.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axis.set_yticks([])
    axis.set_title("(s - min) / (max - min)", fontsize=9)
