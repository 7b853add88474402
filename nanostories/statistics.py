"""
Statistics of scores: means and shares, each with a 95% interval.

Completions of one prompt are alike, since an easy beginning makes all of them good. So the
bootstrap resamples whole prompts, each with all its completions; an interval narrows more with more
prompts than with more completions of each.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

DRAWS = 2000  # the ends of an interval then move by a few percent of its width from seed to seed
SHARES = (0.025, 0.975)  # quantiles of the draws that are the two ends of an interval


# ---- The two formulas ----
class Estimate(NamedTuple):
    """A value, the ends of its 95% interval, and P(a value as far from chance, if chance were
    true). NaN where there are fewer than two prompts."""

    value: float
    low: float
    high: float
    p: float

    @property
    def cell(self) -> list[float]:
        """As in results.Table."""
        return [self.value, self.low, self.high]


def estimate(values: np.ndarray, share: bool = False, chance: float = 0.0) -> Estimate:
    """The mean of (…, prompts) values: scores, differences of two models, or shares (of stories
    that are right, of wins; half a win is a tie).

    Student's t over prompts. A share gets one success and one failure more (Agresti and Coull,
    1998), so that 50 of 50 is not ± 0. Simulated coverage: LOG.md, "Intervals"."""
    values = np.asarray(values, dtype=float)
    n = values.shape[-1]
    mean = values.mean(-1)[()]
    if n < 2:
        return Estimate(mean, *[mean * np.nan] * 3)
    if share:
        ends = np.broadcast_to([0.0, 1.0], (*values.shape[:-1], 2))
        values = np.concatenate([values, ends], axis=-1)
    center = values.mean(-1)[()]
    error = values.std(-1, ddof=0 if share else 1)[()] / values.shape[-1] ** 0.5
    found = around(center, error, n, chance)
    if share:
        low = np.clip(found.low, 0, mean)
        high = np.clip(found.high, mean, 1)
        return Estimate(mean, low, high, found.p)
    return found


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> Estimate:
    """sum(numerators) / sum(denominators), such as bits per byte. numerators: (…, clusters),
    denominators: (clusters,), the sums of each story (or other cluster)."""
    n = len(denominators)
    total = denominators.sum()
    value = (numerators.sum(-1) / total)[()]
    if n < 2:
        return Estimate(value, *[value * np.nan] * 3)
    residuals = numerators - value[..., None] * denominators
    error = ((residuals**2).sum(-1) * n / (n - 1)) ** 0.5 / total
    return around(value, error, n, 0.0)


def around(value, error, n: int, chance: float) -> Estimate:
    """value ± its standard error, by Student's t of n prompts."""
    from scipy.special import stdtr  # here, as SciPy is slow to import

    distance = np.abs(value - chance)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(n - 1, -distance / error)
    # The same on every prompt: no spread, so as with n coins.
    p = np.where(error > 1e-12, p, np.where(distance > 1e-12, 2.0 ** (1 - n), 1.0))[()]
    margin = student(n - 1) * error
    return Estimate(value, value - margin, value + margin, p)


# ---- To be replaced by the two above ----


class OldEstimate(NamedTuple):
    """A value and the ends of its interval, which are NaN if there are fewer than two prompts."""

    value: float
    low: float
    high: float


def mean(prompt_means: np.ndarray, draws: int = DRAWS, seed: int = 0) -> OldEstimate:
    """The mean of (prompts,) and its interval. Every prompt counts the same, however many
    completions it has."""
    n = len(prompt_means)
    return interval(bootstrap_ratio(prompt_means, np.ones(n), draws, seed), n)


def interval(means: np.ndarray, n: int) -> OldEstimate:
    """From means (…, 1 + draws), as bootstrap_ratio returns them: first of the n prompts, then of
    bootstrap samples.

    The percentile interval is too narrow for few prompts (Hesterberg, 2015), so it is widened
    around the mean: by sqrt(n / (n - 1)), as a sample varies less around its own mean than around
    the true one, and by as much as Student's t is wider than the normal distribution.
    """
    value = means[..., 0][()]
    widening = (n / (n - 1)) ** 0.5 * student(n - 1) / student(np.inf) if n > 1 else np.nan
    return OldEstimate(
        value, *(value + (np.quantile(means[..., 1:], SHARES, axis=-1) - value) * widening)
    )


def student(df: float) -> float:
    """The 97.5% quantile of Student's t."""
    from scipy.special import stdtrit  # here, as SciPy is slow to import

    return float(stdtrit(df, 0.975))


def draw_prompts(n: int, draws: int = DRAWS, seed: int = 0) -> Iterator[np.ndarray]:
    """How often each of n prompts is in a sample: (n, 1) ones, then bootstrap samples, (n, 100) at
    a time."""
    yield np.ones((n, 1), dtype=np.int64)
    rng = np.random.default_rng(seed)
    for _ in range(draws // 100):
        yield rng.multinomial(n, np.full(n, 1 / n), 100).T


def bootstrap_ratio(
    numerators: np.ndarray, denominators: np.ndarray, draws: int = DRAWS, seed: int = 0
) -> np.ndarray:
    """sum(numerators) / sum(denominators), (…, 1 + draws): of all prompts, then of prompts drawn
    with replacement.

    numerators (…, prompts), denominators (prompts,): the sums of each prompt (or other cluster).
    The draws depend on n and the seed alone, so differences between results are those of paired
    samples.
    """
    ratios = [
        (numerators @ times) / (denominators @ times)
        for times in draw_prompts(len(denominators), draws, seed)
    ]
    return np.concatenate(ratios, axis=-1)


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95% interval of a share of n independent trials, from Wilson's score test: right for
    small n and 0 of n, too.

    A trial may itself be a mean, of several completions say, which SciPy's binomtest does not take.
    """
    z2 = student(np.inf) ** 2
    middle, margin = (
        share + z2 / (2 * n),
        (z2 * (share * (1 - share) / n + z2 / (4 * n * n))) ** 0.5,
    )
    low, high = ((middle + sign * margin) / (1 + z2 / n) for sign in (-1, 1))
    return max(0.0, min(share, low)), min(1.0, max(share, high))  # whatever the rounding


def holm(p: np.ndarray) -> np.ndarray:
    """Corrects p-values for multiple tests (Holm, 1979): among those below x, P(any false positive)
    is at most x."""
    order, corrected = p.argsort(), np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1)))
    return corrected
