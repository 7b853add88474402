"""
Pages: one HTML file each that needs no network, made of a template, styles and scripts of pages/ and data as JSON.

The scripts turn data only into text, never into markup, so nothing that a story contains can break a page.
"""

import base64
import html
import json
from collections.abc import Sequence
from pathlib import Path
from string import Template

import numpy as np

TEMPLATES = Path(__file__).parent
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
    """columns: (title, kind, explanation). A cell is None or, by the kind of its column:

    text: a string;  integer, exponent, percent, or 0 to 4 (decimals): a number, or [value, low, high];
    figures: such a cell and its kind;  link: [text, address].
    """
    columns = [dict(zip(("title", "kind", "help"), (*column, ""))) for column in columns]
    return dict(type="table", columns=columns, rows=rows, caption=caption) | others


def bars(panels: list[dict], caption: str = "") -> dict:
    """panels: title, kind as of a table's column, bars [[name, value, low, high]], marks {explanation: value}, end
    of the scale; outlined: bars without color."""
    return dict(type="bars", panels=panels, caption=caption)


def embedded(png: bytes, caption: str) -> dict:
    return dict(type="picture", data=base64.b64encode(png).decode(), caption=caption)


def as_levels(shares: np.ndarray) -> str:
    """Shares, 0 to 1, as a byte each, in base64; `fromBase64` of pages/common.js reads it."""
    return base64.b64encode((shares * 255).round().astype(np.uint8).tobytes()).decode()
