"""
Means over texts that come in clusters (completions of one prompt, excerpts of one story), with 95%
intervals.
"""

from typing import NamedTuple

import numpy as np

from nanostories.statistics import bootstrap_ratio, interval


class ClusteredValues(NamedTuple):
    """A measure of n texts, and the cluster of each."""

    values: np.ndarray  # (n,) float; NaN where it is undefined
    clusters: np.ndarray  # (n,) the prompt of a completion, the story of a held-out excerpt


def compare(
    ours: ClusteredValues, theirs: ClusteredValues | None, paired=False, max_value: float = 1.0
) -> dict:
    """{"completions", "baseline", "difference": {mean, low, high}}, by bootstrap over clusters; NaN
    with only one.

    paired: both have the same clusters. max_value: the largest possible; the smallest is 0;
    intervals end there.
    """

    def means(texts: ClusteredValues, seed: int) -> tuple[np.ndarray, int]:
        """(1 + draws,) the mean, and means of bootstrap samples; how many clusters there are."""
        known = ~np.isnan(texts.values)
        cluster = np.unique(texts.clusters[known], return_inverse=True)[1]
        n = int(cluster.max(initial=-1)) + 1
        return bootstrap_ratio(
            np.bincount(cluster, texts.values[known]), np.bincount(cluster), seed=seed
        ), n

    def entry(means: np.ndarray, n: int, smallest: float = 0.0) -> dict[str, float]:
        value, low, high = interval(means, n)
        return dict(
            mean=float(value), low=float(max(low, smallest)), high=float(min(high, max_value))
        )

    a, n = means(ours, seed=0)
    found = dict(completions=entry(a, n))
    if theirs is not None and not np.isnan(theirs.values).all():
        b, m = means(theirs, seed=0 if paired else 1)
        found |= dict(baseline=entry(b, m), difference=entry(a - b, min(n, m), -max_value))
    return found
