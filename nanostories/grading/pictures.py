"""
grades.png: each score of each judge with its intervals, and normalized over the models.

>>> save_figure(scores_figure(findings, ["gpt-4o-mini"], runs), Path("out/grades.png"))
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from nanostories.grading.findings import Finding, control_notes, find, judge_sees
from nanostories.grading.scores import TRUE_ENDING, score_of
from nanostories.grading.stories import Run

COLORS = dict(
    seen="#5b8db8", blind="#b8b8b8", untested="white"
)  # by the judge's results on the controls
NOTES = dict(seen="", blind="\n(controls failed)", untested="\n(untested)")


def scores_figure(
    findings: Sequence[Finding], judges: Iterable[str], runs: Sequence[Run]
) -> Figure:
    """A row for each judge (without one, for the metrics): a panel for each score, and the scores
    normalized."""
    truth = {run: TRUE_ENDING + note for run, note in control_notes(runs).items()}
    judges = [judge for judge in judges if find(findings, "mean", judge)] or [""]
    means = {judge: find(findings, "mean", judge) for judge in judges}
    names = {judge: list(dict.fromkeys(name for _, name in means[judge])) for judge in judges}
    models = {j: list(dict.fromkeys(run for run, _ in means[j] if run in truth)) for j in judges}
    columns = max(map(len, names.values()))
    alike = [
        j for j in judges if j and len(models[j]) > 1 == len({truth[model] for model in models[j]})
    ]  # prompts
    widths = [1] * columns + [0.36 * columns] * bool(alike)
    width = (
        1 + 1.65 * sum(widths) + 0.13 * max(map(len, truth))
    )  # the models' names may stand twice
    height = 0.8 + sum(1.3 + 0.28 * len(models[judge]) for judge in judges)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(len(judges), len(widths), squeeze=False, width_ratios=widths)
    for judge, row in zip(judges, grid):
        row[0].set_ylabel("\n(".join(judge.split(" (", 1)), fontsize=9)
        for axis in row[len(names[judge]) :]:
            axis.set_axis_off()
        seen = {name: judge_sees(findings, judge, name) for name in names[judge]}
        for axis, name in zip(row, names[judge]):
            draw_score(axis, means[judge], models[judge], truth, judge, name, seen[name])
            axis.set_yticks(
                range(len(models[judge])),
                models[judge] if axis is row[0] else [""] * len(models[judge]),
            )
        if judge in alike:
            draw_normalized(row[-1], means[judge], models[judge], seen)
    figure.supxlabel(
        "lines: 95% intervals; dashed: the true endings of the same prompts", fontsize=8
    )
    return figure


def draw_score(
    axis, means: Mapping, models: Sequence[str], truth: Mapping, judge: str, name: str, sees: str
) -> None:
    """A dot and its interval for each model, a dashed line for the true endings of its prompts,
    truth[model]."""
    score = score_of(judge, name)
    unit = f"\n({score.unit})" if score.unit not in ("", "%") else ""
    axis.set_title(f"{name}{unit}{NOTES[sees]}", fontsize=8)
    for i, model in enumerate(models):
        if f := means.get((model, name)):
            axis.plot([f.low, f.high], [i, i], color="black", linewidth=1.3)
            axis.scatter(
                f.value, i, s=49, linewidth=1, facecolor=COLORS[sees], edgecolor="#777777", zorder=2
            )
        if f := means.get((truth[model], name)):
            axis.plot(
                [f.value, f.value],
                [i - 0.5, i + 0.5],
                color="black",
                linewidth=1,
                linestyle=(0, (3, 3)),
            )
    if score.form.endswith("%"):
        axis.xaxis.set_major_formatter(PercentFormatter(1))
    axis.set_ylim(len(models) - 0.5, -0.5)
    axis.locator_params(axis="x", nbins=3)
    axis.grid(axis="x", alpha=0.3)
    axis.tick_params(labelsize=8)
    axis.spines[["top", "right"]].set_visible(False)


def draw_normalized(axis, means: Mapping, models: Sequence[str], seen: Mapping[str, str]) -> None:
    """(models, scores): (s - min) / (max - min) over the models that have all scores; colored where
    seen[score]."""
    names = list(seen)
    models = [model for model in models if all((model, name) in means for name in names)]
    if len(models) < 2:
        return
    values = np.array([[means[model, name].value for name in names] for model in models])
    low, high = values.min(0), values.max(0)
    values = (values - low) / np.where(
        high > low, high - low, np.nan
    )  # NaN where all scores are the same
    axis.set_axis_on()
    colored = np.where([sees == "seen" for sees in seen.values()], values, np.nan)
    axis.imshow(np.ma.masked_invalid(colored), cmap="Blues", vmin=0, vmax=1.7, aspect="auto")
    for (y, x), value in np.ndenumerate(values):
        axis.text(
            x, y, "–" if np.isnan(value) else f"{value:.2f}", ha="center", va="center", fontsize=8
        )
    axis.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    axis.set_yticks(range(len(models)), models, fontsize=8)
    axis.set_title("normalized", fontsize=8)
