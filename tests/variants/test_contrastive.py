"""The contrastive objective: what is shuffled, and what the losses are."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from corpus.tokenizer import GPT2_VOCAB_SIZE, cut
from model import GPTNeo, GPTNeoConfig
from variants.contrastive import Contrastive, sentence_ends, shuffle_sentences

TEXT = 'Once upon a time. Tom said, "Go!" He ran. "Why?" asked Mia. It rained'
STORIES = ["It ran. A dog sat. The cat hid! No one came.", TEXT, "One sentence."]


@pytest.fixture(scope="module")
def tokenizer():
    """With the tokens of these stories, the quotes that close a sentence among them."""
    gpt2_ids = cut(np.zeros(GPT2_VOCAB_SIZE), GPT2_VOCAB_SIZE).encode(" ".join(STORIES))
    return cut(np.bincount(gpt2_ids, minlength=GPT2_VOCAB_SIZE), 400)


@pytest.fixture(scope="module")
def tokens(tokenizer) -> torch.Tensor:
    """Two rows: the end of a story, three whole ones."""
    ends = [["cut off. " + end, *STORIES] for end in ("The end.", "He was gone.")]
    rows = [sum([[*tokenizer.encode(text), tokenizer.end_of_text] for text in texts], []) for texts in ends]
    n = min(map(len, rows))
    return torch.tensor([row[:n] for row in rows])


def shuffled(tokens: torch.Tensor, tokenizer, seed: int = 0) -> torch.Tensor:
    keys = torch.rand(len(tokens), tokens.size(1) + 1, generator=torch.Generator().manual_seed(seed))
    return shuffle_sentences(tokens, sentence_ends(tokenizer), tokenizer.end_of_text, keys)


def test_sentences_change_places_within_their_story(tokenizer, tokens):
    orders = set()
    for seed in range(200):
        result = shuffled(tokens, tokenizer, seed)
        assert torch.equal(result == tokenizer.end_of_text, tokens == tokenizer.end_of_text)
        before, after = (tokenizer.decode(x[0].tolist()).split("<|endoftext|>") for x in (tokens, result))
        for a, b in zip(before, after):
            assert sorted(a) == sorted(b)
        assert after[1].startswith("It ran.") and after[3] == "One sentence."
        orders.add(after[1])
        for sentence in (' Tom said, "Go!"', ' "Why?"', " He ran.", " asked Mia.", " It rained"):
            assert sentence in after[2]  # a closing quote belongs to its sentence
    rest = itertools.permutations([" A dog sat.", " The cat hid!", " No one came."])
    assert orders == {f"It ran.{a}{b}{c}" for a, b, c in rest}


@pytest.mark.parametrize("form", ["reciprocal", "margin"])
def test_losses_are_what_the_formula_says(form, tokenizer, tokens):
    torch.manual_seed(0)
    shape, ends = GPTNeoConfig(vocab_size=400, block_size=64, n_layer=2, n_head=2, n_embd=16), sentence_ends(tokenizer)
    model = GPTNeo(shape)
    loss_of = Contrastive(lambda x, y: model(x, y)[1], ends, tokenizer.end_of_text, form, 3.0, margin=0.7, share=0.5)
    torch.manual_seed(5)
    loss = loss_of(tokens[:, :-1], tokens[:, 1:])
    torch.manual_seed(5)
    other = shuffle_sentences(tokens[:1], ends, tokenizer.end_of_text, torch.rand(1, tokens.size(1) + 1))
    plain, wrong, right = (
        F.cross_entropy(model(x[:, :-1])[0].flatten(0, 1), x[:, 1:].flatten()) for x in (tokens, other, tokens[:1])
    )
    extra = 3 / (wrong + 0.01) if form == "reciprocal" else 3 * F.relu(0.7 - (wrong - right))
    torch.testing.assert_close(loss, plain + extra)
