"""
The results of a list: one table and one picture.

>>> figures = figures_of(experiment.measures, subjects, directory)
>>> show("heads", experiment, directory, subjects, figures)
"""

import dataclasses
import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from nanostories.figures import save_figure
from nanostories.files import read_json, write_bytes
from nanostories.sweeps import neuron_kinds, scaling_law
from nanostories.sweeps.lists import Experiment
from nanostories.sweeps.measures import Subject, Value
from nanostories.tables import print_and_save, table_text, write_table
from nanostories.training.config import TrainConfig
from nanostories.training.run_directory import read_log

SCHEDULE = {
    "name",
    "seed",
    "max_steps",
    "warmup_steps",
    "eval_interval",
    "learning_rate",
    "compile",
}
SETTINGS = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in SCHEDULE]
FACTS = dict(
    step="step", parameters="parameters", tokens="tokens", flops="training FLOPs", seconds="seconds"
)
FACTS |= dict(val_loss="validation loss", bpb="bits per byte")  # columns of the table: their titles
LABELS = FACTS | dict(n_embd="width", n_layer="layers", n_head="heads", label="")
SIZES = ("parameters", "flops")
PANELS_ACROSS = 6


def show(
    name: str, experiment: Experiment, directory: Path, subjects: list[Subject], measured: Mapping
) -> None:
    """Prints the table; writes experiment.csv, .md, .png and .svg. measured: {subject: {column:
    value}}."""
    rows = [flat(measured[subject.name]) | tabulate(subject) for subject in subjects]
    for row in rows:
        if "n_embd" in row and "seed" not in row:  # an existing model, whose name does not say it
            row["label"] += f" ({row['n_embd']} wide, {row['n_layer']} layers)"
    write_table(directory / "experiment.csv", rows)
    columns = dict.fromkeys(column for own in measured.values() for column in own)
    columns = [column for column in columns if column not in (*SETTINGS, *FACTS)]
    if (
        "bits_per_byte" in experiment.measures
    ):  # each run's own losses are of its own vocabulary and validation stories
        rows = [
            {key: value for key, value in row.items() if key not in ("val_loss", "bpb")}
            for row in rows
        ]
    parts = [f"## {name}", f"{experiment.shows}.", table(rows, columns)]
    if (grades := directory / "grades.md").exists():
        parts += dict.fromkeys(
            line for line in grades.read_text("utf-8").splitlines() if line.startswith("WARNING")
        )
    places = [(subject.name, subject.directory) for subject in subjects]
    if experiment.picture == "law":
        parts.append(scaling_law.laws_text(rows))
        save_figure(scaling_law.draw(rows), directory / "experiment.png")
    elif experiment.picture == "neurons":
        parts.append(neuron_kinds.examples_text(places))
        save_figure(neuron_kinds.draw(places), directory / "experiment.png")
    elif experiment.picture == "panels":
        curves = [subject for subject in subjects if subject.run] if experiment.curves else []
        save_figure(draw(rows, columns, experiment.axes, curves), directory / "experiment.png")
    else:  # a measure has drawn it
        first = next(
            path
            for path in sorted(
                directory.rglob(experiment.picture), key=lambda path: len(path.parts)
            )
        )
        for ending in (".png", ".svg"):
            write_bytes(directory / f"experiment{ending}", first.with_suffix(ending).read_bytes())
    pages = sorted(str(path.relative_to(directory)) for path in directory.rglob("*.html"))
    parts += ["Pages: " + ", ".join(f"[{page}]({page})" for page in pages)] if pages else []
    print_and_save(directory / "experiment.md", "\n\n".join(parts))


