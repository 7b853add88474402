"""
The page on which a model tells stories, with everything it needs inside.

>>> facts, weights = pack_storyteller("out/demo", backend, "int8", texts)  # of browser/pack_model.py
>>> Path("story.html").write_bytes(story_page("demo", "A language model of 1.4 million parameters.", facts, weights))
"""

import base64
import hashlib
import html
import re

from pages.html import TEMPLATES, page

ENGINE = TEMPLATES.parent / "browser" / "engine.js"


def story_page(name: str, subtitle: str, data: dict, weights: bytes) -> bytes:
    """The page on which a model tells stories. data and weights: those of browser/pack_model.py."""
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
