"""Intervals that hold what they promise, and figures with known answers: SciPy's, tables', or
counted out."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats

from nanostories import statistics
from nanostories.grading import findings


def test_means_and_their_intervals():
    x = np.arange(20.0)
    estimate = statistics.mean(x)
    t_interval = scipy.stats.t.interval(0.95, 19, loc=9.5, scale=scipy.stats.sem(x))
    assert estimate.value == 9.5 and statistics.mean(x) == estimate  # drawn from a seed
    assert estimate.high - estimate.low == pytest.approx(t_interval[1] - t_interval[0], rel=0.06)
    assert statistics.mean(np.full(9, 4.0)) == (4, 4, 4)
    assert np.isnan(statistics.mean(np.array([3.0]))).tolist() == [False, True, True]


def test_student_of_few_degrees_of_freedom():
    """Against the tables."""
    for df, value in ((1, 12.706), (2, 4.303), (4, 2.776), (29, 2.045), (np.inf, 1.960)):
        assert statistics.student(df) == pytest.approx(value, abs=0.0006)


@pytest.mark.parametrize("n_prompts", [3, 10, 50])
def test_intervals_hold_the_true_mean_as_often_as_they_say(n_prompts):
    """95% of 600 simulated experiments, give or take three standard errors; an interval over
    completions does not."""
    rng, held, held_unclustered = np.random.default_rng(0), 0, 0
    for _ in range(600):
        # (prompts, completions): half of the variance is the prompt's; the true mean is 6
        scores = 6 + rng.normal(size=(n_prompts, 1)) + rng.normal(size=(n_prompts, 5))
        _, low, high = statistics.mean(scores.mean(1), draws=500)
        held += low <= 6 <= high
        if n_prompts == 10:
            _, low, high = statistics.mean(scores.ravel(), draws=500)
            held_unclustered += low <= 6 <= high
    assert 0.95 - 3 * 0.0089 <= held / 600 <= (0.95 + 3 * 0.0089 if n_prompts > 3 else 1)
    assert held_unclustered / 600 < 0.85


def test_paired_wins_count_pairs_of_one_prompt():
    better, worse = np.array([9.0, 5, 5, 1]), np.array([1.0, 5, 4, 2])
    assert findings.paired_wins(better, worse).value == (1 + 0.5 + 1 + 0) / 4
    value, low, high = findings.paired_wins(np.arange(20) + 1.0, np.arange(20.0))
    expected = (1 + 20 / 22 - 2.093 * ((1 - (20 / 22) ** 2) / 22) ** 0.5) / 2
    assert value == high == 1 and low == pytest.approx(expected, abs=0.001)
    assert np.isnan(findings.paired_wins(np.ones(1), np.zeros(1)).low)


@pytest.mark.parametrize("n", [5, 8, 12, 30])
def test_the_interval_of_paired_wins_counted_out(n):
    """Over all outcomes, by their probability: it holds the truth, and chance is rarely taken for a
    difference."""
    counts = [(wins, losses) for wins in range(n + 1) for losses in range(n + 1 - wins)]
    better = {(w, x): np.repeat([1.0, -1, 0], [w, x, n - w - x]) for w, x in counts}
    concluded = {key: findings.paired_wins(values, np.zeros(n)) for key, values in better.items()}
    ways = {(w, x): math.comb(n, w) * math.comb(n - w, x) for w, x in counts}
    for ties, share in itertools.product((0, 0.2, 0.5, 0.8, 0.9), (0.5, 0.7, 0.9, 0.99)):
        win, loss = (1 - ties) * share, (1 - ties) * (1 - share)
        p = {(w, x): k * win**w * loss**x * ties ** (n - w - x) for (w, x), k in ways.items()}
        truth = win + ties / 2
        assert sum(p[key] for key, e in concluded.items() if e.low <= truth <= e.high) > 0.929
        if share == 0.5:
            assert sum(p[key] for key, e in concluded.items() if e.low > 0.5) < 0.036
        if (ties, share) == (0.2, 0.9):  # the fewest prompts that grading asks for rest on this
            seen = sum(p[key] for key, e in concluded.items() if e.low > 0.5)
            assert seen == pytest.approx({5: 0, 8: 0.45, 12: 0.78, 30: 1}[n], abs=0.006)


def test_holm():
    """0.005 × 4, 0.01 × 3, 0.03 × 2, then never below the one before; an interval that ends at 0
    has p = 0.05."""
    assert statistics.holm(np.array([0.01, 0.04, 0.03, 0.005])) == pytest.approx(
        [0.03, 0.06, 0.06, 0.02]
    )
    assert findings.p_value(findings.Finding("", "", "", "", 1.0, 0.0, 2.0, 10)) == pytest.approx(
        0.05
    )
    assert (
        statistics.holm(np.array([0.6, 0.7])).tolist() == [1, 1]
        and statistics.holm(np.array([])).size == 0
    )


@pytest.mark.parametrize("n", [1, 10, 29, 263])
def test_wilson_is_scipys(n):
    for k in {0, 1, n // 3, n - 1, n}:
        expected = scipy.stats.binomtest(k, n).proportion_ci(method="wilson")
        low, high = statistics.wilson(k / n, n)
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-6)
        assert 0 <= low <= k / n <= high <= 1
