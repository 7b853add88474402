"""
Pages: one HTML file each that needs no network, made of a template, styles and scripts of pages/ and data as JSON.

The scripts turn data only into text, never into markup, so nothing that a story contains can break a page.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from common.figures import png_bytes

TEMPLATES = Path(__file__).parent
ENGINE = TEMPLATES.parent / "browser" / "engine.js"
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
MAPS_IN_A_ROW = 12  # of the picture, where a layer has fewer heads
BLUES = LinearSegmentedColormap.from_list("blues", ["#fdfdfc", "#9dbbe0", "#265caa", "#0d2347"]).with_extremes(
    bad="white"
)


def page(title: str, kind: str, data: dict, /, **texts: str) -> bytes:
    """The page `kind` of pages/, with `data` for its script. texts: for its template; they must be HTML already."""
    files = ("style.css", f"{kind}.html", "common.js", f"{kind}.js")
    style, body, common, script = ((TEMPLATES / file).read_text(encoding="utf-8") for file in files)
    # "<" occurs only inside strings; escaped, none can end the script element
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    body = Template(body).substitute(texts)
    return PAGE.substitute(title=html.escape(title), style=style, body=body, data=text, script=common + script).encode()


def sections_page(title: str, subtitle: str, sections: list[dict], runs: Sequence[str], notes: dict) -> bytes:
    """sections: title, about, parts (see below); runs: in the order of their colors; notes: {heading: lines}."""
    data = dict(sections=sections, runs=list(runs), notes=notes)
    return page(title, "report", data, title=html.escape(title), subtitle=html.escape(subtitle))


# ---- The parts of a section that several use; each type is drawn by a function of pages/report.js ----


def table(columns: list[tuple], rows: list[list], caption: str = "", **others) -> dict:
    """columns: (title, kind, explanation). A cell is None, or by the kind of its column

    text: a string;  integer, exponent, percent, or 0 to 4 (decimals): a number, or [value, low, high];
    figures: such a cell and its kind;  link: [text, address].
    """
    columns = [dict(zip(("title", "kind", "help"), (*column, ""))) for column in columns]
    return dict(type="table", columns=columns, rows=rows, caption=caption) | others


def bars(panels: list[dict], caption: str = "") -> dict:
    """panels: title, kind as of a table's column, bars [[name, value, low, high]], marks {explanation: value}, end."""
    return dict(type="bars", panels=panels, caption=caption)


# ---- Attention ----

COLUMNS = [  # of the table: key, how it is shown, title, explanation
    ("layer", "plain", "layer", ""),
    ("head", "plain", "head", ""),
    (
        "role",
        "plain",
        "role",
        "what clearly gets its attention: at least 0.4, and twice what uniform attention would give",
    ),
    ("kind", "plain", "kind", "positional if position explains more than half of its deviation from uniform attention"),
    ("rise", "rise", "rise in loss when ablated", "nats per token, with its 95 % interval over stories"),
    ("position", "share", "due to position", "share of its attention's variance that is the same in every story"),
    ("previous", "share", "previous token", "share of its attention; the thin line: uniform attention"),
    ("same_token", "share", "same token", "share on earlier copies of the token, where there are any"),
    ("after_same", "share", "after same", "share on tokens that followed earlier copies"),
    ("induction", "share", "induction", "the same, on a random sequence repeated once"),
    ("punctuation", "share", "punctuation", "share, where some is visible"),
    ("names", "share", "names", "share, where one is visible"),
    ("beginning", "share", "beginning", "share on the first token"),
    ("distance", "number", "distance", "mean, in tokens"),
    (
        "distance_correlation",
        "number",
        "correlation with distance",
        "over all pairs of tokens; an older criterion: positional beyond ±0.5",
    ),
    ("entropy", "number", "entropy", "mean, in nats"),
]


def attention_page(
    name: str, attention: np.ndarray, pieces: Sequence[str], heads: list[dict], rows: list[dict]
) -> bytes:
    """attention: (heads, T, T), of `heads`, each with its layer, head and role; rows: the table of all measures."""
    T = min(len(pieces), int((MAP_BYTES / len(heads)) ** 0.5))
    levels = (attention[:, :T, :T] * 255).round().astype(np.uint8)
    data = dict(
        tokens=list(pieces[:T]),
        heads=heads,
        attention=base64.b64encode(levels.tobytes()).decode(),
        columns=[dict(zip(("key", "kind", "title", "help"), column)) for column in COLUMNS],
        rows=rows,
    )
    subtitle = f"layers: {len({head['layer'] for head in heads})}, heads: {len(heads)}, tokens: {T}"
    subtitle += f", the first of {len(pieces)}" if T < len(pieces) else ""
    measures = ""
    if rows:
        measures = (
            '<h2>What each head does</h2><p class="quiet">Means over many stories. Bars are shares of its attention, '
            "the thin line is what uniform attention would give. The role is also shown under each map. "
            'Click a title to sort, a row to see the head.</p><div class="scroll"><table id="heads"></table></div>'
        )
    texts = dict(name=html.escape(name), subtitle=subtitle, measures=measures)
    return page(f"Attention in {name}", "attention", data, **texts)


