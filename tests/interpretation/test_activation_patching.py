"""interpretation/activation_patching.py: what is planted brings the answer back, and nothing else."""

import pytest
import torch
from planted_model import V, planted_induction
from random_models import random_model
from test_logit_attribution import repeated

from interpretation.activation_patching import check_prompts, patch
from interpretation.hooks import run_with_cache


def two_prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """… A B … A, and … A C … A, with B and C after them."""
    first = repeated()[0]
    second = first.clone()
    second[6] = next(i for i in range(V) if i not in first)
    return torch.cat([first, first[6:7]]), torch.cat([second, second[6:7]])


def test_the_answer_comes_back_from_where_it_was_planted():
    patching = patch(planted_induction(), *two_prompts())
    assert patching.first > 1 and patching.second < -1
    residual = torch.zeros(3, 20)
    residual[0, 6] = residual[1, 6] = 1  # where B stands, until induction has read it, …
    residual[2, 19] = 1  # … then where it is said
    torch.testing.assert_close(patching.residual, residual, atol=0.02, rtol=0)
    heads = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    for each in (patching.heads, patching.without):
        torch.testing.assert_close(each, heads, atol=0.02, rtol=0)
    assert patching.direct[1, 0] == pytest.approx(patching.first, rel=0.02)
    assert patching.reads[1][0][0] == 6 and patching.reads[1][0][1] > 0.9


def test_shares_equal_runs_that_are_patched_one_by_one():
    model, (tokens, others) = random_model(vocab_size=V), two_prompts()
    with pytest.raises(ValueError, match="the model does not tell these prompts apart"):
        patch(model, tokens, others)
    tokens[-1], others[-1] = others[-1].clone(), tokens[-1].clone()  # as this one has it
    patching = patch(model, tokens, others)
    (_, cache), (_, other) = (run_with_cache(model, each[None, :-1]) for each in (tokens, others))

    def share(name, place):
        activations = other[name].clone()
        activations[place] = cache[name][place]
        logits, _ = run_with_cache(model, others[None, :-1], {name: lambda _: activations})
        return ((logits[0, -1, tokens[-1]] - logits[0, -1, others[-1]]) - patching.second) / (
            patching.first - patching.second
        )

    for layer, position in ((0, 6), (1, 8), (2, 19)):
        expected = share(f"blocks.{layer}.resid_pre", (0, position))
        assert patching.residual[layer, position] == pytest.approx(expected.item(), abs=1e-3)
    expected = share("blocks.1.z", (0, slice(None), 2))
    assert patching.heads[1, 2] == pytest.approx(expected.item(), abs=1e-3)


@pytest.mark.parametrize(
    "others, message",
    [
        ([1, 2, 3], "4 (a|b|c|d) and 3 (x|y|z)"),
        ([1, 5, 3, 4], "both end in 'd'"),
        ([1, 2, 3, 9], "only in their answers"),
    ],
)
def test_prompts_that_cannot_be_patched(others, message):
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)").replace("|", r"\|")):
        check_prompts([1, 2, 3, 4], others, (list("abcd"), list("xyz")))
