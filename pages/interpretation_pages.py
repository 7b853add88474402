"""
The pages and pictures of interpret.py: attention with the logit lens, neurons, activation patching, models compared.
"""

import html
import itertools
from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from common.figures import png_bytes
from interpretation.activation_patching import Patching
from interpretation.compare_runs import ClearestParts
from pages.html import as_levels, page

MAP_BYTES = 900_000  # of attention per page: keeps it under 2 MB
PICTURE_TOKENS = 32  # more would not be legible
LABELED_MAPS = 24  # per picture, at most, to label their tokens; more maps are small, with only their roles
BLUES = LinearSegmentedColormap.from_list("blues", ["#fdfdfc", "#9dbbe0", "#265caa", "#0d2347"]).with_extremes(
    bad="white"
)
AROUND_ZERO = LinearSegmentedColormap.from_list("around zero", ["#c96810", "#fdfdfc", "#265caa"])


# ---- Attention ----

VISIBLE_KINDS = ("names", "pronouns", "nouns", "verbs", "adjectives")
COLUMNS = [  # of the table: key, format, title, explanation
    ("layer", "plain", "layer", ""),
    ("head", "plain", "head", ""),
    ("role", "plain", "role", "what gets at least twice its share of uniform attention, and a quarter of the rest"),
    ("kind", "plain", "kind", "positional: mostly explained by position; semantic: clearly goes to a kind of content"),
    ("rise", "rise", "rise in loss when ablated", "nats per token, with its 95% interval over stories"),
    ("copies", "share", "copies", "how often a single token that it looks at is among the ten that it makes likeliest"),
    ("position", "share", "due to position", "share of its attention's variance that is the same in every story"),
    ("itself", "share", "itself", "share on the token itself; the thin line: uniform attention"),
    ("previous", "share", "previous token", "share of its attention; the thin line: uniform attention"),
    ("offset_share", "share", "fixed offset", "share on the token 2 to 8 back that gets most"),
    ("offset", "plain", "tokens back", "of that token"),
    ("same_token", "share", "same token", "share on earlier copies of the token, where there are any"),
    ("after_same", "share", "after same", "share on tokens that followed earlier copies"),
    ("induction", "share", "induction", "the same, on a random sequence that is repeated once"),
    ("punctuation", "share", "punctuation", "share, where some is visible"),
    *((kind, "share", kind, "share, where one is visible") for kind in VISIBLE_KINDS),
    ("beginning", "share", "beginning", "share on the first token"),
    ("distance", "number", "distance", "mean, in tokens"),
    ("distance_correlation", "number", "correlation with distance", "an older criterion: positional beyond ±0.5"),
    ("entropy", "number", "entropy", "mean, in nats"),
    ("writes", "plain", "writes", "the tokens that its output makes likeliest, strongest first"),
]


def attention_page(
    name: str, attention: np.ndarray, pieces: Sequence[str], heads: list[dict], rows: list[dict], lens: list
) -> bytes:
    """attention: (heads, T, T), of `heads`, each with its layer, head and role; rows: the table of all measures;
    lens: [layer][position][rank], the predicted next tokens after the embeddings and after each layer."""
    T = min(len(pieces), int((MAP_BYTES / len(heads)) ** 0.5))
    data = dict(
        tokens=list(pieces[:T]),
        heads=heads,
        attention=as_levels(attention[:, :T, :T]),
        columns=[dict(zip(("key", "kind", "title", "help"), column)) for column in COLUMNS],
        rows=rows,
        lens=[layer[:T] for layer in lens],
    )
    subtitle = f"layers: {len({head['layer'] for head in heads})}, heads: {len(heads)}, tokens: {T}"
    subtitle += f", the first of {len(pieces)}" if T < len(pieces) else ""
    return page(f"Attention in {name}", "attention", data, name=html.escape(name), subtitle=subtitle)


