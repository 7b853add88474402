"""Story pages of models with random weights."""

from tokenizer_texts import TEXT, count_tokens

from model import GPTNeo
from nanostories.corpus.tokenizer import Tokenizer, cut
from nanostories.generation.backends import LocalBackend
from nanostories.pages.story_page import story_page


def page_of(
    model: GPTNeo, tokenizer: Tokenizer | None = None, name: str = "a model", **others
) -> bytes:
    """tokenizer: GPT-2's, cut, by default; others: as for story_page"""
    tokenizer = tokenizer or cut(count_tokens(TEXT), model.config.vocab_size)
    backend = LocalBackend(model, tokenizer, [tokenizer.end_of_text])
    content, _ = story_page(name, backend, **{"facts": {}} | others)
    return content
