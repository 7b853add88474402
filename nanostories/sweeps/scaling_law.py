"""
Scaling laws: the lowest loss that a number of training FLOPs can buy, and the size that buys it,
both as a * C^b.

>>> law = fit_power_law(flops, losses)  # for the best model at every budget
>>> law.b, law.low, law.high            # the exponent and its 95% interval
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

from nanostories.results import Table

MARKERS = {"": "o", "at most": "v", "at least": "^"}  # of a best size, by its bound


class PowerLaw(NamedTuple):
    """a * flops ** b; low and high are the ends of b's 95% interval."""

    a: float
    b: float
    low: float
    high: float


def fit_power_law(flops: Sequence[float], values: Sequence[float]) -> PowerLaw:
    """Least squares on the logarithms. The interval is Student's: it assumes that the points
    scatter independently and equally around the law."""
    from scipy import stats  # here, because it takes a second to import

    line = stats.linregress(np.log(flops), np.log(values))
    margin = stats.t.ppf(0.975, len(flops) - 2) * line.stderr
    low = line.slope - margin
    high = line.slope + margin
    return PowerLaw(float(np.exp(line.intercept)), float(line.slope), float(low), float(high))


def best_of_budgets(rows: Sequence[dict]) -> list[dict]:
    """The best model at each budget: a row of `models_of`, with the `size` that would be best
    (parameters), and its `bound`: "at most" or "at least", if the model is the smallest or the
    largest that was tried.

    The best size is the minimum of a parabola through the losses of the best model and its
    neighbors in size among models of the same depth, as the loss is no smooth function of size
    across depths; over the logarithm of parameters (Hoffmann et al., 2022, approach 2, with three
    points)."""
    found = []
    for budget in sorted({row["budget"] for row in rows}):
        models = models_of([row for row in rows if row["budget"] == budget])
        best = min(models, key=lambda model: model["loss"])
        family = [model for model in models if model["n_layer"] == best["n_layer"]]
        i = family.index(best)
        size = best["parameters"]
        bound = ""
        if i == 0:
            bound = "at most"
        elif i == len(family) - 1:
            bound = "at least"
        else:
            around = family[i - 1 : i + 2]
            logs = np.log([model["parameters"] / size for model in around])
            square, linear, _ = np.polyfit(logs, [model["loss"] for model in around], 2)
            size = float(size * np.exp(-linear / 2 / square))
        found.append(best | {"size": size, "bound": bound})
    return found


def models_of(rows: Sequence[dict]) -> list[dict]:
    """The models of one budget, by size: a row of each, with the mean `loss` of its seeds."""
    models = {}
    losses = {}
    for row in sorted(rows, key=lambda row: row["parameters"]):
        models[row["variant"]] = row
        losses.setdefault(row["variant"], []).append(row["validation loss"])
    return [row | {"loss": float(np.mean(losses[name]))} for name, row in models.items()]


def fit_laws(best: Sequence[dict]) -> dict[str, PowerLaw]:
    """The law of the loss, and of the size: of four budgets or more, as fewer leave too little
    scatter for an interval; for the size, of those whose optimum is among the sizes tried."""
    laws = {}
    for name, rows in (("loss", best), ("size", [row for row in best if not row["bound"]])):
        if len(rows) > 3:
            flops = [row["training FLOPs"] for row in rows]
            laws[name] = fit_power_law(flops, [row[name] for row in rows])
    return laws


def tables(rows: Sequence[dict]) -> list[Table]:
    """The best model at every budget, the size that would be best, and the laws."""
    best = best_of_budgets(rows)
    models = []
    for row in best:
        models.append(
            {
                "training FLOPs": f"{row['budget']:.2g}",
                "best model tried": row["variant"],
                "its parameters": row["parameters"],
                "its loss": row["loss"],
                "best size": f"{row['bound']} {row['size']:,.0f}".strip(),
                "compared among": f"{row['n_layer']} layers",
            }
        )
    laws = []
    for name, law in fit_laws(best).items():
        exponent = [law.b, law.low, law.high]
        laws.append({"fit of": name, "factor": law.a, "exponent of FLOPs": exponent})
    about = "A law of the size needs four budgets whose best model is neither the smallest nor the"
    about += " largest of its depth."
    formats = {"its loss": ".3f", "factor": ".4g", "exponent of FLOPs": ".4f"}
    return [Table("Best models", models, formats), Table("Laws", laws, formats, about=about)]


def draw(rows: Sequence[dict]) -> Figure:
    """Loss and best size over FLOPs, with their laws."""
    best = best_of_budgets(rows)
    laws = fit_laws(best)
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    loss_axes, size_axes = figure.subplots(1, 2)
    for row in rows:
        loss_axes.plot(row["training FLOPs"], row["validation loss"], "C0.", alpha=0.4)
    for row in best:
        place = (row["training FLOPs"], row["loss"])
        loss_axes.plot(*place, "C0o")
        style = dict(xytext=(0, -14), textcoords="offset points", ha="center", size=8)
        loss_axes.annotate(row["variant"], place, **style)
        size_axes.plot(row["training FLOPs"], row["size"], "C0" + MARKERS[row["bound"]])
    flops = np.array([best[0]["training FLOPs"], best[-1]["training FLOPs"]])
    for axes, name in ((loss_axes, "loss"), (size_axes, "size")):
        if name in laws:
            law = laws[name]
            label = f"{law.a:.3g} · C^{law.b:.3f}, exponent in [{law.low:.3f}, {law.high:.3f}]"
            axes.plot(flops, law.a * flops**law.b, color="black", linewidth=1, label=label)
            axes.legend(fontsize=8)
        axes.set(xscale="log", yscale="log", xlabel="training FLOPs")
        axes.margins(0.12)
        axes.grid(alpha=0.3, which="both")
    loss_axes.set(
        ylabel="validation loss (nats per token)",
        title="lowest loss of each budget (width-layers-heads)",
    )
    loss_axes.yaxis.set_minor_formatter("{x:.2g}")
    size_axes.set(ylabel="parameters", title="best size (triangle: a bound, left out of the fit)")
    size_axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
    size_axes.yaxis.set_major_formatter(EngFormatter())
    size_axes.yaxis.set_minor_formatter(NullFormatter())
    return figure
