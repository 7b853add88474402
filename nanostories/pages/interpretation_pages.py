"""
The page of interpret.py, neurons.html; and its pictures: the maps of all heads, and the shares that
activation patching brings back.
"""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from nanostories.generation.backends import LocalBackend
from nanostories.interpretation.ablation import INCREASE
from nanostories.interpretation.activation_patching import Patching
from nanostories.interpretation.neurons import NeuronSums, contexts_of, remarkable
from nanostories.interpretation.word_classes import visible
from nanostories.pages.html import details, sections_page, shaded_text
from nanostories.results import cell_text

# Neurons on the page
SHOWN_OF_KIND = 10
SHOWN_OTHERS = 20
INTRO = """<p>Where neurons fire most, five stories for each: the darker a token, the higher the
activation on it. Point at a token for its number. AUC: how often the neuron fires more on a word of
this kind than on another word of similar frequency, over all words; its highest activations may be
on others. 0.5 is chance. Loss increase: without the neuron, in nats per token, with a 95% interval,
where it was measured. All neurons are in neurons.csv.</p>
<p id="about" role="status">&nbsp;</p>"""
PICTURE_TOKENS = 32  # more would not be legible
PANEL = 1.9  # inches, for one head


# ---- The page ----
def neurons_to_show(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """By section: those that prefer a kind of word most, the one of the largest activation, and
    others, evenly from all. rows: of neurons.csv."""
    sections = {}
    for kind, clearest in remarkable(rows).items():
        preferring = [row for row in rows if row["prefers"] == kind]
        preferring.sort(key=lambda row: -row[f"auc_{kind}"])
        sections[kind] = preferring[:SHOWN_OF_KIND] or [clearest]
    sections["others"] = rows[:: math.ceil(len(rows) / SHOWN_OTHERS)]
    return sections


def neurons_page(
    name: str, language: str, rows: Sequence[dict], backend: LocalBackend, sums: NeuronSums
) -> bytes:
    """rows: of neurons.csv."""
    sections = {}
    for kind, shown in neurons_to_show(rows).items():
        parts = []
        for row in shown:
            contexts = contexts_of(row, backend.model, sums, backend.tokenizer)
            parts.append(details(heading_of(row, kind), context_lines(contexts, language)))
        sections[kind] = "".join(parts)
    return sections_page(f"Neurons of {name}", INTRO, sections)


def heading_of(row: dict, kind: str) -> str:
    """kind: of its section."""
    text = f"layer {row['layer']}, neuron {row['neuron']}"
    for name in dict.fromkeys([kind, row["prefers"]]):
        if f"auc_{name}" in row:
            text += f"; {name}: AUC {row[f'auc_{name}']:.2f}"
    text += f"; prefers: {row['prefers'] or 'no kind clearly'}"
    if INCREASE[0] in row:
        increase = cell_text([row[name] for name in INCREASE], "+.4f")
        text += f"; loss increase {increase}"
    return text


def context_lines(contexts: Sequence[Sequence[tuple[str, float]]], language: str) -> str:
    """contexts: (text, activation) of each token where a neuron fires, the highest first."""
    highest = max(activation for _, activation in contexts[0])
    lines = []
    for context in contexts:
        tokens = []
        for piece, activation in context:
            shade = max(activation, 0) / max(highest, 1e-6)
            tokens.append((piece.replace("\n", "↵"), shade, f"{activation:.2f}"))
        lines.append(shaded_text(tokens, language))
    return "".join(lines)


# ---- Pictures ----
def attention_picture(
    name: str, maps: np.ndarray, pieces: Sequence[str], rows: Sequence[dict]
) -> Figure:
    """All maps, (heads, T, T), a row for each layer. rows: of heads.csv."""
    labels = [visible(piece) for piece in pieces]
    T = len(labels)
    n_layer = rows[-1]["layer"] + 1
    n_head = len(rows) // n_layer
    size = (PANEL * n_head + 1, PANEL * n_layer + 1)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(n_layer, n_head, squeeze=False)
    for axes, row, pattern in zip(panels.flat, rows, maps):
        # The square root shows small shares, too.
        axes.imshow(np.sqrt(pattern), cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
        role = row["role"].replace("mixed", "")
        axes.set_title(f"{row['layer']}.{row['head']} {role}", fontsize=7, loc="left")
        axes.set(xticks=[], yticks=[])
        axes.tick_params(length=0)
    for axes in panels[:, 0]:
        axes.set_yticks(range(T), labels, fontsize=4, parse_math=False)
    for axes in panels[-1]:
        axes.set_xticks(range(T), labels, fontsize=4, rotation=90, parse_math=False)
    how = "each map: layer.head and role; row: query, column: key; color: square root of attention"
    figure.suptitle(f"{name}, {T} tokens\n{how}", fontsize=10)
    return figure


def patching_picture(name: str, patching: Patching, pieces: Sequence[Sequence[str]]) -> Figure:
    """The share of the answer that comes back, by layer and position, and by head. pieces: of both
    texts, with their answers."""
    first = [visible(piece) for piece in pieces[0]]
    second = [visible(piece) for piece in pieces[1]]
    tokens = [" / ".join(dict.fromkeys(pair)) for pair in zip(first[:-1], second[:-1])]
    n_layer, n_head = patching.heads.shape
    widths = (len(tokens), n_head + 2)  # cells
    size = (max(9, 0.3 * sum(widths) + 3), 0.34 * n_layer + 2.8)
    figure = Figure(figsize=size, layout="constrained")
    title = f"{name}: activations that bring back {first[-1]!r} in place of {second[-1]!r}"
    figure.suptitle(title, parse_math=False)
    left, right = figure.subplots(1, 2, width_ratios=widths)
    for axes, part in ((left, patching.residual), (right, patching.heads)):
        image = axes.imshow(part.numpy(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axes.tick_params(length=0, labelsize=8)
        axes.spines[:].set_visible(False)
    stages = [*(f"before layer {layer}" for layer in range(n_layer)), "after all"]
    left.set(title="residual stream", yticks=range(n_layer + 1), yticklabels=stages)
    left.set_xticks(range(len(tokens)), tokens, rotation=90, parse_math=False)
    right.set(title="heads", xticks=range(n_head), yticks=range(n_layer))
    right.set(xlabel="head", ylabel="layer")
    figure.colorbar(image, ax=[left, right], pad=0.01, label="share of the answer")
    return figure
