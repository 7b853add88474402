"""
95 % intervals for means over texts that come in clusters: completions of one prompt, pieces of one story.

>>> interval(bootstrap_means(Clustered(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1]))))
{'mean': 2.3333333333333335, 'low': 1.5, 'high': 4.0}
"""

from typing import NamedTuple

import numpy as np

from common.statistics import DRAWS, SHARES, bootstrap_ratio


class Clustered(NamedTuple):
    """One number for each of n texts, and the cluster that the text belongs to."""

    values: np.ndarray  # (n,) float; NaN where it is undefined for a text
    clusters: np.ndarray  # (n,)


def bootstrap_means(numbers: Clustered, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """(1 + draws,): the mean over texts, then the means of bootstrap samples of whole clusters; these are NaN if there
    is only one cluster. With the same seed, numbers with the same clusters get the same samples."""
    known = ~np.isnan(numbers.values)
    cluster = np.unique(numbers.clusters[known], return_inverse=True)[1]
    means = bootstrap_ratio(np.bincount(cluster, numbers.values[known]), np.bincount(cluster), draws, seed)
    if len(set(cluster)) < 2:
        means[1:] = np.nan
    return means


def interval(means: np.ndarray) -> dict:
    low, high = np.quantile(means[1:], SHARES)
    return dict(mean=float(means[0]), low=float(low), high=float(high))


def compare_means(completions: Clustered, baseline: Clustered | None, paired: bool) -> dict:
    """What rouge.json has of a metric: means and their difference, with 95 % intervals. paired: both have the same
    prompts."""
    ours = bootstrap_means(completions)
    if baseline is None or np.isnan(baseline.values).all():
        return dict(completions=interval(ours))
    theirs = bootstrap_means(baseline, seed=0 if paired else 1)
    return dict(completions=interval(ours), beside=interval(theirs), difference=interval(ours - theirs))
