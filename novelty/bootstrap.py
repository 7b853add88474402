"""
95 % intervals for means over texts that come in clusters: completions of one prompt, pieces of one story.

>>> interval(bootstrap_means(Clustered(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1]))))
{'mean': 2.3333333333333335, 'low': 1.5, 'high': 4.0}
"""

from typing import NamedTuple

import numpy as np


class Clustered(NamedTuple):
    """One number for each of n texts, and the cluster that the text belongs to."""

    values: np.ndarray  # (n,) float; NaN where it is undefined for a text
    clusters: np.ndarray  # (n,)


def bootstrap_means(numbers: Clustered, n: int = 2000, seed: int = 0) -> np.ndarray:
    """(1 + n,): the mean over texts, then the means of n bootstrap samples of whole clusters; these are NaN if there is
    only one cluster. With the same seed, numbers with the same clusters get the same samples."""
    known = ~np.isnan(numbers.values)
    cluster = np.unique(numbers.clusters[known], return_inverse=True)[1]
    totals = np.stack([np.bincount(cluster, numbers.values[known]), np.bincount(cluster)])
    n_clusters = totals.shape[1]
    draws = np.random.default_rng(seed).multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), n)
    draws = draws if n_clusters > 1 else np.full((n, 1), np.nan)
    sums, counts = totals @ np.concatenate([np.ones((1, n_clusters)), draws]).T
    return sums / counts


def interval(means: np.ndarray) -> dict:
    low, high = np.quantile(means[1:], [0.025, 0.975])
    return dict(mean=float(means[0]), low=float(low), high=float(high))


def compare_means(completions: Clustered, baseline: Clustered | None, paired: bool) -> dict:
    """What rouge.json has of a metric: means and their difference, with 95 % intervals. paired: both have the same
    prompts."""
    ours = bootstrap_means(completions)
    if baseline is None or np.isnan(baseline.values).all():
        return dict(completions=interval(ours))
    theirs = bootstrap_means(baseline, seed=0 if paired else 1)
    return dict(completions=interval(ours), beside=interval(theirs), difference=interval(ours - theirs))
