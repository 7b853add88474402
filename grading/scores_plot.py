"""
grades.png: scores with their intervals, and normalized over the models; without a judge, the metrics.

>>> plot(Path("out/grades.png"), findings, models=["a", "b"], judges=["gpt-4o-mini"])
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common.figures import png_bytes
from common.files import write_bytes
from grading.compare_models import Finding, find, judge_sees
from grading.judge_controls import TRUE
from grading.rubrics import Score, rubric_of
from grading.scores_table import SHOWN

LONGEST_NAME = 48  # characters
BARS = dict(  # by what the controls say about the judge
    seen=dict(color="#5b8db8"),
    blind=dict(color="#b8b8b8"),
    untested=dict(facecolor="white", edgecolor="#777777"),
)
NOTES = dict(
    blind="gray: the judge failed the controls for this score",
    untested="white: not tested by any control",
)


def plot(path: Path, findings: Sequence[Finding], models: Sequence[str], judges: Sequence[str]) -> None:
    """Bars with intervals and normalized scores, a row for each judge; without a judge, the metrics."""
    shown = {(f.judge, f.figure) for f in findings if f.kind == "mean"}
    rows = {judge: [name for name in rubric_of(judge).scores if (judge, name) in shown] for judge in judges}
    judges = [judge for judge in judges if rows[judge]]
    rows = {judge: rows[judge] for judge in judges} or {"": [name for name in SHOWN if ("", name) in shown]}
    columns = max(map(len, rows.values()))
    ratios = [1] * columns + [0.36 * columns] * bool(judges)
    names_width = 0.065 * min(LONGEST_NAME, max(map(len, models)))  # inches
    size = (names_width + 1 + 1.3 * sum(ratios), 0.4 + len(rows) * (1.2 + 0.3 * len(models)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(rows), len(ratios), squeeze=False, width_ratios=ratios)
    verdicts = {(judge, name): judge_sees(findings, judge, name) for judge in rows for name in rows[judge]}
    for axes, (judge, names) in zip(grid, rows.items()):
        means, scores = find(findings, "mean", judge), rubric_of(judge).scores if judge else {}
        for axis in axes[len(names) : columns]:
            axis.set_axis_off()
        for axis, name in zip(axes, names):
            draw_bars(axis, means, models, name, scores.get(name), BARS[verdicts[judge, name]])
            axis.set_yticks(range(len(models)), [""] * len(models))
        axes[0].set_yticks(range(len(models)), [shorten(model, LONGEST_NAME) for model in models])
        axes[0].set_ylabel("\n(".join(shorten(part, 12 + 3 * len(models)) for part in judge.split(" (", 1)))
        if judge:
            draw_heat_map(axes[-1], means, models, names, [verdicts[judge, name] == "seen" for name in names])
    notes = ["lines: 95% intervals", "dashed: the true endings"]
    notes += [note for kind, note in NOTES.items() if kind in verdicts.values()]
    figure.supxlabel("; ".join(notes), fontsize=8, color="#555555")
    write_bytes(path, png_bytes(figure))


def shorten(name: str, width: int) -> str:
    """Leaves out the middle of a name that is too long."""
    return name if len(name) <= width else f"{name[: width // 2]}…{name[-(width // 2 - 1) :]}"


def draw_bars(axis, means: Mapping, models: Sequence[str], name: str, score: Score | None, style: Mapping) -> None:
    """One figure: a bar for each model, a dashed line for the true endings. score: None for a metric.

    If the scale has no lower end, a bar would have nowhere to begin, so a dot is drawn instead.
    """
    title, factor, _ = SHOWN.get(name, (f"{name} ({score.unit})" if score and score.unit else name, 1, ""))
    is_dot = score is not None and math.isinf(score.scale[0])
    for y, model in enumerate(models):
        if finding := means.get((model, name)):
            if is_dot:
                axis.scatter(factor * finding.value, y, s=7**2, linewidth=1, **style)
            else:
                axis.barh(y, factor * finding.value, height=0.7, **style)
            axis.plot([factor * finding.low, factor * finding.high], [y, y], color="#222222", linewidth=1.3)
    if true := means.get((TRUE, name)):
        axis.axvline(factor * true.value, color="#222222", linewidth=1, linestyle=(0, (3, 3)))
    axis.set_title(title, fontsize=9)
    axis.set_ylim(len(models) - 0.5, -0.5)
    if score and score.scale[0] == 0:
        axis.set_xlim(score.scale)
        axis.set_xticks(np.linspace(*score.scale, 3))
    axis.locator_params(axis="x", nbins=3)
    axis.grid(axis="x", alpha=0.3)
    axis.set_axisbelow(True)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def draw_heat_map(axis, means: Mapping, models: Sequence[str], names: Sequence[str], colored: Sequence[bool]) -> None:
    """Normalized scores, (models, scores), in the order of the bars next to them; only some in color."""
    values = [[means[model, name].normalized if (model, name) in means else math.nan for name in names]
              for model in models]  # fmt: skip
    axis.imshow(np.where(colored, np.ma.masked_invalid(values), np.nan), cmap="Blues", vmin=0, vmax=1.7, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(x, y, "–" if math.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axis.set_yticks([])
    axis.set_title("(s - min) / (max - min)", fontsize=9)
