"""
temperature.png: scores, repetition and novelty over the temperature at which a run's stories were drawn.

>>> figure = temperature_figure(collect(findings, Path("out")))  # if collect() found any panels
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from matplotlib.figure import Figure

from common.files import read_json
from generation.samples_file import run_of, temperature_of
from grading.compare_models import Finding, find, judge_sees
from grading.judge_controls import TRUE
from grading.scores_table import SHOWN

METRICS = ("ended", "repeated", "distinct-2", "unknown")  # of those that need no judge
NOVELTY = {  # from rouge.py, if it has been run
    "other_prompt_f": "F with the nearest completion\nof another prompt",
    "training_f": "F with the nearest\ntraining story",
    "training_precision": "largest share\nin one training story",
    "span": "longest span\nin the training set (words)",
}
SEEN = dict(seen="", blind="\n(controls failed)", untested="\n(untested)")


@dataclass
class Panel:
    """One figure over temperature."""

    row: str  # of the picture: the judge
    title: str
    curves: dict[str, list[tuple[float, float, float, float]]] = field(default_factory=dict)  # run: x, y, low, high
    beside: dict[str, list[tuple[float, float]]] = field(default_factory=dict)  # true stories, treated alike

    def add(self, run: str, temperature: float, value: float, low: float | None, high: float | None) -> None:
        low, high = (value if end is None or math.isnan(end) else end for end in (low, high))
        self.curves.setdefault(run, []).append((temperature, value, low, high))


def read_rouge(path: Path) -> dict | None:
    return read_json(path) if path.exists() else None


def collect(findings: Sequence[Finding], directory: Path, read: Callable = read_rouge) -> list[Panel]:
    """A panel for each figure of the runs below `directory` that were sampled at several temperatures.

    findings: subjects are paths below it. read: returns the contents of a rouge.json, or None if there is no file.
    """
    places = {f.subject: directory / f.subject for f in findings if f.kind == "mean"}
    places = {subject: place for subject, place in places.items() if temperature_of(place) is not None}
    places = dict(sorted(places.items(), key=lambda item: (str(run_of(item[1])), temperature_of(item[1]))))
    several = [run_of(place) for place in places.values()]
    places = {subject: place for subject, place in places.items() if several.count(run_of(place)) > 1}
    name_of = {subject: Path(subject).parent.as_posix() for subject in places}
    name_of |= {subject: places[subject].resolve().parent.name for subject, name in name_of.items() if name == "."}
    panels = []
    for judge in dict.fromkeys(["", *(f.judge for f in findings if f.kind == "mean")]):
        means = find(findings, "mean", judge)
        names = METRICS if not judge else dict.fromkeys(name for _, name in means)
        for name in names:
            title, factor, _ = (name, 1, "") if judge else SHOWN[name]
            panel = Panel(judge, title + SEEN[judge_sees(findings, judge, name)])
            for subject, place in places.items():
                if (f := means.get((subject, name))) and not math.isnan(f.value):
                    x, values = temperature_of(place), (factor * value for value in (f.value, f.low, f.high))
                    panel.add(name_of[subject], x, *values)
                    if true := means.get((TRUE, name)):
                        panel.beside.setdefault("", []).append((x, factor * true.value))
            panels.append(panel)
    analyses = {subject: read(place / "rouge.json") for subject, place in places.items()}
    analyses = {subject: analysis["figures"] for subject, analysis in analyses.items() if analysis}
    for name, title in NOVELTY.items():
        panel = Panel("novelty", title)
        for subject, figures in analyses.items():
            if name in figures:
                x, run = temperature_of(places[subject]), name_of[subject]
                panel.add(run, x, *figures[name]["completions"].values())
                if "beside" in figures[name]:
                    panel.beside.setdefault(run, []).append((x, figures[name]["beside"]["mean"]))
        panels.append(panel)
    return [panel for panel in panels if panel.curves]


def temperature_figure(panels: Sequence[Panel]) -> Figure:
    """One row per judge, with a panel for each figure and a line for each run, with 95% intervals."""
    rows = {name: [panel for panel in panels if panel.row == name] for name in dict.fromkeys(p.row for p in panels)}
    columns = max(map(len, rows.values()))
    figure = Figure(figsize=(0.4 + 3 * columns, 0.8 + 2.5 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for axes, (name, own) in zip(grid, rows.items()):
        axes[0].set_ylabel(name, fontsize=9)
        for axis in axes[len(own) :]:
            axis.set_axis_off()
    runs = list(dict.fromkeys(run for panel in panels for run in panel.curves))
    for axes, panel in zip((axis for axis in grid.flat if axis.axison), panels):
        for run, points in panel.curves.items():
            xs, ys, lows, highs = zip(*points)
            axes.plot(xs, ys, marker="o", markersize=3.5, color=f"C{runs.index(run)}", label=run)
            axes.fill_between(xs, lows, highs, color=f"C{runs.index(run)}", alpha=0.2, linewidth=0)
        for run, points in panel.beside.items():
            color = f"C{runs.index(run)}" if run else "0.3"
            axes.plot(*zip(*sorted(points)), linestyle="--", linewidth=1, color=color)
        axes.set_title(panel.title, fontsize=9)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    note = "temperature (shaded: 95% intervals; dashed: true endings, or held-out stories treated the same way)"
    figure.supxlabel(note, fontsize=9)
    return figure
