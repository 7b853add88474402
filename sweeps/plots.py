"""
Runs beside one another, in a table and a plot: what they cost and what came of them.

>>> print_table(rows)  # a dict for each run, as experiments.py makes them
>>> plot_variants(Path("out/grid/experiment.png"), rows)
"""

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from training.run_directory import write_run_file

# What a list may be measured by beside the loss: shares, with _low and _high for the ends of their 95 % intervals.
SHARES = {
    "shuffled": "true stories likelier than shuffled",
    "swapped": "… than with two sentences swapped",
    "context": "context prompts right (probe.py)",
}


def by_variant(rows: list[dict]) -> dict[str, list[dict]]:
    """{name of the run without its seed: the rows of its seeds}"""
    groups = {}
    for row in rows:
        groups.setdefault(row["run"].removesuffix(f"_{row['seed']}"), []).append(row)
    return groups


def print_table(rows: list[dict]):
    groups = by_variant(rows)
    width = max(map(len, groups))
    shares = [key for key in SHARES if all(key in row for row in rows)]
    head = f"{'':{width}}  parameters   tokens  training FLOPs  seconds  validation loss [lowest, highest seed]    bpb"
    print("\n" + head, *shares, sep="  ")
    for name, of_variant in groups.items():
        mean = {key: statistics.mean(row[key] for row in of_variant) for key in ("seconds", "val_loss", "bpb", *shares)}
        losses, first = [row["val_loss"] for row in of_variant], of_variant[0]
        seeds = f"[{min(losses):.3f}, {max(losses):.3f}]" if len(losses) > 1 else "(one seed)"
        print(
            f"{name:{width}}  {first['parameters']:>10,}  {first['tokens'] / 1e6:5.2f} M  {first['flops']:>14.2e}  "
            f"{mean['seconds']:>7.0f}  {mean['val_loss']:.3f} {seeds:32}  {mean['bpb']:5.3f}",
            *(f"{mean[key]:{len(key)}.1%}" for key in shares),
            sep="  ",
        )


def plot_variants(path: Path, rows: list[dict]):
    """A dot for each seed, a bar where they are several for their mean; panels side by side."""
    groups = by_variant(rows)
    panels = {"val_loss": "validation loss (nats per token)", "seconds": "seconds of training"}
    panels |= {key: label for key, label in SHARES.items() if all(key in row for row in rows)}
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
    with write_run_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")
