"""
The page of interpret.py, neurons.html; and its pictures: the maps of all heads, and the shares that
activation patching brings back.
"""

import html
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from nanostories.interpretation.activation_patching import Patching
from nanostories.interpretation.neurons import remarkable
from nanostories.interpretation.word_classes import KINDS, visible
from nanostories.pages.html import page

# ---- The page ----
# Neurons on the page: evenly from all, and at most this many for each kind of word.
SHOWN = 96
SHOWN_OF_KIND = 48


def neurons_to_show(rows: Sequence[dict]) -> list[dict]:
    """Those of the clearest preferences, those that were ablated, and others."""
    chosen = [*remarkable(rows).values(), *rows[:: max(1, len(rows) // SHOWN)]]
    for kind in KINDS:
        preferring = [row for row in rows if row["prefers"] == kind]
        preferring.sort(key=lambda row: -row[f"auc_{kind}"])
        chosen += preferring[:SHOWN_OF_KIND]
    return list({(row["layer"], row["neuron"]): dict(row) for row in chosen}.values())


def neurons_page(name: str, language: str, rows: Sequence[dict], n_neurons: int) -> bytes:
    """rows: of neurons.csv, with contexts."""
    subtitle = f"{len(rows)} of {n_neurons:,} neurons; neurons.csv has all"
    data = {"language": language, "neurons": rows}
    return page(f"Neurons of {name}", "neurons", data, name=html.escape(name), subtitle=subtitle)


# ---- Pictures ----

PICTURE_TOKENS = 32  # more would not be legible
LABELED_MAPS = 24  # at most, to label their tokens; more maps are small, with only their roles
GAP = 3  # cells between maps
# From transparent, so that they suit light and dark pages
BLUES = LinearSegmentedColormap.from_list("blues", ["#2359a800", "#2359a8"]).with_extremes(
    bad="#00000000"
)
COLORS = [(0, "#c96810"), (0.5, "#c9681000"), (0.5, "#265caa00"), (1, "#265caa")]
AROUND_ZERO = LinearSegmentedColormap.from_list("around zero", COLORS)


def attention_picture(
    name: str, maps: np.ndarray, pieces: Sequence[str], rows: Sequence[dict]
) -> Figure:
    """All maps, (heads, T, T), a row for each layer. rows: of heads.csv."""
    labels = [visible(piece) for piece in pieces[:PICTURE_TOKENS]]
    T = len(labels)
    size = T + GAP
    n_layer = rows[-1]["layer"] + 1
    n_head = len(rows) // n_layer
    seen = np.where(np.tri(T, dtype=bool), np.sqrt(maps[:, :T, :T]), np.nan)
    cells = np.pad(seen, [(0, 0), (GAP, 0), (0, GAP)], constant_values=np.nan)
    cells = cells.reshape(n_layer, n_head, size, size).swapaxes(1, 2)
    cells = cells.reshape(n_layer * size, n_head * size)

    labeled = len(rows) <= LABELED_MAPS
    inches = (3.2 if labeled else 0.85) / T  # of a cell
    width = max(6, n_head * size * inches) + 1.5
    figure = Figure(figsize=(width, n_layer * size * inches + 1.6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cells, cmap=BLUES, vmin=0, vmax=1, interpolation="nearest")
    for row in rows:
        left = row["head"] * size - 0.5
        top = row["layer"] * size + GAP - 0.5
        axes.plot([left, left, left + T], [top, top + T, top + T], color="#888888", linewidth=0.6)
        caption = f"{row['layer']}.{row['head']} {row['role'].replace('mixed', '')}".strip()
        axes.text(left + T, top, caption, ha="right", va="top", fontsize=8 if labeled else 5)
    if not labeled:
        labels = [""] * T
    places = np.arange(T)
    columns = [places + size * head for head in range(n_head)]
    lines = [places + size * layer + GAP for layer in range(n_layer)]
    style = {"fontsize": min(9, 60 * inches), "family": "monospace", "parse_math": False}
    axes.set_xticks(np.concatenate(columns), labels * n_head, rotation=90, **style)
    axes.set_yticks(np.concatenate(lines), labels * n_layer, **style)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    how = "each map: layer.head and role; row: query, column: key; color: attention"
    axes.set_title(f"{name}, {T} tokens\n{how}", fontsize=10, loc="left")
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.3, aspect=40)
    shares = [0, 0.05, 0.25, 0.5, 1]
    bar.set_ticks(np.sqrt(shares), labels=shares)
    return figure


def patching_picture(name: str, found: Patching, pieces: Sequence[Sequence[str]]) -> Figure:
    """The share of the answer that comes back, by layer and position, and by head. pieces: of both
    texts, with their answers."""
    first = [visible(piece) for piece in pieces[0]]
    second = [visible(piece) for piece in pieces[1]]
    tokens = [" / ".join(dict.fromkeys(pair)) for pair in zip(first[:-1], second)]
    n_layer, n_head = found.heads.shape
    widths = (len(tokens), n_head + 2)  # cells
    size = (max(9, 0.3 * sum(widths) + 3), 0.34 * n_layer + 2.8)
    figure = Figure(figsize=size, layout="constrained")
    title = f"{name}: activations that bring back {first[-1]!r} in place of {second[-1]!r}"
    figure.suptitle(title, parse_math=False)
    left, right = figure.subplots(1, 2, width_ratios=widths)
    for axes, shares in ((left, found.residual.numpy()), (right, found.heads.numpy())):
        image = axes.imshow(shares, cmap=AROUND_ZERO, vmin=-1, vmax=1, aspect="auto")
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    stages = [*(f"before layer {layer}" for layer in range(n_layer)), "after all"]
    left.set(title="residual stream", yticks=range(n_layer + 1), yticklabels=stages)
    left.set_xticks(range(len(tokens)), tokens, rotation=90, parse_math=False)
    right.set(title="heads", xticks=range(n_head), yticks=range(n_layer))
    right.set(xlabel="head", ylabel="layer")
    figure.colorbar(image, ax=[left, right], pad=0.01, label="share of the answer")
    return figure