# ---- Rows ----
def tabulate(subject: Subject) -> dict:
    """Its settings, and its cost and losses as far as it was trained here."""
    row, run, config = (
        dict(run=subject.name, label=subject.name),
        subject.run,
        Path(subject.model, "config.json"),
    )
    settings = vars(run.config) if run else read_json(config) if config.exists() else {}
    row |= {key: settings[key] for key in SETTINGS if key in settings}
    log = (
        read_log(Path(subject.model, "log.csv")) if Path(subject.model, "log.csv").exists() else []
    )
    log = [line for line in log if line["val_loss"]]  # the last line of a stopped run has none
    if run:
        row |= dict(seed=run.config.seed, parameters=run.parameters)
        row |= dict(label=subject.name.replace(f"_{run.config.seed}", ""), variant=run.variant)
        row |= dict(start_from=run.config.start_from.removesuffix(f"_{run.config.seed}"))
        row |= {"budget": run.budget} if run.budget else {}
    if log:
        line = (
            log[-1] if run else min(log, key=lambda line: float(line["val_loss"]))
        )  # a plan compares whole budgets
        row |= {key: int(line[key]) for key in ("step", "tokens")}
        row |= {key: float(line[key]) for key in ("train_loss", "val_loss", "bpb")}
    if run and log and str(run.directory) == subject.model:
        row |= dict(flops=run.flops, seconds=round(float(log[-1].get("seconds") or 0), 1))
    return row


def flat(measured: Mapping[str, Value]) -> dict:
    """Intervals as columns of their own."""
    row = {}
    for name, value in measured.items():
        ends = (name, f"{name}_low", f"{name}_high")
        row |= {name: value} if isinstance(value, (int, float, str)) else dict(zip(ends, value))
    return row


def table(rows: Sequence[dict], columns: Sequence[str]) -> str:
    """Means over the seeds of each variant, for the validation loss with the lowest and the highest
    seed; of a single model with its 95% interval."""
    facts = [
        key
        for key in FACTS
        if len({row.get(key) for row in rows}) > (key == "step") and key in rows[0]
    ]
    labels, lines = dict.fromkeys(row["label"] for row in rows), []
    for label in labels:
        own = [row for row in rows if row["label"] == label]
        cells = {key: mean(own, key) for key in (*facts, *columns)}
        losses = [row["val_loss"] for row in own if "val_loss" in row]
        if len(losses) > 1:
            cells["val_loss"] += f" [{min(losses):.3f}, {max(losses):.3f}]"
        for key in columns if len(labels) == len(rows) else ():
            if not math.isnan(own[0].get(f"{key}_low", math.nan)):
                cells[key] += " [{}, {}]".format(
                    *(number(own[0][f"{key}{end}"]) for end in ("_low", "_high"))
                )
        lines.append([label, *cells.values()])
    text = table_text(["run", *(FACTS[key] for key in facts), *columns], lines)
    brackets = "95% intervals" if len(labels) == len(rows) else "the lowest and the highest seed"
    return text + f"\n\nIn brackets: {brackets}" * ("[" in text)


def mean(rows: Sequence[dict], key: str) -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    texts = [
        value for value in values if isinstance(value, str)
    ]  # such as "oom", if only for one seed
    return texts[0] if texts else number(statistics.mean(values)) if values else "–"


def number(value: float) -> str:
    large = ".2e" if value > 1e9 else ",.0f"
    if isinstance(value, int) or value >= 1000:
        return f"{value:{large}}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.3f}"


