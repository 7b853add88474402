"""
What interpret.py measured in several models, side by side: by width, depth and number of heads.

>>> rows = compare(["out/cpu_1m", "out/cpu_8m"])  # writes out/compare.csv and out/compare.png
>>> clearest_parts("out/cpu_8m").heads[0]["writes"]  # part of what compare.html shows
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from checkpoints.checkpoint import directory_of
from common.figures import png_bytes
from common.files import write_bytes
from common.tables import read_table, write_table
from interpretation.head_roles import CONTENTS, HEAD_KINDS, HEAD_ROLES, PLACES, ROLE_MEASURES, UNIFORM
from interpretation.summary import heads_that_matter, read_attention, read_summary
from interpretation.word_classes import KINDS

COLORS = ["#265caa", "#7ea6d8", "#c96810", "#e9b47c", "#3a7d5d", "#9ccbb2", "#8c5aa8", "#c8a8d8", "#b23a48", "#e29aa3"]
COLORS += ["#7f7f3a", "#c9c98a", "#b9b4aa", "#e8e5df"]  # as many as there are roles
SHOWN_HEADS, SHOWN_FOR_ROLE = 8, 5  # per model on compare.html, and how many of these are chosen for their role


def compare(runs: list[str]) -> list[dict]:
    """Writes compare.csv and compare.png beside the first of these runs (or hf:ID-or-directory). Returns the rows,
    sorted by width, depth and heads."""
    rows = [comparison_row(run, read_summary(run)) for run in runs]
    rows.sort(key=lambda row: (row["n_embd"], row["n_layer"], row["n_head"]))
    directory = directory_of(runs[0]).parent
    write_table(directory / "compare.csv", rows)
    write_bytes(directory / "compare.png", plot(rows))
    return rows


def comparison_row(run: str, summary: dict) -> dict:
    """A row of compare.csv: the counts of one model."""
    heads, neurons, shape = summary["heads"], summary["neurons"], summary["shape"]
    row = dict(run=run, n_embd=shape["n_embd"], n_layer=shape["n_layer"], n_head=shape["n_head"])
    row |= dict(loss=summary["ablation"].get("loss"), heads=heads["all"], copying=heads["copying"])
    row |= dict(heads_that_matter=heads_that_matter(summary, "trained"))
    row |= dict(heads_that_matter_at_random_init=heads_that_matter(summary, "random_init"))
    row |= {kind: heads["kind"].get(kind, 0) for kind in HEAD_KINDS}
    row |= dict(positional_by_correlation=heads["kind_by_correlation"].get("positional", 0))
    row |= {f"role: {role}": heads["role"].get(role, 0) for role in HEAD_ROLES}
    row |= dict(neurons=neurons["all"], selective=neurons["trained"]["strongly"])
    row |= dict(selective_at_random_init=neurons["random_init"]["strongly"])
    row |= dict(selective_with_shuffled_kinds=float(np.mean(neurons["trained"]["strongly_shuffled"])))
    return row | {f"prefers: {kind}": neurons["trained"]["by_kind"][kind] for kind in KINDS}


def printed_cells(row: dict) -> dict[str, str]:
    """What is printed about a model, by column."""
    n = row["heads"]
    cells = {"run": Path(row["run"]).name, "width-depth-heads": f"{row['n_embd']}-{row['n_layer']}-{row['n_head']}"}
    cells["loss"] = "" if row["loss"] is None else f"{row['loss']:.3f}"
    cells |= {f"{kind} heads": f"{row[kind]} of {n}" for kind in ("positional", "semantic")}
    cells["uniform heads"] = f"{row[UNIFORM]} of {n}"
    cells["name heads"] = f"{row['role: names']} of {n}"
    cells["copying heads"] = f"{row['copying']} of {n}"
    cells["heads that matter"] = "" if row["heads_that_matter"] is None else f"{row['heads_that_matter']} of {n}"
    cells["selective neurons"] = f"{row['selective']:,} ({100 * row['selective'] / row['neurons']:.1f}%)"
    return cells | {"before training": f"{row['selective_at_random_init']:,}"}


def plot(rows: list[dict]) -> bytes:
    """PNG: for each model a bar of its kinds of heads, their roles, and what its neurons prefer, in percent."""
    figure = Figure(figsize=(13, 2.7 + 0.42 * len(rows)), layout="constrained")
    for axes, title, total, columns in zip(
        figure.subplots(1, 3, sharey=True, width_ratios=(1, 1.5, 1.5)),
        ("Heads: position or content", "Heads: what gets most of their attention", "Neurons: strong preference for"),
        ("heads", "heads", "neurons"),
        (
            HEAD_KINDS,
            [f"role: {role}" for role in HEAD_ROLES],
            [f"prefers: {kind}" for kind in KINDS],
        ),
    ):
        left = np.zeros(len(rows))
        for column, color in zip(columns, COLORS):
            shares = np.array([100 * row[column] / row[total] for row in rows])
            axes.barh(range(len(rows)), shares, left=left, color=color, height=0.7, label=column.split(": ")[-1])
            left += shares
        labels = [f"{Path(row['run']).name}  {row['n_embd']}-{row['n_layer']}-{row['n_head']}" for row in rows]
        axes.set_yticks(range(len(rows)), labels)
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("% of " + total, fontsize=9)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 0), borderaxespad=5, ncols=3, fontsize=8, frameon=False)
    figure.axes[0].invert_yaxis()
    return png_bytes(figure)


# ---- compare.html ----


@dataclass
class ClearestParts:
    """What compare.html shows of one model."""

    heads: list[dict]  # of heads.csv, and what each looks at most, beyond uniform attention: looks_at, share, uniform
    attention: np.ndarray  # (heads, T, T), of these heads, on the text that was drawn
    tokens: list[str]  # of that text
    neurons: list[dict]  # of neurons.csv, and `why` each is here


def clearest_parts(run: str) -> ClearestParts:
    directory = directory_of(run) / "interpret"
    heads = choose_heads(read_table(directory / "heads.csv"))
    attention, tokens = read_attention(directory / "attention.npz")
    maps = np.stack([attention[int(row["layer"]), int(row["head"])] for row in heads])
    return ClearestParts(heads, maps, tokens, choose_neurons(read_table(directory / "neurons.csv")))


def excess(row: dict, role: str) -> float:
    """How far this role's share is above uniform attention's, from 0 (not at all) to 1 (it gets all attention)."""
    share, uniform = (float(row[ROLE_MEASURES[role] + suffix]) for suffix in ("", "_uniform"))
    return (share - uniform) / (1 - uniform)


def choose_heads(rows: list[dict]) -> list[dict]:
    """The clearest head of each role, content before position; then those without which the loss rises most."""
    of_roles = ([row for row in rows if row["role"] == role] for role in (*CONTENTS, *PLACES))
    clearest = [max(some, key=lambda row: excess(row, row["role"])) for some in of_roles if some]
    others = sorted(rows, key=lambda row: -float(row.get("rise") or 0))
    chosen = clearest[:SHOWN_FOR_ROLE]
    chosen += [row for row in others if row not in chosen][: SHOWN_HEADS - len(chosen)]
    for row in chosen:
        most = max(ROLE_MEASURES, key=lambda role: excess(row, role))
        looks_at = row["role"] if row["role"] in ROLE_MEASURES else most
        share, uniform = (float(row[ROLE_MEASURES[looks_at] + suffix]) for suffix in ("", "_uniform"))
        row |= dict(looks_at=looks_at, share=share, uniform=uniform)
    return chosen


def choose_neurons(rows: list[dict]) -> list[dict]:
    """Those with the strongest preference for each kind of word, the largest activation, and the largest rise."""
    chosen = []
    for kind in KINDS:
        of_kind = [row for row in rows if row["prefers"] == kind]
        if of_kind:
            strongest = max(of_kind, key=lambda row: float(row[f"auc_{kind}"]))
            chosen.append(strongest | dict(why=kind, auc=float(strongest[f"auc_{kind}"])))
    highest = max(rows, key=lambda row: float(row["top_activations"].split(" | ")[0]))
    chosen.append(highest | dict(why="largest activation of all"))
    if measured := [row for row in rows if row["rise"]]:
        chosen.append(max(measured, key=lambda row: float(row["rise"])) | dict(why="largest measured rise in loss"))
    return chosen
