"""
Where the loss goes: each token of a story is of one kind (a name's first mention, a function word,
the end of the story …), and the losses of the kinds sum to the whole.

>>> kinds = token_kinds(["Tom ran. Then Tom hid."], tokenizer)
>>> kinds[0].tolist()
['beginning of a sentence', 'content word, first', 'punctuation', 'beginning of a sentence',
'name, again', 'content word, first', 'punctuation', 'end of the story']
"""

import itertools
from collections.abc import Sequence

import numpy as np
import regex

from nanostories.cli import UserError
from nanostories.corpus.builtin_stories import PRONOUNS
from nanostories.corpus.tokenizer import Tokenizer
from nanostories.corpus.word_forms import looks_english
from nanostories.interpretation.word_classes import (
    FUNCTION_WORDS,
    names_in,
    pieces_of,
    split_words,
)
from nanostories.results import Table
from nanostories.statistics import ratio
from nanostories.text import DOUBLE_QUOTES

TOKEN_KINDS = (
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
# Bins of positions in the story, and the first position of each
BINS = (0, 16, 32, 64, 128, 256)
POSITIONS = ("1 to 16", "17 to 32", "33 to 64", "65 to 128", "129 to 256", "257 on")
AUXILIARIES = (
    "be am is are was were been being have has had do does did can could will would shall should"
    " may might must don didn doesn isn wasn weren couldn wouldn hadn s t d m ll re ve"
).split()
# FUNCTION_WORDS alone has neither pronouns nor auxiliaries.
ALL_FUNCTION_WORDS = {*PRONOUNS, *FUNCTION_WORDS, *AUXILIARIES}
# A word with what stands before it: the end of a sentence, or the beginning of speech
BEGINNING = regex.compile(
    r"""(?:\p{Sentence_Terminal}["”'’]*\s+["“'‘]*|[。！？]["”」』]*|["“„「])(?!\p{Ll})\w+$"""
)


# ---- Kinds ----
def token_kinds(stories: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """For each story, (tokens + 1,) of TOKEN_KINDS: of its tokens and of its end."""
    names = set()
    function_words = set()
    if looks_english(stories):
        names = names_in(stories)
        function_words = ALL_FUNCTION_WORDS
    kinds_of_stories = []
    for story in stories:
        ids = tokenizer.encode(story)
        pieces = pieces_of(tokenizer, ids)
        kinds = kinds_of_pieces(pieces, names, function_words)
        for i in reversed(range(len(ids) - 1)):
            next_byte = int.from_bytes(tokenizer.decode_bytes([ids[i + 1]])[:1])
            if 0x80 <= next_byte < 0xC0 and not pieces[i].strip():  # the next ends its character
                kinds[i] = kinds[i + 1]
                if kinds[i] not in ("punctuation", "quotation mark"):
                    kinds[i + 1] = "inside of a word"
        kinds_of_stories.append(np.array([*kinds, "end of the story"]))
    return kinds_of_stories


def kinds_of_pieces(pieces: Sequence[str], names: set[str], function_words: set[str]) -> list[str]:
    """pieces: the text of each token"""
    kinds = []
    for piece in pieces:  # of those that are no words: marks, and line breaks
        kinds.append("quotation mark" if DOUBLE_QUOTES.search(piece) else "punctuation")
    mentioned = set()
    for members in split_words(pieces):
        form = "".join(pieces[i] for i in members)
        word = form.strip()
        if any(map(str.isalnum, word)):
            # eight tokens: more than the marks and white space between two sentences
            before = "".join(pieces[max(0, members[0] - 8) : members[0]])
            for i in members:
                kinds[i] = "inside of a word"
            kinds[members[0]] = kind_of_word(word, names, function_words, mentioned)
            if not mentioned or BEGINNING.search(before + form):
                kinds[members[0]] = "beginning of a sentence"
            mentioned.add(word.lower())
    return kinds


def kind_of_word(word: str, names: set[str], function_words: set[str], mentioned: set[str]) -> str:
    lower = word.lower()
    order = "again" if lower in mentioned else "first"
    if word[0].isupper() and lower in names:
        return f"name, {order}"
    if lower in function_words or (function_words and word[0] == "'"):  # 's, 'll
        return "function word"
    return f"content word, {order}"


# ---- Results ----
def loss_tables(kinds: list[np.ndarray], losses: dict[str, list[np.ndarray]]) -> list[Table]:
    """By kind and by position: the losses of the models, then what each gains over the one before
    it. losses: {model: for each story (tokens + 1,) nats}"""
    lengths = [len(of_story) for of_story in kinds]
    for model, stories in losses.items():
        if [len(nats) for nats in stories] != lengths:
            raise UserError(f"{model} has other tokens than the last model; name one at a time")
    gains = {}
    for before, after in itertools.pairwise(losses):
        differences = [b - a for b, a in zip(losses[before], losses[after])]
        gains[f"{before} minus {after}"] = differences
    bins = np.array(POSITIONS)
    positions = [bins[np.digitize(np.arange(length), BINS) - 1] for length in lengths]
    tables = []
    for title, series in (("Loss", losses), ("Difference of losses", gains)):
        if series:
            tables.append(table_by(f"{title} by kind of token", kinds, TOKEN_KINDS, series))
            tables.append(table_by(f"{title} along the story", positions, POSITIONS, series))
    tables[0].about = ABOUT
    if "function word" not in [row["tokens"] for row in tables[0].rows]:
        tables[0].about = ABOUT_OTHERS
    return tables


def table_by(
    title: str,
    labels: list[np.ndarray],
    names: Sequence[str],
    series: dict[str, list[np.ndarray]],
) -> Table:
    """labels: for each story (tokens + 1,), one of names each; series: {model, or two models: for
    each story (tokens + 1,) nats}"""
    rows = []
    for name in [*names, "all"]:
        chosen = [(of_story == name) | (name == "all") for of_story in labels]
        counts = np.array([flags.sum() for flags in chosen])
        if not counts.any():
            continue
        row = {"tokens": name, "share of tokens": counts.sum() / sum(map(len, labels))}
        for model, stories in series.items():
            sums = np.array([nats[flags].sum() for nats, flags in zip(stories, chosen)])
            row[model] = ratio(sums, counts).cell
            row[f"{model}, share"] = sums.sum() / np.concatenate(stories).sum()
        rows.append(row)
    formats = {column: ".3f" if column in series else ".1%" for column in rows[0]}
    return Table(f"{title}: nats per token, and share of the whole", rows, formats)


def loss_figure(by_kind: Table, by_position: Table, models: Sequence[str]):
    """What each kind adds to the mean loss of each model, and the loss along a story."""
    from matplotlib.figure import Figure  # here, as it is slow to import

    figure = Figure(figsize=(10, 4 + 0.4 * len(models)), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=[3, 2])
    rows = by_kind.rows[:-1]  # without "all"
    bins = by_position.rows[:-1]
    y = np.arange(len(rows))
    thickness = 0.8 / len(models)
    for i, model in enumerate(models):
        parts = [row["share of tokens"] * row[model][0] for row in rows]
        left.barh(y + i * thickness, parts, thickness, label=model)
        values = [row[model][0] for row in bins]
        right.plot([row["tokens"] for row in bins], values, marker="o")
    left.set_yticks(y + 0.4 - thickness / 2, [row["tokens"] for row in rows])
    left.invert_yaxis()
    left.set_title("What each kind of token adds to the mean loss (nats)", fontsize=10)
    right.set_title("Loss along the story (nats per token)", fontsize=10)
    right.tick_params(axis="x", rotation=30)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return figure
