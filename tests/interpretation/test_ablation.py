"""interpretation/ablation.py: ablation equals changing the weights, and its intervals cover the truth."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from planted_model import V, planted_corpus, planted_induction, planted_statistics
from random_models import random_model

from interpretation.ablation import ablate_heads, ablate_neurons, estimate_neurons, rise_with_interval, stories_within
from interpretation.activation_statistics import ActivationStatistics
from interpretation.summary import count_heads, describe_heads
from interpretation.word_classes import TaggedCorpus
from model import GPTNeo


@pytest.fixture
def planted() -> ActivationStatistics:
    return planted_statistics()


@torch.no_grad()
def without(
    model: GPTNeo, layer: int, inputs: torch.Tensor, mean: torch.Tensor, module: str, share: float = 1.0
) -> GPTNeo:
    """The model with `share` of what these inputs of a matrix say replaced by their mean, by changing its weights."""
    changed = copy.deepcopy(model)
    matrix = getattr(changed.blocks[layer], module)
    matrix.bias += share * (matrix.weight[:, inputs] @ mean)
    matrix.weight[:, inputs] *= 1 - share
    return changed


def story_losses(model: GPTNeo, corpus: TaggedCorpus, numbers) -> torch.Tensor:
    stories = [corpus.stories[number] for number in numbers]
    with torch.no_grad():
        return torch.stack([F.cross_entropy(model(s.tokens[None])[0][0], s.targets, reduction="sum") for s in stories])


@pytest.fixture(scope="module")
def ablated():
    torch.manual_seed(1)
    corpus, model = planted_corpus(12), random_model(vocab_size=V)
    means = [torch.randn(4, 8) for _ in range(3)], [torch.randn(128) for _ in range(3)]
    return model, corpus, *means


def test_ablations_equal_models_with_other_weights(ablated):
    model, corpus, head_means, neuron_means = ablated
    numbers, neurons = [7, 2, 5, 9], [[3, 100], [], [64]]
    intact, heads = ablate_heads(model, corpus, numbers, head_means)
    again, chosen = ablate_neurons(model, corpus, numbers, neuron_means, neurons)
    torch.testing.assert_close(intact, again)
    chosen = chosen.split([len(some) for some in neurons])
    torch.testing.assert_close(intact, story_losses(model, corpus, numbers), atol=1e-3, rtol=1e-5)
    for layer in range(3):
        for head in range(4):
            inputs = torch.arange(8 * head, 8 * head + 8)
            other = without(model, layer, inputs, head_means[layer][head], "attention_out")
            torch.testing.assert_close(heads[layer, head], story_losses(other, corpus, numbers), atol=1e-3, rtol=1e-5)
        for i, neuron in enumerate(neurons[layer]):
            inputs = torch.tensor([neuron])
            other = without(model, layer, inputs, neuron_means[layer][inputs], "mlp_out")
            torch.testing.assert_close(chosen[layer][i], story_losses(other, corpus, numbers), atol=1e-3, rtol=1e-5)


def test_the_estimate_is_the_slope_of_the_loss(ablated):
    model, corpus, _, neuron_means = ablated
    model, means, numbers = copy.deepcopy(model).double(), [mean.double() for mean in neuron_means], range(1, 12, 2)
    estimates = estimate_neurons(model, corpus, numbers, means)
    n_tokens, share = sum(len(corpus.stories[number].tokens) for number in numbers), 1e-5
    intact = story_losses(model, corpus, numbers).sum()
    for layer, neuron in ((0, 5), (1, 17), (2, 127)):
        inputs = torch.tensor([neuron])
        other = without(model, layer, inputs, means[layer][inputs], "mlp_out", share)
        slope = (story_losses(other, corpus, numbers).sum() - intact) / share / n_tokens
        assert estimates[layer, neuron].item() == pytest.approx(slope.item(), rel=0.01, abs=1e-7)
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_head_that_does_nothing_costs_nothing_and_one_that_is_all_costs_much(planted):
    """The heads that look at the first token and everywhere write nothing; the head that copies feeds induction."""
    model, corpus = planted_induction(), planted.corpus
    means = planted.means("z")
    numbers = range(1, 60, 2)
    intact, heads = ablate_heads(model, corpus, numbers, means)
    tokens = torch.tensor([len(corpus.stories[number].tokens) for number in numbers])
    rise, low, high = rise_with_interval(heads, intact, tokens)
    assert low[0, 0] > 0.1 and low[1, 0] > 0.1
    assert abs(rise[0, 1]) < 1e-6 and abs(rise[1, 1]) < 1e-6


def test_what_a_default_run_may_cost():
    """Half of the layers' matrices and the head, twice, for every token and part."""
    corpus, model = planted_corpus(40), random_model(vocab_size=V)
    per_token = 2 * 12 * (2 * 12 * 32**2 + 32 * V)
    tokens = [len(corpus.stories[number].tokens) for number in range(20)]
    assert stories_within(per_token * sum(tokens), model, corpus, range(40), 12) == range(20)
    assert stories_within(per_token * sum(tokens[:9]), model, corpus, range(40), 12) == range(10)
    assert stories_within(per_token * sum(tokens[:10]) / 11, model, corpus, range(40), 12) == range(0)  # too long
    assert stories_within(1e18, model, corpus, range(15), 12) == range(15)


def test_a_rise_above_zero_is_not_yet_one_that_matters():
    """Intervals say how much a rise depends on the stories: before training, some lie above 0, too."""
    role = dict(role="mixed", kind="unclear", kind_by_correlation="semantic", copies=0.0)
    rows = [role | dict(rise=rise, rise_low=low) for rise, low in ((0.2, 0.1), (0.005, 0.004), (0.3, -0.1))]
    counted = count_heads(rows, [(0.003, 0.001, 0.005), (0.001, -0.001, 0.003), (0.002, 0.001, 0.003)])
    assert counted["ablated"]["trained"] == dict(above_zero=2, matter=1)
    assert counted["ablated"]["random_init"] == dict(above_zero=2, matter=0)
    summary = dict(heads=counted, ablation=dict(loss=2.0, stories=40))
    for row in rows:
        row |= dict(layer=0, head=0, rise_high=1.0)
    assert "1 of 3 heads matter" in (said := " ".join(describe_heads(summary, rows)))
    assert "2 heads have one, and at random initialization 2, of which 0 would matter" in said


def test_intervals_hold_the_truth_as_often_as_they_say():
    rng, truth, held = np.random.default_rng(0), 0.1, []
    for i in range(80):
        tokens = torch.from_numpy(rng.integers(50, 300, size=60)).double()
        intact = torch.zeros(60)
        nats = tokens * truth + torch.from_numpy(rng.normal(size=60)) * tokens.sqrt()
        _, low, high = rise_with_interval(nats[None], intact, tokens, seed=i)
        held.append(low[0] <= truth <= high[0])
    assert 0.87 <= np.mean(held) <= 0.99
