"""
The pages of interpret.py, attention.html and neurons.html; and its pictures: the maps of all heads,
and the shares that activation patching brings back.
"""

import html
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from nanostories.interpretation.activation_patching import Patching
from nanostories.interpretation.neurons import PEAKS, remarkable
from nanostories.interpretation.word_classes import KINDS, visible
from nanostories.pages.html import page, to_base64_bytes

# ---- Pages ----

# The table of heads; a column NAME_uniform of heads.csv becomes the thin line in the bars of NAME.
COLUMNS = (
    "layer head role loss_increase copies itself previous same_token induction names pronouns nouns"
    " verbs adjectives punctuation beginning writes"
).split()
MAP_BYTES = 900_000  # of attention on the page, which stays under 2 MB
# Neurons on the page: evenly from all, and at most this many for each kind of word.
SHOWN = 96
SHOWN_OF_KIND = 48


def attention_page(name: str, data: dict, maps: np.ndarray, rows: Sequence[dict]) -> bytes:
    """data: what attention.json holds; maps (heads, query, key); rows: of heads.csv."""
    n_heads, n_tokens, _ = maps.shape
    T = min(n_tokens, int((MAP_BYTES / n_heads) ** 0.5))
    subtitle = f"{n_heads} heads, {T} tokens"
    if T < n_tokens:
        subtitle += f", the first of {n_tokens}"
    columns = [column for column in COLUMNS if column in rows[0]]
    shown = data | {
        "tokens": data["tokens"][:T],
        "lens": [layer[:T] for layer in data["lens"]],
        "attention": to_base64_bytes(maps[:, :T, :T]),
        "columns": columns,
        "rows": rows,
    }
    texts = {"name": html.escape(name), "subtitle": subtitle}
    return page(f"Attention in {name}", "attention", shown, **texts)


