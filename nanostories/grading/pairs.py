"""
Minimal pairs: two sentences that differ in one point of grammar, one right and one wrong. A model
is right where it finds the right one likelier as a whole.

>>> pairs = read_pairs(GRAMMAR)
>>> pairs[0].right, pairs[0].wrong
('The dog is happy.', 'The dog are happy.')
>>> leads = {"demo": pair_leads("demo", backend, pairs)}
>>> tables = pair_tables(pairs, leads)
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.grading.probes import difference_table, group_means
from nanostories.results import Table
from nanostories.statistics import estimate

GRAMMAR = Path(__file__).parents[2] / "prompts" / "grammar.jsonl"
CHANCE = 0.5
TIE = 1e-4  # nats: less is rounding
ZORRO_CHANGES = (
    "Zorro's sentences got capitals and lost the spaces before punctuation, as in stories."
)
SURE = 0.05  # differences with a larger p-value are counted, but not listed


class Pair(NamedTuple):
    phenomenon: str
    group: str  # its pairs are no independent trials: they swap the same words
    right: str
    wrong: str


# ---- Files ----
def files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.suffix in READERS)
    return [path]


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file, or of all files in a directory."""
    pairs = []
    for file in files_of(path):
        if file.suffix not in READERS:
            raise UserError(f"{file}: pairs are in .jsonl files (BLiMP's) or .txt files (Zorro's)")
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            raise UserError(f"{file}: not a text in UTF-8") from None
        pairs += READERS[file.suffix](file, lines)
    if not pairs:
        raise UserError(f"{path}: no pairs in it")
    return pairs


def read_json_pairs(file: Path, lines: Sequence[str]) -> Iterator[Pair]:
    """One pair a line, as in BLiMP and in prompts/grammar.jsonl. In ours, the pairs of a group
    share their pairID."""
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            pair = Pair(row["UID"], str(row["pairID"]), row["sentence_good"], row["sentence_bad"])
            is_pair = all(isinstance(text, str) and text.strip() for text in pair)
        except (ValueError, TypeError, KeyError, RecursionError):
            is_pair = False
        if not is_pair:
            example = (
                '{"sentence_good": "It is.", "sentence_bad": "It are.", "UID": "agreement",'
                ' "pairID": "0"}'
            )
            raise UserError(f"{file}, line {number}: must be like {example}")
        yield pair


def read_zorro(file: Path, lines: Sequence[str]) -> Iterator[Pair]:
    """Two lines a pair, the wrong sentence first."""
    if len(lines) % 2:
        raise UserError(f"{file}: its last line has no partner; pairs are two lines, wrong, right")
    for i in range(0, len(lines), 2):
        wrong, right = [as_in_stories(line) for line in lines[i : i + 2]]
        if not right or not wrong:
            raise UserError(f"{file}: line {i + 1} or {i + 2} is empty")
        yield Pair(file.stem, str(i), right, wrong)


def as_in_stories(line: str) -> str:
    """
    >>> as_in_stories("where should i put it ?")
    'Where should I put it?'
    """
    text = re.sub(r" (?=[.,?!])", "", line.strip())
    text = re.sub(r"\bi\b", "I", text)
    return text[:1].upper() + text[1:]


READERS: dict[str, Callable] = {".jsonl": read_json_pairs, ".txt": read_zorro}


# ---- Scores ----
def pair_leads(name: str, backend, pairs: Sequence[Pair]) -> np.ndarray:
    """(pairs,) how much likelier the right sentence is, in nats, as the beginning of a story.
    backend: a LocalBackend, called `name` in messages"""
    from nanostories.grading.likelihood_judge import read_texts  # here, as it imports torch

    texts = set()
    for pair in pairs:
        texts |= {("", pair.right), ("", pair.wrong)}
    with tqdm(desc=name, total=len(texts), unit="sentence", disable=None, delay=1) as bar:
        nats = read_texts(name, backend, texts, ends=False, bar=bar)
    totals = {sentence: own.sum().item() for (_, sentence), own in nats.items()}
    return np.array([totals[pair.right] - totals[pair.wrong] for pair in pairs])


