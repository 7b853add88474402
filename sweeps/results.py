"""
The costs and results of an experiment's runs: one table and one plot.

>>> show("grid", Path("out/grid"), runs)
"""

import dataclasses
import itertools
import math
import statistics
from pathlib import Path

from matplotlib.figure import Figure

from common.figures import save_figure
from common.statistics import wilson
from common.tables import publish, read_table, table_text, write_table
from sweeps import scaling_law
from sweeps.plan import Run
from sweeps.runner import log_of
from training.run_directory import training_seconds

OF_SCHEDULE = {"name", "seed", "max_steps", "warmup_steps", "eval_interval"}
# Measures other than the loss have columns with _low and _high, the ends of their 95% intervals. The ones below are
# shares; those of a judge are called "grammar by gpt-4o-mini".
SHARES = {
    "shuffled": "true stories likelier than shuffled",
    "swapped": "… than with two sentences swapped",
} | {name: f"{name} prompts right (probe.py)" for name in ("facts", "reasoning", "context")}
PANELS_ACROSS = 4


def show(experiment: str, directory: Path, runs: list[Run]) -> None:
    """Prints the table; writes experiment.csv, .md, .png and .svg."""
    rows = tabulate(runs, directory)
    write_table(directory / "experiment.csv", rows)
    text = f"## {experiment}\n\n{variants_text(rows)}"
    if runs[0].budget:
        text += f"\n\n{scaling_law.laws_text(rows)}"
        figure = scaling_law.draw(rows)
    else:
        figure = draw_variants(rows)
    publish(directory / "experiment.md", text)
    save_figure(figure, directory / "experiment.png")


def tabulate(runs: list[Run], directory: Path) -> list[dict]:
    """A row for each run: the settings in which the runs differ, its cost, its results."""
    settings = [dataclasses.asdict(run.config) for run in runs]
    differing = [key for key in settings[0] if key not in OF_SCHEDULE and len({s[key] for s in settings}) > 1]
    measured, rows = measures(directory, runs), []
    for run, of_run in zip(runs, settings):
        log = log_of(run)
        row = dict(run=run.config.name, variant=run.variant, seed=run.config.seed)
        row |= {"budget": run.budget} if run.budget else {}
        row |= {key: of_run[key] for key in differing}
        row |= dict(parameters=run.parameters, steps=run.config.max_steps, tokens=run.tokens, flops=run.flops)
        row |= dict(seconds=round(training_seconds(log)[-1], 1))
        row |= {key: float(log[-1][key]) for key in ("train_loss", "val_loss", "bpb")}
        row |= dict(best_val_loss=min(float(r["val_loss"]) for r in log if r["val_loss"]))
        for name, interval in measured[run.config.name].items():
            row |= zip((name, f"{name}_low", f"{name}_high"), interval)
        rows.append(row)
    return rows


def measures(directory: Path, runs: list[Run]) -> dict[str, dict[str, tuple[float, float, float]]]:
    """{run: {measure: its value and the ends of its interval}}: what probe.py and grade.py have written there."""
    measured = {run.config.name: {} for run in runs}
    answers = [row for name in ("probe.csv", "probe-order.csv") for row in read_if_there(directory / name)]
    for run, name in itertools.product(runs, dict.fromkeys(row["set"] for row in answers if row["right"])):
        verdicts = [row.get(f"{run.directory} verdict") for row in answers if row["set"] == name]
        if any(verdicts):
            share = verdicts.count("right") / len(verdicts)
            measured[run.config.name][name] = share, *wilson(share, len(verdicts))
    for row in read_if_there(directory / "grades.csv"):
        if row["kind"] == "mean" and row["judge"] and row["subject"] in measured:
            interval = tuple(float(row[end] or "nan") for end in ("value", "low", "high"))
            measured[row["subject"]][f"{row['figure']} by {row['judge']}"] = interval
    return measured


def read_if_there(path: Path) -> list[dict]:
    return read_table(path) if path.exists() else []


def group_by_variant(rows: list[dict]) -> dict[str, list[dict]]:
    """{name of the run without its seed: the rows of its seeds}"""
    groups = {}
    for row in rows:
        groups.setdefault(row["run"].removesuffix(f"_{row['seed']}"), []).append(row)
    return groups


def measures_in(rows: list[dict]) -> list[str]:
    """The measures of any row, as some runs may have been graded and others not yet."""
    columns = dict.fromkeys(key for row in rows for key in row)
    return [key for key in columns if f"{key}_low" in columns]


def mean_of_seeds(rows: list[dict], key: str) -> str:
    values = [row[key] for row in rows if key in row]
    return f"{statistics.mean(values):{'.1%' if key in SHARES else '.3f'}}" if values else "–"


def variants_text(rows: list[dict]) -> str:
    """Means over the seeds of each variant; for the validation loss also the lowest and the highest seed."""
    measured, lines = measures_in(rows), []
    for name, of_variant in group_by_variant(rows).items():
        losses, first = [row["val_loss"] for row in of_variant], of_variant[0]
        cells = [f"{first['parameters']:,}", f"{first['tokens'] / 1e6:.2f} M", f"{first['flops']:.2e}"]
        cells.append(f"{statistics.mean(row['seconds'] for row in of_variant):.0f}")
        loss, *others = (mean_of_seeds(of_variant, key) for key in ("val_loss", "bpb", *measured))
        loss += f" [{min(losses):.3f}, {max(losses):.3f}]" * (len(losses) > 1)
        lines.append([name, *cells, loss, *others])
    several = "validation loss [lowest, highest seed]" if len(rows) > len(lines) else "validation loss"
    head = ["run", "parameters", "tokens", "training FLOPs", "seconds", several, "bits per byte", *measured]
    return table_text(head, lines)


def draw_variants(rows: list[dict]) -> Figure:
    """Panels side by side: a dot for each seed, a bar for the mean of several."""
    groups = group_by_variant(rows)
    panels = {"val_loss": "validation loss (nats per token)", "seconds": "seconds of training"}
    panels |= {key: SHARES.get(key, key.replace(" by ", "\nby ")) for key in measures_in(rows)}
    across, down = min(len(panels), PANELS_ACROSS), math.ceil(len(panels) / PANELS_ACROSS)
    figure = Figure(figsize=(2 + 3.5 * across, (1.2 + 0.35 * len(groups)) * down), layout="constrained")
    grid = figure.subplots(down, across, sharey=True, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, (column, label) in zip(grid.flat, panels.items()):
        for y, of_variant in enumerate(groups.values()):
            values = [row[column] for row in of_variant if column in row]
            axes.plot(values, [y] * len(values), "o", color="C0", alpha=0.6)
            if len(values) > 1:
                axes.plot(statistics.mean(values), y, "|", color="C0", markersize=16)
            for row in of_variant:
                if f"{column}_low" in row:
                    axes.plot((row[f"{column}_low"], row[f"{column}_high"]), (y, y), color="C0", alpha=0.4)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    names = [f"{name}  ({of_variant[0]['parameters'] / 1e6:.1f} M)" for name, of_variant in groups.items()]
    grid[0, 0].set_yticks(range(len(groups)), names)
    grid[0, 0].set_ylim(len(groups) - 0.5, -0.5)  # the first variant on top
    return figure
