"""
During training: losses, probes and scores of the checkpoints that runs kept (train.py --keep_checkpoints).

>>> plot_runs([Path("out/a"), Path("out/b")])  # as `python train.py --plot out/a out/b`
PosixPath('out/plot.png')
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from matplotlib.figure import Figure

from common.figures import png_bytes
from common.files import write_bytes
from common.tables import read_table
from grading import probe_answers
from grading.rubrics import rubric_of
from grading.scores_table import SHOWN
from pages.html import embedded
from pages.read_results import Results, read_curve
from pages.sections_stories import read_scores
from training.config import ConfigError
from training.run_directory import draw_losses, plot_loss, read_log

Interval = tuple[float, float, float]  # a value and the ends of its interval


class Kept(NamedTuple):
    """A checkpoint that was kept during training, and what is known about it."""

    step: int
    tokens: float  # millions, seen until then
    val_loss: float
    measures: dict[str, Interval]  # by panel title


def read_kept(results: Results) -> dict[str, list[Kept]]:
    """{run: its kept checkpoints, by step}, for runs with any that were probed or graded."""
    measures = {name: {} for name in results.kept}
    for title, name, interval in [*probed(results), *graded(results)]:
        measures[name][title] = interval
    runs = {}
    for name, (run, step) in results.kept.items():
        if row := next(iter(results.read(results.runs[run] / f"step-{step}" / "log.csv", read_curve) or []), None):
            kept = Kept(step, row["tokens"] / 1e6, row["val_loss"], measures[name])
            runs.setdefault(run, []).append(kept)
    return {run: kept for run, kept in runs.items() if any(each.measures for each in kept)}


def probed(results: Results) -> Iterable[tuple[str, str, Interval]]:
    """(title, kept checkpoint, share of the probes that it answers right), from probe.csv wherever it was written."""
    paths = {*results.directory.rglob("probe.csv"), results.shared("probe.csv")}
    for path in sorted(filter(Path.is_file, paths), key=lambda path: path.stat().st_mtime):  # the newest wins
        rows = results.read(path, read_table)
        for name, of_set in probe_answers.score(rows or []).items():
            for model, share in of_set.shares.items():
                own = Path(model).name == path.parent.name  # the path is that given to probe.py, maybe elsewhere
                kept = results.name(path.parent if own else model)
                if kept in results.kept:
                    yield f"{name}: right (chance {of_set.chance:.2f})", kept, share


def graded(results: Results) -> Iterable[tuple[str, str, Interval]]:
    """(title, kept checkpoint, mean score), of all judges; without any judge, the metrics that need none."""
    means = [f for f in read_scores(results) if f.kind == "mean" and f.subject in results.kept]
    for f in means:
        interval = f.value, f.low, f.high
        if f.judge and f.figure in rubric_of(f.judge).scores:
            unit = rubric_of(f.judge).scores[f.figure].unit
            yield f"{f.figure}{f' ({unit})' * bool(unit)}\n{f.judge}", f.subject, interval
        elif f.figure in METRICS and not any(other.judge for other in means):
            title, factor, _ = SHOWN[f.figure]
            yield title, f.subject, tuple(factor * x for x in interval)


METRICS = [name for name in SHOWN if name not in ("loss", "bpb")]  # the loss has its own curve


# ---- The picture ----


def picture(logs: dict[str, list[dict]], runs: dict[str, list[Kept]]) -> bytes:
    """PNG: a row for the losses and for each measure, over training on the left, over the validation loss on the right.

    logs: rows of log.csv of all runs to show; runs: the kept checkpoints of some of them.
    """
    titles = list(dict.fromkeys(title for kept in runs.values() for each in kept for title in each.measures))
    figure = Figure(figsize=(9, 1 + 1.7 * (1 + len(titles))), layout="constrained")
    grid = figure.subplots(1 + len(titles), 2, sharex="col")
    (losses, legend), *panels = grid
    draw_losses(losses, logs)
    losses.set_xlabel("")
    losses.set_ylabel("loss (nats per token)", fontsize=8)
    losses.tick_params(labelsize=8)
    losses.set_ylim(top=1.1 * max(each.val_loss for kept in runs.values() for each in kept))  # early steps: above
    steps_of_tokens = {round(1e6 * each.tokens / each.step) for kept in runs.values() for each in kept}
    if len(steps_of_tokens) == 1:  # otherwise a step is not the same for all
        (per_step,) = steps_of_tokens
        functions = (lambda tokens: 1e6 * tokens / per_step, lambda steps: steps * per_step / 1e6)
        losses.secondary_xaxis("top", functions=functions).set_xlabel("training step")
    legend.set_axis_off()
    head = "pale: training, dots: validation\nbelow: checkpoints kept,\nwith 95% intervals"
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
                axes.plot(xs, values, color=f"C{i}", marker="o", markersize=3, linewidth=1)
                axes.vlines(xs, lows, highs, color=f"C{i}", alpha=0.35)
                axes.grid(alpha=0.3)
                axes.tick_params(labelsize=8)
    panels[-1][0].set_xlabel("tokens seen (millions)")
    panels[-1][1].set_xlabel("validation loss (nats per token), falling to the right")
    panels[-1][1].invert_xaxis()
    figure.align_ylabels(grid[:, 0])
    return png_bytes(figure)


def plot_runs(runs: list[Path]) -> Path:
    """The curves of several runs in one picture, plot.png beside the first of them; or a ConfigError.

    Kept checkpoints that were probed or graded are in it, too.
    """
    if not runs:
        raise ConfigError("--plot needs directories of runs, such as out/demo")
    for run in runs:
        if not (run / "log.csv").is_file():
            raise ConfigError(f"{run / 'log.csv'}: not found; --plot takes directories of runs, such as out/demo")
    results = Results(Path(os.path.relpath(os.path.commonpath([run.resolve() for run in runs]))))
    logs = {results.name(run): read_log(run / "log.csv") for run in runs}
    kept = {run: of_run for run, of_run in read_kept(results).items() if run in logs}
    path = runs[0].parent / "plot.png"
    if kept:
        write_bytes(path, picture(logs, kept))
    else:
        plot_loss(path, logs)
    return path


def kept_section(results: Results) -> Iterable[dict]:
    """Losses, probes and scores of the checkpoints kept during training (train.py --keep_checkpoints)."""
    logs = results.of_runs("log.csv", read_curve)
    if kept := {run: of_run for run, of_run in read_kept(results).items() if run in logs}:
        png = picture({run: logs[run] for run in kept}, kept)
        yield embedded(png, "Left: over training. Right: the same over the validation loss.")
