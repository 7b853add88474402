"""Intervals that hold what they promise, and figures with known answers: SciPy's, or counted
out."""

import itertools

import numpy as np
import pytest
import scipy.stats

from nanostories.statistics import estimate, holm, ratio


def test_a_mean_is_scipys_t_test():
    values = np.random.default_rng(0).normal(0.3, 1, 20)
    theirs = scipy.stats.ttest_1samp(values, 0)
    expected = (values.mean(), *theirs.confidence_interval(0.95), theirs.pvalue)
    assert estimate(values) == pytest.approx(expected)


def test_without_spread_or_prompts():
    assert estimate(np.full(5, 2.0)) == (2, 2, 2, 2**-4)
    assert estimate(np.zeros(5)) == (0, 0, 0, 1)
    for found in (estimate(np.array([3.0])), ratio(np.array([3.0]), np.array([1.0]))):
        assert found.value == 3 and np.isnan(found[1:]).all()
    all_right = estimate(np.ones(50), share=True)
    assert all_right.value == all_right.high == 1 and 0.9 < all_right.low < 0.95


@pytest.mark.parametrize("n", [5, 8, 12, 30])
def test_the_interval_of_paired_wins_counted_out(n):
    """Over all outcomes, by their probability: it holds the truth, and chance is rarely taken for a
    difference."""
    counts = [(i, j, n - i - j) for i in range(n + 1) for j in range(n + 1 - i)]
    outcomes = [np.repeat([1, 0, 0.5], count) for count in counts]
    intervals = [estimate(outcome, share=True) for outcome in outcomes]
    _, low, high, _ = np.array(intervals).T
    for ties, share in itertools.product((0, 0.2, 0.5, 0.9), (0.5, 0.9, 0.99)):
        win = (1 - ties) * share
        truth = win + ties / 2
        p = scipy.stats.multinomial.pmf(counts, n, [win, 1 - ties - win, ties])
        assert p[(low <= truth) & (truth <= high)].sum() > 0.929
        assert share > 0.5 or p[low > 0.5].sum() < 0.036
        if (n, ties, share) == (12, 0.2, 0.9):  # the fewest prompts that grading asks for
            assert p[low > 0.5].sum() == pytest.approx(0.78, abs=0.006)


@pytest.mark.parametrize("n", [10, 50])
def test_ratios_hold_the_truth(n):
    """Bits per byte of stories of different length, 0.7 on average; 95% give or take."""
    rng = np.random.default_rng(0)
    n_bytes = rng.lognormal(6, 0.5, (2000, n))
    bits = n_bytes * rng.normal(0.7, 0.1, (2000, n))
    _, low, high, _ = np.array([ratio(*sums) for sums in zip(bits, n_bytes)]).T
    held = (low <= 0.7) & (0.7 <= high)
    assert 0.91 < np.mean(held) < 0.965
    many = ratio(bits[:3], n_bytes[0])  # several numerators at once
    assert [column[1] for column in many] == pytest.approx(ratio(bits[1], n_bytes[0]))


def test_holm():
    """0.005 × 4, 0.01 × 3, 0.03 × 2, then never below the one before."""
    corrected = holm(np.array([0.01, 0.04, 0.03, 0.005]))
    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm(np.array([0.6, 0.7])).tolist() == [1, 1]