def attention_picture(title: str, attention: np.ndarray, pieces: Sequence[str], heads: list[dict]) -> bytes:
    """PNG of all maps, (heads, T, T): a row for each layer, or for several that fit, with the tokens on both axes."""
    T, gap = min(len(pieces), PICTURE_TOKENS), 3  # cells of a map, and between two
    layers, columns = (sorted({head[key] for head in heads}) for key in ("layer", "head"))
    beside = min(len(layers), max(1, MAPS_IN_A_ROW // len(columns)))  # layers in a row
    places = []
    for head in heads:
        row, group = divmod(layers.index(head["layer"]), beside)
        places.append(((T + gap) * (group * len(columns) + columns.index(head["head"])), (T + gap) * row))
    xs, ys = (sorted(set(each)) for each in zip(*places))
    cells = np.full((ys[-1] + T, xs[-1] + T), np.nan, dtype=np.float32)
    for (x, y), weights in zip(places, attention):
        cells[y : y + T, x : x + T] = np.where(np.tri(T, dtype=bool), np.sqrt(weights[:T, :T]), np.nan)

    cell = 0.075 if len(heads) > 1 else 0.2  # inches; a label is as high
    width, height = cells.shape[1] * cell, cells.shape[0] * cell
    left, right, top, bottom = 1.2, 0.25, 0.95, 0.9
    figure = Figure(figsize=(max(width, 4.5) + left + right, height + top + bottom))
    page_width, page_height = figure.get_size_inches()
    axes = figure.add_axes((left / page_width, bottom / page_height, width / page_width, height / page_height))
    axes.imshow(cells, cmap=BLUES, vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    for (x, y), head in zip(places, heads):
        role = f" {head['role']}" if head["role"] not in ("", "mixed") else ""
        axes.plot([x - 0.5, x - 0.5, x + T - 0.5], [y - 0.5, y + T - 0.5, y + T - 0.5], color="#c9c5bd", linewidth=0.6)
        axes.text(x + T - 0.5, y - 0.3, f"{head['layer']}.{head['head']}{role}", ha="right", va="top", fontsize=7)

    labels = [piece.replace("\n", "↵").strip() or "·" for piece in pieces[:T]]
    style = dict(fontsize=min(60 * cell, 9), family="monospace", color="#444444", parse_math=False)
    axes.set_yticks([y + t for y in ys for t in range(T)], labels * len(ys), **style)
    axes.set_xticks([x + t for x in xs for t in range(T)], labels * len(xs), rotation=90, **style)
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_visible(False)
    figure.text(left / page_width, 1 - 0.3 / page_height, title, fontsize=13, va="center")
    how = "each map: layer.head and role; row: query token, column: key token, color: square root of attention"
    figure.text(left / page_width, 1 - 0.6 / page_height, how, fontsize=7, va="center", color="#666666")
    return png_bytes(figure, dpi=150)


# ---- Neurons ----


def neurons_page(name: str, subtitle: str, findings: Sequence[str], kinds: Sequence[str], pieces, neurons) -> bytes:
    """findings: paragraphs; neurons: what each card shows, its contexts as indices into `pieces`."""
    data = dict(pieces=pieces, kinds=kinds, neurons=neurons)
    paragraphs = "".join(f"<p>{html.escape(line)}</p>" for line in findings)
    texts = dict(name=html.escape(name), subtitle=html.escape(subtitle), findings=paragraphs)
    return page(f"Neurons of {name}", "neurons", data, **texts)


# ---- A storyteller ----


def story_page(name: str, subtitle: str, data: dict, weights: bytes) -> bytes:
    """The page in which a model tells stories. data and weights: those of browser/storyteller.py."""
    texts = dict(name=html.escape(name), subtitle=html.escape(subtitle), engine=ENGINE.read_text(encoding="utf-8"))
    return with_policy(
        page(f"{name} tells stories", "story", data, **texts, weights=base64.b64encode(weights).decode())
    )


def with_policy(content: bytes) -> bytes:
    """The page with a Content-Security-Policy: it fetches nothing, and runs only the scripts that are in it now."""
    hashes = {"style": "", "script": ""}
    for kind, text in re.findall(rb"<(style|script)>(.*?)</\1>", content, re.DOTALL):
        hashes[kind.decode()] += f" 'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
    sources = f"script-src 'wasm-unsafe-eval'{hashes['script']}; style-src{hashes['style']}; worker-src blob:"
    policy = f"default-src 'none'; {sources}; base-uri 'none'; form-action 'none'"
    charset = b'<meta charset="utf-8">\n'
    return content.replace(
        charset, charset + f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'.encode(), 1
    )
