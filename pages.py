"""
What interpret.py shows: attention as one picture and as a page to point at, neurons as a page to browse.

A page is one file, which needs no network: the parts in pages/, and data as JSON that only becomes text, never markup.
"""

import base64
import html
import io
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

PARTS = Path(__file__).parent / "pages"
PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>$style</style>
<body>
$body
<script type="application/json" id="data">$data</script>
<script>$script</script>
</body>
</html>
""")
MAP_BYTES = 900_000  # of attention in a page, which keeps it under 2 MB
PICTURE_TOKENS = 48  # more would not be legible
BLUES = LinearSegmentedColormap.from_list("blues", ["#fdfdfc", "#9dbbe0", "#265caa", "#0d2347"])


def page(title: str, kind: str, data: dict, **texts: str) -> bytes:
    """The page `kind` of pages/, with `data` for its script; `texts` and the title are shown as they stand."""
    read = lambda file: (PARTS / file).read_text(encoding="utf-8")  # noqa: E731
    body = Template(read(f"{kind}.html")).substitute(texts)
    script = read("common.js") + read(f"{kind}.js")
    # "<" only stands in strings here: written so, none can end the script element
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    parts = dict(title=html.escape(title), style=read("style.css"), body=body, data=text, script=script)
    return PAGE.substitute(parts).encode()


# ---- Attention ----

COLUMNS = [  # of the table: key, how it is shown, title, explanation
    ("layer", "plain", "layer", ""),
    ("head", "plain", "head", ""),
    ("role", "plain", "role", "what clearly gets its attention: 0.4 of it or more, and twice what looking alike gives"),
    ("kind", "plain", "kind", "positional if position explains more than half of how it differs from looking alike"),
    ("rise", "rise", "rise in loss when ablated", "nats per token, with its 95 % interval over stories"),
    ("position", "share", "due to position", "share of its attention's variance that is the same in every story"),
    ("previous", "share", "previous token", "share of its attention; the line: looking everywhere alike"),
    ("same_token", "share", "same token", "share, where the token stood before"),
    ("after_same", "share", "after same", "share on what followed the same token before"),
    ("induction", "share", "induction", "the same where random tokens come twice in a row"),
    ("punctuation", "share", "punctuation", "share, where some is in sight"),
    ("names", "share", "names", "share, where one is in sight"),
    ("beginning", "share", "beginning", "share on the first token"),
    ("distance", "number", "distance", "mean, in tokens"),
    ("distance_correlation", "number", "correlation with distance", "over all pairs; above 0.5: earlier criterion"),
    ("entropy", "number", "entropy", "mean, in nats"),
]


def attention_page(
    name: str, attention: np.ndarray, pieces: Sequence[str], heads: list[dict], rows: list[dict]
) -> bytes:
    """attention (heads, T, T) of `heads`, each with its layer, head and role; rows: the table of all measures."""
    T = min(len(pieces), int((MAP_BYTES / len(heads)) ** 0.5))
    levels = (attention[:, :T, :T] * 255).round().astype(np.uint8)
    data = dict(
        tokens=list(pieces[:T]),
        heads=heads,
        attention=base64.b64encode(levels.tobytes()).decode(),
        columns=[dict(zip(("key", "kind", "title", "help"), column)) for column in COLUMNS],
        rows=rows,
    )
    layers = len({head["layer"] for head in heads})
    facts = f"{layers} layers, {len(heads)} heads, {T} tokens" + (
        f" (the first of {len(pieces)})" if T < len(pieces) else ""
    )
    measures = ""
    if rows:
        measures = (
            '<h2>What each head does</h2><p class="quiet">Means over many stories. Bars are shares of its attention, '
            "the thin line is what a head would give that looks everywhere alike. Click a title to sort, a row to see "
            'the head.</p><div class="scroll"><table id="heads"></table></div>'
        )
    texts = dict(name=html.escape(name), facts=facts, measures=measures)
    return page(f"Attention in {name}", "attention", data, **texts)


def attention_picture(title: str, attention: np.ndarray, pieces: Sequence[str], heads: list[dict]) -> bytes:
    """PNG of all maps, (heads, T, T), a row for each layer, with the tokens at its left side and under each column."""
    T = min(len(pieces), PICTURE_TOKENS)
    layers = sorted({head["layer"] for head in heads})
    column = {i: sum(other["layer"] == head["layer"] for other in heads[:i]) for i, head in enumerate(heads)}
    n_columns, gap = max(column.values()) + 1, 3  # cells between two maps
    step = T + gap
    canvas = np.full((len(layers) * step - gap, n_columns * step - gap), np.nan, dtype=np.float32)
    for i, head in enumerate(heads):
        y, x = layers.index(head["layer"]) * step, column[i] * step
        canvas[y : y + T, x : x + T] = np.where(np.tri(T, dtype=bool), np.sqrt(attention[i, :T, :T]), np.nan)
    cell = 0.075 if len(heads) > 1 else 0.2  # inches: a label of 5 points, or 9, fits
    width, height = canvas.shape[1] * cell, canvas.shape[0] * cell
    left, right, top, bottom = 1.2, 0.25, 0.95, 0.9
    figure = Figure(figsize=(max(width, 3.5) + left + right, height + top + bottom))
    total = figure.get_size_inches()
    axes = figure.add_axes((left / total[0], bottom / total[1], width / total[0], height / total[1]))
    colours = BLUES.copy()
    colours.set_bad("white")
    axes.imshow(canvas, cmap=colours, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    labels = [piece.replace("\n", "↵").strip() or "·" for piece in pieces[:T]]
    size = cell * 72 * 0.88
    ticks = dict(fontsize=size, family="monospace", color="#444444", parse_math=False)
    axes.set_yticks([i * step + t for i in range(len(layers)) for t in range(T)], labels * len(layers), **ticks)
    places = [i * step + t for i in range(n_columns) for t in range(T)]
    axes.set_xticks(places, labels * n_columns, rotation=90, **ticks)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    for i, head in enumerate(heads):
        y, x = layers.index(head["layer"]) * step, column[i] * step
        axes.plot([x - 0.5, x - 0.5, x + T - 0.5], [y - 0.5, y + T - 0.5, y + T - 0.5], color="#c9c5bd", linewidth=0.6)
        words = f"{head['layer']}.{head['head']}" + (f" {head['role']}" if head["role"] not in ("", "mixed") else "")
        axes.text(x + T - 0.5, y - 0.3, words, ha="right", va="top", fontsize=max(size * 1.35, 7), color="#222222")
    figure.text(left / total[0], 1 - 0.3 / total[1], title, fontsize=13, va="center")
    subtitle = (
        "each map: layer.head and role; row: the token that looks, column: what at; colour: square root of attention"
    )
    figure.text(left / total[0], 1 - 0.6 / total[1], subtitle, fontsize=8.5, va="center", color="#666666")
    return png(figure, dpi=150)


def png(figure: Figure, dpi: int) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, dpi=dpi, format="png")
    return file.getvalue()


# ---- Neurons ----


def neurons_page(name: str, facts: str, findings: Sequence[str], kinds: Sequence[str], pieces, neurons) -> bytes:
    """neurons: what each card shows, its contexts as numbers of `pieces`."""
    data = dict(pieces=pieces, kinds=kinds, neurons=neurons)
    told = "".join(f"<p>{html.escape(line)}</p>" for line in findings)
    return page(f"Neurons of {name}", "neurons", data, name=html.escape(name), facts=html.escape(facts), findings=told)
