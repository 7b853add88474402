"""nanostories/interpretation/logit_attribution.py: contributions add up to the logits, and planted
heads write what they should."""

import pytest
import torch
from planted_model import WORDS, Alphabet, V, for_both_models, planted_corpus, planted_model

from nanostories.interpretation.hooks import run_with_cache
from nanostories.interpretation.logit_attribution import (
    final_scale,
    logit_lens,
    tokens_written,
    unembedding,
)


@for_both_models
def test_contributions_add_up_to_the_logit(any_model):
    logits, cache = run_with_cache(any_model, torch.randint(V, (1, 30)))
    torch.testing.assert_close(logit_lens(any_model, cache["blocks.2.resid_post"]), logits)
    here = {name: x[0, 12] for name, x in cache.items() if "pattern" not in name}
    reader = unembedding(any_model)[17] / final_scale(any_model, here["blocks.2.resid_post"])
    parts = here["blocks.0.resid_pre"] @ reader + any_model.ln_f.bias @ any_model.head.weight[17]
    for layer in range(len(any_model.blocks)):
        parts += (here[f"blocks.{layer}.attn_out"] + here[f"blocks.{layer}.mlp_out"]) @ reader
    assert parts.item() == pytest.approx(logits[0, 12, 17].item(), rel=1e-4, abs=1e-4)


def test_what_planted_heads_write():
    rows = tokens_written(planted_model(), planted_corpus(), Alphabet())
    previous, _, inducing, uniform = (row["copies"] for row in rows)
    assert inducing > 0.85 and max(previous, uniform) < 0.5
    tokens = rows[2]["writes"].split(" · ")
    assert len(tokens) > 3 and set(tokens) <= set(WORDS)
    corpus = planted_corpus()
    corpus.kinds = ["noun"] * len(corpus.words)
    row = tokens_written(planted_model(), corpus, Alphabet())[2]
    assert row["writes_kind"] == "noun 100%"
