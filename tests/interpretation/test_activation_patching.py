"""nanostories/interpretation/activation_patching.py: the planted head brings the answer back, and
nothing else."""

import pytest
import torch
from planted_model import V, for_both_models, planted_induction
from test_logit_attribution import repeated

from nanostories.interpretation.activation_patching import lead, patch
from nanostories.interpretation.hooks import run_with_cache


def two_texts() -> torch.Tensor:
    """… A B … A, and … A C … A, with B and C after them."""
    first = repeated()[0]
    second = first.clone()
    second[6] = next(i for i in range(V) if i not in first)
    return torch.stack([torch.cat([text, text[6:7]]) for text in (first, second)])


def test_the_answer_comes_back_from_where_it_was_planted():
    texts = two_texts()
    found = patch(planted_induction(), texts)
    assert found.leads[0] > 1 and found.leads[1] < -1
    residual = torch.zeros(3, 20)
    residual[:2, 6] = 1  # where B stands, until induction has read it, …
    residual[2, 19] = 1  # … then where it is said
    torch.testing.assert_close(found.residual, residual, atol=0.02, rtol=0)
    heads = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    torch.testing.assert_close(found.heads, heads, atol=0.02, rtol=0)


@for_both_models
def test_shares_equal_runs_that_are_patched_one_by_one(any_model):
    texts = two_texts()
    exchanged = torch.cat([texts[:, :-1], texts.flip(0)[:, -1:]], 1)
    logits, _ = any_model(texts[:, :-1])
    if lead(logits, texts).diff() > 0:  # it likes each text's answer less than the other's
        texts, exchanged = exchanged, texts
    with pytest.raises(ValueError, match="does not tell these texts apart"):
        patch(any_model, exchanged)
    found = patch(any_model, texts)
    _, cache = run_with_cache(any_model, texts[:1, :-1])
    _, other = run_with_cache(any_model, texts[1:, :-1])

    def share(name, place):
        activations = other[name].clone()
        activations[place] = cache[name][place]
        logits, _ = run_with_cache(any_model, texts[1:, :-1], {name: lambda _: activations})
        lead = logits[0, -1, texts[0, -1]] - logits[0, -1, texts[1, -1]]
        return ((lead - found.leads[1]) / (found.leads[0] - found.leads[1])).item()

    for layer, position in ((0, 6), (1, 8), (2, 19)):
        expected = share(f"blocks.{layer}.resid_pre", (0, position))
        assert found.residual[layer, position].item() == pytest.approx(expected, abs=1e-3)
    expected = share("blocks.1.z", (0, slice(None), 2))
    assert found.heads[1, 2].item() == pytest.approx(expected, abs=1e-3)
