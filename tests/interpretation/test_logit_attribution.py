"""nanostories/interpretation/logit_attribution.py: contributions add up to the logits, and planted
heads write what they should."""

import pytest
import torch
from planted_model import WORDS, Alphabet, V, for_both_models, planted_corpus, planted_induction

from nanostories.interpretation.hooks import run_with_cache
from nanostories.interpretation.logit_attribution import (
    final_scale,
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


@for_both_models
def test_contributions_add_up_to_the_logit(any_model):
    logits, cache = run_with_cache(any_model, torch.randint(V, (1, 30)))
    here = {name: x[0, 12] for name, x in cache.items() if "pattern" not in name}
    reader = unembedding(any_model)[17] / final_scale(any_model, here["blocks.2.resid_post"])
    parts = here["blocks.0.resid_pre"] @ reader + any_model.ln_f.bias @ any_model.head.weight[17]
    for layer, block in enumerate(any_model.blocks):
        parts += (here[f"blocks.{layer}.result"] @ reader).sum()
        parts += (block.attention_out.bias + here[f"blocks.{layer}.mlp_out"]) @ reader
    assert parts.item() == pytest.approx(logits[0, 12, 17].item(), rel=1e-4, abs=1e-4)


def test_the_lens_sees_when_the_answer_appears():
    model = planted_induction()
    tokens = repeated()
    logits, cache = run_with_cache(model, tokens)
    stages = ("blocks.0.resid_pre", "blocks.0.resid_post", "blocks.1.resid_post")
    lenses = [logit_lens(model, cache[name]) for name in stages]
    asked = tokens[0, -1]  # itself, until induction answers
    assert [lens[0, -1].argmax() for lens in lenses] == [asked, asked, tokens[0, 6]]
    torch.testing.assert_close(lenses[-1], logits)


@torch.no_grad()
def test_what_planted_heads_write():
    """Head 1.1, which looks everywhere alike, is made to write names."""
    model = planted_induction()
    block = model.blocks[1]
    D = model.config.n_embd // 2
    block.qkv.weight.view(3, 2, D, -1)[2, 1, 0, V : V + 40] = 1.0  # of any position
    block.attention_out.weight[90:102, D] = 5.0
    rows = tokens_written(model, planted_corpus(), Alphabet())
    previous, _, inducing, uniform = (row["copies"] for row in rows)
    assert inducing > 0.85 and max(previous, uniform) < 0.5
    tokens = rows[2]["writes"].split(" · ")
    assert len(tokens) > 3 and set(tokens) <= set(WORDS)
    assert rows[3]["writes_kind"] == "name"
