"""
The pages of interpret.py, made of its files alone: attention.html of attention.json and heads.csv,
neurons.html of neurons.csv; and its pictures: the maps of all heads, and the shares that activation
patching brings back.
"""

import html
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from nanostories.files import read_json
from nanostories.pages.html import page
from nanostories.tables import read_table

# ---- Pages ----

# The table of heads; a column NAME_uniform of heads.csv becomes the thin line in the bars of NAME
COLUMNS = (
    "layer head role loss_increase copies position itself previous offset_share same_token"
    " induction".split()
)
COLUMNS += "names pronouns nouns verbs adjectives punctuation beginning writes".split()
MAP_BYTES = 900_000  # attention on the page, which stays under 2 MB
SHOWN, SHOWN_OF_KIND = (
    96,
    48,
)  # neurons on the page: evenly from all, and at most this many for each kind of word


def attention_page(name: str, directory: Path) -> bytes:
    data = read_json(directory / "attention.json")
    n_heads, n_tokens = len(data["heads"]), len(data["tokens"])
    data["shown"] = T = min(n_tokens, int((MAP_BYTES / n_heads) ** 0.5))
    data["rows"] = read_table(directory / "heads.csv")
    data["columns"] = [column for column in COLUMNS if column in data["rows"][0]]
    subtitle = (
        f"layers: {len({head['layer'] for head in data['heads']})}, heads: {n_heads}, tokens: {T}"
    )
    subtitle += f", the first of {n_tokens}" if T < n_tokens else ""
    return page(
        f"Attention in {name}", "attention", data, name=html.escape(name), subtitle=subtitle
    )


def neurons_page(name: str, directory: Path) -> bytes:
    """Those of the clearest preferences, those that were ablated, that with the largest activation,
    and others."""
    rows = read_table(directory / "neurons.csv")
    kinds = [column.removeprefix("auc_") for column in rows[0] if column.startswith("auc_")]
    chosen = []
    for kind in kinds:
        preferring = [row for row in rows if row["prefers"] == kind]
        chosen += sorted(preferring, key=lambda row: -float(row[f"auc_{kind}"]))[:SHOWN_OF_KIND]
    chosen += [row for row in rows if row.get("loss_increase")] + rows[
        :: max(1, len(rows) // SHOWN)
    ]
    chosen.append(max(rows, key=lambda row: float(row["activation_1"])))
    neurons = list({(row["layer"], row["neuron"]): row for row in chosen}.values())
    data = dict(kinds=kinds, neurons=neurons)
    subtitle = f"{len(neurons)} of {len(rows):,} neurons; neurons.csv has all"
    return page(f"Neurons of {name}", "neurons", data, name=html.escape(name), subtitle=subtitle)


# ---- Pictures ----

TOKENS = 32  # more would not be legible
LABELED_MAPS = 24  # at most, to label their tokens; more maps are small, with only their roles
# From transparent, so that they suit light and dark pages
BLUES = LinearSegmentedColormap.from_list("blues", ["#2359a800", "#2359a8"]).with_extremes(
    bad="#00000000"
)
COLORS = [(0, "#c96810"), (0.5, "#c9681000"), (0.5, "#265caa00"), (1, "#265caa")]
AROUND_ZERO = LinearSegmentedColormap.from_list("around zero", COLORS)


def attention_picture(
    title: str, attention: np.ndarray, pieces: Sequence[str], heads: Sequence[dict]
) -> Figure:
    """All maps, (heads, T, T), each layer in rows of its own; heads: the layer, head and role of
    each map."""
    T, gap = min(len(pieces), TOKENS), 3  # cells of a map, and between two
    labeled = len(heads) <= LABELED_MAPS
    in_a_row, cell = (
        (4, min(0.35, max(0.1, 3.2 / T))) if labeled else (16, 0.85 / T)
    )  # maps; inches
    corners, row = [], -1
    for _, maps in itertools.groupby(heads, key=lambda head: head["layer"]):
        for i, _ in enumerate(maps):
            row += i % in_a_row == 0
            corners.append(((T + gap) * (i % in_a_row), (T + gap) * row))
    xs, ys = (sorted(set(each)) for each in zip(*corners))
    cells = np.full((ys[-1] + T, xs[-1] + T), np.nan, dtype=np.float32)
    for (x, y), weights in zip(corners, attention):
        cells[y : y + T, x : x + T] = np.where(
            np.tri(T, dtype=bool), np.sqrt(weights[:T, :T]), np.nan
        )

    size = max(6, cells.shape[1] * cell) + 1.5, cells.shape[0] * cell + 1.6
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cells, cmap=BLUES, vmin=0, vmax=1, interpolation="nearest")
    small = min(8, max(5, 0.17 * T * cell * 72 / 2))  # points, so that captions fit their maps
    for (x, y), head in zip(corners, heads):
        role = f" {head['role']}" if head["role"] != "mixed" else ""
        axes.plot(
            [x - 0.5, x - 0.5, x + T - 0.5],
            [y - 0.5, y + T - 0.5, y + T - 0.5],
            color="#888888",
            linewidth=0.6,
        )
        axes.text(
            x + T - 0.5,
            y - 0.3,
            f"{head['layer']}.{head['head']}{role}",
            ha="right",
            va="top",
            fontsize=small,
        )
    labels = [piece.replace("\n", "↵").strip() or "·" for piece in pieces[:T]] if labeled else []
    style = dict(fontsize=min(60 * cell, 9), family="monospace", parse_math=False)
    axes.set_yticks([y + t for y in ys for t in range(len(labels))], labels * len(ys), **style)
    axes.set_xticks(
        [x + t for x in xs for t in range(len(labels))], labels * len(xs), rotation=90, **style
    )
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    how = "row: query token, column: key token" + (
        "" if labeled else f" (the first {T}; attention.html names them)"
    )
    axes.set_title(f"{title}\neach map: layer.head and role; {how}", fontsize=10, loc="left")
    place = dict(ax=axes, location="bottom", shrink=0.3, aspect=40)
    bar = figure.colorbar(image, **place, ticks=np.sqrt([0, 0.05, 0.25, 0.5, 1]))
    bar.ax.set_xticklabels(["0", "0.05", "0.25", "0.5", "1"], fontsize=7)
    bar.set_label("attention", fontsize=8)
    return figure


