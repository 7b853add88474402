"""
Scaling laws: the lowest loss that a number of training FLOPs can buy, and the size that buys it, both as a * C^b.

>>> law = fit_power_law(flops, losses)  # of the best model at every budget
>>> law.b, law.low, law.high            # the exponent and its 95% interval
"""

import math
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


class Optimum(NamedTuple):
    """The size that is best for a number of training FLOPs."""

    budget: float
    flops: float
    parameters: float
    bound: str = ""  # "at most" or "at least": the best model is the smallest or the largest tried


def optimal_sizes(all_points: Sequence[Point]) -> list[Optimum]:
    """By budget: where the parabola through the losses of the best model and its neighbors in size, over the logarithm
    of parameters, is lowest (Hoffmann et al., 2022, approach 2, with three points)."""
    optima = []
    for top in best_of_budgets(all_points):
        line = [point for point in all_points if point.budget == top.budget]  # by size
        i = line.index(top)
        if 0 < i < len(line) - 1:
            around = line[i - 1 : i + 2]
            sizes = np.log([point.parameters / top.parameters for point in around])
            square, linear, _ = np.polyfit(sizes, [point.loss for point in around], 2)
            optima.append(Optimum(top.budget, top.flops, float(top.parameters * np.exp(-linear / 2 / square))))
        else:
            optima.append(Optimum(top.budget, top.flops, top.parameters, "at least" if i else "at most"))
    return optima


def fit_laws(all_points: Sequence[Point]) -> dict[str, PowerLaw]:
    """The law of the loss; and of the size, if four budgets or more have their optimum among the sizes tried."""
    best = best_of_budgets(all_points)
    inside = [optimum for optimum in optimal_sizes(all_points) if not optimum.bound]
    laws = {}
    if len(best) > 3:
        laws["loss"] = fit_power_law([p.flops for p in best], [p.loss for p in best])
    if len(inside) > 3:
        laws["size"] = fit_power_law([p.flops for p in inside], [p.parameters for p in inside])
    return laws


def laws_text(rows: Sequence[dict]) -> str:
    """The best model at every budget, the size that would be best, and the laws."""
    all_points, lines = points(rows), []
    for top, optimum in zip(best_of_budgets(all_points), optimal_sizes(all_points)):
        size = f"{optimum.bound} {optimum.parameters:,.0f}".strip()
        lines.append([f"{top.budget:.2g}", top.variant, f"{top.parameters:,}", f"{top.loss:.3f}", size])
    text = table_text(["training FLOPs", "best tried", "its parameters", "its loss", "best size"], lines)
    laws = fit_laws(all_points)
    for name, law in laws.items():
        interval = f"95% interval of the exponent [{law.low:.4f}, {law.high:.4f}]"
        text += f"\n\n{name} = {law.a:.4g} * FLOPs^{law.b:.4f}, {interval}"
    if "size" not in laws:
        text += "\n\nno law of the size: it needs four budgets whose best model is not the smallest or largest tried"
    return text


# ---- The plot ----


def draw(rows: Sequence[dict], measures: dict[str, str]) -> Figure:
    """Loss over parameters, a line for each budget; the lowest loss and the best size of each, over FLOPs, with their
    laws. Below: measures {column: label} over the loss."""
    all_points, down = points(rows), 1 + math.ceil(len(measures) / 3)
    figure = Figure(figsize=(15, 4.5 * down), layout="constrained")
    grid = figure.subplots(down, 3, squeeze=False)
    colors = {budget: f"C{i}" for i, budget in enumerate(sorted({point.budget for point in all_points}))}
    draw_losses(grid[0, 0], all_points, colors)
    draw_best(grid[0, 1], all_points, colors)
    draw_sizes(grid[0, 2], all_points, colors)
    ends, laws = np.array([min(p.flops for p in all_points), max(p.flops for p in all_points)]), fit_laws(all_points)
    for axes, name in zip(grid[0, 1:], ("loss", "size")):
        if law := laws.get(name):
            label = f"{law.a:.3g} · C^{law.b:.4f}, exponent in [{law.low:.4f}, {law.high:.4f}]".replace("-", "−")
            axes.plot(ends, law(ends), color="black", linewidth=1, label=label)
            axes.legend(fontsize=8)
    for axes, (column, label) in zip(grid[1:].flat, measures.items()):
        for row in (row for row in rows if column in row):
            color, loss = colors[row["budget"]], row["val_loss"]
            axes.plot(loss, row[column], ".", color=color)
            axes.plot((loss, loss), (row[f"{column}_low"], row[f"{column}_high"]), color=color, alpha=0.4)
        axes.set(xlabel="validation loss (nats per token), falling to the right", ylabel=label)
        axes.invert_xaxis()
    for axes in grid.flat[3 + len(measures) :]:
        axes.set_axis_off()
    for axes in grid.flat:
        axes.grid(alpha=0.3, which="both")
    return figure


def draw_losses(axes, all_points: Sequence[Point], colors: dict[float, str]) -> None:
    for top in best_of_budgets(all_points):
        line = [point for point in all_points if point.budget == top.budget]
        sizes, label = [point.parameters for point in line], f"{top.budget:.2g}".replace("+", "")
        axes.plot(sizes, [point.loss for point in line], marker=".", color=colors[top.budget], label=label)
        axes.plot(top.parameters, top.loss, marker="o", markersize=9, fillstyle="none", color=colors[top.budget])
    axes.set(xscale="log", xlabel="parameters", ylabel="validation loss (nats per token)")
    axes.legend(title="training FLOPs", fontsize=8)


def draw_best(axes, all_points: Sequence[Point], colors: dict[float, str]) -> None:
    for point in all_points:
        axes.plot(point.flops, point.loss, ".", color=colors[point.budget], alpha=0.4)
    for top in best_of_budgets(all_points):
        axes.plot(top.flops, top.loss, "o", color=colors[top.budget])
        axes.annotate(top.variant, (top.flops, top.loss), (0, -14), textcoords="offset points", ha="center", size=8)
    axes.set(xscale="log", yscale="log", xlabel="training FLOPs", title="lowest loss (width-layers-heads)")
    axes.margins(0.12)
    axes.yaxis.set_major_formatter(FormatStrFormatter("%.1f"))
    axes.yaxis.set_minor_formatter(FormatStrFormatter("%.1f"))


def draw_sizes(axes, all_points: Sequence[Point], colors: dict[float, str]) -> None:
    markers = {"": "o", "at most": "v", "at least": "^"}
    for optimum in optimal_sizes(all_points):
        style = dict(marker=markers[optimum.bound], fillstyle="none" if optimum.bound else "full", linestyle="")
        axes.plot(optimum.flops, optimum.parameters, color=colors[optimum.budget], **style)
    axes.set(xscale="log", yscale="log", xlabel="training FLOPs", ylabel="parameters")
    axes.set_title("best size (hollow: beyond the sizes tried)")
    axes.margins(0.12)
