"""
grades.png: each score of each judge with its intervals.

>>> save_figure(scores_figure(comparisons), Path("out/grades.png"))
"""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from nanostories.grading.comparisons import BLIND, TOO_FEW, UNTESTED, Comparison
from nanostories.grading.scores import TRUE_ENDING, score_of

NARROWEST = 0.02  # width of a panel: smaller differences should not look large
DOUBTS = {  # color of the dots, end of the title
    "": ("#5b8db8", ""),
    BLIND: ("#b8b8b8", "\n(controls failed)"),
    TOO_FEW: ("white", "\n(too few controls)"),
    UNTESTED: ("white", "\n(untested)"),
}


def scores_figure(comparisons: Sequence[Comparison]) -> Figure:
    """A row for each judge of each group, a panel for each score."""
    judged = [each for each in comparisons if each.judge and each.scores] or list(comparisons)
    columns = max(len(each.scores) for each in judged)
    longest = max(len(run.name) for each in judged for run in each.group.runs)
    heights = [1.3 + 0.28 * len(each.group.runs) for each in judged]
    size = (1 + 1.65 * columns + 0.1 * longest, 0.6 + sum(heights))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(judged), columns, squeeze=False, height_ratios=heights)
    for comparison, row in zip(judged, grid):
        names = [run.name for run in comparison.group.runs]
        for axes in row[len(comparison.scores) :]:
            axes.set_axis_off()
        for axes, score in zip(row, comparison.scores):
            draw_score(axes, comparison, score, names)
            axes.set_yticks(range(len(names)), [""] * len(names))
        labels = [f"{name} (the judge)" if name in comparison.own else name for name in names]
        row[0].set_yticks(range(len(names)), labels)
        judge = comparison.judge.replace(" (", "\n(", 1)  # "gpt-4o-mini (paper)" in two lines
        row[0].set_ylabel(judge, fontsize=9)
    about = "lines: 95% intervals; dashed: the true endings of the same prompts"
    figure.supxlabel(about, fontsize=8)
    return figure


def draw_score(axes: Axes, comparison: Comparison, name: str, runs: Sequence[str]) -> None:
    """A dot and its interval for each run, a dashed line for the true endings."""
    score = score_of(comparison.judge, name)
    color, doubt = DOUBTS[comparison.doubt(name)]
    sources = comparison.scores[name]
    for i, run in enumerate(runs):
        if run in sources:
            value, low, high = comparison.mean(name, sources[run])
            axes.plot([low, high], [i, i], color="black", linewidth=1.3)
            axes.scatter(value, i, s=49, c=color, edgecolor="#777777", zorder=2)
    if TRUE_ENDING in sources:
        value, _, _ = comparison.mean(name, sources[TRUE_ENDING])
        axes.axvline(value, color="black", linewidth=1, linestyle=(0, (3, 3)))
    low, high = axes.get_xlim()
    margin = max(0, NARROWEST - (high - low)) / 2
    axes.set_xlim(low - margin, high + margin)
    unit = f"\n({score.unit})" if score.unit not in ("", "%") else ""
    axes.set_title(f"{name}{unit}{doubt}", fontsize=8)
    if score.form.endswith("%"):
        axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylim(len(runs) - 0.5, -0.5)
    axes.locator_params(axis="x", nbins=3)
    axes.grid(axis="x", alpha=0.3)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