# ---- The picture ----
def draw(
    rows: Sequence[dict],
    columns: Sequence[str],
    axes_names: Sequence[str],
    curves: Sequence[Subject],
) -> Figure:
    """A panel for each score, a row of them for each axis; without axes, over the runs. The last
    one: loss curves."""
    panels, axes_names = {}, axes_names or ("label",)
    for column in (["val_loss"] if any("val_loss" in row for row in rows) else []) + list(columns):
        if any(isinstance(row.get(column), (int, float)) for row in rows):
            panels.setdefault(column.partition(" by ")[0], []).append(column)
    n = len(panels) + bool(curves)
    down = math.ceil(n / PANELS_ACROSS)  # for each axis
    across = math.ceil(n / down)
    figure = Figure(figsize=(3.6 * across, 3 * down * len(axes_names)), layout="constrained")
    grid = figure.subplots(down * len(axes_names), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for axis, own in zip(axes_names, np.split(grid, len(axes_names))):
        for panel, axes in zip(panels, own.flat):
            draw_over(axes, rows, axis, panels[panel])
            note = "\n(controls failed)" * all(
                "(controls failed)" in column for column in panels[panel]
            )
            axes.set(xlabel=LABELS.get(axis, axis), ylabel=LABELS.get(panel, panel) + note)
    if curves:
        draw_curves(grid.flat[len(panels)], curves)
    return figure


def draw_over(axes: Axes, rows: Sequence[dict], axis: str, columns: Sequence[str]) -> None:
    """A color for each judge, and for each combination of the other settings in which the runs
    differ, or existing run; a dot for a seed."""
    axes.set_axis_on()
    keys = [
        key
        for key in SETTINGS
        if axis not in (key, "label") and len({row.get(key) for row in rows}) > 1
    ]
    keys = keys if axis not in SIZES else []  # one line over all models
    lines = {}
    for row, column in itertools.product(rows, columns):
        if isinstance(row.get(column), (int, float)) and row.get(axis) is not None:
            own = [
                f"{LABELS.get(key, key)} {row[key]}"
                for key in keys
                if row.get(key) not in (None, "")
            ]
            own = (
                own if "variant" in row else [row["run"].rpartition("/")[0]]
            )  # checkpoints of an existing run
            own += [column.partition(" by ")[2]] * (len(columns) > 1)
            points = lines.setdefault((", ".join(filter(None, own)), column), {})
            points.setdefault((row[axis], row["label"]), []).append(
                row
            )  # only seeds of one variant share a point
    for i, ((own, column), points) in enumerate(lines.items()):
        points = points if axis == "label" else dict(sorted(points.items()))
        xs, means = (
            [x for x, _ in points],
            [statistics.mean(row[column] for row in seeds) for seeds in points.values()],
        )
        axes.plot(
            xs, means, ".", color=f"C{i % 10}", linestyle="" if axis == "label" else "-", label=own
        )
        for ((x, label), seeds), y in zip(points.items(), means):
            for row in seeds:
                ends = [row.get(f"{column}{end}", row[column]) for end in ("_low", "_high")]
                axes.plot(
                    (x, x),
                    ends,
                    color=f"C{i % 10}",
                    alpha=0.35,
                    marker="." if len(seeds) > 1 else "",
                )
            if axis in SIZES and not i:
                inwards = "left" if x * x <= xs[0] * xs[-1] else "right"
                axes.annotate(label, (x, y), fontsize=6, ha=inwards)
    if len(lines) > 1 and (axes.get_subplotspec().is_first_col() or axis in (*SIZES, "label")):
        axes.legend(fontsize=6)
    if axis == "label":
        axes.tick_params(axis="x", rotation=90, labelsize=7)
    if axis in SIZES:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.xaxis.set_minor_formatter(NullFormatter())
    if axis == "tokens":
        axes.xaxis.set_major_formatter(lambda x, _: f"{x / 1e6:g} M")
    if axis in ("n_embd", "n_head", "n_layer"):
        axes.set_xscale("log", base=2)
        axes.set_xticks(sorted({row[axis] for row in rows if axis in row}), minor=False)
        axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    if axis == "val_loss":
        axes.invert_xaxis()  # training goes to the right
    axes.grid(alpha=0.3)


def draw_curves(axes: Axes, subjects: Sequence[Subject]) -> None:
    axes.set_axis_on()
    for subject in subjects:
        rows = [row for row in read_log(subject.run.directory / "log.csv") if row["val_loss"]]
        millions, losses = (
            [float(row["tokens"]) / 1e6 for row in rows],
            [float(row["val_loss"]) for row in rows],
        )
        axes.plot(millions, losses, ".-", label=subject.name, linewidth=1)
    axes.set(xlabel="million tokens", ylabel=LABELS["val_loss"])
    axes.legend(fontsize=6)
    axes.grid(alpha=0.3)
