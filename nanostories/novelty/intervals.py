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
    title: str
    completions: ClusteredValues
    baseline: ClusteredValues | None = None
    is_paired: bool = False  # both have the same clusters
    largest: float = 1.0  # of possible values; the smallest is 0

    @property
    def is_defined(self) -> bool:
        return not np.isnan(self.completions.values).all()

    def cells(self) -> dict[str, list[float]]:
        """{"completions", "baseline", "difference": [mean, low, high]}; without the last two if
        there is no baseline."""
        ours = ratio(*self.completions.by_cluster())
        cells = {"completions": clipped(ours, 0.0, self.largest)}
        if self.baseline is None or np.isnan(self.baseline.values).all():
            return cells
        theirs = ratio(*self.baseline.by_cluster())
        cells["baseline"] = clipped(theirs, 0.0, self.largest)
        if self.is_paired:
            margin = margin_of(estimate(self.differences()))
        else:
            margin = np.hypot(margin_of(ours), margin_of(theirs))
        value = ours.value - theirs.value
        difference = Estimate(value, value - margin, value + margin, np.nan)
        cells["difference"] = clipped(difference, -self.largest, self.largest)
        return cells

    def differences(self) -> np.ndarray:
        """(clusters,) of their means."""
        total, n = self.completions.by_cluster()
        total_baseline, n_baseline = self.baseline.by_cluster()
        return total / n - total_baseline / n_baseline


def margin_of(found: Estimate) -> float:
    return found.high - found.value


def clipped(found: Estimate, smallest: float, largest: float) -> list[float]:
    low, high = np.clip([found.low, found.high], smallest, largest).tolist()
    return [float(found.value), low, high]
