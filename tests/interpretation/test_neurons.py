"""interpretation/neurons.py: planted preferences are found, chance ones not; the statistics."""

import numpy as np
import pytest
import torch
from planted_model import WORDS, Alphabet, planted_corpus, planted_model, planted_reading
from scipy.stats import false_discovery_control

from corpus.builtin_stories import ROLES
from interpret import read
from interpretation.neurons import CONTEXTS, FDR, contexts, neuron_rows, preferences, untrained_copy
from interpretation.word_classes import KINDS


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    model, corpus, (_, neurons, _) = planted_model(), planted_corpus(), planted_reading()
    _, untrained, _ = read(untrained_copy(model), corpus, with_heads=False)
    return neuron_rows(neurons, untrained, contexts(model, corpus, Alphabet(), neurons))


def test_planted_neurons_are_found(rows):
    assert rows[5]["prefers"] == "name" and rows[5]["auc_name"] == 1 and rows[5]["q_name"] < 1e-3
    assert sum(row["prefers"] != "" for row in rows) <= 3
    assert sum(row["prefers_at_random_init"] != "" for row in rows) <= 2
    assert [(row["layer"], row["neuron"]) for row in rows[:2]] == [(0, 0), (0, 1)] and rows[-1]["layer"] == 1


def test_contexts_show_the_activations_around_the_highest(rows):
    _, neurons, _ = planted_reading()
    for i in range(1, CONTEXTS + 1):
        row = {name: rows[3][f"{name}_{i}"] for name in ("token", "activation", "context", "shades")}
        assert row["token"] == f" {WORDS[7]}" and len(row["shades"]) == len(row["context"])
        place = 0
        for word in row["context"].split(" ")[1:]:  # fires on WORDS[7] alone; its highest here is marked
            shades = set(row["shades"][place : place + len(word) + 1])
            assert len(shades) == 1 and (shades <= {"0", "1"}) == (word != WORDS[7])
            place += len(word) + 1
        assert "P" in row["shades"] and rows[3]["activation_1"] >= row["activation"]
    assert rows[3]["activation_1"] == pytest.approx(neurons.highest[0, :, 3].max().item())


def permuted(kinds: torch.Tensor, counts: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The kinds, permuted among words that are about as frequent."""
    order, stratum = torch.arange(kinds.size(1)), counts.log2().floor().clamp(max=6)
    for each in stratum.unique():
        words = (stratum == each).nonzero()[:, 0]
        order[words] = words[torch.randperm(len(words), generator=generator)]
    return kinds[:, order]


def test_preferences_equal_counting_and_permuting():
    torch.manual_seed(0)
    means, counts = torch.randn(60, 4), torch.randint(2, 40, (60,)).float()
    kinds = torch.rand(2, 60) < 0.3
    means[kinds[0], 1] += 0.8
    auc, p = preferences(means, counts, kinds)
    for kind in range(2):
        for neuron in range(4):
            wins = [
                means[i, neuron] > means[j, neuron]
                for i in kinds[kind].nonzero()[:, 0]
                for j in (~kinds[kind]).nonzero()[:, 0]
                if counts[i].log2().floor() == counts[j].log2().floor()
            ]
            assert auc[kind, neuron].item() == pytest.approx(np.mean(wins))
    generator = torch.Generator().manual_seed(1)
    shuffles = torch.stack([preferences(means, counts, permuted(kinds, counts, generator))[0] for _ in range(1000)])
    torch.testing.assert_close(p, (shuffles >= auc).double().mean(0), atol=0.04, rtol=0)
    assert p[0, 1] < 0.01


def test_hardly_anything_is_found_for_permuted_kinds():
    """Where no neuron prefers anything, the false-discovery rate is the chance of any find at all."""
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(300, 40, generator=generator) @ torch.randn(40, 500, generator=generator)  # correlated neurons
    kinds = torch.nn.functional.one_hot(torch.randint(7, (300,), generator=generator), 7).bool().T[:6]
    counts = 2 + 60 * torch.rand(300, generator=generator) ** 3
    tests = [preferences(means, counts, permuted(kinds, counts, generator))[1].numpy().ravel() for _ in range(60)]
    assert np.mean([(false_discovery_control(p) <= FDR).any() for p in tests]) <= 0.1


def test_one_frequent_word_is_one_observation():
    """A neuron that fires on a single verb, however often it occurs, does not "prefer verbs"."""
    corpus, model = planted_corpus(), planted_model()
    verb = WORDS.index(next(word for word in WORDS if word in ROLES and ROLES[word][0] == "verb"))
    for story in corpus.stories:
        story.tokens[::3] = story.words[::3] = verb
    with torch.no_grad():
        model.blocks[0].mlp_in.weight[3] = 0
        model.blocks[0].mlp_in.weight[3, verb] = 1
    _, neurons, _ = read(model, corpus, with_heads=False)
    _, p = preferences(neurons.word_sums[0] / neurons.counts[:, None], neurons.counts, neurons.kinds)
    assert p[KINDS.index("verb"), 3] > 0.001
