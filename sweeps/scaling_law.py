"""
Scaling laws: the lowest loss that a number of training FLOPs can buy, and the size that buys it, both as a * C^b.

>>> law = fit_power_law(flops, losses)  # of the best model at every budget
>>> law.b, law.low, law.high            # the exponent and its 95% interval
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter

from common.tables import table_text


class PowerLaw(NamedTuple):
    """a * flops ** b; low and high are the ends of b's 95% interval."""

    a: float
    b: float
    low: float
    high: float

    def __call__(self, flops: np.ndarray) -> np.ndarray:
        return self.a * flops**self.b


def fit_power_law(flops: Sequence[float], values: Sequence[float]) -> PowerLaw:
    """Least squares on the logarithms. The interval is Student's: it assumes that the points scatter independently and
    equally around the law. ValueError for fewer than four points, which leave too little scatter to judge by.
    """
    from scipy import stats  # here, because it takes a second to import

    if len(flops) < 4:
        raise ValueError(f"a power law needs four budgets for its interval, not {len(flops)}")
    line = stats.linregress(np.log(flops), np.log(values))
    reach = stats.t.ppf(0.975, len(flops) - 2) * line.stderr
    return PowerLaw(*map(float, (np.exp(line.intercept), line.slope, line.slope - reach, line.slope + reach)))


class Point(NamedTuple):
    """A variant at a budget: the mean over its seeds."""

    budget: float
    parameters: int
    flops: float
    loss: float
    variant: str


def points(rows: Sequence[dict]) -> list[Point]:
    """The points in the rows of an experiment's table, by budget and parameters."""
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


def best_sizes(all_points: Sequence[Point]) -> list[tuple[float, str]]:
    """(parameters, bound) by budget: the minimum of a parabola through the losses of the best model and its neighbors
    in size, over the logarithm of parameters (Hoffmann et al., 2022, approach 2, with three points). A best model that
    is the smallest or the largest tried is a bound: "at most" or "at least"."""
    sizes = []
    for best in best_of_budgets(all_points):
        line = [point for point in all_points if point.budget == best.budget]  # by size
        i = line.index(best)
        if 0 < i < len(line) - 1:
            around = line[i - 1 : i + 2]
            logs = np.log([point.parameters / best.parameters for point in around])
            square, linear, _ = np.polyfit(logs, [point.loss for point in around], 2)
            sizes.append((float(best.parameters * np.exp(-linear / 2 / square)), ""))
        else:
            sizes.append((best.parameters, "at least" if i else "at most"))
    return sizes


def fit_laws(all_points: Sequence[Point]) -> dict[str, PowerLaw]:
    """The law of the loss; and of the size, if four budgets or more have their optimum among the sizes tried."""
    best, laws = best_of_budgets(all_points), {}
    inside = [(p.flops, size) for p, (size, bound) in zip(best, best_sizes(all_points)) if not bound]
    if len(best) > 3:
        laws["loss"] = fit_power_law([p.flops for p in best], [p.loss for p in best])
    if len(inside) > 3:
        laws["size"] = fit_power_law(*zip(*inside))
    return laws


def laws_text(rows: Sequence[dict]) -> str:
    """The best model at every budget, the size that would be best, and the laws."""
    all_points, lines = points(rows), []
    for best, (size, bound) in zip(best_of_budgets(all_points), best_sizes(all_points)):
        cells = [f"{best.budget:.2g}", best.variant, f"{best.parameters:,}", f"{best.loss:.3f}"]
        lines.append([*cells, f"{bound} {size:,.0f}".strip()])
    text = table_text(["training FLOPs", "best tried", "its parameters", "its loss", "best size"], lines)
    laws = fit_laws(all_points)
    for name, law in laws.items():
        interval = f"95% interval of the exponent [{law.low:.4f}, {law.high:.4f}]"
        text += f"\n\n{name} = {law.a:.4g} * FLOPs^{law.b:.4f}, {interval}"
    if "size" not in laws:
        text += "\n\nno law of the size: it needs four budgets whose best model is not the smallest or largest tried"
    return text


def draw(rows: Sequence[dict]) -> Figure:
    """Loss over parameters, a line for each budget; the lowest loss and the best size of each, over FLOPs, with their
    laws."""
    all_points = points(rows)
    best, laws = best_of_budgets(all_points), fit_laws(all_points)
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    losses, lowest, sizes = figure.subplots(1, 3)
    for i, (top, (size, bound)) in enumerate(zip(best, best_sizes(all_points))):
        color, line = f"C{i}", [point for point in all_points if point.budget == top.budget]
        label = f"{top.budget:.2g}".replace("+", "")
        losses.plot([p.parameters for p in line], [p.loss for p in line], ".-", color=color, label=label)
        losses.plot(top.parameters, top.loss, "o", markersize=9, fillstyle="none", color=color)
        lowest.plot([p.flops for p in line], [p.loss for p in line], ".", color=color, alpha=0.4)
        lowest.plot(top.flops, top.loss, "o", color=color)
        lowest.annotate(top.variant, (top.flops, top.loss), (0, -14), textcoords="offset points", ha="center", size=8)
        marker = {"": "o", "at most": "v", "at least": "^"}[bound]
        sizes.plot(top.flops, size, marker, fillstyle="none" if bound else "full", color=color)
    ends = np.array([min(p.flops for p in all_points), max(p.flops for p in all_points)])
    for axes, name in ((lowest, "loss"), (sizes, "size")):
        if law := laws.get(name):
            label = f"{law.a:.3g} · C^{law.b:.4f}, exponent in [{law.low:.4f}, {law.high:.4f}]".replace("-", "−")
            axes.plot(ends, law(ends), color="black", linewidth=1, label=label)
            axes.legend(fontsize=8)
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs")
        axes.margins(0.12)
    losses.set(xscale="log", xlabel="parameters", ylabel="validation loss (nats per token)")
    losses.legend(title="training FLOPs", fontsize=8)
    lowest.set_title("lowest loss (width-layers-heads)")
    lowest.yaxis.set_major_formatter(FormatStrFormatter("%.1f"))
    lowest.yaxis.set_minor_formatter(FormatStrFormatter("%.1f"))
    sizes.set(ylabel="parameters", title="best size (hollow: beyond the sizes tried)")
    for axes in (losses, lowest, sizes):
        axes.grid(alpha=0.3, which="both")
    return figure
