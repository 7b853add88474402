"""
Kinds of words that neurons prefer, by layer; and the neurons that the paper and a reproduction
show: the first two of the last layer and of the one before, the first of a middle one, and the one
with the largest activation of all; in the residual stream, too.

>>> figure = draw(subjects)  # from their neurons.csv, of interpret.py
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from nanostories.interpretation.neurons import PEAKS
from nanostories.results import Table
from nanostories.sweeps.measures import Subject
from nanostories.tables import read_table


def draw(subjects: Sequence[Subject]) -> Figure:
    """A panel for each model: the share of each layer's neurons that strongly prefer a kind of
    word."""
    figure = Figure(figsize=(1 + 3.4 * len(subjects), 3.4), layout="constrained")
    panels = figure.subplots(1, len(subjects), squeeze=False, sharey=True)[0]
    for axes, subject in zip(panels, subjects):
        rows = read_table(subject.directory / "neurons.csv")
        preferred = {}  # layer -> the kinds that its neurons prefer
        for row in rows:
            preferred.setdefault(int(row["layer"]), []).append(row["prefers"])
        layers = list(preferred)
        for column in rows[0]:
            if column.startswith("auc_"):
                kind = column.removeprefix("auc_")
                shares = [100 * kinds.count(kind) / len(kinds) for kinds in preferred.values()]
                axes.plot(layers, shares, ".-", label=kind)
        axes.set(title=subject.name, xlabel="layer", xticks=layers)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("neurons that prefer the kind (%)")
    panels[-1].legend(fontsize=7)
    return figure


def examples(subjects: Sequence[Subject]) -> Table:
    found = []
    for subject in subjects:
        for part, file in (("MLP", "neurons.csv"), ("residual stream", "residual.csv")):
            for row in choose(read_table(subject.directory / file)):
                tokens = [repr(row[f"token_{rank}"]) for rank in PEAKS]
                found.append(
                    {
                        "run": subject.name,
                        "part": part,
                        "neuron": f"{row['layer']}.{row['neuron']}",
                        "prefers": row["prefers"] or None,
                        "highest": float(row["activation_1"]),
                        "fires most on": " ".join(tokens),
                    }
                )
    about = "The last of each part is that with the largest activation of all."
    return Table("Neurons", found, {"highest": ".1f"}, about=about)


def choose(rows: list[dict]) -> list[dict]:
    """The neurons to show, of all neurons of a part."""
    last = int(rows[-1]["layer"])
    chosen = []
    for layer, n in ((last, 2), (last - 1, 2), (last // 2, 1)):
        of_layer = [row for row in rows if int(row["layer"]) == layer][:n]
        chosen += [row for row in of_layer if row not in chosen]  # of one or two layers
    largest = max(rows, key=lambda row: float(row["activation_1"]))
    return [*[row for row in chosen if row is not largest], largest]
