"""
The picture of rouge.py: how each figure is distributed over the completions of one or several runs.
"""

import numpy as np
from matplotlib.figure import Figure


def histograms(titles: dict[str, str], runs: list[tuple[str, dict, dict]]) -> Figure:
    """A color for each run: lines are completions, pale areas their baseline; in the last panel, which shares of
    k-grams occur in the training set, dashes are.

    titles: {metric: title} of the panels. runs: (name, compared, figures) as in rouge.Analysis.
    """
    titles = {name: title for name, title in titles.items() if any(name in compared for _, compared, _ in runs)}
    figure = Figure(figsize=(16, 7.5), layout="constrained")
    *panels, last = figure.subplots(2, len(titles) // 2 + 1).flat
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    for axes, (name, title) in zip(panels, titles.items()):
        pairs = {f"C{i}": compared[name] for i, (_, compared, _) in enumerate(runs) if name in compared}
        known = {color: [each[0][~np.isnan(each[0])] for each in pair if each] for color, pair in pairs.items()}
        largest = max(0.01, *(column.max(initial=0) for both in known.values() for column in both))
        step = np.ceil(largest / 40)  # whole words
        bins = np.arange(-0.5, largest + step, step) if name == "span" else np.linspace(0, largest, 41)
        for color, both in known.items():
            for column, style in zip(both, (dict(histtype="step", linewidth=1.8), dict(alpha=0.2))):
                if len(column):
                    axes.hist(column, bins, weights=np.full(len(column), 100 / len(column)), color=color, **style)
        axes.set_xlabel(title, fontsize=9)  # the longest title is as wide as its panel
        axes.set_ylabel("texts (%)")
    for i, (label, _, of_run) in enumerate(runs):
        shares = {int(name.removeprefix("share_")): of_run[name] for name in of_run if name.startswith("share_")}
        for column, style in (("completions", dict(marker="o", label=label)), ("baseline", dict(linestyle="--"))):
            points = [(k, *share[column].values()) for k, share in shares.items() if column in share]
            ks, means, lows, highs = np.array(points, dtype=float).reshape(-1, 4).T
            last.plot(ks, 100 * means, color=f"C{i}", **style)
            last.fill_between(ks, 100 * lows, 100 * highs, color=f"C{i}", alpha=0.2, linewidth=0)
    last.set(xlabel="k", ylabel="k-grams that occur in the training set (%)", ylim=(0, 103))
    title = "Lines: completions. Pale, dashed: held-out stories (for true endings: other stories' endings)"
    figure.legend(loc="outside upper center", ncols=4, title=title)
    return figure
