"""
The picture of rouge.py: how each metric is distributed over the completions of one or several runs.
"""

import numpy as np
from matplotlib.figure import Figure

STYLES = dict(color="C0", histtype="step", linewidth=1.8), dict(color="C1", alpha=0.35)


def histograms(titles: dict[str, str], runs: list[tuple[str, dict, dict]]) -> Figure:
    """A row for each run, with a panel for each metric: lines are completions, areas their
    baseline. The last panel shows which shares of k-grams occur in the training set.

    titles: {metric: title} of the panels. runs: (name, compared, metrics) as in rouge.Analysis.
    """
    titles = {
        name: title
        for name, title in titles.items()
        if any(name in compared for _, compared, _ in runs)
    }
    figure = Figure(figsize=(3.4 * (len(titles) + 1), 1 + 2.4 * len(runs)), layout="constrained")
    *columns, last = figure.subplots(len(runs), len(titles) + 1, squeeze=False).T
    for panels, (name, title) in zip(columns, titles.items()):
        texts = [
            [each.values[~np.isnan(each.values)] for each in run[1].get(name, ()) if each]
            for run in runs
        ]
        largest = max(0.01, *(values.max(initial=0) for both in texts for values in both))
        step = np.ceil(largest / 40)  # whole words
        bins = (
            np.arange(-0.5, largest + step, step) if name == "span" else np.linspace(0, largest, 41)
        )
        for axes, both in zip(panels, texts):
            for values, style in zip(both, STYLES):
                axes.hist(
                    values, bins, weights=np.full(len(values), 100 / max(len(values), 1)), **style
                )
            axes.set_xlabel(title, fontsize=8)
    for axes, first, (label, _, figures) in zip(last, columns[0] if columns else last, runs):
        shares = {
            int(name.removeprefix("share_")): figures[name]
            for name in figures
            if name.startswith("share_")
        }
        for column, color in (("completions", "C0"), ("baseline", "C1")):
            means = {k: 100 * share[column][0] for k, share in shares.items() if column in share}
            axes.plot(means.keys(), means.values(), color=color, marker="o")
        axes.set_ylim(0, 103)
        axes.set_xlabel("% of k-grams in the training set, over k", fontsize=8)
        first.set_title(label, loc="left", fontsize=9)
        first.set_ylabel("texts (%)", fontsize=8)
    figure.suptitle(
        "Blue: completions. Orange: held-out stories (for true endings: those of others)",
        fontsize=10,
    )
    return figure
