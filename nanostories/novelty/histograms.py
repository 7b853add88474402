"""
The picture of rouge.py: how each metric is distributed over the completions of one or several runs,
or over the stories of corpora.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from nanostories.novelty.intervals import ClusteredValues, Metric

COMPLETIONS = {"color": "C0", "histtype": "step", "linewidth": 1.8}
BASELINE = {"color": "C1", "alpha": 0.35}
N_BINS = 40
LEGEND = "Blue: completions. Orange: held-out stories (for true endings: other stories' endings)"


def histograms(
    runs: Mapping[str, Mapping[str, Metric]], titles: Sequence[str], legend: str = LEGEND
) -> Figure:
    """A row for each run, with a panel for each of these metrics that all runs have.

    runs: {label: {title: metric}}."""
    shared = set(titles).intersection(*runs.values())
    titles = [title for title in titles if title in shared]
    size = (3.4 * len(titles), 1 + 2.4 * len(runs))
    figure = Figure(figsize=size, layout="constrained")
    rows = figure.subplots(len(runs), len(titles), squeeze=False)
    for panels, label in zip(rows, runs):
        panels[0].set_title(label, loc="left", fontsize=9)
        panels[0].set_ylabel("texts (%)", fontsize=8)
    for panels, title in zip(rows.T, titles):
        metrics = [metrics[title] for metrics in runs.values()]
        bins = common_bins(metrics)
        for axes, metric in zip(panels, metrics):
            draw_histogram(axes, metric.completions, bins, COMPLETIONS)
            draw_histogram(axes, metric.baseline, bins, BASELINE)
            axes.set_xlabel(title, fontsize=8)
    figure.suptitle(legend, fontsize=10)
    return figure


def common_bins(metrics: Sequence[Metric]) -> np.ndarray:
    """The same for all runs, so that their panels can be compared."""
    values = [metric.completions.values for metric in metrics]
    values += [metric.baseline.values for metric in metrics]
    largest = max(0.01, np.nanmax(np.concatenate(values)))
    if metrics[0].is_count:  # bins of whole words
        width = np.ceil(largest / N_BINS)
        return np.arange(-0.5, largest + width, width)
    return np.linspace(0, largest, N_BINS + 1)


def draw_histogram(axes, texts: ClusteredValues, bins: np.ndarray, style: dict) -> None:
    values = texts.values[~np.isnan(texts.values)]
    weights = np.full(len(values), 100 / max(len(values), 1))
    axes.hist(values, bins, weights=weights, **style)
