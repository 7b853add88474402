"""nanostories/interpretation/ablation.py: ablation equals changing the weights, and its intervals
cover the truth."""

import copy

import pytest
import torch
import torch.nn.functional as F
from planted_model import V, planted_corpus, planted_induction, planted_reading
from random_models import random_model

from model import GPTNeo
from nanostories.interpretation.ablation import ablated_losses, loss_increases
from nanostories.interpretation.word_classes import TaggedCorpus


@torch.no_grad()
def without(
    model: GPTNeo, layer: int, inputs: torch.Tensor, mean: torch.Tensor, module: str
) -> GPTNeo:
    """The model with these inputs of a matrix replaced by their mean, by changing its weights."""
    changed = copy.deepcopy(model)
    matrix = getattr(changed.blocks[layer], module)
    matrix.bias += matrix.weight[:, inputs] @ mean
    matrix.weight[:, inputs] = 0
    return changed


def losses_of(model: GPTNeo, corpus: TaggedCorpus, n: int) -> torch.Tensor:
    with torch.no_grad():
        logits = [model(story.tokens[None])[0][0] for story in corpus.stories[:n]]
        return torch.stack(
            [F.cross_entropy(x, s.targets, reduction="sum") for x, s in zip(logits, corpus.stories)]
        )


@pytest.fixture(scope="module")
def ablated():
    torch.manual_seed(1)
    shapes = dict(z=(4, 8), post=(128,))
    means = {
        f"blocks.{layer}.{part}": torch.randn(*shape)
        for layer in range(3)
        for part, shape in shapes.items()
    }
    return random_model(vocab_size=V), planted_corpus(12), means


def test_ablations_equal_models_with_other_weights(ablated):
    model, corpus, means = ablated
    parts = [(f"blocks.{layer}.z", head) for layer in range(3) for head in range(4)]
    parts += [("blocks.0.post", 3), ("blocks.0.post", 100), ("blocks.2.post", 64)]
    intact, changed = ablated_losses(model, corpus, 5, parts, means)
    torch.testing.assert_close(intact, losses_of(model, corpus, 5), atol=1e-3, rtol=1e-5)
    for (name, part), losses in zip(parts, changed):
        heads = name.endswith("z")
        inputs = torch.arange(8 * part, 8 * part + 8) if heads else torch.tensor([part])
        mean = means[name][part] if heads else means[name][inputs]
        other = without(
            model, int(name.split(".")[1]), inputs, mean, "attention_out" if heads else "mlp_out"
        )
        torch.testing.assert_close(losses, losses_of(other, corpus, 5), atol=1e-3, rtol=1e-5)


def test_a_head_that_does_nothing_costs_nothing_and_one_that_is_all_costs_much():
    """The heads that look at the first token and everywhere write nothing; the head that copies
    feeds induction."""
    parts = [(f"blocks.{layer}.z", head) for layer in range(2) for head in range(2)]
    _, _, means = planted_reading()
    losses = ablated_losses(planted_induction(), planted_corpus(), 30, parts, means)
    increase, low, high = loss_increases(*losses, planted_corpus())
    assert low[0] > 0.1 and low[2] > 0.1
    assert abs(increase[1]) < 1e-6 and abs(increase[3]) < 1e-6
