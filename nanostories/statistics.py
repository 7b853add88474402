"""
Intervals and tests: of means and shares, of ratios, and of many differences at once.

>>> right = np.array([1, 1, 0, 1, 1, 1])  # of six prompts
>>> print("{:.2f} [{:.2f}, {:.2f}]".format(*estimate(right, share=True).cell))
0.83 [0.36, 1.00]

Completions of one prompt are alike, since an easy beginning makes all of them good. So values are
means by prompt, and an interval narrows more with more prompts than with more completions of each.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A value, the ends of its 95% interval, and P(a value as far from 0, if 0 were true), which a
    share does not have. NaN where there are fewer than two prompts."""

    value: float
    low: float
    high: float
    p: float

    @property
    def cell(self) -> list[float]:
        """As in results.Table."""
        return [self.value, self.low, self.high]


def estimate(values: np.ndarray, share: bool = False) -> Estimate:
    """The mean of the values of prompts: scores, differences of two models, or shares (of stories
    that are right, of wins; a tie is half a win).

    Student's t over prompts. A share gets one success and one failure more (Agresti and Caffo,
    2000), so that 50 of 50 is not ± 0. Simulated coverage: LOG.md, "Intervals"."""
    values = np.asarray(values, dtype=float)
    n = len(values)
    mean = values.mean()
    if n < 2:
        return Estimate(mean, np.nan, np.nan, np.nan)
    if not share:
        return around(mean, values.std(ddof=1) / n**0.5, n)
    padded = np.append(values, [0.0, 1.0])
    found = around(padded.mean(), padded.std() / (n + 2) ** 0.5, n)
    low = np.clip(found.low, 0, mean)
    high = np.clip(found.high, mean, 1)
    return Estimate(mean, low, high, np.nan)


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> Estimate:
    """sum(numerators) / sum(denominators), such as bits per byte. numerators: (…, clusters),
    denominators: (clusters,), the sums of each story (or other cluster)."""
    n = len(denominators)
    total = denominators.sum()
    value = (numerators.sum(-1) / total)[()]  # [()]: an array of no dimensions -> its number
    if n < 2:
        unknown = value * np.nan  # of value's shape
        return Estimate(value, unknown, unknown, unknown)
    residuals = numerators - value[..., None] * denominators
    error = ((residuals**2).sum(-1) * n / (n - 1)) ** 0.5 / total
    return around(value, error, n)


def around(value, error, n: int) -> Estimate:
    """value ± its standard error, by Student's t of n prompts."""
    from scipy.special import stdtr, stdtrit  # here, as SciPy is slow to import

    distance = np.abs(value)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stdtr(n - 1, -distance / error)
    # The same on every prompt: no spread, so as with n coins (a sign test).
    sign_test = np.where(distance > 1e-12, 2.0 ** (1 - n), 1.0)
    p = np.where(error > 1e-12, p, sign_test)[()]
    margin = stdtrit(n - 1, 0.975) * error  # the 97.5% quantile
    return Estimate(value, value - margin, value + margin, p)


def difference_rows(found: Mapping[tuple[str, str], Estimate], column: str) -> list[dict]:
    """Rows of a table. found: {(pair of runs, name in `column`): their difference}; p is corrected
    for all of them."""
    corrected = holm(np.array([difference.p for difference in found.values()]))
    rows = []
    for ((pair, name), difference), p in zip(found.items(), corrected):
        row = {"run": pair, column: name, "difference": difference.cell, "p (Holm)": float(p)}
        rows.append(row)
    return rows


def holm(p: np.ndarray) -> np.ndarray:
    """Corrects p-values for multiple tests (Holm, 1979): among those below x, P(any false positive)
    is at most x."""
    order = p.argsort()
    n_remaining = np.arange(len(p), 0, -1)
    corrected = np.empty(len(p))
    corrected[order] = np.minimum(1, np.maximum.accumulate(p[order] * n_remaining))
    return corrected
