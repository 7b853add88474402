"""nanostories/interpretation/logit_attribution.py: contributions add up to the logits, and planted
heads write what they should."""

import pytest
import torch
from planted_model import WORDS, Alphabet, V, planted_corpus, planted_induction
from random_models import random_model

from nanostories.interpretation.hooks import run_with_cache
from nanostories.interpretation.logit_attribution import (
    lens_table,
    logit_lens,
    tokens_written,
    unembedding,
)


def repeated(n: int = 20, seed: int = 0) -> torch.Tensor:
    """(1, n) tokens, all different but the last, which is that at 5 again: what followed it comes
    next."""
    ids = torch.randperm(V, generator=torch.Generator().manual_seed(seed))[:n]
    ids[-1] = ids[5]
    return ids[None]


def test_contributions_add_up_to_the_logit():
    model, tokens = random_model(), torch.randint(97, (1, 30))
    logits, cache = run_with_cache(model, tokens)
    direction, final = model.head.weight[17], cache["blocks.2.resid_post"][0, 12]
    reader, biases = unembedding(model, direction, final), model.ln_f.bias @ direction
    parts = cache["blocks.0.resid_pre"][0, 12] @ reader
    for layer, block in enumerate(model.blocks):
        parts += (
            cache[f"blocks.{layer}.result"][0, 12].sum(0) @ reader
            + block.attention_out.bias @ reader
        )
        parts += cache[f"blocks.{layer}.mlp_out"][0, 12] @ reader
    assert (parts + biases).item() == pytest.approx(logits[0, 12, 17].item(), rel=1e-4, abs=1e-4)
    # A part is what the logit loses without what it writes, the LayerNorm's scale held as it was
    write = cache["blocks.1.result"][0, 12, 3]
    deviation = (final.var(unbiased=False) + model.ln_f.eps).sqrt()
    part = ((write - write.mean()) / deviation * model.ln_f.weight) @ direction
    assert (write @ reader).item() == pytest.approx(part.item(), rel=1e-4, abs=1e-5)


def test_the_lens_sees_when_the_answer_appears():
    model, tokens = planted_induction(), repeated()
    logits, cache = run_with_cache(model, tokens)
    embedding, first, second = (layer[-1][0][0] for layer in lens_table(model, cache))
    assert (embedding, first, second) == (
        tokens[0, -1],
        tokens[0, -1],
        tokens[0, 6],
    )  # itself, until induction answers
    torch.testing.assert_close(logit_lens(model, cache["blocks.1.resid_post"]), logits)
    (likeliest, probability), *_ = lens_table(model, cache)[-1][-1]
    assert probability == pytest.approx(logits[0, -1].softmax(-1)[likeliest].item())


def test_what_planted_heads_write():
    writes = tokens_written(planted_induction(), planted_corpus(), Alphabet())
    previous, _, inducing, uniform = (row["copies"] for row in writes)
    assert inducing > 0.85 and max(previous, uniform) < 0.5
    tokens = writes[2]["writes"].split(" | ")
    assert len(tokens) > 3 and set(tokens) <= set(WORDS)
