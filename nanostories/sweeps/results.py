"""
The results of a list: one table, and one picture if no measure draws it: experiment.json, .csv and
.png.

>>> show("heads", experiment, subjects, settings)
"""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from nanostories.files import read_json
from nanostories.results import Cell, Table, save
from nanostories.statistics import estimate
from nanostories.sweeps import neuron_kinds, scaling_law
from nanostories.sweeps.lists import Experiment
from nanostories.sweeps.measures import Settings, Subject, read_cells
from nanostories.tables import write_table
from nanostories.training.config import DEFAULTS
from nanostories.training.curves import draw_loss, read_curve

# Settings in which runs differ without being other variants
NOT_COMPARED = "name seed max_steps warmup_steps eval_interval learning_rate compile".split()
SETTINGS = [name for name in DEFAULTS if name not in NOT_COMPARED]
# Facts of a training, and their formats
FACTS = {
    "step": ",",
    "parameters": ",",
    "tokens": ",",
    "training FLOPs": ".2e",
    "seconds": ",.0f",
    "validation loss": ".3f",
    "bits per byte": ".3f",
}
LABELS = {"n_embd": "width", "n_layer": "layers", "n_head": "heads", "label": ""}
SIZES = ("parameters", "training FLOPs")
SHAPES = ("width", "layers", "heads", *SIZES)  # columns that are no results
PANELS_ACROSS = 6


def show(
    name: str, experiment: Experiment, subjects: Sequence[Subject], settings: Settings
) -> None:
    """Prints the table; writes experiment.json and .csv, and with a picture .png and .svg."""
    directory = settings.directory
    rows = []
    notes = {}
    measured = {}  # the columns that were measured, in order, and their formats
    for subject in subjects:
        row = facts_of(subject)
        rows.append(row)
        for column, cell, form, note in read_cells(experiment.measures, subject, settings):
            measured[column] = form
            row[column] = cell
            if note:
                notes[column] = note
    write_table(directory / "experiment.csv", [flat(row) for row in rows])
    about = f"{experiment.shows}. In brackets: 95% intervals, over seeds where there are some."
    tables = [Table(name, mean_rows(rows, measured), FACTS | measured, notes, about)]
    figure = None
    if experiment.picture == "law":
        tables += scaling_law.tables(rows)
        figure = scaling_law.draw(rows)
    elif experiment.picture == "neurons":
        read = [x for x in subjects if (x.directory / "neurons.csv").exists()]
        if read:
            tables.append(neuron_kinds.examples(read))
            figure = neuron_kinds.draw(read)
    elif experiment.picture == "panels":
        curves = [x.directory for x in subjects if x.run] if experiment.curves else []
        figure = draw(rows, measured, experiment.axes, curves)
    checkpoints = [subject.model.directory / "ckpt.pt" for subject in subjects if subject.run]
    sources = [path for path in checkpoints if path.exists()]  # `memory` trains nothing
    path = directory / "experiment.json"
    save(path, "experiments.py", tables, sources=sources, figure=figure)


# ---- Rows ----
def facts_of(subject: Subject) -> dict[str, Cell]:
    """Its settings, and its cost and losses as far as it was trained here."""
    run = subject.run
    directory = subject.model.directory
    row = {"run": subject.name, "label": subject.name}
    settings = {}
    if run:
        seed = f"_{run.config.seed}"
        row["label"] = subject.name.replace(seed, "")
        row["variant"] = run.variant
        row["budget"] = run.budget
        row["parameters"] = run.parameters
        # which seed it continued is no setting of a variant
        start_from = Path(run.config.start_from).name.removesuffix(seed)
        settings = vars(run.config) | {"start_from": start_from}
    elif (directory / "config.json").exists():
        settings = read_json(directory / "config.json")
    row |= {name: settings[name] for name in SETTINGS if name in settings}
    path = directory / "log.csv"
    log = [line for line in read_curve(path) if line["val_loss"]] if path.exists() else []
    if not log:
        return row
    # A plan compares whole budgets; of other models, the weights with the lowest loss are used.
    line = log[-1] if run else min(log, key=lambda line: line["val_loss"])
    row["step"] = int(line["step"])
    row["tokens"] = int(line["tokens"])
    row["validation loss"] = line["val_loss"]
    row["bits per byte"] = line["bpb"]
    if run and run.directory == directory:  # not a checkpoint that it kept: that cost less
        row["training FLOPs"] = run.flops
        row["seconds"] = line["seconds"]
    return row


