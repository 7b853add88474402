"""nanostories/interpretation/ablation.py: ablation equals changing the weights."""

import copy

import pytest
import torch
import torch.nn.functional as F
from planted_model import for_both_models, planted_corpus, planted_induction, planted_reading

from nanostories.interpretation.ablation import add_loss_increases


@torch.no_grad()
def loss_of(model, stories) -> float:
    """Nats per token."""
    total = 0
    for story in stories:
        logits, _ = model(story.tokens[None])
        total += F.cross_entropy(logits[0], story.targets, reduction="sum").item()
    return total / sum(len(story.tokens) for story in stories)


@for_both_models
@torch.no_grad()
def test_ablations_equal_models_with_other_weights(any_model):
    torch.manual_seed(1)
    stories = planted_corpus(5).stories
    means = {f"blocks.{layer}.z": torch.randn(4, 8) for layer in range(3)}
    means |= {f"blocks.{layer}.post": torch.randn(128) for layer in range(3)}
    rows = [{"layer": layer, "head": head} for layer in range(3) for head in range(4)]
    rows += [{"layer": layer, "neuron": n} for layer, n in ((0, 3), (0, 100), (2, 64))]
    intact = add_loss_increases(rows, any_model, stories, means)
    assert intact == pytest.approx(loss_of(any_model, stories), abs=1e-5)
    for row in rows:
        changed = copy.deepcopy(any_model)
        block = changed.blocks[row["layer"]]
        if "head" in row:
            matrix = block.attention_out
            inputs = slice(8 * row["head"], 8 * row["head"] + 8)
            mean = means[f"blocks.{row['layer']}.z"].flatten()[inputs]
        else:
            matrix = block.mlp_out
            inputs = slice(row["neuron"], row["neuron"] + 1)
            mean = means[f"blocks.{row['layer']}.post"][inputs]
        matrix.bias += matrix.weight[:, inputs] @ mean
        matrix.weight[:, inputs] = 0
        increase = loss_of(changed, stories) - intact
        assert row["loss_increase"] == pytest.approx(increase, abs=1e-5)
        assert row["loss_increase_low"] < row["loss_increase"] < row["loss_increase_high"]


def test_a_head_that_does_nothing_costs_nothing_and_one_that_is_all_costs_much():
    """The heads that look at the first token and everywhere write nothing; the head that copies
    feeds induction."""
    means = planted_reading().means
    rows = [{"layer": layer, "head": head} for layer in range(2) for head in range(2)]
    add_loss_increases(rows, planted_induction(), planted_corpus().stories[:30], means)
    copying, first, inducing, alike = rows
    assert copying["loss_increase_low"] > 0.1 and inducing["loss_increase_low"] > 0.1
    assert abs(first["loss_increase"]) < 1e-6 and abs(alike["loss_increase"]) < 1e-6