def neurons_to_show(rows: Sequence[dict]) -> list[dict]:
    """Those of the clearest preferences, those that were ablated, and others."""
    chosen = [*remarkable(rows).values(), *rows[:: max(1, len(rows) // SHOWN)]]
    for kind in KINDS:
        preferring = [row for row in rows if row["prefers"] == kind]
        preferring.sort(key=lambda row: -row[f"auc_{kind}"])
        chosen += preferring[:SHOWN_OF_KIND]
    return list({(row["layer"], row["neuron"]): row for row in chosen}.values())


def neurons_page(name: str, rows: Sequence[dict], n_neurons: int) -> bytes:
    """rows: of neurons.csv, with contexts."""
    neurons = []
    for row in rows:
        highest = max(row["activation_1"], 1e-6)
        contexts = []
        for rank, context in zip(PEAKS, row["contexts"]):
            levels = [round(9 * max(0, x / highest)) for x in context["activations"]]
            contexts.append(context | {"activations": levels, "highest": row[f"activation_{rank}"]})
        neurons.append(row | {"contexts": contexts})
    kinds = [kind for kind in KINDS if f"auc_{kind}" in rows[0]]
    subtitle = f"{len(rows)} of {n_neurons:,} neurons; neurons.csv has all"
    texts = {"name": html.escape(name), "subtitle": subtitle}
    data = {"kinds": kinds, "neurons": neurons}
    return page(f"Neurons of {name}", "neurons", data, **texts)


# ---- Pictures ----

TOKENS = 32  # more would not be legible
LABELED_MAPS = 24  # at most, to label their tokens; more maps are small, with only their roles
GAP = 3  # cells between maps
# From transparent, so that they suit light and dark pages
BLUES = LinearSegmentedColormap.from_list("blues", ["#2359a800", "#2359a8"]).with_extremes(
    bad="#00000000"
)
COLORS = [(0, "#c96810"), (0.5, "#c9681000"), (0.5, "#265caa00"), (1, "#265caa")]
AROUND_ZERO = LinearSegmentedColormap.from_list("around zero", COLORS)


def attention_picture(title: str, maps: np.ndarray, data: dict) -> Figure:
    """All maps, (heads, T, T), a row for each layer. data: what attention.json holds."""
    labels = [visible(piece) for piece in data["tokens"][:TOKENS]]
    heads = data["heads"]
    T = len(labels)
    size = T + GAP
    n_layer = heads[-1]["layer"] + 1
    n_head = len(heads) // n_layer
    seen = np.where(np.tri(T, dtype=bool), np.sqrt(maps[:, :T, :T]), np.nan)
    cells = np.pad(seen, [(0, 0), (GAP, 0), (0, GAP)], constant_values=np.nan)
    cells = cells.reshape(n_layer, n_head, size, size).swapaxes(1, 2)
    cells = cells.reshape(n_layer * size, n_head * size)

    inches = 0.85 / T  # of a cell
    labeled = len(heads) <= LABELED_MAPS
    if labeled:
        inches = min(0.35, max(0.1, 3.2 / T))
    width = max(6, n_head * size * inches) + 1.5
    figure = Figure(figsize=(width, n_layer * size * inches + 1.6), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(cells, cmap=BLUES, vmin=0, vmax=1, interpolation="nearest")
    points = min(8, max(5, 6 * T * inches))  # so that captions fit their maps
    for head in heads:
        left = head["head"] * size - 0.5
        top = head["layer"] * size + GAP - 0.5
        axes.plot([left, left, left + T], [top, top + T, top + T], color="#888888", linewidth=0.6)
        caption = f"{head['layer']}.{head['head']} {head['role'].replace('mixed', '')}"
        axes.text(left + T, top, caption.strip(), ha="right", va="top", fontsize=points)
    axes.set_xticks([])
    axes.set_yticks([])
    if labeled:
        style = {"fontsize": min(60 * inches, 9), "family": "monospace", "parse_math": False}
        places = np.arange(T)
        columns = [size * head + places for head in range(n_head)]
        rows = [size * layer + GAP + places for layer in range(n_layer)]
        axes.set_xticks(np.concatenate(columns), labels * n_head, rotation=90, **style)
        axes.set_yticks(np.concatenate(rows), labels * n_layer, **style)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    how = f"each map: layer.head and role; row: query, column: key, of the first {T} tokens"
    axes.set_title(f"{title}\n{how}", fontsize=10, loc="left")
    bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.3, aspect=40)
    shares = [0, 0.05, 0.25, 0.5, 1]
    bar.set_ticks(np.sqrt(shares), labels=shares, fontsize=7)
    bar.set_label("attention", fontsize=8)
    return figure


def patching_picture(name: str, found: Patching, pieces: Sequence[Sequence[str]]) -> Figure:
    """The share of the answer that comes back, by layer and position, and by head. pieces: of both
    texts, with their answers."""
    first, second = ([visible(piece) for piece in side] for side in pieces)
    tokens = [" / ".join(dict.fromkeys(pair)) for pair in zip(first[:-1], second)]
    n_layer, n_head = found.heads.shape
    widths = (max(6, 0.3 * len(tokens) + 1.5), max(1.6, 0.3 * n_head + 0.6))
    size = (sum(widths) + 1.6, max(3.6, 0.34 * n_layer + 2.4))
    figure = Figure(figsize=size, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=widths)
    title = f"{name}: activations that bring back {first[-1]!r} in place of {second[-1]!r}"
    figure.suptitle(title, fontsize=12, parse_math=False)
    style = {"cmap": AROUND_ZERO, "vmin": -1, "vmax": 1, "aspect": "auto"}
    for axes, shares, what in (
        (left, found.residual, "residual stream"),
        (right, found.heads, "head"),
    ):
        image = axes.imshow(shares, **style)
        axes.set_title(what, fontsize=9, loc="left")
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    before = [f"before {layer}" for layer in range(n_layer)]
    left.set_yticks(range(n_layer + 1), [*before, "after all"])
    left.set_xticks(range(len(tokens)), tokens, rotation=90, parse_math=False)
    left.set_ylabel("layer")
    right.set_yticks(range(n_layer))
    right.set_xticks(range(n_head))
    bar = figure.colorbar(image, ax=[left, right], shrink=0.8, pad=0.01)
    bar.set_label("share of the answer", fontsize=8)
    return figure
