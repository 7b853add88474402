"""
grades.png: scores with their intervals, and normalized over the models. temperature.png: scores over temperature.

>>> save_figure(scores_figure(findings, groups, ["gpt-4o-mini"]), Path("out/grades.png"))
>>> save_figure(temperature_figure(findings, groups), Path("out/temperature.png"))  # None: all at one temperature
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from grading.findings import Finding, find, judge_sees
from grading.scores import TRUE, scores_of
from grading.stories import Run, named

COLORS = dict(seen="#5b8db8", blind="#b8b8b8", untested="white")  # by what the controls say about the judge
NOTES = dict(seen="", blind="\n(controls failed)", untested="\n(untested)")
DASHED = dict(color="black", linewidth=1, linestyle=(0, (3, 3)))


def panels(
    findings: Sequence[Finding], judges: Iterable[str], width: float, height: float, along: str
) -> tuple[Figure, dict]:
    """A row of panels for each judge ("": the metrics) with an axis for each of its scores -> {(judge, score): axis},
    and (judge, ""), for all. width, height: of a panel in inches; along: x or y, the axis of the score."""
    judges = [judge for judge in judges if find(findings, "mean", judge)]
    graded = {(f.judge, f.figure) for f in findings if f.kind == "mean"}
    rows = {judge: [name for name in scores_of(judge) if (judge, name) in graded] for judge in judges}
    columns, axes = max(map(len, rows.values())), {}
    last = 0.36 * columns if along == "x" else 1e-3
    figure = Figure(figsize=(1 + width * (columns + last), 0.8 + height * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns + 1, squeeze=False, width_ratios=[1] * columns + [last])
    for row, (judge, names) in zip(grid, rows.items()):
        row[0].set_ylabel("\n(".join(judge.split(" (", 1)), fontsize=9)
        for axis in row[len(names) :]:
            axis.set_axis_off()
        axes |= {(judge, name): axis for name, axis in zip(names, row)} | {(judge, ""): row[-1]}
        for name, axis in zip(names, row):
            score = scores_of(judge)[name]
            unit = f" ({score.unit})" if score.unit not in ("", "%") else ""
            axis.set_title(f"{name}{unit}{NOTES[judge_sees(findings, judge, name)]}", fontsize=9)
            if score.form.endswith("%"):
                getattr(axis, f"{along}axis").set_major_formatter(PercentFormatter(1))
            axis.locator_params(axis=along, nbins=4)
            axis.grid(axis=along, alpha=0.3)
            axis.set_axisbelow(True)
            axis.tick_params(labelsize=8)
            axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def scores_figure(findings: Sequence[Finding], groups: Mapping[str, Sequence[Run]], judges: Iterable[str]) -> Figure:
    """A row for each judge: scores with intervals, and normalized; without a judge, the metrics."""
    judges = [judge for judge in judges if find(findings, "mean", judge)] or [""]
    true_of = {run.name: named(TRUE, group) for group, runs in groups.items() for run in runs}
    figure, axes = panels(findings, judges, 1.5, 1.1 + 0.28 * len(true_of), "x")
    for (judge, name), axis in axes.items():
        means = find(findings, "mean", judge)
        if name:
            draw_scores(axis, means, true_of, judge, name, COLORS[judge_sees(findings, judge, name)])
            labels = true_of if axis.get_subplotspec().is_first_col() else [""] * len(true_of)
            axis.set_yticks(range(len(true_of)), labels)
            axis.set_ylim(len(true_of) - 0.5, -0.5)
        elif judge and len(true_of) > 1:
            draw_normalized(axis, means, list(true_of), [name for other, name in axes if other == judge and name])
    figure.supxlabel("lines: 95% intervals; dashed: the true endings", fontsize=8)
    return figure


def draw_scores(axis, means: Mapping, true_of: Mapping[str, str], judge: str, name: str, color: str) -> None:
    """A dot and its interval for each model, a dashed line for the true endings of its prompts."""
    for i, (model, true) in enumerate(true_of.items()):
        if f := means.get((model, name)):
            axis.plot([f.low, f.high], [i, i], color="black", linewidth=1.3)
            axis.scatter(f.value, i, s=49, linewidth=1, facecolor=color, edgecolor="#777777", zorder=2)
        if f := means.get((true, name)):
            axis.plot([f.value] * 2, [i - 0.5, i + 0.5], **DASHED)


def draw_normalized(axis, means: Mapping, models: Sequence[str], names: Sequence[str]) -> None:
    """(models, scores): (s - min) / (max - min) over the models that have all scores."""
    values = np.array([[means[m, n].value if (m, n) in means else np.nan for n in names] for m in models])
    complete = ~np.isnan(values).any(1)
    values[~complete], values[complete] = np.nan, normalized(values[complete]) if complete.any() else 0
    axis.set_axis_on()
    axis.imshow(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=1.7, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(x, y, "–" if np.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axis.set_yticks([])
    axis.set_title("(s - min) / (max - min)", fontsize=9)


def temperature_figure(findings: Sequence[Finding], groups: Mapping[str, Sequence[Run]]) -> Figure | None:
    """A row for each judge and one for the metrics, a line for each model whose stories were drawn at several
    temperatures; None if there is none."""
    curves = {}  # (model, true endings) -> its (temperature, name)
    for group, runs in groups.items():
        for run in runs:
            point = (run.rows[0].get("temperature") or 0.0, run.name)
            curves.setdefault((run.model.name, named(TRUE, group)), []).append(point)
    curves = {key: sorted(points) for key, points in curves.items() if len({t for t, _ in points}) > 1}
    names = {name for points in curves.values() for _, name in points}
    shown = [f for f in findings if f.kind == "mean" and f.subject in names and f.figure not in ("loss", "bpb")]
    if not shown:
        return None
    wins = [f for f in findings if f.kind == "paired_wins"]
    figure, axes = panels(shown + wins, dict.fromkeys(f.judge for f in shown), 2.6, 2.3, "y")
    for (judge, score), axis in axes.items():
        means = find(findings, "mean", judge)
        for i, ((model, true), points) in enumerate(curves.items()):
            known = [(x, *means[name, score][4:7]) for x, name in points if (name, score) in means]
            xs, ys, lows, highs = np.array(known).reshape(-1, 4).T
            axis.plot(xs, ys, marker="o", markersize=3.5, color=f"C{i}", label=model)
            axis.fill_between(xs, lows, highs, color=f"C{i}", alpha=0.2, linewidth=0)
            if known and (f := means.get((true, score))):
                axis.plot(xs[[0, -1]], [f.value] * 2, **DASHED)
    legend = dict(loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), **legend)
    figure.supxlabel("temperature (shaded: 95% intervals; dashed: true endings)", fontsize=9)
    return figure


def normalized(values: np.ndarray) -> np.ndarray:
    """(s - min) / (max - min) over the models, axis 0; NaN where all scores are the same."""
    low, high = values.min(0), values.max(0)
    return (values - low) / np.where(high > low, high - low, np.nan)
