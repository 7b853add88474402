"""
95% intervals for means over texts that come in clusters: completions of one prompt, pieces of one story.

>>> bootstrap_means(Clustered(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1])))[:1]
array([2.33333333])
"""

from typing import NamedTuple

import numpy as np

from common.statistics import DRAWS, bootstrap_ratio, interval


class Clustered(NamedTuple):
    """One number for each of n texts, and the cluster that the text belongs to."""

    values: np.ndarray  # (n,) float; NaN where it is undefined for a text
    clusters: np.ndarray  # (n,)

    @property
    def known(self) -> "Clustered":
        """Without the texts whose value is NaN."""
        return Clustered(*(column[~np.isnan(self.values)] for column in self))


def bootstrap_means(numbers: Clustered, draws: int = DRAWS, seed: int = 0) -> np.ndarray:
    """(1 + draws,): the mean over texts, then the means of bootstrap samples of whole clusters. With the same seed,
    numbers with the same clusters get the same samples."""
    values, clusters = numbers.known
    cluster = np.unique(clusters, return_inverse=True)[1]
    return bootstrap_ratio(np.bincount(cluster, values), np.bincount(cluster), draws, seed)


def compare_means(ours: Clustered, theirs: Clustered | None, paired: bool) -> dict:
    """A metric's entry in rouge.json: the means of the completions and of the baseline, and their difference,
    with 95% intervals (NaN with only one cluster). paired: both have the same prompts."""
    n, means = len(set(ours.known.clusters)), bootstrap_means(ours)
    found = dict(completions=interval(means, n))
    if theirs is not None and len(theirs.known.values):
        m, others = len(set(theirs.known.clusters)), bootstrap_means(theirs, seed=0 if paired else 1)
        found |= dict(beside=interval(others, m), difference=interval(means - others, min(m, n)))
    names = ("mean", "low", "high")
    return {what: dict(zip(names, map(float, estimate))) for what, estimate in found.items()}
