"""
What rouge.py measures: means over texts that come in clusters (completions of one prompt, excerpts
of one story), with 95% intervals, beside a baseline.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nanostories.statistics import Estimate, estimate, ratio


class ClusteredValues(NamedTuple):
    """A measure of n texts, and the cluster of each."""

    values: np.ndarray  # (n,) float; NaN where it is undefined
    clusters: np.ndarray  # (n,) the prompt of a completion, the story of a held-out excerpt

    def by_cluster(self) -> tuple[np.ndarray, np.ndarray]:
        """(the sum of each cluster's values, their number)"""
        is_known = ~np.isnan(self.values)
        clusters = np.unique(self.clusters[is_known], return_inverse=True)[1]
        return np.bincount(clusters, self.values[is_known]), np.bincount(clusters)


@dataclass
class Metric:
    completions: ClusteredValues
    baseline: ClusteredValues
    is_paired: bool = False  # both have the same clusters
    is_count: bool = False  # of words; else a share, from 0 to 1
    is_yes_no: bool = False  # each value is 0 or 1, so that the mean is a share of texts

    def cells(self) -> dict[str, list[float]]:
        """{"completions", "baseline", "difference": [mean, low, high]}; without the last two if
        there is no baseline."""
        ours = self.mean(self.completions)
        cells = {"completions": self.clipped(ours)}
        if np.isnan(self.baseline.values).all():
            return cells
        theirs = self.mean(self.baseline)
        value = ours.value - theirs.value
        margin = np.hypot(half_width(ours), half_width(theirs))
        if self.is_paired:
            paired = estimate(self.differences())
            margin = paired.high - paired.value
        cells["baseline"] = self.clipped(theirs)
        cells["difference"] = [value, value - margin, value + margin]
        return cells

    def mean(self, found: ClusteredValues) -> Estimate:
        """With its interval. That of a share of texts has a width for 3 of 3, too."""
        if self.is_yes_no:
            sums, n = found.by_cluster()
            return estimate(sums / n, share=True)
        return ratio(*found.by_cluster())

    def differences(self) -> np.ndarray:
        """(clusters,) of their means."""
        total, n = self.completions.by_cluster()
        total_baseline, n_baseline = self.baseline.by_cluster()
        return total / n - total_baseline / n_baseline

    def clipped(self, mean: Estimate) -> list[float]:
        largest = None if self.is_count else 1
        return [mean.value, *np.clip([mean.low, mean.high], 0, largest)]


def half_width(mean: Estimate) -> float:
    return max(mean.high - mean.value, mean.value - mean.low)
