"""
Minimal pairs: two sentences that differ in one point of grammar, one right and one wrong. A model
is right where it finds the right one likelier as a whole.

>>> read_pairs(GRAMMAR)[0]
Pair(phenomenon='agreement, adjacent', group='0', right='The dog is very happy.', wrong='The dog are
very happy.')
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanostories.cli import UserError
from nanostories.corpus.sources import split_file
from nanostories.files import PROMPTS
from nanostories.grading.probes import (
    difference_table,
    differences,
    group_means,
    grouped,
    read_lines,
)
from nanostories.results import Table
from nanostories.statistics import estimate

GRAMMAR = PROMPTS / "grammar.jsonl"
ZORRO_CHANGES = (
    "Sentences of .txt files (Zorro) got capitals, and lost the spaces before punctuation."
)
EXAMPLE = (
    '{"UID": "agreement", "pairID": "0", "sentence_good": "It is.", "sentence_bad": "It are."}'
)
CHANCE = 0.5
TIE = 1e-4  # nats: less is rounding
ALPHA = 0.05  # differences with a larger p-value are counted, but not listed


class Pair(NamedTuple):
    phenomenon: str
    group: str  # its pairs are no independent trials: they swap the same words
    right: str
    wrong: str


# ---- Files ----
def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, or of all files in a directory: .txt as in Zorro, .jsonl as in BLiMP."""
    files = [path]
    if path.is_dir():
        files = sorted([*path.glob("*.jsonl"), *path.glob("*.txt")])
    pairs = []
    for file in files:
        if file.suffix == ".txt":
            pairs += zorro_pairs(file)
        else:
            pairs += read_lines(file, blimp_pair, EXAMPLE)
    if not pairs:
        raise UserError(f"{path}: no pairs in it")
    return pairs


def blimp_pair(row: dict) -> Pair:
    """In ours, the pairs of a group share their pairID. TypeError or KeyError if there is something
    wrong with the row."""
    pair = Pair(row["UID"], str(row["pairID"]), row["sentence_good"], row["sentence_bad"])
    if not all(isinstance(text, str) for text in pair):
        raise TypeError
    return pair


def zorro_pairs(file: Path) -> Iterator[Pair]:
    """Two lines a pair, the wrong sentence first."""
    texts = [as_in_stories(line) for line in split_file(file, "\n") if line.strip()]
    if len(texts) % 2:
        raise UserError(f"{file}: its last line has no partner; pairs are two lines, wrong, right")
    for i in range(0, len(texts), 2):
        yield Pair(file.stem, str(i), right=texts[i + 1], wrong=texts[i])


def as_in_stories(line: str) -> str:
    """
    >>> as_in_stories("where should i put it ?")
    'Where should I put it?'
    """
    text = re.sub(r" (?=[.,?!])", "", line.strip())
    text = re.sub(r"\bi\b", "I", text)
    return text[:1].upper() + text[1:]


# ---- Results ----
def pair_tables(pairs: Sequence[Pair], leads: dict[str, np.ndarray]) -> list[Table]:
    """leads: {model: (pairs,) how much likelier the right sentence is, in nats}. Where both are
    equally likely, a model is half right."""
    right = {model: np.where(abs(lead) < TIE, 0.5, lead > 0) for model, lead in leads.items()}
    by_phenomenon = grouped({i: (pair.phenomenon, pair.group) for i, pair in enumerate(pairs)})
    groups = {"all": list(itertools.chain(*by_phenomenon.values()))} | by_phenomenon
    rows = []
    for phenomenon, members in groups.items():
        row = {"phenomenon": phenomenon}
        for model, is_right in right.items():
            row[model] = estimate(group_means(is_right, members), share=True).cell
        rows.append(row)
    about = (
        f"{len(pairs):,} pairs: a model is right where it finds the right sentence likelier as a"
        f" whole; chance is 50%. 95% intervals over {len(groups['all']):,} groups of pairs with the"
        " same words."
    )
    formats = dict.fromkeys(right, ".1%")
    tables = [Table("Pairs right", rows, formats, about=about, facts={"kind": "pairs"})]
    tested = differences(groups, right, "phenomenon")
    if tested:
        shown = [row for row in tested if row["phenomenon"] == "all" or row["p (Holm)"] < ALPHA]
        about = (
            f"Of {len(tested)} differences, tested together: those of all pairs, and the others"
            f" with p < {ALPHA}."
        )
        tables.append(difference_table(shown, about))
    return tables


def pairs_figure(table: Table):
    """A cell for each phenomenon and model; what the last model finds easiest comes first."""
    from matplotlib.figure import Figure  # here, as it is slow to import

    models = table.columns[1:]
    rows = sorted(table.rows, key=lambda row: -row[models[-1]][0])
    cells = np.array([[row[model] for model in models] for row in rows], dtype=float)
    figure = Figure(figsize=(4 + len(models), 2 + 0.27 * len(rows)), layout="constrained")
    axes = figure.subplots()
    axes.imshow(cells[:, :, 0], cmap="RdBu", vmin=-0.3, vmax=1.3, aspect="auto")
    for (y, x), share in np.ndenumerate(cells[:, :, 0]):
        _, low, high = cells[y, x]
        color = "black" if high < CHANCE or low > CHANCE else "gray"
        axes.text(x, y, f"{share:.0%}", ha="center", va="center", color=color)
    axes.set_xticks(range(len(models)), models, rotation=30, ha="right")
    axes.set_yticks(range(len(rows)), [row["phenomenon"] for row in rows])
    figure.suptitle("Pairs right (gray: may be chance, 50%)", fontsize=10)
    return figure
