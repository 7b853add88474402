"""
Pages: one HTML file each that needs no network, made of a template, styles and scripts of this
directory, and data as JSON.

>>> content = page("Stories to grade", "read", {"stories": [], "scores": []})

Nothing that a file contains becomes markup: Python escapes it, scripts insert it as text, pictures
are images; and a Content-Security-Policy lets a page run only its own scripts, and fetch nothing.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from nanostories.corpus.word_forms import looks_english

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
$scripts
</body>
</html>
""")
POLICY = (
    "default-src 'none'; img-src data:; script-src 'wasm-unsafe-eval' {scripts};"
    " style-src {styles}; worker-src blob:; base-uri 'none'; form-action 'none'"
)


def page(title: str, kind: str, data: dict, /, scripts: Sequence[str] = (), **texts: str) -> bytes:
    """The page KIND.html with KIND.js, which gets `data`. scripts: others, that run before KIND.js;
    texts: for the template; they must be HTML already."""
    style = read_template("style.css")
    template = read_template(f"{kind}.html")
    sources = {name: read_template(name) for name in ("common.js", *scripts, f"{kind}.js")}
    elements = [f'<script id="{name}">{source}</script>' for name, source in sources.items()]
    policy = POLICY.format(
        scripts=hashes_of(sources.values()),
        styles=hashes_of([style, *re.findall("<style>(.*?)</style>", template, re.DOTALL)]),
    )
    data_text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    content = PAGE.substitute(
        title=html.escape(title),
        policy=policy,
        style=style,
        body=Template(template).substitute(texts),
        # "<" occurs only inside strings; escaped, none can end the script element
        data=data_text.replace("<", "\\u003c"),
        scripts="\n".join(elements),
    )
    return content.encode()


def read_template(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")


def hashes_of(texts: Iterable[str]) -> str:
    """Sources of a Content-Security-Policy."""
    digests = [hashlib.sha256(text.encode()).digest() for text in texts]
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


def sections_page(
    title: str, intro: str, sections: dict[str, str], is_folded: bool = False
) -> bytes:
    """A page of sections with links to them; is_folded: all but the first are. intro and the
    sections' contents, by title, are HTML already."""
    links = []
    parts = []
    for i, (name, content) in enumerate(sections.items()):
        heading = html.escape(name)
        is_open = "" if is_folded and i > 0 else " open"
        links.append(f'<a href="#section-{i}">{heading}</a>')
        parts.append(
            f'<section id="section-{i}"><details{is_open}>'
            f"<summary><h2>{heading}</h2></summary>{content}</details></section>"
        )
    head = f"<h1>{html.escape(title)}</h1>{intro}<nav>{''.join(links)}</nav>"
    return page(title, "report", {}, body="\n".join([head, *parts]))


# ---- Pieces of pages ----
def details(summary: str, content: str) -> str:
    """A part that can be unfolded. content: HTML"""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"


def shaded_text(tokens: Sequence[tuple[str, float, str]], language: str) -> str:
    """A paragraph in a language ("": unknown). tokens: the text of each; its shade, from
    -1 (orange) to 1 (blue) and beyond; what is shown above when it is pointed at."""
    spans = []
    for text, shade, about in tokens:
        shown = html.escape(f"{text.strip()} · {about}")
        content = html.escape(text) or "·"  # "": a part of a character
        spans.append(f'<span data-shade="{shade:.4f}" data-about="{shown}">{content}</span>')
    return f'<p class="shaded" lang="{language}">{"".join(spans)}</p>'


def image(svg: bytes, alt: str) -> str:
    """An SVG as an image: its ids stay its own, and its scripts, if any, never run."""
    address = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
    return f'<div class="scroll"><img alt="{html.escape(alt)}" src="{address}"></div>'


def language_of(stories: Iterable[str]) -> str:
    """For an attribute `lang`, which tells a screen reader how to pronounce them: "en", or "" for a
    language that is not known."""
    return "en" if looks_english(stories) else ""
