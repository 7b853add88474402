"""
loss_by_kind.html: stories with each token shaded by which of two models finds it likelier.

>>> content = shaded_stories(stories, kinds, losses, tokenizer)
"""

import html
from collections.abc import Sequence

import numpy as np

from nanostories.corpus.tokenizer import Tokenizer
from nanostories.interpretation.token_kinds import TOKEN_KINDS
from nanostories.interpretation.word_classes import pieces_of
from nanostories.pages.html import language_of, sections_page, span

SHOWN_STORIES = 6
SCALE = (-3, -1, -0.3, 0.3, 1, 3)  # nats, in the legend


def shaded_stories(
    stories: Sequence[str],
    kinds: list[np.ndarray],
    losses: dict[str, list[np.ndarray]],
    tokenizer: Tokenizer,
) -> bytes:
    """The first SHOWN_STORIES, by the first and the last model. kinds, losses: for each story
    (tokens + 1,), the end of the story last"""
    first, *_, last = losses
    lang = language_of(stories)
    sections = {}
    for i, story in enumerate(stories[:SHOWN_STORIES]):
        pieces = [*pieces_of(tokenizer, tokenizer.encode(story)), "‹end›"]
        spans = []
        for piece, kind, a, b in zip(pieces, kinds[i], losses[first][i], losses[last][i]):
            about = f"{piece.strip()} · {TOKEN_KINDS[kind]} · {first} {a:.3f}, {last} {b:.3f} nats"
            spans.append(span(piece or "·", a - b, about))  # "": a part of a character
        sections[f"Story {i + 1}"] = f'<p class="shaded" lang="{lang}">{"".join(spans)}</p>'
    scale = " ".join(span(f" {nats:+} ", nats, "") for nats in SCALE)
    intro = (
        f"<p>Blue: {html.escape(last)} finds the token likelier than {html.escape(first)}; orange:"
        " less likely. Point at a token for its kind and both losses.</p><p>Loss of"
        f" {html.escape(first)} minus loss of {html.escape(last)}, nats: {scale} or beyond</p>"
        '<p id="about" role="status">&nbsp;</p>'
    )
    return sections_page(f"{first} and {last}, token by token", intro, sections)
