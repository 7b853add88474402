"""
Kinds of words that neurons prefer, by layer; and the neurons that the paper and a reproduction
show: the first two of the last layer, the first of a middle one, and the one with the largest
activation of all.

>>> figure = draw([("demo", Path("out/demo"))])  # from the neurons.csv of interpret.py
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from nanostories.tables import read_table, table_text

SHOWN = 5  # tokens of the largest activations


def draw(models: Sequence[tuple[str, Path]]) -> Figure:
    """A panel for each (name, directory): the share of each layer's neurons that strongly prefer a
    kind of word."""
    figure = Figure(figsize=(1 + 3.4 * len(models), 3.4), layout="constrained")
    for axes, (name, directory) in zip(
        figure.subplots(1, len(models), squeeze=False, sharey=True)[0], models
    ):
        rows = read_table(directory / "neurons.csv")
        layers = sorted({int(row["layer"]) for row in rows})
        for kind in (
            column.removeprefix("auc_") for column in rows[0] if column.startswith("auc_")
        ):
            in_layer = [
                [row["prefers"] == kind for row in rows if int(row["layer"]) == layer]
                for layer in layers
            ]
            axes.plot(layers, [100 * sum(own) / len(own) for own in in_layer], ".-", label=kind)
        axes.set(title=name, xlabel="layer", xticks=layers)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("neurons that prefer the kind (%)")
    figure.axes[-1].legend(fontsize=7)
    return figure


def examples_text(models: Sequence[tuple[str, Path]]) -> str:
    lines = []
    for name, directory in models:
        rows = read_table(directory / "neurons.csv")
        last = max(int(row["layer"]) for row in rows)
        chosen = [row for row in rows if int(row["layer"]) == last][:2]
        chosen += [row for row in rows if int(row["layer"]) == last // 2][:1]
        largest = max(rows, key=lambda row: float(row["activation_1"]))
        for row in [*chosen, largest]:
            tokens = " ".join(
                repr(row[f"token_{i}"]).replace("|", "¦") for i in range(1, SHOWN + 1)
            )
            note = " (largest activation)" if row is largest else ""
            place = f"{row['layer']}.{row['neuron']}{note}"
            lines.append(
                [name, place, row["prefers"] or "–", f"{float(row['activation_1']):.1f}", tokens]
            )
    return table_text(["model", "neuron", "prefers", "highest", "fires most on"], lines)
