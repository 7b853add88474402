"""
grades.png: scores with their intervals, and normalized over the models. temperature.png: scores over temperature.

>>> save_figure(scores_figure(findings, groups, ["gpt-4o-mini"]), Path("out/grades.png"))
>>> save_figure(temperature_figure(findings, groups), Path("out/temperature.png"))  # if several_temperatures(groups)
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from common.statistics import normalized
from grading.findings import Finding, find, judge_sees
from grading.scores import TRUE, scores_of
from grading.stories import Run, named

LONGEST_NAME = 40  # characters
COLORS = dict(seen="#5b8db8", blind="#b8b8b8", untested="none")  # by what the controls say about the judge
NOTES = dict(seen="", blind=" (controls failed)", untested=" (untested)")
LOSSES = ("loss", "bpb")  # the same at any temperature
DASHED = dict(color="black", linewidth=1, linestyle=(0, (3, 3)))


def rows_of(findings: Sequence[Finding], judges: Sequence[str]) -> dict[str, list[str]]:
    """{judge: its scores}, of the judges that have any; "" for the metrics."""
    rows = {judge: {f.figure for f in findings if f.kind == "mean" and f.judge == judge} for judge in judges}
    return {judge: [name for name in scores_of(judge) if name in scores] for judge, scores in rows.items() if scores}


def style(axis, judge: str, name: str, findings: Sequence[Finding], along: str) -> None:
    """Title, scale and grid of a panel; along: the axis of the score."""
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


# ---- Scores of the models ----


def scores_figure(findings: Sequence[Finding], groups: Mapping[str, Sequence[Run]], judges: Sequence[str]) -> Figure:
    """A row for each judge: bars with intervals, and the normalized scores; without a judge, the metrics."""
    rows = rows_of(findings, judges) or rows_of(findings, [""])
    graded = {judge: {subject for subject, _ in find(findings, "mean", judge)} for judge in rows}
    shown = {judge: {group: [run for run in runs if run.name in graded[judge]] for group, runs in groups.items()}
             for judge in rows}  # fmt: skip
    models = {judge: [run.name for runs in own.values() for run in runs] for judge, own in shown.items()}
    columns = max(map(len, rows.values()))
    across, down = (
        [1] * columns + [0.36 * columns] * ("" not in rows),
        [1.1 + 0.28 * len(models[judge]) for judge in rows],
    )
    names_width = 0.07 * min(LONGEST_NAME, max(len(name) for names in models.values() for name in names))  # inches
    figure = Figure(figsize=(names_width + 1 + 1.5 * sum(across), 0.5 + sum(down)), layout="constrained")
    grid = figure.subplots(len(rows), len(across), squeeze=False, width_ratios=across, height_ratios=down)
    for axes, (judge, names) in zip(grid, rows.items()):
        means, n = find(findings, "mean", judge), len(models[judge])
        for axis in axes[len(names) :]:
            axis.set_axis_off()
        for axis, name in zip(axes, names):
            draw_bars(axis, means, shown[judge], judge, name, COLORS[judge_sees(findings, judge, name)])
            style(axis, judge, name, findings, "x")
            axis.set_yticks(range(n), [""] * n)
            axis.set_ylim(n - 0.5, -0.5)
        axes[0].set_yticks(range(n), [name[:LONGEST_NAME] + "…" * (len(name) > LONGEST_NAME) for name in models[judge]])
        axes[0].set_ylabel("\n(".join(judge.split(" (", 1)), fontsize=9)
        if judge and n > 1:
            draw_normalized(axes[-1], means, models[judge], names)
    figure.supxlabel("lines: 95% intervals; dashed: the true endings", fontsize=8)
    return figure


def draw_bars(axis, means: Mapping, groups: Mapping[str, Sequence[Run]], judge: str, name: str, color: str) -> None:
    """A bar for each model (a dot if the scale has no lower end), a dashed line for the true endings of each group."""
    low, high = scores_of(judge)[name].scale
    y = 0
    for group, runs in groups.items():
        for i, run in enumerate(runs, y):
            if f := means.get((run.name, name)):
                if math.isinf(low):
                    axis.scatter(f.value, i, s=49, linewidth=1, facecolor=color, edgecolor="#777777")
                else:
                    axis.barh(
                        i, f.value, height=0.7, facecolor=color, edgecolor="#777777" if color == "none" else color
                    )
                axis.plot([f.low, f.high], [i, i], color="black", linewidth=1.3)
        if true := means.get((named(TRUE, group), name)):
            axis.plot([true.value] * 2, [y - 0.5, y + len(runs) - 0.5], **DASHED)
        y += len(runs)
    if judge and not math.isinf(low):
        axis.set_xlim(0 if low < high / 2 else low, high)


def draw_normalized(axis, means: Mapping, models: Sequence[str], names: Sequence[str]) -> None:
    """(models, scores): (s - min) / (max - min) over the models."""
    values = normalized(np.array([[means[m, n].value if (m, n) in means else np.nan for n in names] for m in models]))
    axis.set_axis_on()
    axis.imshow(np.ma.masked_invalid(values), cmap="Blues", vmin=0, vmax=1.7, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(x, y, "–" if np.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=8)
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axis.set_yticks([])
    axis.set_title("(s - min) / (max - min)", fontsize=9)


# ---- Scores over temperature ----


def several_temperatures(groups: Mapping[str, Sequence[Run]]) -> dict[tuple[str, str], list[Run]]:
    """{(group, model): its runs by temperature}, of the models whose stories were drawn at several."""
    curves = {}
    for group, runs in groups.items():
        for run in sorted(runs, key=lambda run: run.rows[0].get("temperature") or 0.0):
            curves.setdefault((group, run.model.name), []).append(run)
    return {key: runs for key, runs in curves.items() if len({run.rows[0].get("temperature") for run in runs}) > 1}


def temperature_figure(findings: Sequence[Finding], groups: Mapping[str, Sequence[Run]]) -> Figure:
    """A row for each judge and one for the metrics, a panel for each score, a line for each model."""
    curves = several_temperatures(groups)
    names = {run.name for runs in curves.values() for run in runs}
    findings_shown = [f for f in findings if f.kind == "mean" and f.subject in names and f.figure not in LOSSES]
    rows = rows_of(findings_shown, dict.fromkeys(f.judge for f in findings_shown))
    columns = max(map(len, rows.values()))
    figure = Figure(figsize=(0.4 + 2.6 * columns, 0.8 + 2.3 * len(rows)), layout="constrained")
    for axes, (judge, scores) in zip(figure.subplots(len(rows), columns, squeeze=False), rows.items()):
        means = find(findings, "mean", judge)
        axes[0].set_ylabel(judge, fontsize=9)
        for axis in axes[len(scores) :]:
            axis.set_axis_off()
        for axis, name in zip(axes, scores):
            for i, ((group, model), runs) in enumerate(curves.items()):
                points = [
                    (run.rows[0]["temperature"], *means[run.name, name][4:7])
                    for run in runs
                    if (run.name, name) in means
                ]
                xs, ys, lows, highs = zip(*points) if points else [()] * 4
                axis.plot(xs, ys, marker="o", markersize=3.5, color=f"C{i}", label=model)
                axis.fill_between(xs, lows, highs, color=f"C{i}", alpha=0.2, linewidth=0)
                if points and (true := means.get((named(TRUE, group), name))):
                    axis.plot([xs[0], xs[-1]], [true.value] * 2, **DASHED)
            style(axis, judge, name, findings, "y")
    figure.legend(
        *figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False, fontsize=9
    )
    figure.supxlabel("temperature (shaded: 95% intervals; dashed: true endings)", fontsize=9)
    return figure