def flat(row: dict[str, Cell]) -> dict:
    """Intervals as columns of their own."""
    cells = {}
    for name, cell in row.items():
        if isinstance(cell, list):
            cells[name], cells[f"{name} low"], cells[f"{name} high"] = cell
        else:
            cells[name] = cell
    return cells


def mean_rows(rows: Sequence[dict], measured: dict[str, str]) -> list[dict[str, Cell]]:
    """A row for each variant: means over its seeds, with their intervals; of a single run, its own
    cells. Facts in which all runs agree are left out. measured: {column: its format}"""
    columns = []
    for name in FACTS:
        values = {row.get(name) for row in rows}
        if len(values) > 1 or (len(rows) == 1 and None not in values):
            columns.append(name)
    columns += measured
    seeds = {}  # label -> its rows
    for row in rows:
        seeds.setdefault(row["label"], []).append(row)
    found = []
    for label, its_rows in seeds.items():
        cells = {"run": label}
        for column in columns:
            cell = mean_cell([row.get(column) for row in its_rows])
            if measured.get(column, "").endswith("%") and isinstance(cell, list):
                cell = [cell[0], *np.clip(np.array(cell[1:], dtype=float), 0, 1)]
            cells[column] = cell
        found.append(cells)
    return found


def mean_cell(cells: Sequence[Cell]) -> Cell:
    texts = [cell for cell in cells if isinstance(cell, str)]
    if texts:
        return texts[0]  # such as "oom", if only for one seed
    known = [cell for cell in cells if cell is not None]
    values = [value_of(cell) for cell in known]
    if len(set(values)) > 1:
        return estimate(np.array(values)).cell
    if len(values) > 1 and isinstance(known[0], list):
        return [values[0], None, None]  # equal seeds say nothing of their scatter
    return known[0] if known else None


def value_of(cell: Cell) -> float | None:
    """Of a cell with an interval or without; None for a text."""
    if isinstance(cell, list):
        cell = cell[0]
    return None if isinstance(cell, str) else cell


