"""statistics.py: intervals that hold what they promise, and figures with known answers."""

import itertools
import math

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
    """95% of 600 simulated experiments, give or take three standard errors; one that draws completions does not."""
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


def test_paired_wins_count_pairs_of_one_prompt():
    better, worse = np.array([9.0, 5, 5, 1]), np.array([1.0, 5, 4, 2])
    assert statistics.paired_wins(better, worse).value == (1 + 0.5 + 1 + 0) / 4
    value, low, high = statistics.paired_wins(np.arange(20) + 1.0, np.arange(20.0))  # the prompts overlap, no pair does
    assert value == high == 1 and low == pytest.approx(
        (1 + 20 / 22 - 2.093 * ((1 - (20 / 22) ** 2) / 22) ** 0.5) / 2, abs=0.001
    )
    value, low, high = statistics.paired_wins(np.ones(20), np.ones(20))
    assert value == 0.5 and 0.4 < low < 0.5 < high < 0.6
    assert np.isnan(statistics.paired_wins(np.ones(1), np.zeros(1)).low)


def outcomes(n: int) -> dict[tuple[int, int], statistics.Estimate]:
    """(wins, losses) of n prompts: what is concluded."""
    counts = [(wins, losses) for wins in range(n + 1) for losses in range(n + 1 - wins)]
    better = {(w, x): np.repeat([1.0, -1, 0], [w, x, n - w - x]) for w, x in counts}
    return {key: statistics.paired_wins(values, np.zeros(n)) for key, values in better.items()}


@pytest.mark.parametrize("n", [5, 8, 12, 30])
def test_the_interval_of_paired_wins_counted_out(n):
    """Over all outcomes, by their probability: it holds the truth; chance is rarely taken for sight."""
    concluded = outcomes(n)
    ways = {(w, x): math.comb(n, w) * math.comb(n - w, x) for w, x in concluded}
    for ties, share in itertools.product((0, 0.2, 0.5, 0.8, 0.9), (0.5, 0.7, 0.9, 0.99)):
        win, loss = (1 - ties) * share, (1 - ties) * (1 - share)
        p = {(w, x): k * win**w * loss**x * ties ** (n - w - x) for (w, x), k in ways.items()}
        truth = win + ties / 2
        assert sum(p[key] for key, e in concluded.items() if e.low <= truth <= e.high) > 0.929
        if share == 0.5:
            assert sum(p[key] for key, e in concluded.items() if e.low > 0.5) < 0.036
        if (ties, share) == (0.2, 0.9):  # on which grading.compare_models.FEWEST_PROMPTS rests
            seen = sum(p[key] for key, e in concluded.items() if e.low > 0.5)
            assert seen == pytest.approx({5: 0, 8: 0.45, 12: 0.78, 30: 1}[n], abs=0.006)


def test_p_values_of_students_t():
    """Against the tables."""
    for t, df, p in (
        (12.706, 1, 0.05),
        (2.262, 9, 0.05),
        (4.781, 9, 0.001),
        (1.984, 99, 0.05),
        (0, 5, 1),
        (np.inf, 5, 0),
    ):
        assert statistics.student_p(t, df) == pytest.approx(p, rel=0.01)


def test_holms_correction():
    """The example of Holm's step-down: the least p times 4, the next times 3, ..., never below the one before."""
    corrected = statistics.holm(np.array([0.01, 0.04, 0.03, 0.005]))
    assert corrected == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm(np.array([0.6, 0.7])).tolist() == [1, 1] and statistics.holm(np.array([])).size == 0


def test_rank_correlation():
    x = np.array([3.0, 1.0, 4.0, 1.5, 9.0])
    y = np.array([2.0, 1.0, 5.0, 4.0, 3.0])
    d = np.argsort(np.argsort(x)) - np.argsort(np.argsort(y))
    assert statistics.spearman(x, y) == pytest.approx(1 - 6 * (d**2).sum() / (5 * 24))
    assert statistics.spearman(x, np.exp(x)) == pytest.approx(1)
    assert np.isnan(statistics.spearman(x, np.ones(5)))


def ranks_by_hand(values: np.ndarray) -> list[float]:
    return [(values < value).sum() + ((values == value).sum() + 1) / 2 for value in values]


def test_a_draw_is_as_its_pairs_written_out():
    rng = np.random.default_rng(4)
    x, y = rng.integers(0, 5, (2, 40))
    times = rng.multinomial(40, np.full(40, 1 / 40), 6).T
    times[:, 5] = np.where(x == 3, times[:, 5], 0)  # of equal ones alone
    correlations = statistics.spearman(x, y, times)
    for draw, found in zip(times.T, correlations):
        written_out = [np.repeat(values, draw) for values in (x, y)]
        ranks = [np.repeat(statistics.ranks(values, times=draw[:, None])[:, 0], draw) for values in (x, y)]
        assert [each.tolist() for each in ranks] == [ranks_by_hand(values) for values in written_out]
        if len(set(written_out[0])) > 1:
            assert found == pytest.approx(np.corrcoef(ranks)[0, 1])
    assert np.isnan(correlations).tolist() == [False] * 5 + [True]


def test_what_belongs_to_a_prompt_is_drawn_together():
    """Two prompts, of two completions and of one: a draw has both, or one of them twice."""
    pairs = np.array([[[1.0, 2.0], [3.0, 8.0]], [[5.0, 5.0], [np.nan, np.nan]]])
    seen = set()

    def count(x, y, times):
        assert x.tolist() == [1, 3, 5] and y.tolist() == [2, 8, 5]
        seen.update(map(tuple, times.T.tolist()))
        return times.sum(0).astype(float)

    assert statistics.bootstrap(count, pairs) == (3, 2, 4) and seen == {(1, 1, 1), (2, 2, 0), (0, 0, 2)}


def test_normalized():
    assert statistics.normalized(np.array([2.0, 6.0, 4.0])).tolist() == [0, 1, 0.5]
    assert np.isnan(statistics.normalized(np.array([3.0, 3.0]))).all()


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
