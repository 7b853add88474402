"""
Runs side by side: a table of their training, and their loss curves, from log.csv, config.json and
best.pt.

>>> logs = {"demo": read_curve(Path("out/demo/log.csv"))}
>>> loss_figure(logs, {"demo": "builtin"})  # Figure: over tokens, over minutes
"""

import math
import statistics
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from nanostories.pages.results import Results
from nanostories.tables import table_text

POINTS = 8000  # in a figure, of all curves together: keeps the page of forty runs small
DASHES = ("-", "--", ":", "-.")
HEAD = [
    "run",
    "width-layers-heads",
    "parameters",
    "data",
    "optimizer",
    "tokens",
    "minutes",
    "tokens/s (median)",
]
HEAD += ["validation loss, last", "lowest", "bits per byte at the lowest"]
ABOUT = (
    "Minutes of training alone, without compiling, validation and saving. Loss: nats per token,"
    " comparable only "
)
ABOUT += "within a vocabulary; its lowest is that of the weights that other commands use."


def read_curve(path: Path) -> list[dict]:
    """The complete rows of log.csv, numbers or None where a cell is empty; tokens in millions,
    minutes of training."""
    from nanostories.training import (
        run_directory,  # here, as in the functions below, because it imports torch
    )

    rows = [
        {name: float(cell) if cell else None for name, cell in row.items()}
        for row in run_directory.read_log(path)
    ]
    return [
        row | dict(minutes=(row.get("seconds") or 0) / 60, tokens=row["tokens"] / 1e6)
        for row in rows
    ]


def checkpoint_facts(path: Path) -> dict:
    """The number of parameters, tied ones once; the name that its corpus has now, if it is
    there."""
    from nanostories.checkpoints.checkpoint import find_training_corpus, load_checkpoint

    checkpoint = load_checkpoint(path)
    sizes = {tensor.data_ptr(): tensor.numel() for tensor in checkpoint["model"].values()}
    corpus = find_training_corpus(checkpoint)
    return dict(parameters=sum(sizes.values())) | (dict(data=corpus.name) if corpus else {})


# ---- The table ----
def runs_text(results: Results, logs: dict[Path, list[dict]], configs: dict[Path, dict]) -> str:
    """Markdown. logs: rows of log.csv; configs: config.json, {} if there is none; both by
    directory."""
    from nanostories.training import run_directory

    rows = []
    for run, log in logs.items():
        config, losses = configs[run], [row["val_loss"] for row in log if row["val_loss"]]
        best = min(
            (row for row in log if row["val_loss"]), key=lambda row: row["val_loss"], default={}
        )
        speeds = [row["tokens_per_s"] for row in log if row["tokens_per_s"]]
        shape = "-".join(
            str(config[key]) for key in ("n_embd", "n_layer", "n_head") if key in config
        )
        note = (
            results.read(run / "log.csv", lambda path: run_directory.partly_trained(path.parent))
            or ""
        )
        note += f", from {config['start_from']}" if config.get("start_from") else ""
        rows.append([results.label(run) + note, shape, shown(config.get("parameters"), ",")])
        cost = f"{1e6 * log[-1]['tokens']:,.0f}", f"{log[-1]['minutes']:.1f}"
        rows[-1] += [config.get("data", ""), config.get("optimizer", ""), *cost]
        rows[-1] += [shown(statistics.median(speeds) if speeds else None, ",.0f")]
        losses = losses[-1] if losses else None, best.get("val_loss"), best.get("bpb")
        rows[-1] += [shown(loss, ".3f") for loss in losses]
    return "\n\n".join([table_text(HEAD, rows), ABOUT, *unequal_tokens(logs, configs)])


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def unequal_tokens(logs: dict[Path, list[dict]], configs: dict[Path, dict]) -> list[str]:
    """A warning for each corpus whose runs saw different numbers of tokens, as with max_minutes."""
    warnings = []
    for data in dict.fromkeys(config.get("data", "") for config in configs.values()):
        tokens = [
            logs[run][-1]["tokens"]
            for run, config in configs.items()
            if config.get("data", "") == data
        ]
        if max(tokens) > 1.05 * min(tokens):
            seen = f"{min(tokens):.2f} to {max(tokens):.2f} million tokens"
            warnings.append(
                f"WARNING the runs on {data or 'an unknown corpus'} saw {seen}: compare at equal"
                " tokens"
            )
    return warnings


# ---- The curves ----
def loss_figure(logs: dict[str, list[dict]], data: dict[str, str]) -> Figure:
    """A row of two panels for each corpus (data: by run), over tokens and over minutes of
    training."""
    corpora = list(dict.fromkeys(data.values()))
    figure = Figure(figsize=(10, 0.8 + 2.6 * len(corpora)), layout="constrained")
    for panels, corpus in zip(figure.subplots(len(corpora), 2, squeeze=False), corpora):
        for axes, column, label in zip(
            panels, ("tokens", "minutes"), ("tokens (millions)", "minutes of training")
        ):
            draw_losses(
                axes,
                {name: log if data[name] == corpus else [] for name, log in logs.items()},
                column,
            )
            axes.set(xlabel=label, title=corpus)
            if not any(
                len(line.get_xdata()) for line in axes.lines
            ):  # after a single step, no speed is known
                continue
            axes.set(xscale="log", yscale="log")
            for axis, ticks in (
                (axes.xaxis, (1, 2, 5)),
                (axes.yaxis, (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8)),
            ):
                axis.set_major_locator(LogLocator(subs=ticks))
                axis.set_minor_locator(NullLocator())
                axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    handles = [line for line in figure.axes[0].lines if not line.get_label().startswith("_")]
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=min(4, len(logs)),
        frameon=False,
        fontsize=8,
    )
    figure.suptitle("Loss, nats per token (pale: training; bold: validation)", fontsize=10)
    return figure


def draw_losses(axes: Axes, logs: dict[str, list[dict]], column: str) -> None:
    """Training and validation loss of each run, in a color of its own; runs without rows only take
    their color."""
    points = max(20, POINTS // (4 * len(logs)))
    for i, (name, log) in enumerate(logs.items()):
        line = dict(color=f"C{i % 10}", linestyle=DASHES[i // 10 % 4])
        for kind, style in (
            ("train_loss", dict(alpha=0.4, linewidth=0.8)),
            ("val_loss", dict(marker=".", label=name)),
        ):
            rows = [row for row in log if row[kind] and row[column]]
            rows = rows[:: -max(1, math.ceil(len(rows) / points))][::-1]  # always with the last one
            every = max(1, len(rows) // 15)
            axes.plot(
                [row[column] for row in rows],
                [row[kind] for row in rows],
                markevery=every,
                **line,
                **style,
            )
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=8)
