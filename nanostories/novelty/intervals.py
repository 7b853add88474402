"""
Means over texts that come in clusters (completions of one prompt, excerpts of one story), with 95%
intervals.
"""

from typing import NamedTuple

import numpy as np

from nanostories.statistics import Estimate, estimate, ratio


class ClusteredValues(NamedTuple):
    """A measure of n texts, and the cluster of each."""

    values: np.ndarray  # (n,) float; NaN where it is undefined
    clusters: np.ndarray  # (n,) the prompt of a completion, the story of a held-out excerpt


def compare(
    ours: ClusteredValues,
    theirs: ClusteredValues | None,
    paired: bool = False,
    max_value: float = 1.0,
) -> dict[str, list[float]]:
    """{"completions", "baseline", "difference": [mean, low, high]}; without the last two if there
    is no baseline.

    paired: both have the same clusters. max_value: the largest possible; the smallest is 0."""
    a = mean(ours)
    found = {"completions": clipped(a, 0.0, max_value)}
    if theirs is None or np.isnan(theirs.values).all():
        return found
    b = mean(theirs)
    found["baseline"] = clipped(b, 0.0, max_value)
    value = a.value - b.value
    if paired:
        by_cluster = cluster_means(ours) - cluster_means(theirs)
        margin = margin_of(estimate(by_cluster))
    else:
        margin = np.hypot(margin_of(a), margin_of(b))
    difference = Estimate(value, value - margin, value + margin, np.nan)
    found["difference"] = clipped(difference, -max_value, max_value)
    return found


def sums(texts: ClusteredValues) -> tuple[np.ndarray, np.ndarray]:
    """(the sum of each cluster's values, their number)"""
    known = ~np.isnan(texts.values)
    clusters = np.unique(texts.clusters[known], return_inverse=True)[1]
    return np.bincount(clusters, texts.values[known]), np.bincount(clusters)


def mean(texts: ClusteredValues) -> Estimate:
    return ratio(*sums(texts))


def cluster_means(texts: ClusteredValues) -> np.ndarray:
    total, n = sums(texts)
    return total / n


def margin_of(found: Estimate) -> float:
    return found.high - found.value


def clipped(found: Estimate, smallest: float, largest: float) -> list[float]:
    low, high = np.clip([found.low, found.high], smallest, largest).tolist()
    return [float(found.value), low, high]