# ---- Results ----
def groups_by_phenomenon(pairs: Sequence[Pair]) -> dict[str, list[list[int]]]:
    """{phenomenon: the numbers of the pairs of each group}, and of "all" of them"""
    members = {}
    for i, pair in enumerate(pairs):
        members.setdefault((pair.phenomenon, pair.group), []).append(i)
    found = {"all": list(members.values())}
    for (phenomenon, _), group in members.items():
        found.setdefault(phenomenon, []).append(group)
    return found


def pair_tables(pairs: Sequence[Pair], leads: dict[str, np.ndarray]) -> list[Table]:
    """leads: by model, as pair_leads gives them. Where both sentences are equally likely, a model
    is half right."""
    right = {}
    for model, own in leads.items():
        right[model] = np.where(abs(own) < TIE, 0.5, own > 0)
    groups = groups_by_phenomenon(pairs)
    cells = {}
    for phenomenon, members in groups.items():
        for model, own in right.items():
            share = estimate(group_means(own, members), share=True)
            cells[phenomenon, model] = share.cell
    whole = [{"run": model, "all": cells["all", model]} for model in right]
    rows = []
    for phenomenon in list(groups)[1:]:
        row = {"phenomenon": phenomenon}
        rows.append(row | {model: cells[phenomenon, model] for model in right})
    n_groups = len(groups["all"])
    about = (
        f"{len(pairs):,} pairs in {len(groups) - 1} phenomena; a model is right where the right"
        f" sentence is likelier as a whole. 95% intervals over {n_groups:,} groups of pairs."
    )
    chance = {"run": "(chance)", "all": CHANCE}
    formats = dict.fromkeys(["all", *right], ".1%")
    tables = [
        Table("Pairs right", [*whole, chance], formats, about=about, facts={"kind": "pairs"}),
        Table("Pairs right, by phenomenon", rows, formats, facts={"kind": "phenomena"}),
    ]
    differences = difference_table(groups, right)
    if differences.rows:
        tables.append(clear_differences(differences))
    return tables


def clear_differences(differences: Table) -> Table:
    """Those of all pairs, and of each phenomenon where chance does not explain them."""
    n = len(differences.rows)
    differences.rows = [
        row for row in differences.rows if row["set"] == "all" or row["p (Holm)"] < SURE
    ]
    differences.about = (
        f"{n} differences were tested together; of single phenomena, only those with p < {SURE}"
        " are listed."
    )
    return differences


def pairs_figure(phenomena: Table):
    """A cell for each phenomenon and model: the percentage of pairs that are right. The easiest
    phenomenon comes first."""
    from matplotlib.figure import Figure  # here, as it is slow to import

    models = phenomena.columns[1:]
    names = [row["phenomenon"] for row in phenomena.rows]
    cells = np.array([[row[model] for model in models] for row in phenomena.rows], dtype=float)
    order = np.argsort(-cells[:, :, 0].mean(1), kind="stable")
    size = (2.5 + 0.08 * max(map(len, names)) + 0.85 * len(models), 1.8 + 0.27 * len(names))
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots()
    axes.imshow(cells[order, :, 0], cmap="RdBu", vmin=-0.1, vmax=1.1, aspect="auto")
    for y, row in enumerate(cells[order]):
        for x, (value, low, high) in enumerate(row):
            is_clear = not low <= CHANCE <= high
            axes.text(
                x,
                y,
                f"{100 * value:.0f}",
                ha="center",
                va="center",
                color="black" if is_clear else "gray",
                weight="bold" if is_clear else "normal",
                fontsize=9,
            )
    axes.set_xticks(range(len(models)), models, rotation=30, ha="right")
    axes.set_yticks(range(len(names)), [names[i] for i in order])
    axes.tick_params(length=0, labelsize=9)
    axes.spines[:].set_visible(False)
    axes.set_title("% of pairs right (gray: no different from chance, 50%)", fontsize=10)
    return figure
