"""
The results of a list: one table and one picture.

>>> show("heads", experiment, directory, subjects, figures_of(experiment.measures, subjects, call))
"""

import dataclasses
import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from common.figures import save_figure
from common.files import write_bytes
from common.tables import publish, table_text, write_table
from sweeps import neuron_kinds, scaling_law
from sweeps.lists import Experiment
from sweeps.measures import Subject, Value
from training.config import TrainConfig
from training.run_directory import read_log, training_seconds

OF_SCHEDULE = {"name", "seed", "max_steps", "warmup_steps", "eval_interval", "learning_rate", "compile"}
FACTS = {  # columns of the table: title, format
    "step": ("step", ","),
    "parameters": ("parameters", ","),
    "tokens": ("tokens", ","),
    "flops": ("training FLOPs", ".2e"),
    "seconds": ("seconds", ".0f"),
    "val_loss": ("validation loss", ".3f"),
    "bpb": ("bits per byte", ".3f"),
}
SETTINGS = [field.name for field in dataclasses.fields(TrainConfig) if field.name not in OF_SCHEDULE]
LABELS = {"val_loss": "validation loss (nats per token)", "n_embd": "width", "n_layer": "layers", "n_head": "heads"}
PANELS_ACROSS = 4


def show(
    name: str, experiment: Experiment, directory: Path, subjects: list[Subject], measured: Mapping[str, Mapping]
) -> None:
    """Prints the table; writes experiment.csv, .md, .png and .svg. measured: {subject: {column: value}}."""
    if experiment.normalized:
        measured = with_normalized(measured)
    rows = [tabulate(subject) | flat(measured[subject.name]) for subject in subjects]
    add_settings(rows, subjects)
    write_table(directory / "experiment.csv", rows)
    columns = dict.fromkeys(column for own in measured.values() for column in own)
    columns = [column for column in columns if column not in FACTS and re.search(experiment.columns, column)]
    parts = [f"## {name}", f"{experiment.shows}.", table(rows, columns)]
    if experiment.picture == "law":
        parts.append(scaling_law.laws_text(rows))
        save_figure(scaling_law.draw(rows), directory / "experiment.png")
    elif experiment.picture == "neurons":
        parts.append(neuron_kinds.examples_text([(s.name, s.directory) for s in subjects]))
        save_figure(neuron_kinds.draw([(s.name, s.directory) for s in subjects]), directory / "experiment.png")
    elif experiment.picture == "panels":
        curves = [s for s in subjects if s.run] if experiment.curves else []
        save_figure(draw(rows, columns, experiment.axes, curves), directory / "experiment.png")
    else:  # a measure has drawn it
        drawn = [*directory.glob(experiment.picture), *(s.directory / experiment.picture for s in subjects)][:1]
        for ending in (".png", ".svg"):
            write_bytes(directory / f"experiment{ending}", drawn[0].with_suffix(ending).read_bytes())
        parts.append("Pictures and pages: " + ", ".join(links(directory, experiment.picture)))
    publish(directory / "experiment.md", "\n\n".join(parts))


def links(directory: Path, picture: str) -> list[str]:
    found = sorted(path for name in (picture, "*.html") for path in directory.rglob(name))
    return [f"[{path.relative_to(directory)}]({path.relative_to(directory)})" for path in found]


# ---- Rows ----


def tabulate(subject: Subject) -> dict:
    """A row for each subject: its cost and losses, as far as it was trained here."""
    row, run = dict(run=subject.name, variant=subject.variant), subject.run
    log = read_log(Path(subject.model, "log.csv")) if Path(subject.model, "log.csv").exists() else []
    if run:
        row |= dict(seed=run.config.seed, parameters=run.parameters) | ({"budget": run.budget} if run.budget else {})
    if log:
        row |= {key: int(log[-1][key]) for key in ("step", "tokens")}
        row |= {key: float(log[-1][key]) for key in ("train_loss", "val_loss", "bpb")}
        row |= dict(best_val_loss=min(float(r["val_loss"]) for r in log if r["val_loss"]))
    if run and log and row["step"] == run.config.max_steps and str(run.directory) == subject.model:
        row |= dict(flops=run.flops, seconds=round(training_seconds(log)[-1], 1))
    return row


