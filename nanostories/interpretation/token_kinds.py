"""
Where the loss goes: each token of a story is of one kind (a name's first mention, a function word,
the end of the story …), and the losses of the kinds sum to the whole.

>>> kinds = token_kinds(["Tom ran. Then Tom hid."], tokenizer)
>>> [KINDS[kind] for kind in kinds[0]]
['beginning of a sentence', 'content word, first', 'punctuation', 'beginning of a sentence', 'name, again',
'content word, first', 'punctuation', 'end of the story']
"""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import regex
from tqdm import tqdm

from nanostories.cli import UserError
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.corpus.word_forms import STOP_WORDS, looks_english
from nanostories.interpretation.word_classes import (
    FUNCTION_WORDS,
    names_in,
    pieces_of,
    split_words,
)
from nanostories.results import Table
from nanostories.statistics import ratio
from nanostories.text import DOUBLE_QUOTES

KINDS = (
    "name, first",
    "name, again",
    "content word, first",
    "content word, again",
    "function word",
    "inside of a word",
    "beginning of a sentence",
    "punctuation",
    "quotation mark",
    "end of the story",
)
ABOUT = (
    "First and again: in this story. The first word of a sentence or of"
    " direct speech is a kind of its own, whatever the word. Inside of a word: its second token and"
    " later ones. 95% intervals over stories."
)
ABOUT_OTHERS = "The stories do not look English: all words count as content words."
ALL = "all"
# Bins of positions in the story, and the first position of each
BINS = (0, 16, 32, 64, 128, 256)
POSITIONS = ("1 to 16", "17 to 32", "33 to 64", "65 to 128", "129 to 256", "257 on")
FUNCTION = {*STOP_WORDS, *FUNCTION_WORDS}
# Before the first word of a story, of a sentence and of direct speech
BEFORE_BEGINNING = regex.compile(
    r"""(?:^\s*|\p{Sentence_Terminal}["”'’]*\s+["“'‘]*|[。！？]["”」』]*|["“„「])$"""
)


# ---- Reading ----
class Reading(NamedTuple):
    """Of one model: for each story, (tokens + 1,) token ids, the last of which is its end; their
    kinds, as numbers of KINDS; and the nats that each costs."""

    ids: list[list[int]]
    kinds: list[np.ndarray]
    nats: list[np.ndarray]


def read_stories(name: str, backend, stories: Sequence[str]) -> Reading:
    """Each story alone. backend: a LocalBackend"""
    from nanostories.generation.token_likelihoods import log_likelihoods

    tokenizer = backend.tokenizer
    ids = [[*tokenizer.encode(story), tokenizer.end_of_text] for story in stories]
    before = backend.encode("")
    with tqdm(desc=name, total=len(ids), unit="story", disable=None, delay=1) as bar:
        found = log_likelihoods(backend, [(before, story) for story in ids], bar)
    nats = [-own.double().numpy() for own in found]
    return Reading(ids, token_kinds(stories, tokenizer), nats)