def patching_picture(
    name: str, rows: Sequence[dict], residual: np.ndarray, pieces: Sequence[Sequence[str]]
) -> Figure:
    """The share of the answer that comes back, (L + 1, T); and by head, with the share lost without
    it. rows: patching.csv; pieces: of both texts, with their answers."""
    shown = [[piece.replace("\n", "↵").strip() or "·" for piece in side[:-1]] for side in pieces]
    tokens = [" / ".join(dict.fromkeys(pair)) for pair in zip(*shown)]
    n_layer, n_head = (rows[-1][key] + 1 for key in ("layer", "head"))
    keys = ("brought_back", "lost_without")
    heads, without = (np.reshape([row[key] for row in rows], (n_layer, n_head)) for key in keys)
    width, side = max(6, 0.3 * len(tokens) + 1.5), max(1.6, 0.3 * n_head + 0.6)
    figure = Figure(
        figsize=(width + 2 * side + 1.6, max(3.6, 0.34 * n_layer + 2.4)), layout="constrained"
    )
    axes = figure.subplots(1, 3, width_ratios=(width, side, side))
    answer, other = (repr(side[-1].strip()) for side in pieces)
    figure.suptitle(
        f"{name}: activations that bring back {answer} in place of {other}", fontsize=12
    )
    titles = "residual stream", "head", "lost without head"
    for axis, title, values in zip(axes, titles, (residual, heads, without)):
        image = axis.imshow(values, cmap=AROUND_ZERO, vmin=-1, vmax=1, aspect="auto")
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_yticks(range(n_layer), range(n_layer), fontsize=8)
        axis.set_xticks(range(n_head), range(n_head), fontsize=8)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_xlabel("head", fontsize=8)
    axes[0].set_yticks(
        range(n_layer + 1), [*(f"before {i}" for i in range(n_layer)), "after all"], fontsize=8
    )
    axes[0].set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8, parse_math=False)
    axes[0].set(ylabel="layer", xlabel="")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)
    bar.set_label("share of the answer", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure
