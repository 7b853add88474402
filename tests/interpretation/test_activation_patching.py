"""nanostories/interpretation/activation_patching.py: the shares are those of runs that are patched
one by one."""

import pytest
import torch
from planted_model import V, for_both_models

from nanostories.interpretation import activation_patching
from nanostories.interpretation.activation_patching import patch
from nanostories.interpretation.hooks import run_with_cache


def two_texts() -> torch.Tensor:
    """… A B … A B, and … A C … A C."""
    ids = torch.randperm(V, generator=torch.Generator().manual_seed(0))
    first = torch.cat([ids[:19], ids[5:7]])
    second = first.clone()
    second[[6, -1]] = ids[20]
    return torch.stack([first, second])


@for_both_models
def test_shares_equal_runs_that_are_patched_one_by_one(any_model, monkeypatch):
    monkeypatch.setattr(activation_patching, "FEW_LOGITS", -100)  # weights are random
    texts = two_texts()
    logits, _ = any_model(texts[:, :-1])
    leads = logits[:, -1, texts[0, -1]] - logits[:, -1, texts[1, -1]]
    found = patch(any_model, texts)
    assert found.leads == pytest.approx(leads.tolist(), abs=1e-4)
    _, cache = run_with_cache(any_model, texts[:1, :-1])
    _, other = run_with_cache(any_model, texts[1:, :-1])

    def share(name, place):
        activations = other[name].clone()
        activations[place] = cache[name][place]
        logits, _ = run_with_cache(any_model, texts[1:, :-1], {name: lambda _: activations})
        lead = logits[0, -1, texts[0, -1]] - logits[0, -1, texts[1, -1]]
        return ((lead - leads[1]) / (leads[0] - leads[1])).item()

    places = {
        "blocks.1.resid_pre": (found.residual[1, 8], (0, 8)),
        "blocks.2.resid_post": (found.residual[3, 19], (0, 19)),
        "blocks.1.z": (found.heads[1, 2], (0, slice(None), 2)),
    }
    for name, (value, place) in places.items():
        assert value.item() == pytest.approx(share(name, place), abs=1e-3), name
