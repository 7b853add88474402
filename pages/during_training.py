"""
During training: losses, probes and scores of the checkpoints that runs kept (train.py --keep_checkpoints).

>>> plot_runs([Path("out/a"), Path("out/b")])  # as `python train.py --plot out/a out/b`
PosixPath('out/plot.png')
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from checkpoints.checkpoint import kept_checkpoints
from common.figures import save_figure, svg_bytes
from common.statistics import wilson
from common.tables import read_table
from pages.html import image
from pages.results import Results
from pages.runs import DASHES, draw_losses, loss_figure, read_log

Interval = tuple[float, float, float]  # a value and the ends of its 95% interval


class Kept(NamedTuple):
    """A checkpoint that was kept during training, and its results."""

    tokens: float  # millions, seen until then
    val_loss: float
    measures: dict[str, Interval]  # by the panel's title


def read_if_there(path: Path, parse: Callable):
    return parse(path) if path.is_file() else None


def read_kept(run: Path, read: Callable = read_if_there) -> list[Kept]:
    """The run's kept checkpoints that were probed or graded, by step; the results may lie in any directory above.
    read(path, parse): None if there is no file."""
    found = []
    for directory in map(Path.resolve, kept_checkpoints(run).values()):
        measures = {}
        for above in [directory, *directory.parents]:
            measures |= dict(probed(directory, read(above / "probe.csv", read_table) or []))
            measures |= dict(graded(directory, above, read(above / "grades.csv", read_table) or []))
        log = read(directory / "log.csv", read_log)
        if log and measures:
            found.append(Kept(log[0]["tokens"], log[0]["val_loss"], measures))
    return found


def probed(directory: Path, rows: list[dict]) -> Iterator[tuple[str, Interval]]:
    """(title, share of the probes answered right), from the rows of probe.csv, of the checkpoint in `directory`."""
    models = [column.removesuffix(" verdict") for column in (rows or [{}])[0] if column.endswith(" verdict")]
    own = [model for model in models if directory.parts[-len(Path(model).parts) :] == Path(model).parts]
    for name in dict.fromkeys(row["set"] for row in rows if own and row["right"]):
        of_set = [row for row in rows if row["set"] == name]
        chance = sum(1 / (2 + row["wrong"].count(" |")) for row in of_set) / len(of_set)
        share = sum(row[f"{own[0]} verdict"] == "right" for row in of_set) / len(of_set)
        yield f"{name}: right (chance {chance:.2f})", (share, *wilson(share, len(of_set)))


def graded(directory: Path, above: Path, rows: list[dict]) -> Iterator[tuple[str, Interval]]:
    """(title, mean score), from the rows of above/grades.csv, of the checkpoint in `directory`."""
    for row in rows:
        is_own = row["kind"] == "mean" and (above / row["subject"]).resolve() == directory
        if is_own and row["value"] and row["figure"] not in ("loss", "bpb"):  # the loss has its own curve
            value, *ends = (float(row[column] or row["value"]) for column in ("value", "low", "high"))
            yield f"{row['figure']}\n{row['judge']}".strip(), (value, *ends)


def kept_figure(logs: dict[str, list[dict]], runs: dict[str, list[Kept]]) -> Figure:
    """A row for the losses and for each measure: over tokens on the left, over the validation loss on the right.

    logs: of all runs to show; runs: the kept checkpoints of some of them.
    """
    titles = list(dict.fromkeys(title for kept in runs.values() for each in kept for title in each.measures))
    figure = Figure(figsize=(9, 1 + 1.7 * (1 + len(titles))), layout="constrained")
    grid = figure.subplots(1 + len(titles), 2, sharex="col")
    (losses, legend), *panels = grid
    draw_losses(losses, logs, "tokens")
    losses.set_ylabel("loss (nats per token)", fontsize=8)
    losses.set_ylim(top=1.1 * max(each.val_loss for kept in runs.values() for each in kept))  # early steps: above
    legend.set_axis_off()
    head = "pale: training, bold: validation\nbelow: checkpoints kept,\nwith 95% intervals"
    legend.legend(*losses.get_legend_handles_labels(), loc="center", title=head, fontsize=8, title_fontsize=8)
    for title, (over_tokens, over_loss) in zip(titles, panels):
        over_tokens.set_ylabel(title, fontsize=8)
        for i, run in enumerate(logs):
            kept = [each for each in runs.get(run, []) if title in each.measures]
            values, lows, highs = zip(*(each.measures[title] for each in kept)) if kept else ((), (), ())
            for axes, xs in (
                (over_tokens, [each.tokens for each in kept]),
                (over_loss, [each.val_loss for each in kept]),
            ):
                style = dict(color=f"C{i % 10}", linestyle=DASHES[i // 10 % 4])
                axes.plot(xs, values, marker="o", markersize=3, linewidth=1, **style)
                axes.vlines(xs, lows, highs, color=f"C{i % 10}", alpha=0.35)
                axes.grid(alpha=0.3)
                axes.tick_params(labelsize=8)
    panels[-1][0].set_xlabel("tokens (millions)")
    panels[-1][1].set_xlabel("validation loss (nats per token), falling to the right")
    panels[-1][1].invert_xaxis()
    figure.align_ylabels(grid[:, 0])
    return figure


def during_training(results: Results) -> Iterator[str]:
    """The section of the report, if any run kept checkpoints that were probed or graded."""
    logs = results.each("log.csv", read_log)
    if kept := {results.label(run): found for run in logs if (found := read_kept(run, results.read))}:
        drawn = kept_figure({results.label(run): log for run, log in logs.items() if results.label(run) in kept}, kept)
        yield image(svg_bytes(drawn), "losses, probes and scores of kept checkpoints")


def plot_runs(runs: list[Path]) -> Path:
    """The curves of several runs in one picture, plot.png beside the first of them, with the kept checkpoints that
    were probed or graded. ValueError names what is not a run."""
    missing = [run / "log.csv" for run in runs if not (run / "log.csv").is_file()]
    if missing or not runs:
        raise ValueError(f"{missing[0] if missing else '--plot'}: not found; --plot takes runs, such as out/demo")
    names = {run: run.as_posix() for run in runs}
    logs = {name: read_log(run / "log.csv") for run, name in names.items()}
    kept = {name: found for run, name in names.items() if (found := read_kept(run))}
    path = runs[0].parent / "plot.png"
    save_figure(kept_figure(logs, kept) if kept else loss_figure(logs, dict.fromkeys(logs, "")), path)
    return path
