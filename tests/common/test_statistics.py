"""stats.py: intervals that hold what they promise, and figures with known answers."""

import itertools

import numpy as np
import pytest

from common import statistics


def test_means_and_their_intervals():
    x = np.arange(20.0)
    estimate = statistics.mean(x)
    assert estimate.value == 9.5
    standard_error = x.std(ddof=1) / 20**0.5
    assert abs((estimate.high - estimate.low) / (2 * 2.093 * standard_error) - 1) < 0.06  # t of 19 degrees of freedom
    assert statistics.mean(x) == estimate  # drawn from a seed
    assert statistics.mean(np.full(9, 4.0)) == (4, 4, 4)
    value, low, high = statistics.mean(np.array([3.0]))
    assert value == 3 and np.isnan(low) and np.isnan(high)


def simulated_scores(rng, n_prompts: int, n_completions: int) -> np.ndarray:
    """(prompts, completions): half of the variance is the prompt's; the true mean is 6."""
    return 6 + rng.normal(size=(n_prompts, 1)) + rng.normal(size=(n_prompts, n_completions))


def test_students_t():
    """Against the tables."""
    for df, value in ((4, 2.776), (9, 2.262), (29, 2.045), (99, 1.984), (np.inf, 1.960)):
        assert statistics.student(df) == pytest.approx(value, abs=0.008)


@pytest.mark.parametrize("n_prompts", [10, 50])
def test_intervals_hold_the_true_mean_as_often_as_they_say(n_prompts):
    """95 % of 600 simulated experiments, give or take three standard errors; one that draws completions does not."""
    rng, held, held_unclustered = np.random.default_rng(0), 0, 0
    for _ in range(600):
        scores = simulated_scores(rng, n_prompts, 5)
        _, low, high = statistics.mean(scores.mean(1), draws=500)
        held += low <= 6 <= high
        _, low, high = statistics.mean(scores.ravel(), draws=500)
        held_unclustered += low <= 6 <= high
    assert 0.95 - 3 * 0.0089 <= held / 600 <= 0.95 + 3 * 0.0089
    assert held_unclustered / 600 < 0.85


def test_paired_differences_are_narrow_where_prompts_differ_most():
    """The same on both sides: what prompts do to both models is no noise between them."""
    rng = np.random.default_rng(1)
    prompts = rng.normal(0, 3, size=40)
    a, b = (prompts + 0.5 + rng.normal(0, 0.3, 40)), (prompts + rng.normal(0, 0.3, 40))
    difference = statistics.mean(a - b)
    assert difference.low > 0 and statistics.mean(a).low < statistics.mean(b).high
    assert difference.high - difference.low < 0.3 * (statistics.mean(a).high - statistics.mean(a).low)


def test_auc_counts_pairs():
    rng = np.random.default_rng(2)
    for n, m in ((1, 1), (7, 4), (30, 50)):
        x, y = rng.integers(0, 6, n) / 2, rng.integers(0, 6, m) / 2
        wins = sum((a > b) + 0.5 * (a == b) for a, b in itertools.product(x, y))
        assert statistics.auc(x, y) == pytest.approx(wins / (n * m))
    assert statistics.auc(np.array([3, 4]), np.array([1, 2])) == 1
    assert statistics.auc(np.array([1, 1]), np.array([1, 1])) == 0.5


def test_the_interval_of_an_auc_holds_the_truth():
    """Scores that differ by one standard deviation: Phi(1 / sqrt(2)) of the pairs are in order. Prompts in common."""
    rng, held, truth = np.random.default_rng(3), 0, 0.7602
    for _ in range(200):
        prompts = rng.normal(0, 0.5**0.5, 40)
        better, worse = (shift + prompts + rng.normal(0, 0.5**0.5, 40) for shift in (1, 0))
        _, low, high = statistics.bootstrap(statistics.auc, better, worse, draws=300)
        held += low <= truth <= high
    assert 0.90 <= held / 200 <= 0.99


def test_rank_correlation():
    x = np.array([3.0, 1.0, 4.0, 1.5, 9.0])
    y = np.array([2.0, 1.0, 5.0, 4.0, 3.0])
    d = np.argsort(np.argsort(x)) - np.argsort(np.argsort(y))
    assert statistics.spearman(x, y) == pytest.approx(1 - 6 * (d**2).sum() / (5 * 24))
    assert statistics.spearman(x, np.exp(x)) == pytest.approx(1)
    assert np.isnan(statistics.spearman(x, np.ones(5)))
    tied = np.random.default_rng(4).integers(0, 5, 40)
    by_hand = [(tied < value).sum() + ((tied == value).sum() + 1) / 2 for value in tied]
    assert statistics.ranks(tied).tolist() == by_hand


def test_normalised():
    assert statistics.normalised(np.array([2.0, 6.0, 4.0])).tolist() == [0, 1, 0.5]
    assert np.isnan(statistics.normalised(np.array([3.0, 3.0]))).all()


def test_wilson_intervals_are_those_of_newcombe_1998():
    """Statistics in Medicine 17, table I: the score method."""
    for right, n, low, high in (
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ):
        assert statistics.wilson(right / n, n) == pytest.approx((low, high), abs=5e-5)
        assert statistics.wilson(1 - right / n, n) == pytest.approx((1 - high, 1 - low), abs=5e-5)


@pytest.mark.parametrize("share", [0, 0.02, 0.5, 0.9, 1])
@pytest.mark.parametrize("n", [1, 10, 200])
def test_wilson_intervals_end_where_the_share_is_too_far(share, n):
    """Its ends are the true shares p from which the share is 1.96 standard errors away (Wilson, 1927)."""
    low, high = statistics.wilson(share, n)
    assert 0 <= low <= share <= high <= 1
    for p in (low, high):
        if p != share:
            assert abs(p - share) == pytest.approx(1.959964 * np.sqrt(p * (1 - p) / n))
