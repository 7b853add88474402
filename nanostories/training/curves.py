"""
The picture of a run's training, or of several runs: their losses over tokens and over minutes.

>>> log = read_curve(Path("out/demo/log.csv"))
>>> save_figure(loss_figure({"demo": log}, {"demo": "builtin"}), Path("out/demo/loss.png"))
"""

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from nanostories.cli import UserError
from nanostories.training.run_directory import read_log

NEEDED = ("step", "tokens", "done", "val_loss", "tokens_per_s", "seconds")  # columns
DASHES = ("-", "--", ":", "-.")
TICKS = (1, 1.5, 2, 3, 5)  # times powers of ten
PANELS = (("tokens (millions)", "tokens", 1e6), ("minutes of training", "seconds", 60))


def read_curve(path: Path) -> list[dict]:
    """The complete rows of log.csv: numbers, or None where a cell is empty."""
    rows = []
    try:
        for row in read_log(path):
            cells = {name: row[name] for name in [*row, *NEEDED]}  # KeyError in another table
            rows.append({name: float(cell) if cell else None for name, cell in cells.items()})
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: no log of train.py ({error})") from None
    return rows


def loss_figure(logs: dict[str, list[dict]], data: dict[str, str]) -> Figure:
    """A row of two panels for each corpus. logs: rows of read_curve by run; data: the name of its
    corpus by run."""
    corpora = list(dict.fromkeys(data.values()))
    figure = Figure(figsize=(10, 0.8 + 2.6 * len(corpora)), layout="constrained")
    panels = dict(zip(corpora, figure.subplots(len(corpora), 2, squeeze=False)))
    for corpus, row in panels.items():
        for axes, (label, _, _) in zip(row, PANELS):
            prepare_axes(axes, label, corpus)
    for i, (run, log) in enumerate(logs.items()):
        style = {"color": f"C{i % 10}", "linestyle": DASHES[i // 10 % 4]}
        label = run
        for axes, (_, column, unit) in zip(panels[data[run]], PANELS):
            points = [(row[column] / unit, row) for row in log if row[column]]
            draw_loss(axes, points, "train_loss", alpha=0.4, linewidth=0.8, **style)
            draw_loss(axes, points, "val_loss", marker=".", label=label, **style)
            label = None  # once in the legend
    figure.legend(loc="outside lower center", ncols=min(4, len(logs)), fontsize=8, frameon=False)
    figure.suptitle("Loss, nats per token (pale: training; bold: validation)", fontsize=10)
    return figure


def prepare_axes(axes: Axes, label: str, title: str) -> None:
    axes.set(xscale="log", yscale="log", xlabel=label, title=title)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
    for axis, subs in ((axes.xaxis, (1, 3)), (axes.yaxis, TICKS)):
        axis.set_major_locator(LogLocator(subs=subs))
        axis.set_minor_locator(NullLocator())
        axis.set_major_formatter("{x:g}")


def draw_loss(axes: Axes, points: list[tuple[float, dict]], loss: str, **style) -> None:
    """One of the losses. points: (x, row of read_curve)."""
    xs = [x for x, row in points if row[loss]]
    losses = [row[loss] for _, row in points if row[loss]]
    axes.plot(xs, losses, markevery=max(1, len(xs) // 15), **style)