# ---- Kinds ----
def token_kinds(stories: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """For each story, (tokens + 1,) numbers of KINDS: of its tokens and of its end."""
    names = set()
    function_words = set()
    if looks_english(stories):
        names = names_in(stories)
        function_words = FUNCTION
    found = []
    for story in stories:
        pieces = pieces_of(tokenizer, tokenizer.encode(story))
        kinds = kinds_of_pieces(pieces, names, function_words)
        found.append(np.array([KINDS.index(kind) for kind in [*kinds, "end of the story"]]))
    return found


def kinds_of_pieces(pieces: Sequence[str], names: set[str], function_words: set[str]) -> list[str]:
    """pieces: the text of each token"""
    kinds = ["punctuation"] * len(pieces)  # and line breaks
    for i, piece in enumerate(pieces):
        if DOUBLE_QUOTES.search(piece):
            kinds[i] = "quotation mark"
    mentioned = set()
    for members in split_words(pieces):
        form = "".join(pieces[i] for i in members)
        word = form.strip()
        if any(char.isalnum() for char in word):
            before = "".join(pieces[max(0, members[0] - 4) : members[0]])
            space = form[: len(form) - len(form.lstrip())]
            kind = kind_of_word(word, names, function_words, mentioned)
            if not word[0].islower() and BEFORE_BEGINNING.search(before + space):
                kind = "beginning of a sentence"
            mentioned.add(word.lower())
            kinds[members[0]] = kind
            for i in members[1:]:
                kinds[i] = "inside of a word"
    return kinds


def kind_of_word(word: str, names: set[str], function_words: set[str], mentioned: set[str]) -> str:
    lower = word.lower()
    order = "again" if lower in mentioned else "first"
    if word[0].isupper() and lower in names:
        return f"name, {order}"
    if lower in function_words or word[0] == "'":  # 's, 'll
        return "function word"
    return f"content word, {order}"


# ---- Results ----
def loss_tables(readings: dict[str, Reading]) -> list[Table]:
    """By kind and by position: the losses of the models, then what each gains over the one before
    it. UserError if they read other tokens."""
    ids, kinds, _ = next(iter(readings.values()))
    if any(reading.ids != ids for reading in readings.values()):
        raise UserError(
            "these models have different vocabularies, and losses of different tokens cannot be"
            " compared; name one at a time"
        )
    positions = [np.digitize(np.arange(len(own)), BINS) - 1 for own in kinds]
    losses = {model: reading.nats for model, reading in readings.items()}
    gains = {}
    for before, after in itertools.pairwise(losses):
        differences = [b - a for b, a in zip(losses[before], losses[after])]
        gains[f"{before} - {after}"] = differences
    tables = []
    for title, series in (("Loss", losses), ("Difference of the losses", gains)):
        if series:
            tables.append(table_by(f"{title} by kind of token", kinds, KINDS, series))
            tables.append(table_by(f"{title} along the story", positions, POSITIONS, series))
    tables[0].about = ABOUT
    if "function word" not in [row["kind"] for row in tables[0].rows]:
        tables[0].about = ABOUT_OTHERS
    return tables


def table_by(
    title: str,
    labels: list[np.ndarray],
    names: Sequence[str],
    series: dict[str, list[np.ndarray]],
) -> Table:
    """labels: for each story (tokens + 1,) numbers of names; series: {model, or two models: for
    each story (tokens + 1,) nats}"""
    counts = sums_by(labels, len(names), [np.ones(len(own)) for own in labels])
    sums = {model: sums_by(labels, len(names), nats) for model, nats in series.items()}
    rows = []
    for i, name in enumerate([*names, ALL]):
        if counts[i].any():
            row = {"kind": name, "share of tokens": counts[i].sum() / counts[-1].sum()}
            for model, own in sums.items():
                row[model] = ratio(own[i], counts[i]).cell
                row[f"{model}, share"] = own[i].sum() / own[-1].sum()
            rows.append(row)
    formats = {column: ".1%" for column in rows[0] if "share" in column}
    formats |= dict.fromkeys(series, ".3f")
    return Table(f"{title}: nats per token, and share of the whole", rows, formats)


def sums_by(labels: list[np.ndarray], n: int, values: list[np.ndarray]) -> np.ndarray:
    """(n + 1, stories): the sum of the values of each story's tokens with each label, and of all"""
    sums = [np.bincount(own, value, n) for own, value in zip(labels, values)]
    by_label = np.stack(sums, axis=1)
    return np.vstack([by_label, by_label.sum(0)])


def loss_figure(by_kind: Table, by_position: Table, models: Sequence[str]):
    """What each kind adds to the mean loss of each model, and the loss along a story."""
    from matplotlib.figure import Figure  # here, as it is slow to import

    rows = by_kind.rows[:-1]
    height = 0.8 / len(models)
    figure = Figure(figsize=(10, 1.8 + 0.3 * len(rows) * max(1, len(models) / 3)))
    figure.set_layout_engine("constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    for number, model in enumerate(models):
        parts = [row["share of tokens"] * row[model][0] for row in rows]
        y = np.arange(len(rows)) + number * height
        left.barh(y, parts, height, color=f"C{number}", label=model)
        for at, part, row in zip(y, parts, rows):
            left.text(part, at, f" {row[model][0]:.2f}", va="center", fontsize=7)
        values = [row[model][0] for row in by_position.rows[:-1]]
        right.plot(range(len(values)), values, marker="o", color=f"C{number}")
    labels = [f"{row['kind']} ({row['share of tokens']:.0%})" for row in rows]
    left.set_yticks(np.arange(len(rows)) + 0.4 - height / 2, labels)
    left.invert_yaxis()
    left.set_title("Part of the mean loss (number: nats each; %: of tokens)", fontsize=10)
    left.set_xlabel("nats per token of the story")
    labels = [row["kind"] for row in by_position.rows[:-1]]
    right.set_xticks(range(len(labels)), labels, rotation=30, ha="right")
    right.set_title("Loss along the story, nats per token", fontsize=10)
    right.set_xlabel("token of the story")
    for axes in (left, right):
        axes.grid(alpha=0.3)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=min(4, len(models)), frameon=False, fontsize=8)
    return figure
