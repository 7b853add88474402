"""
loss_by_kind.html: stories with each token shaded by which of two models finds it likelier.

>>> content = shaded_stories(stories, kinds, losses, tokenizer)
"""

import html
from collections.abc import Sequence

import numpy as np

from nanostories.corpus.tokenizer import Tokenizer
from nanostories.interpretation.word_classes import pieces_of
from nanostories.pages.html import language_of, sections_page, shaded_text

SHOWN_STORIES = 6
FULL_SHADE = 3  # nats


def shaded_stories(
    stories: Sequence[str],
    kinds: list[np.ndarray],
    losses: dict[str, list[np.ndarray]],
    tokenizer: Tokenizer,
) -> bytes:
    """The first SHOWN_STORIES, by the first and the last model. kinds, losses: for each story
    (tokens + 1,), the end of the story last"""
    first, *_, last = losses
    language = language_of(stories)
    sections = {}
    for i, story in enumerate(stories[:SHOWN_STORIES]):
        pieces = [*pieces_of(tokenizer, tokenizer.encode(story)), "‹end›"]
        tokens = []
        for piece, kind, a, b in zip(pieces, kinds[i], losses[first][i], losses[last][i]):
            shade = (a - b) / FULL_SHADE
            tokens.append((piece, shade, f"{kind} · {first} {a:.3f}, {last} {b:.3f} nats"))
        sections[f"Story {i + 1}"] = shaded_text(tokens, language)
    intro = (
        f"<p>Blue: {html.escape(last)} finds the token likelier than {html.escape(first)}; orange:"
        f" less likely; in full color by {FULL_SHADE} nats or more. Point at a token for its kind"
        ' and both losses.</p><p id="about" role="status">&nbsp;</p>'
    )
    return sections_page(f"{first} and {last}, token by token", intro, sections)
