"""
Pages: one HTML file each that needs no network, made of a template, styles and scripts of pages/
and data as JSON.

>>> page("Neurons of demo", "neurons", dict(neurons=[]), name="demo")  # -> bytes

Nothing that a file contains becomes markup: Python escapes it, scripts insert it as text, pictures
are images; and a Content-Security-Policy lets a page run only its own scripts, and fetch nothing.
"""

import base64
import hashlib
import html
import json
import re
import xml.etree.ElementTree
from pathlib import Path
from string import Template

import numpy as np

from nanostories.cli import UserError

TEMPLATES = Path(__file__).parent
PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="$policy">
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
POLICY = (
    "default-src 'none'; img-src data:; script-src 'wasm-unsafe-eval' {script}; style-src {style}; "
)
POLICY += "worker-src blob:; base-uri 'none'; form-action 'none'"


def page(title: str, kind: str, data: dict, /, **texts: str) -> bytes:
    """The page `kind` of pages/, with `data` for its script. texts: for its template; they must be
    HTML already."""
    files = ("style.css", f"{kind}.html", "common.js", f"{kind}.js")
    style, template, common, script = (
        (TEMPLATES / file).read_text(encoding="utf-8") for file in files
    )
    # "<" occurs only inside strings; escaped, none can end the script element
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )
    own = {
        "script": [common + script],
        "style": [style, *re.findall("<style>(.*?)</style>", template, re.DOTALL)],
    }
    policy = POLICY.format(
        **{name: " ".join(map(hash_source, parts)) for name, parts in own.items()}
    )
    body = Template(template).substitute(texts)
    parts = dict(
        title=html.escape(title),
        style=style,
        body=body,
        data=text,
        script=common + script,
        policy=policy,
    )
    return PAGE.substitute(parts).encode()


def sections_page(title: str, intro: str, sections: dict[str, str]) -> bytes:
    """A page of sections with links to them. intro and the sections' contents, by title, are HTML
    already."""
    names = [html.escape(name) for name in sections]
    nav = "".join(f'<a href="#{i}">{name}</a>' for i, name in enumerate(names))
    parts = [
        f'<section id="{i}"><h2>{names[i]}</h2>{part}</section>'
        for i, part in enumerate(sections.values())
    ]
    head = f"<h1>{html.escape(title)}</h1>{intro}<nav>{nav}</nav>"
    return page(title, "report", {}, body="\n".join([head, *parts]))


def hash_source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def image(svg: bytes, alt: str) -> str:
    """An SVG as an image: its ids stay its own, and its scripts, if any, never run. ValueError if
    it is damaged."""
    try:
        xml.etree.ElementTree.fromstring(svg)
    except xml.etree.ElementTree.ParseError as error:
        raise UserError(f"not a readable SVG: {error}") from None
    data = base64.b64encode(svg).decode()
    return (
        f'<div class="scroll"><img alt="{html.escape(alt)}"'
        f' src="data:image/svg+xml;base64,{data}"></div>'
    )


def to_base64_bytes(shares: np.ndarray) -> str:
    """Shares, 0 to 1, as a byte each, in base64; `fromBase64` of nanostories/pages/common.js reads
    it."""
    return base64.b64encode((shares * 255).round().astype(np.uint8).tobytes()).decode()