def flat(measured: Mapping[str, Value]) -> dict:
    """Intervals as columns of their own."""
    row = {}
    for name, value in measured.items():
        row |= dict(zip((name, f"{name}_low", f"{name}_high"), value)) if isinstance(value, tuple) else {name: value}
    return row


def with_normalized(measured: Mapping[str, Mapping[str, Value]]) -> dict[str, dict[str, Value]]:
    """And (score - lowest) / (highest - lowest) over all subjects, of every score of a judge."""
    added = {subject: dict(own) for subject, own in measured.items()}
    for name in dict.fromkeys(name for own in measured.values() for name in own if " by " in name):
        values = {subject: own[name][0] for subject, own in measured.items() if name in own}
        low, high = min(values.values()), max(values.values())
        for subject, value in values.items() if high > low else ():
            added[subject][f"normalized {name}"] = (value - low) / (high - low)
    return added


def add_settings(rows: Sequence[dict], subjects: Sequence[Subject]) -> None:
    """The settings in which the runs differ, and the shape of all."""
    settings = [dataclasses.asdict(subject.run.config) if subject.run else {} for subject in subjects]
    for key in dict.fromkeys(key for each in settings for key in each):
        values = {each.get(key) for each in settings}
        if key in SETTINGS and (len(values) > 1 or key in ("n_embd", "n_layer", "n_head")):
            for row, each in zip(rows, settings):
                row |= {key: each[key]} if key in each else {}