def attention_picture(title: str, attention: np.ndarray, pieces: Sequence[str], heads: list[dict]) -> bytes:
    """PNG of all maps, (heads, T, T), each layer in rows of its own; the tokens on both axes where maps are few."""
    T, gap = min(len(pieces), PICTURE_TOKENS), 3  # cells of a map, and between two
    labeled = len(heads) <= LABELED_MAPS
    in_a_row = 4 if labeled else 16
    cell = min(0.35, max(0.1, 3.2 / T)) if labeled else 0.85 / T  # inches
    places, row = [], -1
    for _, of_layer in itertools.groupby(heads, key=lambda head: head["layer"]):
        for i, _ in enumerate(of_layer):
            row += i % in_a_row == 0
            places.append(((T + gap) * (i % in_a_row), (T + gap) * row))
    xs, ys = (sorted(set(each)) for each in zip(*places))
    cells = np.full((ys[-1] + T, xs[-1] + T), np.nan, dtype=np.float32)
    for (x, y), weights in zip(places, attention):
        cells[y : y + T, x : x + T] = np.where(np.tri(T, dtype=bool), np.sqrt(weights[:T, :T]), np.nan)

    width, height = cells.shape[1] * cell, cells.shape[0] * cell  # inches
    left, right, top, bottom = (1.2, 0.25, 1.0, 0.9) if labeled else (0.3, 0.25, 1.0, 0.2)
    figure = Figure(figsize=(max(width, 6) + left + right, height + top + bottom))
    page_width, page_height = figure.get_size_inches()
    axes = figure.add_axes((left / page_width, bottom / page_height, width / page_width, height / page_height))
    image = axes.imshow(cells, cmap=BLUES, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    size = min(8, max(5, 0.17 * T * cell * 72 / 2))  # of captions, so that they fit their maps
    for (x, y), head in zip(places, heads):
        role = f" {head['role']}" if head["role"] not in ("", "mixed") else ""
        axes.plot([x - 0.5, x - 0.5, x + T - 0.5], [y - 0.5, y + T - 0.5, y + T - 0.5], color="#c9c5bd", linewidth=0.6)
        axes.text(x + T - 0.5, y - 0.3, f"{head['layer']}.{head['head']}{role}", ha="right", va="top", fontsize=size)

    if labeled:
        labels = [piece.replace("\n", "↵").strip() or "·" for piece in pieces[:T]]
        style = dict(fontsize=min(60 * cell, 9), family="monospace", color="#444444", parse_math=False)
        axes.set_yticks([y + t for y in ys for t in range(T)], labels * len(ys), **style)
        axes.set_xticks([x + t for x in xs for t in range(T)], labels * len(xs), rotation=90, **style)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    figure.text(left / page_width, 1 - 0.3 / page_height, title, fontsize=13, va="center")
    how = "each map: layer.head and role; row: query token, column: key token"
    how += "" if labeled else f" (the first {T} tokens; attention.html names them)"
    figure.text(left / page_width, 1 - 0.58 / page_height, how, fontsize=7, va="center", color="#666666")
    scale = figure.add_axes((1 - 2.6 / page_width, 1 - 0.4 / page_height, 2 / page_width, 0.12 / page_height))
    bar = figure.colorbar(image, cax=scale, orientation="horizontal", ticks=np.sqrt([0, 0.05, 0.25, 0.5, 1]))
    bar.ax.set_xticklabels(["0", "0.05", "0.25", "0.5", "1"], fontsize=7)
    bar.ax.set_title("attention", fontsize=7, pad=3)
    bar.outline.set_visible(False)
    return png_bytes(figure, dpi=110)


# ---- Neurons ----


def neurons_page(name: str, subtitle: str, findings: Sequence[str], kinds: Sequence[str], pieces, neurons) -> bytes:
    """findings: paragraphs; neurons: what each card shows, its contexts as indices into `pieces`."""
    data = dict(pieces=pieces, kinds=kinds, neurons=neurons)
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in findings)
    texts = dict(name=html.escape(name), subtitle=html.escape(subtitle), findings=paragraphs)
    return page(f"Neurons of {name}", "neurons", data, **texts)


# ---- Activation patching ----


def pair(first: str, second: str) -> str:
    """How a position's tokens in the two prompts are shown."""
    first, second = (piece.replace("\n", "↵").strip() or "·" for piece in (first, second))
    return first if first == second else f"{first} / {second}"


def patching_picture(name: str, patching: Patching, pieces: Sequence[Sequence[str]]) -> bytes:
    """PNG: how much of the answer comes back, layer x position; and by head, with what is lost without it."""
    tokens = [pair(*each) for each in zip(*(side[:-1] for side in pieces))]
    n_layer, n_head = patching.heads.shape
    width, side = max(6, 0.3 * len(tokens) + 1.5), max(1.6, 0.3 * n_head + 0.6)
    figure = Figure(figsize=(width + 2 * side + 1.6, max(3.6, 0.34 * n_layer + 2.4)), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(width, side, side))
    answer, other = (repr(side[-1].strip()) for side in pieces)
    figure.suptitle(f"{name}: what brings {answer} back where the model said {other}", fontsize=12)
    titles = "residual stream", "head", "lost without head"
    for axis, title, values in zip(axes, titles, (patching.residual, patching.heads, patching.without)):
        image = axis.imshow(values.numpy(), cmap=AROUND_ZERO, vmin=-1, vmax=1, aspect="auto")
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_yticks(range(n_layer), range(n_layer), fontsize=8)
        axis.set_xticks(range(n_head), range(n_head), fontsize=8)
        axis.tick_params(length=0)
        axis.spines[:].set_visible(False)
        axis.set_xlabel("head", fontsize=8)
    axes[0].set_yticks(range(n_layer + 1), [*(f"before {i}" for i in range(n_layer)), "after all"], fontsize=8)
    axes[0].set_xticks(range(len(tokens)), tokens, rotation=90, fontsize=8, parse_math=False)
    axes[0].set_ylabel("layer", fontsize=8)
    axes[0].set_xlabel("")
    bar = figure.colorbar(image, ax=axes, shrink=0.8, pad=0.01)
    bar.set_label("share of the answer", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return png_bytes(figure)


def patching_page(
    name: str, patching: Patching, pieces: Sequence[Sequence[str]], rows: list[dict], findings: Sequence[str]
) -> bytes:
    """rows: those of patching.csv; findings: paragraphs."""
    data = dict(
        tokens=[pair(*each) for each in zip(*(side[:-1] for side in pieces))],
        residual=[[round(share, 3) for share in layer] for layer in patching.residual.tolist()],
        heads=[{key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()} for row in rows],
    )
    prompts = "".join(
        f"<p><b>{title}</b> {html.escape(''.join(side[:-1]))}<b class='from'>{html.escape(side[-1])}</b></p>"
        for title, side in zip(("first", "second"), pieces)
    )
    texts = dict(name=html.escape(name), prompts=prompts)
    texts["findings"] = "".join(f"<p>{html.escape(line)}</p>" for line in findings)
    return page(f"Patching {name}", "patching", data, **texts)


# ---- Models side by side ----


def compare_page(counts: list[dict], parts: list[ClearestParts]) -> bytes:
    """counts: what is printed about each model."""
    models = []
    for of_model in parts:
        T = min(len(of_model.tokens), PICTURE_TOKENS)
        facts = dict(heads=of_model.heads, neurons=of_model.neurons, tokens=of_model.tokens[:T])
        models.append(facts | dict(attention=as_levels(np.sqrt(of_model.attention[:, :T, :T]))))
    return page("Heads and neurons, side by side", "compare", dict(counts=counts, models=models))
