"""nanostories/interpretation/neurons.py: planted preferences are found, chance ones not; the
statistics."""

import numpy as np
import pytest
from planted_model import WORDS, Alphabet, planted_model, planted_reading
from scipy.stats import false_discovery_control

from nanostories.interpretation.neurons import (
    PEAKS,
    contexts_of,
    mann_whitney,
    neuron_rows,
    remarkable,
)


@pytest.fixture(scope="module")
def rows() -> list[dict]:
    return neuron_rows(planted_reading().neurons, Alphabet())


def test_planted_neurons_are_found(rows):
    assert rows[5]["prefers"] == "name" and rows[5]["auc_name"] == 1 and rows[5]["q_name"] < 1e-3
    assert "auc_pronoun" not in rows[5]  # there is none
    assert sum(row["prefers"] != "" for row in rows) <= 3
    assert rows[-1]["layer"] == 1
    assert remarkable(rows)["name"] is rows[5]


def test_discoveries_are_false_as_often_as_said(rows):
    """Over all kinds and layers: q is SciPy's."""
    sums = planted_reading().neurons
    words = np.concatenate([story.words for story in sums.corpus.stories])
    counts = np.bincount(words)
    kinds = sums.corpus.kind_flags()
    means = np.concatenate(list(sums.word_sums), axis=1) / counts[:, None]
    _, p = mann_whitney(means, counts, kinds[kinds.any(1)])
    expected = false_discovery_control(p.flatten()).min()
    assert min(row["q_name"] for row in rows) == pytest.approx(expected)


def test_contexts_show_the_activations_around_the_highest(rows):
    sums = planted_reading().neurons
    row = rows[3]
    contexts = contexts_of(row, planted_model(), sums, Alphabet())
    for rank, context in zip(PEAKS, contexts, strict=True):
        highest = max(activation for _, activation in context)
        assert highest == pytest.approx(row[f"activation_{rank}"])
        assert row[f"token_{rank}"] == WORDS[7]
        assert all((activation > 1) == (piece.strip() == WORDS[7]) for piece, activation in context)


def test_preferences_equal_counting_and_permuting():
    """Also where activations are tied."""
    rng = np.random.default_rng(0)
    means = rng.normal(size=(60, 4))
    means[:, 3] = means[:, 3].round()
    counts = rng.integers(2, 40, 60)
    kinds = rng.random((2, 60)) < 0.3
    means[kinds[0], 1] += 0.8
    auc, p = mann_whitney(means, counts, kinds)
    stratum = np.log2(counts).astype(int)
    for kind, of_kind in enumerate(kinds):
        wins = []
        for i in np.flatnonzero(of_kind):
            others = means[~of_kind & (stratum == stratum[i])]
            wins += [*(means[i] > others) + 0.5 * (means[i] == others)]
        assert auc[kind] == pytest.approx(np.mean(wins, axis=0))
    shuffled = []
    for _ in range(1000):
        order = np.arange(60)
        for each in np.unique(stratum):
            order[stratum == each] = rng.permutation(order[stratum == each])
        shuffled.append(mann_whitney(means, counts, kinds[:, order])[0])
    assert p == pytest.approx((np.array(shuffled) >= auc).mean(0), abs=0.05)
    assert p[0, 1] < 0.01
