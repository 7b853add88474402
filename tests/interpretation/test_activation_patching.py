"""nanostories/interpretation/activation_patching.py: the planted head brings the answer back, and
nothing else."""

import pytest
import torch
from nanostories.interpretation.summary import predictions_text
from planted_model import V, planted_induction
from random_models import random_model
from test_logit_attribution import repeated

from nanostories.interpretation.activation_patching import check_prompts, patch, predict_answers
from nanostories.interpretation.hooks import run_with_cache


def two_prompts() -> tuple[torch.Tensor, torch.Tensor]:
    """… A B … A, and … A C … A, with B and C after them."""
    first = repeated()[0]
    second = first.clone()
    second[6] = next(i for i in range(V) if i not in first)
    return torch.cat([first, first[6:7]]), torch.cat([second, second[6:7]])


def table(rows: list[dict], column: str) -> torch.Tensor:
    """(L, H)"""
    return torch.tensor([row[column] for row in rows]).view(rows[-1]["layer"] + 1, -1)


def test_the_answer_comes_back_from_where_it_was_planted():
    rows, residual, (first, second) = patch(planted_induction(), *two_prompts())
    assert first > 1 and second < -1
    expected = torch.zeros(3, 20)
    expected[0, 6] = expected[1, 6] = 1  # where B stands, until induction has read it, …
    expected[2, 19] = 1  # … then where it is said
    torch.testing.assert_close(residual, expected, atol=0.02, rtol=0)
    for column in ("brought_back", "lost_without"):
        torch.testing.assert_close(
            table(rows, column), torch.tensor([[0.0, 0.0], [1.0, 0.0]]), atol=0.02, rtol=0
        )
    induction = rows[2]
    assert induction["direct"] == pytest.approx(first, rel=0.02)
    assert induction["looks_at"] == 6 and induction["attention"] > 0.9


def test_shares_equal_runs_that_are_patched_one_by_one():
    model, (tokens, others) = random_model(vocab_size=V), two_prompts()
    with pytest.raises(
        ValueError, match="does not tell these prompts apart"
    ):  # with the answers exchanged
        patch(model, torch.cat([tokens[:-1], others[-1:]]), torch.cat([others[:-1], tokens[-1:]]))
    rows, residual, (first, second) = patch(model, tokens, others)
    (_, cache), (_, other) = (run_with_cache(model, each[None, :-1]) for each in (tokens, others))

    def share(name, place):
        activations = other[name].clone()
        activations[place] = cache[name][place]
        logits, _ = run_with_cache(model, others[None, :-1], {name: lambda _: activations})
        return ((logits[0, -1, tokens[-1]] - logits[0, -1, others[-1]]) - second) / (first - second)

    for layer, position in ((0, 6), (1, 8), (2, 19)):
        expected = share(f"blocks.{layer}.resid_pre", (0, position))
        assert residual[layer, position] == pytest.approx(expected.item(), abs=1e-3)
    expected = share("blocks.1.z", (0, slice(None), 2))
    assert table(rows, "brought_back")[1, 2] == pytest.approx(expected.item(), abs=1e-3)


def test_what_the_model_answers_is_said_first():
    prompts = two_prompts()
    for given, prompt, other in zip(
        predict_answers(planted_induction(), *prompts), prompts, prompts[::-1]
    ):
        assert (given["own"][0], given["other"][0]) == (prompt[-1], other[-1])
        assert given["likeliest"] == given["own"] and given["own"][1] > 0.5 > given["other"][1]
    text = predictions_text("m", predict_answers(planted_induction(), *prompts), str)
    assert not any("WARNING" in line for line in text)
    given = predict_answers(random_model(vocab_size=V), *prompts)
    p = torch.tensor([[each["own"][1], each["other"][1]] for each in given])
    assert (p[:, 0] <= p[:, 1]).any() and any(
        "WARNING" in line for line in predictions_text("m", given, str)
    )


@pytest.mark.parametrize(
    "others, message",
    [
        ([1, 2, 3], "4 (a|b|c|d) and 3 (x|y|z)"),
        ([1, 5, 3, 4], "both end in 'd'"),
        ([1, 2, 3, 9], "only in their answers"),
    ],
)
def test_prompts_that_cannot_be_patched(others, message):
    with pytest.raises(
        ValueError, match=message.replace("(", r"\(").replace(")", r"\)").replace("|", r"\|")
    ):
        check_prompts([1, 2, 3, 4], others, (list("abcd"), list("xyz")))
