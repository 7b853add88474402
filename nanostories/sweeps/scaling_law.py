"""
Scaling laws: the lowest loss that a number of training FLOPs can buy, and the size that buys it,
both as a * C^b.

>>> law = fit_power_law(flops, losses)  # for the best model at every budget
>>> law.b, law.low, law.high            # the exponent and its 95% interval
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from nanostories.tables import table_text


class PowerLaw(NamedTuple):
    """a * flops ** b; low and high are the ends of b's 95% interval."""

    a: float
    b: float
    low: float
    high: float


class Best(NamedTuple):
    """The best model at a budget."""

    budget: float
    flops: float
    variant: str
    parameters: int
    loss: float  # mean over its seeds
    size: float  # parameters that would be best
    bound: str  # "at most" or "at least", if it is the smallest or the largest that was tried


def fit_power_law(flops: Sequence[float], values: Sequence[float]) -> PowerLaw:
    """Least squares on the logarithms. The interval is Student's: it assumes that the points
    scatter independently and equally around the law."""
    from scipy import stats  # here, because it takes a second to import

    line = stats.linregress(np.log(flops), np.log(values))
    margin = stats.t.ppf(0.975, len(flops) - 2) * line.stderr
    return PowerLaw(
        *map(float, (np.exp(line.intercept), line.slope, line.slope - margin, line.slope + margin))
    )


def best_of_budgets(rows: Sequence[dict]) -> list[Best]:
    """By budget. The best size is the minimum of a parabola through the losses of the best model
    and its neighbors in size, over the logarithm of parameters (Hoffmann et al., 2022, approach 2,
    with three points)."""
    losses, found = {}, []
    for row in rows:
        key = row["budget"], row["parameters"], row["flops"], row["variant"]
        losses.setdefault(key, []).append(row["val_loss"])
    for budget, group in itertools.groupby(sorted(losses), key=lambda key: key[0]):
        keys = list(group)  # by size
        means = [float(np.mean(losses[key])) for key in keys]
        i = int(np.argmin(means))
        _, size, flops, variant = keys[i]
        bound = "at most" if i == 0 else "at least" if i == len(keys) - 1 else ""
        best = size
        if not bound:
            logs = np.log([key[1] / size for key in keys[i - 1 : i + 2]])
            square, linear, _ = np.polyfit(logs, means[i - 1 : i + 2], 2)
            best = float(size * np.exp(-linear / 2 / square))
        found.append(Best(budget, flops, variant, size, means[i], best, bound))
    return found


def fit_laws(best: Sequence[Best]) -> dict[str, PowerLaw]:
    """The law of the loss, and of the size: of four budgets or more, as fewer leave too little
    scatter for an interval; for the size, of those whose optimum is among the sizes tried."""
    sizes = [(own.flops, own.size) for own in best if not own.bound]
    values = dict(loss=[(own.flops, own.loss) for own in best], size=sizes)
    return {name: fit_power_law(*zip(*pairs)) for name, pairs in values.items() if len(pairs) > 3}


def laws_text(rows: Sequence[dict]) -> str:
    """The best model at every budget, the size that would be best, and the laws."""
    best = best_of_budgets(rows)
    lines = [
        [
            f"{b.budget:.2g}",
            b.variant,
            f"{b.parameters:,}",
            f"{b.loss:.3f}",
            f"{b.bound} {b.size:,.0f}".strip(),
        ]
        for b in best
    ]
    text = table_text(
        ["training FLOPs", "best model tried", "its parameters", "its loss", "fitted best size"],
        lines,
    )
    laws = fit_laws(best)
    for name, law in laws.items():
        interval = f"95% interval of the exponent [{law.low:.4f}, {law.high:.4f}]"
        text += f"\n\n{name} = {law.a:.4g} * FLOPs^{law.b:.4f}, {interval}"
    if "size" not in laws:
        text += (
            "\n\nno law of the size: it needs four budgets whose best model is not the smallest or"
            " largest tried"
        )
    return text


def draw(rows: Sequence[dict]) -> Figure:
    """Loss and best size over FLOPs, with their laws."""
    best = best_of_budgets(rows)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    losses, sizes = figure.subplots(1, 2)
    losses.plot(
        [row["flops"] for row in rows],
        [row["val_loss"] for row in rows],
        ".",
        color="C0",
        alpha=0.4,
    )
    for own in best:
        losses.plot(own.flops, own.loss, "o", color="C0")
        losses.annotate(
            own.variant,
            (own.flops, own.loss),
            (0, -14),
            textcoords="offset points",
            ha="center",
            size=8,
        )
        marker = {"": "o", "at most": "v", "at least": "^"}[own.bound]
        sizes.plot(
            own.flops, own.size, marker, fillstyle="none" if own.bound else "full", color="C0"
        )
    flops = np.array([best[0].flops, best[-1].flops])
    for axes, name in ((losses, "loss"), (sizes, "size")):
        if law := fit_laws(best).get(name):
            label = (
                f"{law.a:.3g} · C^{law.b:.3f}, exponent in [{law.low:.3f}, {law.high:.3f}]".replace(
                    "-", "−"
                )
            )
            axes.plot(flops, law.a * flops**law.b, color="black", linewidth=1, label=label)
            axes.legend(fontsize=8)
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs")
        axes.yaxis.set_minor_formatter(lambda value, _: f"{value:.2g}" if value < 1000 else "")
        axes.margins(0.12)
        axes.grid(alpha=0.3, which="both")
    losses.set(
        ylabel="validation loss (nats per token)",
        title="lowest loss of each budget (width-layers-heads)",
    )
    sizes.set(ylabel="parameters", title="best size (hollow: beyond the sizes tried)")
    return figure