# ---- The picture ----
def draw(
    rows: Sequence[dict], columns: Iterable[str], x_names: Sequence[str], curves: Sequence[Path]
) -> Figure | None:
    """A panel for each score, a row of them for each x-axis (without any, over the runs); and, in a
    panel of their own, the loss curves of some runs."""
    x_names = x_names or ("label",)
    # score -> its columns: "grammar by JUDGE" of each judge; bits per byte by stories, by windows
    panels = {}
    losses = ["validation loss"]
    if curves and len(rows) == 1:
        losses = []  # its curve says it
    for column in [*losses, *columns]:
        is_known = any(value_of(row.get(column)) is not None for row in rows)
        if is_known and column not in SHAPES:
            panels.setdefault(column.partition(" by ")[0], []).append(column)
    n = len(panels) + bool(curves)
    if not n:
        return None
    down = math.ceil(n / PANELS_ACROSS)  # for each x-axis
    across = math.ceil(n / down)
    size = (3.6 * across, 3 * down * len(x_names))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(down * len(x_names), across, squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
        axes.grid(alpha=0.3)
    for x_name, block in zip(x_names, np.split(grid, len(x_names))):
        explained = set()  # one legend for all panels of the same lines
        titles = [title for title in panels if title != x_name]
        for title, axes in zip(titles, block.flat):
            lines = draw_panel(axes, rows, x_name, panels[title])
            axes.set(xlabel=LABELS.get(x_name, x_name), ylabel=title)
            if len(lines) > 1 and lines not in explained:
                axes.legend(fontsize=6)
                explained.add(lines)
    if curves:
        draw_curves(grid.flat[len(panels)], curves)
    return figure


def draw_panel(
    axes: Axes, rows: Sequence[dict], x_name: str, columns: Sequence[str]
) -> tuple[str, ...]:
    """A line for each combination of the other settings in which the runs differ (and for each
    judge, if there are several); intervals, and a dot for each seed. Returns the lines' names."""
    lines = {}
    for column in columns:
        judge = column.partition(" by ")[2] if len(columns) > 1 else ""
        for row in rows:
            x = row.get(x_name)
            value = value_of(row.get(column))
            if value is None:
                continue
            if x is not None:
                name = ", ".join(filter(None, [*series_of(row, rows, x_name), judge]))
                points = lines.setdefault(name, {}).setdefault((x, row["label"]), [])
                points.append(row[column])
            elif x_name not in SIZES:
                # a model that was not trained here: it has no place on the x-axis
                axes.axhline(value, linestyle=":", color="0.5")
                place = axes.get_yaxis_transform()
                axes.annotate(row["label"], (0, value), xycoords=place, fontsize=6)
    for i, (name, points) in enumerate(lines.items()):
        draw_line(axes, points, x_name, f"C{i}", name)
    axes.set_axis_on()
    set_scale(axes, x_name, sorted({row[x_name] for row in rows if row.get(x_name) is not None}))
    return tuple(lines)


def draw_line(axes: Axes, points: dict, x_name: str, color: str, label: str) -> None:
    """points: {(x, name): the values of its seeds}"""
    style = "."
    if x_name != "label":
        points = dict(sorted(points.items()))
        style = ".-"
    means = [value_of(mean_cell(seeds)) for seeds in points.values()]
    axes.plot([x for x, _ in points], means, style, color=color, label=label)
    for ((x, name), seeds), mean in zip(points.items(), means):
        for cell in seeds:
            if isinstance(cell, list) and cell[1] is not None:
                axes.plot([x, x], cell[1:], color=color, alpha=0.35)
            if len(seeds) > 1:
                axes.plot(x, value_of(cell), ".", color=color, alpha=0.35)
        if x_name in SIZES:
            axes.annotate(name, (x, mean), fontsize=6)


def series_of(row: dict, rows: Sequence[dict], x_name: str) -> list[str]:
    """The line of a row: the settings, beside the x-axis, in which the runs differ; of the kept
    checkpoints of an existing run, its name; of another existing run, its own."""
    if x_name == "label" or x_name in SIZES:
        return []
    if "variant" not in row:
        return [row["run"].rpartition("/")[0] or row["run"]]
    parts = []
    for name in SETTINGS:
        values = {other.get(name) for other in rows if "variant" in other}
        if name != x_name and len(values) > 1:
            value = "none" if row[name] == "" else row[name]
            parts.append(f"{LABELS.get(name, name)} {value}")
    return parts


def set_scale(axes: Axes, x_name: str, values: Sequence) -> None:
    if x_name == "label":
        axes.tick_params(axis="x", rotation=90, labelsize=7)
    if x_name in SIZES:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if x_name in ("tokens", *SIZES):
        axes.xaxis.set_major_formatter(EngFormatter())
    if x_name in ("n_embd", "n_head", "n_layer"):
        axes.set_xscale("log", base=2)
        axes.set_xticks(values, map(str, values))
    if x_name == "validation loss":
        axes.invert_xaxis()  # training goes to the right


def draw_curves(axes: Axes, runs: Sequence[Path]) -> None:
    """Those that differ in the seed alone have one color."""
    axes.set_axis_on()
    colors = {}
    for run in runs:
        points = [(row["tokens"] / 1e6, row) for row in read_curve(run / "log.csv")]
        variant = run.name.rpartition("_")[0]  # the rest is its seed
        label = None if variant in colors else variant
        color = colors.setdefault(variant, f"C{len(colors)}")
        draw_loss(axes, points, "train_loss", alpha=0.4, linewidth=0.8, color=color)
        draw_loss(axes, points, "val_loss", marker=".", label=label, color=color)
    axes.set(xlabel="million tokens", ylabel="loss (pale: training)")
    axes.legend(fontsize=6)
