"""
The scaling law: the best loss that a number of training FLOPs can buy, L = a * C^-b.

>>> law = fit_power_law(flops, losses)  # of the best model at every budget
>>> law.b, law.low, law.high            # the exponent and its 95 % interval
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from common.figures import png_bytes
from common.files import write_bytes
from common.statistics import student


class PowerLaw(NamedTuple):
    """loss = a * flops ** -b; low and high are the ends of b's 95 % interval."""

    a: float
    b: float
    low: float
    high: float

    def __call__(self, flops: np.ndarray) -> np.ndarray:
        return self.a * flops**-self.b


def fit_power_law(flops: Sequence[float], losses: Sequence[float]) -> PowerLaw:
    """Least squares on the logarithms. The interval is Student's: it takes the points to scatter alike around the law,
    each on its own. ValueError for fewer than four points, which leave too little scatter to judge by.
    """
    if len(flops) < 4:
        raise ValueError(f"a power law needs four budgets for its interval, not {len(flops)}")
    x, y = np.log(flops), np.log(losses)
    spread = ((x - x.mean()) ** 2).sum()
    slope = ((x - x.mean()) * y).sum() / spread
    intercept = y.mean() - slope * x.mean()
    degrees = len(x) - 2
    variance = ((y - intercept - slope * x) ** 2).sum() / degrees
    reach = student(degrees) * (variance / spread) ** 0.5
    return PowerLaw(float(np.exp(intercept)), *(float(b) for b in (-slope, -slope - reach, -slope + reach)))


class Point(NamedTuple):
    """A variant at a budget: the mean over its seeds."""

    budget: float
    parameters: int
    flops: float
    loss: float
    variant: str


def points(rows: Sequence[dict]) -> list[Point]:
    """Of the rows of an experiment's table, by budget and parameters."""
    groups = {}
    for row in rows:
        groups.setdefault((row["budget"], row["parameters"], row["flops"], row["variant"]), []).append(row["val_loss"])
    return sorted(Point(*place, float(np.mean(losses)), variant) for (*place, variant), losses in groups.items())


def best_of_budgets(all_points: Sequence[Point]) -> list[Point]:
    """The lowest loss at every budget, by budget."""
    best = {}
    for point in all_points:
        if point.budget not in best or point.loss < best[point.budget].loss:
            best[point.budget] = point
    return list(best.values())


def plot_scaling(path: Path, all_points: Sequence[Point], law: PowerLaw | None):
    """Loss over parameters, a line for each budget; and the best of each over training FLOPs, with the law."""
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    best = best_of_budgets(all_points)
    for i, top in enumerate(best):
        color = f"C{i}"
        line = [point for point in all_points if point.budget == top.budget]
        xs, ys = [point.parameters for point in line], [point.loss for point in line]
        left.plot(xs, ys, marker=".", color=color, label=f"{top.budget:.2g}".replace("+", ""))
        left.plot(top.parameters, top.loss, marker="o", markersize=9, fillstyle="none", color=color)
        right.plot([point.flops for point in line], ys, ".", color=color, alpha=0.4)
        right.plot(top.flops, top.loss, "o", color=color)
        right.annotate(top.variant, (top.flops, top.loss), (0, -14), textcoords="offset points", ha="center", size=8)
    left.set(xscale="log", xlabel="parameters", ylabel="validation loss (nats per token)")
    left.legend(title="training FLOPs", fontsize=8)
    right.set(xscale="log", yscale="log", xlabel="training FLOPs")
    right.set_title("the best model (width-layers-heads) per budget")
    if law:
        ends = np.array([best[0].flops, best[-1].flops])
        label = f"{law.a:.3g} · C^−{law.b:.4f}, b in [{law.low:.4f}, {law.high:.4f}]"
        right.plot(ends, law(ends), color="black", linewidth=1, label=label)
        right.legend(fontsize=8)
    right.margins(0.12)
    right.yaxis.set_major_formatter(FormatStrFormatter("%.1f"))
    right.yaxis.set_minor_formatter(FormatStrFormatter("%.1f"))
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
    write_bytes(path, png_bytes(figure))
