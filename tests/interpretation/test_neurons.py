"""nanostories/interpretation/neurons.py: planted preferences are found, chance ones not; the
statistics."""

import numpy as np
import pytest
from planted_model import WORDS, Alphabet, planted_model, planted_reading
from scipy.stats import mannwhitneyu

from nanostories.interpretation.neurons import (
    LARGEST,
    PEAKS,
    add_contexts,
    neuron_rows,
    preferences,
    remarkable,
)


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    _, sums, _ = planted_reading()
    return neuron_rows(sums, Alphabet())


def test_planted_neurons_are_found(rows):
    assert rows[5]["prefers"] == "name" and rows[5]["auc_name"] == 1 and rows[5]["q_name"] < 1e-3
    assert "auc_pronoun" not in rows[5]  # there is none
    assert sum(row["prefers"] != "" for row in rows) <= 3
    assert rows[-1]["layer"] == 1
    found = remarkable(rows)
    assert "pronoun" not in found and found["name"] is rows[5]
    assert found[LARGEST]["activation_1"] == max(row["activation_1"] for row in rows)


def test_discoveries_are_false_as_often_as_said(rows):
    """q over all kinds and layers, by Benjamini and Hochberg's formula."""
    _, sums, _ = planted_reading()
    words = np.concatenate([story.words for story in sums.corpus.stories])
    counts = np.bincount(words)
    kinds = sums.corpus.kind_flags().numpy()
    means = np.concatenate(list(sums.word_sums), axis=1) / counts[:, None]
    _, p = preferences(means, counts, kinds[kinds.any(1)])
    p = np.sort(p.flatten())
    smallest = (p * len(p) / np.arange(1, len(p) + 1)).min()
    assert smallest == pytest.approx(min(row["q_name"] for row in rows))


def test_contexts_show_the_activations_around_the_highest(rows):
    _, sums, _ = planted_reading()
    row = dict(rows[3])
    add_contexts([row], planted_model(), sums, Alphabet())
    for rank in PEAKS:
        assert row[f"token_{rank}"] == WORDS[7]
        context = [piece.strip() for piece in row[f"context_{rank}"]]
        assert context[row[f"peak_{rank}"]] == WORDS[7]
        for word, activation in zip(context, row[f"shades_{rank}"], strict=True):
            assert (word == WORDS[7]) == (activation > 1)
        assert row[f"shades_{rank}"][row[f"peak_{rank}"]] == pytest.approx(
            row[f"activation_{rank}"], abs=0.01
        )
    activations = [row[f"activation_{rank}"] for rank in PEAKS]
    assert activations == sorted(activations, reverse=True)
    assert activations[0] == pytest.approx(sums.highest[0, 3].max().item())


def test_preferences_equal_counting_and_permuting():
    """Also where activations are tied."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(60, 4))
    means[:, 3] = means[:, 3].round()
    counts = rng.integers(2, 40, 60)
    kinds = rng.random((2, 60)) < 0.3
    means[kinds[0], 1] += 0.8
    auc, p = preferences(means, counts, kinds)
    stratum = np.log2(counts).astype(int)
    for kind, neuron in np.ndindex(2, 4):
        wins = []
        for i in np.flatnonzero(kinds[kind]):
            others = means[~kinds[kind] & (stratum == stratum[i]), neuron]
            wins += [*(means[i, neuron] > others) + 0.5 * (means[i, neuron] == others)]
        assert auc[kind, neuron] == pytest.approx(np.mean(wins))
    shuffled = []
    for _ in range(1000):
        order = np.arange(60)
        for each in np.unique(stratum):
            order[stratum == each] = rng.permutation(order[stratum == each])
        shuffled.append(preferences(means, counts, kinds[:, order])[0])
    assert p == pytest.approx((np.array(shuffled) >= auc).mean(0), abs=0.05)
    assert p[0, 1] < 0.01


def test_one_stratum_is_mann_whitney():
    rng = np.random.default_rng(1)
    means = rng.normal(size=(50, 3))
    kinds = rng.random((1, 50)) < 0.4
    auc, p = preferences(means, np.full(50, 5), kinds)
    settings = {"alternative": "greater", "method": "asymptotic", "use_continuity": False}
    theirs = mannwhitneyu(means[kinds[0]], means[~kinds[0]], **settings)
    assert p[0] == pytest.approx(theirs.pvalue)
    assert auc[0] == pytest.approx(theirs.statistic / (kinds.sum() * (~kinds).sum()))
