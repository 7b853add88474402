"""nanostories/interpretation/ablation.py: ablation equals changing the weights."""

import copy

import pytest
import torch
import torch.nn.functional as F
from planted_model import for_both_models, planted_corpus

from nanostories.interpretation.ablation import add_loss_increases
from nanostories.interpretation.hooks import run_with_cache
from nanostories.interpretation.reading import read_activations


def loss_of(model, stories) -> float:
    """Nats per token."""
    logits = [model(story.tokens[None])[0][0] for story in stories]
    targets = [story.targets for story in stories]
    return F.cross_entropy(torch.cat(logits), torch.cat(targets)).item()


@for_both_models
@torch.no_grad()
def test_ablations_equal_models_with_other_weights(any_model):
    corpus = planted_corpus(8)
    stories = corpus.stories[:5]  # the means are of the others
    means = read_activations(any_model, corpus, n_ablated=5).means
    rows = [{"layer": 0, "head": 0}, {"layer": 2, "head": 3}]
    rows += [{"layer": 0, "neuron": 100}, {"layer": 2, "neuron": 64}]
    intact = add_loss_increases(rows, any_model, stories, means)
    assert intact == pytest.approx(loss_of(any_model, stories), abs=1e-5)
    caches = [run_with_cache(any_model, story.tokens[None])[1] for story in corpus.stories[5:]]
    for row in rows:
        changed = copy.deepcopy(any_model)
        block = changed.blocks[row["layer"]]
        if "head" in row:
            matrix = block.attention_out
            inputs = slice(8 * row["head"], 8 * row["head"] + 8)
            name = f"blocks.{row['layer']}.z"
        else:
            matrix = block.mlp_out
            inputs = slice(row["neuron"], row["neuron"] + 1)
            name = f"blocks.{row['layer']}.post"
        mean = torch.cat([cache[name][0] for cache in caches]).mean(0).flatten()
        matrix.bias += matrix.weight[:, inputs] @ mean[inputs]
        matrix.weight[:, inputs] = 0
        increase = loss_of(changed, stories) - intact
        assert row["loss_increase"] == pytest.approx(increase, abs=1e-5)
        assert row["loss_increase_low"] < row["loss_increase"] < row["loss_increase_high"]
