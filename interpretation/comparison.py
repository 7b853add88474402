"""
What interpret.py found in several models, side by side: by width, depth and number of heads.
"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common.files import read_json, write_bytes
from common.tables import write_table
from interpretation.word_classes import KINDS
from pages.html import png

FORMAT = 1  # of summary.json, which is read here
ROLES = ("previous token", "same token", "induction", "punctuation", "names", "beginning", "everywhere alike", "mixed")


def read_summary(run: Path) -> dict:
    path = run / "interpret" / "summary.json"
    if not path.is_file():
        raise ValueError(f"{path}: not there; make it with: python interpret.py {run}")
    summary = read_json(path)
    if summary.get("format") != FORMAT:
        raise ValueError(f"{path}: format {summary.get('format')}, but this version reads {FORMAT}; interpret it anew")
    return summary


def row_of(run: Path, summary: dict) -> dict:
    """Counts and shares of one model."""
    heads, neurons, shape = summary["heads"], summary["neurons"], summary["shape"]
    row = dict(run=str(run), n_embd=shape["n_embd"], n_layer=shape["n_layer"], n_head=shape["n_head"])
    row |= dict(loss=summary["ablation"].get("loss"), heads=heads["all"], heads_that_matter=heads["matter"])
    row |= {kind: heads["kind"].get(kind, 0) for kind in ("positional", "semantic", "everywhere alike")}
    row |= dict(positional_by_correlation=heads["kind_by_correlation"].get("positional", 0))
    row |= {f"role: {role}": heads["role"].get(role, 0) for role in ROLES}
    row |= dict(neurons=neurons["all"], selective=neurons["trained"]["strongly"])
    row |= dict(selective_at_random_init=neurons["random_init"]["strongly"])
    row |= dict(selective_with_shuffled_kinds=float(np.mean(neurons["trained"]["strongly_shuffled"])))
    return row | {f"prefers: {kind}": neurons["trained"]["by_kind"][kind] for kind in KINDS}


def compare(runs: list[Path]) -> None:
    """Prints a table; writes compare.csv and compare.png beside the first run. In order of width, depth, heads."""
    rows = [row_of(run, read_summary(run)) for run in runs]
    rows.sort(key=lambda row: (row["n_embd"], row["n_layer"], row["n_head"]))
    directory = runs[0].parent
    write_table(directory / "compare.csv", rows)
    write_bytes(directory / "compare.png", picture(rows))
    lines = [in_short(row) for row in rows]
    print(f"{'':24}" + "".join(f"{column:>19}" for column in lines[0]))
    for row, line in zip(rows, lines):
        print(f"{Path(row['run']).name:24}" + "".join(f"{cell:>19}" for cell in line.values()))
    print(f"All counts are in {directory / 'compare.csv'}, a picture in {directory / 'compare.png'}")


def in_short(row: dict) -> dict[str, str]:
    """What is printed of a model, by column."""
    n = row["heads"]
    line = {"width-depth-heads": f"{row['n_embd']}-{row['n_layer']}-{row['n_head']}"}
    line["loss"] = "" if row["loss"] is None else f"{row['loss']:.3f}"
    line |= {kind: f"{row[kind]} of {n}" for kind in ("positional", "semantic", "everywhere alike")}
    line["matter"] = "" if row["heads_that_matter"] is None else f"{row['heads_that_matter']} of {n}"
    line["selective neurons"] = f"{row['selective']:,} ({100 * row['selective'] / row['neurons']:.1f} %)"
    return line | {"before training": f"{row['selective_at_random_init']:,}"}


def picture(rows: list[dict]) -> bytes:
    """What heads are, what they do, what neurons prefer: a bar for each model, all in shares."""
    figure = Figure(figsize=(13, 1.9 + 0.42 * len(rows)), layout="constrained")
    for axes, title, total, columns in zip(
        figure.subplots(1, 3, sharey=True, width_ratios=(1, 1.5, 1.5)),
        ("Heads: position or content", "Heads: what clearly gets their attention", "Neurons: strong preference for"),
        ("heads", "heads", "neurons"),
        (
            ("positional", "semantic", "everywhere alike"),
            [f"role: {role}" for role in ROLES],
            [f"prefers: {kind}" for kind in KINDS],
        ),
    ):
        left = np.zeros(len(rows))
        colours = ["#265caa", "#7ea6d8", "#c96810", "#e9b47c", "#3a7d5d", "#9ccbb2", "#b9b4aa", "#e8e5df"]
        for column, colour in zip(columns, colours):
            shares = np.array([100 * row[column] / row[total] for row in rows])
            axes.barh(range(len(rows)), shares, left=left, color=colour, height=0.7, label=column.split(": ")[-1])
            left += shares
        labels = [f"{Path(row['run']).name}  {row['n_embd']}-{row['n_layer']}-{row['n_head']}" for row in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("% of " + total, fontsize=9)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.35), ncols=3, fontsize=8, frameon=False)
    figure.axes[0].invert_yaxis()
    return png(figure, dpi=120)
