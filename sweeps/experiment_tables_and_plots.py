"""
What the runs of an experiment cost and what they reached: one table and one plot.

>>> show_results("grid", directory, tabulate(runs, directory))
"""

import dataclasses
import statistics
from pathlib import Path

from matplotlib.figure import Figure

from common.figures import png_bytes
from common.files import read_json, write_bytes
from common.tables import read_table, table_text, write_table
from grading import answer_likelihood, sentence_order
from sweeps.plans import Run
from sweeps.runner import log_of
from sweeps.scaling_law import best_of_budgets, fit_power_law, plot_scaling, points
from training.run_directory import training_seconds

OF_SCHEDULE = {"name", "seed", "max_steps", "warmup_steps", "eval_interval"}
# Measures beside the loss: shares, with _low and _high for the ends of their 95 % intervals.
SHARES = {
    "shuffled": "true stories likelier than shuffled",
    "swapped": "… than with two sentences swapped",
    "context": "context prompts right (probe.py)",
}


def tabulate(runs: list[Run], directory: Path) -> list[dict]:
    """A row for each run: the settings in which the runs differ, its cost, its results."""
    settings = [dataclasses.asdict(run.config) for run in runs]
    differing = [key for key in settings[0] if key not in OF_SCHEDULE and len({s[key] for s in settings}) > 1]
    probe_csv = directory / "probe.csv"
    context = answer_likelihood.score(read_table(probe_csv))["context"].shares if probe_csv.exists() else {}
    rows = []
    for run, of_run in zip(runs, settings):
        log = log_of(run)
        row = dict(run=run.config.name, variant=run.variant, seed=run.config.seed)
        row |= {"budget": run.budget} if run.budget else {}
        row |= {key: of_run[key] for key in differing}
        row |= dict(parameters=run.parameters, steps=run.config.max_steps, tokens=run.tokens, flops=run.flops)
        row |= dict(seconds=round(training_seconds(log)[-1], 1))
        row |= {key: float(log[-1][key]) for key in ("train_loss", "val_loss", "bpb")}
        row |= dict(best_val_loss=min(float(r["val_loss"]) for r in log if r["val_loss"]))
        if (run.directory / sentence_order.FILE).exists():
            for order, result in read_json(run.directory / sentence_order.FILE).items():
                row |= {order: result["share"], f"{order}_low": result["low"], f"{order}_high": result["high"]}
        row |= zip(("context", "context_low", "context_high"), context.get(str(run.directory), ()))
        rows.append(row)
    return rows


def show_results(experiment: str, directory: Path, rows: list[dict], markdown: bool = False) -> None:
    """Writes experiment.csv and experiment.png; prints the table."""
    write_table(directory / "experiment.csv", rows)
    print("\n" + variants_text(rows, markdown))
    picture = directory / "experiment.png"
    if experiment != "scaling":
        plot_variants(picture, rows)
        return
    all_points = points(rows)
    best = best_of_budgets(all_points)
    law = fit_power_law([p.flops for p in best], [p.loss for p in best]) if len(best) > 3 else None
    plot_scaling(picture, all_points, law)
    for p in best:
        sizes = [other.parameters for other in all_points if other.budget == p.budget]
        edge = {min(sizes): ", the smallest tried", max(sizes): ", the largest tried"}.get(p.parameters, "")
        print(f"best for {p.budget:.2g} FLOPs: {p.variant}, {p.parameters:,} parameters{edge}, loss {p.loss:.3f}")
    if law:
        print(f"loss = {law.a:.4g} * FLOPs^-b, b = {law.b:.4f}, 95 % interval [{law.low:.4f}, {law.high:.4f}]")


def group_by_variant(rows: list[dict]) -> dict[str, list[dict]]:
    """{name of the run without its seed: the rows of its seeds}"""
    groups = {}
    for row in rows:
        groups.setdefault(row["run"].removesuffix(f"_{row['seed']}"), []).append(row)
    return groups


def shares_in(rows: list[dict]) -> list[str]:
    return [key for key in SHARES if all(key in row for row in rows)]


def variants_text(rows: list[dict], markdown: bool = False) -> str:
    """Means over the seeds of each variant; of the validation loss the lowest and the highest seed, too."""
    shares, lines = shares_in(rows), []
    for name, of_variant in group_by_variant(rows).items():
        mean = {key: statistics.mean(row[key] for row in of_variant) for key in ("seconds", "val_loss", "bpb", *shares)}
        losses, first = [row["val_loss"] for row in of_variant], of_variant[0]
        loss = f"{mean['val_loss']:.3f}" + f" [{min(losses):.3f}, {max(losses):.3f}]" * (len(losses) > 1)
        cells = [f"{first['parameters']:,}", f"{first['tokens'] / 1e6:.2f} M", f"{first['flops']:.2e}"]
        cells += [f"{mean['seconds']:.0f}", loss, f"{mean['bpb']:.3f}", *(f"{mean[key]:.1%}" for key in shares)]
        lines.append([name, *cells])
    several = "validation loss [lowest, highest seed]" if len(rows) > len(lines) else "validation loss"
    head = ["", "parameters", "tokens", "training FLOPs", "seconds", several, "bits per byte", *shares]
    return table_text(head, lines, markdown)


def plot_variants(path: Path, rows: list[dict]) -> None:
    """Panels side by side: a dot for each seed, a bar for the mean of several."""
    groups = group_by_variant(rows)
    panels = {"val_loss": "validation loss (nats per token)", "seconds": "seconds of training"}
    panels |= {key: SHARES[key] for key in shares_in(rows)}
    figure = Figure(figsize=(2 + 3.5 * len(panels), 1.2 + 0.35 * len(groups)), layout="constrained")
    for axes, (column, label) in zip(figure.subplots(1, len(panels), sharey=True), panels.items()):
        for y, of_variant in enumerate(groups.values()):
            values = [row[column] for row in of_variant]
            axes.plot(values, [y] * len(values), "o", color="C0", alpha=0.6)
            if len(values) > 1:
                axes.plot(statistics.mean(values), y, "|", color="C0", markersize=16)
            for row in of_variant:
                if column in SHARES:
                    axes.plot((row[f"{column}_low"], row[f"{column}_high"]), (y, y), color="C0", alpha=0.4)
        axes.set_xlabel(label)
        axes.grid(alpha=0.3)
    names = [f"{name}  ({of_variant[0]['parameters'] / 1e6:.1f} M)" for name, of_variant in groups.items()]
    figure.axes[0].set_yticks(range(len(groups)), names)
    figure.axes[0].set_ylim(len(groups) - 0.5, -0.5)  # the first one on top
    write_bytes(path, png_bytes(figure))