def group_by_variant(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """{name of the run without its seed: the rows of its seeds}"""
    groups = {}
    for row in rows:
        groups.setdefault(row["run"].replace(f"_{row.get('seed')}", ""), []).append(row)
    return groups


def table(rows: Sequence[dict], columns: Sequence[str]) -> str:
    """Means over the seeds of each variant; for the validation loss also the lowest and the highest seed."""
    facts = {key: fact for key, fact in FACTS.items() if any(key in row for row in rows)}
    if len({row.get("step") for row in rows}) == 1:
        facts.pop("step", None)
    lines = []
    for name, own in group_by_variant(rows).items():
        cells = [mean_of_seeds(own, key, form) for key, (_, form) in facts.items()]
        losses = [row["val_loss"] for row in own if "val_loss" in row]
        if len(losses) > 1:
            cells[[*facts].index("val_loss")] += f" [{min(losses):.3f}, {max(losses):.3f}]"
        lines.append([name, *cells, *(mean_of_seeds(own, column) for column in columns)])
    text = table_text(["run", *(title for title, _ in facts.values()), *columns], lines)
    return text + "\n\nIn brackets: the lowest and the highest seed" * (len(lines) < len(rows))


def mean_of_seeds(rows: Sequence[dict], key: str, form: str = "") -> str:
    values = [row[key] for row in rows if row.get(key) is not None]
    if not values or isinstance(values[0], str):
        return values[0] if values else "–"
    mean = statistics.mean(values)
    return f"{mean:{form or (',.0f' if abs(mean) >= 100 else '.1f' if abs(mean) >= 10 else '.3g')}}"


# ---- The picture ----


def draw(rows: Sequence[dict], columns: Sequence[str], axes_names: Sequence[str], curves: Sequence[Subject]) -> Figure:
    """A panel for each score and axis, with a color for each judge or line; without axes, a line for each variant."""
    panels = {"val_loss": ["val_loss"]} if any("val_loss" in row for row in rows) else {}
    for column in columns:
        panels.setdefault(column.partition(" by ")[0], []).append(column)
    across = len(axes_names) or min(len(panels), PANELS_ACROSS)
    down = len(panels) if axes_names else math.ceil(len(panels) / PANELS_ACROSS)
    height = 2.2 if axes_names else 1.2 + 0.3 * len(group_by_variant(rows))
    figure = Figure(figsize=(2 + 3.6 * across, height * down + 3 * bool(curves)), layout="constrained")
    lower, upper = figure.subfigures(2, height_ratios=[height * down, 3])[::-1] if curves else (None, figure)
    grid = upper.subplots(down, across, squeeze=False, sharey=not axes_names)
    for axes in grid.flat:
        axes.set_axis_off()
    if axes_names:
        for (name, of_panel), across in zip(panels.items(), grid):
            for axis, axes in zip(axes_names, across):
                draw_over(axes, rows, axis, of_panel)
                axes.set(xlabel=LABELS.get(axis, axis), ylabel=LABELS.get(name, name))
    else:
        for (name, of_panel), axes in zip(panels.items(), grid.flat):
            draw_variants(axes, group_by_variant(rows), of_panel)
            axes.set_xlabel(LABELS.get(name, name))
    if curves:
        draw_curves(lower.subplots(), curves)
    return figure


def draw_over(axes: Axes, rows: Sequence[dict], axis: str, columns: Sequence[str]) -> None:
    """A line for each judge, and for each combination of the other settings in which the runs differ."""
    keys = [key for key in SETTINGS if key != axis and len({row.get(key) for row in rows}) > 1]
    lines = {}
    for row, column in itertools.product(rows, columns):
        if isinstance(row.get(column), (int, float)) and row.get(axis) is not None:
            own = ", ".join(f"{LABELS.get(key, key)} {row[key]}" for key in keys if key in row)
            lines.setdefault((own, column), {}).setdefault(row[axis], []).append(row)
    axes.set_axis_on()
    for i, ((own, column), points) in enumerate(lines.items()):
        xs, judge = sorted(points), column.partition(" by ")[2]
        means = [statistics.mean(row[column] for row in points[x]) for x in xs]
        axes.plot(xs, means, ".-", color=f"C{i % 10}", label=f"{own} {judge}".strip(), linewidth=1)
        for x in xs:
            for row in points[x]:
                if f"{column}_low" in row:
                    axes.plot((x, x), (row[f"{column}_low"], row[f"{column}_high"]), color=f"C{i % 10}", alpha=0.35)
    if len(lines) > 1:
        axes.legend(fontsize=6)
    if axis in ("n_embd", "n_head", "n_layer", "parameters"):
        axes.set_xscale("log", base=2)
    if axis == "val_loss":
        axes.invert_xaxis()
    axes.grid(alpha=0.3)


def draw_variants(axes: Axes, groups: Mapping[str, list[dict]], columns: Sequence[str]) -> None:
    """A dot for each seed, a bar for the mean of several, a color for each judge."""
    axes.set_axis_on()
    for color, column in enumerate(columns):
        for y, own in enumerate(groups.values()):
            rows = [row for row in own if isinstance(row.get(column), (int, float))]
            values, y = [row[column] for row in rows], y + 0.15 * (color - (len(columns) - 1) / 2)
            label = column.partition(" by ")[2] if y < 0.5 and " by " in column else None
            axes.plot(values, [y] * len(values), "o", color=f"C{color}", alpha=0.6, markersize=4, label=label)
            if len(values) > 1:
                axes.plot(statistics.mean(values), y, "|", color=f"C{color}", markersize=14)
            for row in rows:
                if f"{column}_low" in row:
                    axes.plot((row[f"{column}_low"], row[f"{column}_high"]), (y, y), color=f"C{color}", alpha=0.4)
    axes.set_yticks(range(len(groups)), [label_of(name, own[0]) for name, own in groups.items()], fontsize=8)
    axes.set_ylim(len(groups) - 0.5, -0.5)  # the first variant on top
    axes.grid(alpha=0.3)
    if len(columns) > 1:
        axes.legend(fontsize=6)


def label_of(name: str, row: dict) -> str:
    shape = f"{row['n_embd']} wide, {row['n_layer']} layers, " if "n_embd" in row else ""
    return f"{name}  ({shape}{row['parameters'] / 1e6:.1f} M)" if "parameters" in row else name


def draw_curves(axes: Axes, subjects: Sequence[Subject]) -> None:
    for i, subject in enumerate(subjects):
        rows = [row for row in read_log(subject.run.directory / "log.csv") if row["val_loss"]]
        tokens, losses = ([float(row[key]) for row in rows] for key in ("tokens", "val_loss"))
        axes.plot(tokens, losses, ".-", color=f"C{i % 10}", label=subject.name, linewidth=1)
    axes.set(xlabel="tokens", ylabel=LABELS["val_loss"])
    axes.legend(fontsize=7)
    axes.grid(alpha=0.3)
