"""nanostories/interpretation/neurons.py: planted preferences are found, chance ones not; the
statistics."""

import numpy as np
import pytest
import torch
from planted_model import WORDS, Alphabet, planted_corpus, planted_model, planted_reading

from interpret import collect_activations
from nanostories.interpretation.neurons import (
    CONTEXTS,
    most_selective,
    neuron_rows,
    peak_contexts,
    preferences,
    untrained_copy,
)


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    model, corpus, (_, neurons, _) = planted_model(), planted_corpus(), planted_reading()
    _, untrained, _ = collect_activations(untrained_copy(model), corpus, with_heads=False)
    return neuron_rows(neurons, untrained, peak_contexts(model, corpus, Alphabet(), neurons))


def test_planted_neurons_are_found(rows):
    assert rows[5]["prefers"] == "name" and rows[5]["auc_name"] == 1 and rows[5]["q_name"] < 1e-3
    assert "auc_pronoun" not in rows[5] and "pronoun" not in most_selective(rows)  # there is none
    assert sum(row["prefers"] != "" for row in rows) <= 3
    assert sum(row["prefers_at_random_init"] != "" for row in rows) <= 2
    neurons, tests, kinds = (each := planted_reading()[1]), [], each.kinds[each.kinds.any(1)]
    for sums in neurons.word_sums:
        tests.append(
            preferences(sums / neurons.counts[:, None], neurons.counts, kinds)[1].flatten()
        )
    smallest = (
        (torch.cat(tests).sort()[0] * (n := 2 * len(tests[0])) / torch.arange(1, n + 1))
        .min()
        .item()
    )
    assert neurons.preferences()[1].min().item() == pytest.approx(
        smallest
    )  # over all kinds and layers
    assert [(row["layer"], row["neuron"]) for row in rows[:2]] == [(0, 0), (0, 1)] and rows[-1][
        "layer"
    ] == 1


def test_contexts_show_the_activations_around_the_highest(rows):
    _, neurons, _ = planted_reading()
    for i in range(1, CONTEXTS + 1):
        row = {
            name: rows[3][f"{name}_{i}"] for name in ("token", "activation", "context", "shades")
        }
        assert row["token"] == f" {WORDS[7]}" and len(row["shades"]) == len(row["context"])
        place = 0
        for word in row["context"].split(" ")[
            1:
        ]:  # fires on WORDS[7] alone; its highest here is marked
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
    shuffles = torch.stack(
        [preferences(means, counts, permuted(kinds, counts, generator))[0] for _ in range(1000)]
    )
    torch.testing.assert_close(p, (shuffles >= auc).double().mean(0), atol=0.04, rtol=0)
    assert p[0, 1] < 0.01
