"""
How a story is compared with its header: words in any inflection, the nearest summary, sentences; and the picture.

>>> bool(pattern("run").search("They were running."))
True
>>> Summaries(["A fox hides.", "A frog jumps."]).is_nearest("A fox hides.", "The fox was hiding.")
1.0
"""

import functools
import math
import re
from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.figure import Figure

from corpus import builtin_stories

# ---- Words, in all their inflected forms ----

IRREGULAR = {forms.split()[0]: forms.split() for forms in """bad worse worst, be am is are were, bind bound, burst,
    child children, choose chose chosen, cost, deal dealt, do does, drive drove driven, fight fought, flee fled, foot
    feet, freeze froze frozen, good better best, goose geese, have has, lend lent, light lit, man men, mouse mice, pay
    paid, person people, send sent, shoot shot, speak spoke spoken, spend spent, split, strike struck, swear swore
    sworn, teach taught, tooth teeth, understand understood, wind wound, woman women""".split(",")}  # fmt: skip


@functools.cache
def inflections(word: str) -> frozenset[str]:
    """All forms of `word` as a noun, verb or adjective; forms that nobody uses do no harm."""
    rules = (builtin_stories.plural, builtin_stories.past, builtin_stories.participle, builtin_stories.ing)
    forms = {word, *IRREGULAR.get(word, ()), *(rule(word) for rule in rules)}
    doubled = word + word[-1]
    for stem in (re.sub(r"(?<![aeiou])y$", "i", word.removesuffix("e")), doubled):
        forms |= {stem + ending for ending in ("er", "est", "ed", "es")}
    return frozenset(forms | {doubled + "ing", re.sub(r"fe?$", "ves", word)})


@functools.cache
def pattern(word: str) -> re.Pattern:
    """Matches any form of the word."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(inflections(word.lower()))))})\b", re.I)


KNOWN = (*builtin_stories.VERBS, *builtin_stories.ADJECTIVES, *builtin_stories.NOUNS)
BASES = {form: word for word in KNOWN for form in inflections(word)} | {word: word for word in KNOWN}
STOP_WORDS = frozenset("""
    a about after all also an and another any as at away back be because before but by can could did do down each
    ends even every everything find first for from get go had has have if in into is it its itself just later learn
    like long make more much must no not now of off on one only or other out over so some something takes than that
    the their them then there they this though through time to too two until up very was way well were what when
    where which who why will with without would""".split()) | {*builtin_stories.PRONOUNS}  # fmt: skip


def content_words(text: str) -> frozenset[str]:
    """The words that say what a text is about, in their base forms."""
    words = re.findall(r"[a-z]+", text.lower().replace("'s", ""))
    bases = (BASES.get(word) or re.sub(r"(?<=...)(ing|ed|e?s)$", "", word) for word in words)
    return frozenset(base for base in bases if base not in STOP_WORDS and len(base) > 1)


# ---- Which summary a story follows ----


class Summaries:
    """All summaries that a file asks for: a story should be closer to its own than to any other."""

    def __init__(self, summaries: Iterable[str]):
        self.words = {summary: content_words(summary) for summary in summaries}
        sets = self.words.values()
        self.weights = {word: math.log(len(sets) / sum(word in words for words in sets)) for word in set().union(*sets)}

    def share(self, summary: str, story_words: frozenset[str]) -> float:
        """Share of the summary's words that are in the story, weighted by log(summaries / summaries with the word)."""
        words = self.words[summary]
        # fsum is exact, whatever the order of the set
        shared, total = (math.fsum(map(self.weights.get, some)) for some in (words & story_words, words))
        return shared / total if total else 0.0

    def is_nearest(self, own: str, story: str) -> float:
        """1 if no other summary has as large a share in the story; 1 / k if it ties with others, k in all; else 0."""
        words = content_words(story)
        shares = {summary: self.share(summary, words) for summary in self.words}
        most = max(shares.values())
        return (shares[own] == most) / list(shares.values()).count(most)


def plain(text: str) -> str:
    """On one line, with straight quotes."""
    return " ".join(text.translate({ord("“"): '"', ord("”"): '"', ord("’"): "'", ord("‘"): "'"}).split())


# ---- The picture ----


def draw(rows: Sequence[dict]) -> Figure:
    """rows: of instruct.csv. A line for each measure, with an interval for each run."""
    runs, measures = (list(dict.fromkeys(row[name] for row in rows)) for name in ("run", "measure"))
    figure = Figure(figsize=(8, 1.2 + (0.25 + 0.15 * len(runs)) * len(measures)), layout="constrained")
    axes = figure.subplots()
    for i, run in enumerate(runs):
        own = [row for row in rows if row["run"] == run]
        y = [measures.index(row["measure"]) + 0.7 * ((i + 0.5) / len(runs) - 0.5) for row in own]
        columns = ("share", "low", "high", "true_stories", "other_stories")
        share, low, high, true, other = (np.array([row[name] for row in own], float) for name in columns)
        axes.errorbar(share, y, xerr=(share - low, high - share), fmt="o", markersize=4, color=f"C{i}", label=run)
        axes.plot(true, y, "|", markersize=9, color="black", label="true stories" if not i else None)
        axes.plot(other, y, "|", markersize=9, color="0.6", label="stories for other prompts" if not i else None)
    axes.set_yticks(range(len(measures)), measures)
    axes.set(xlim=(-0.03, 1.03), ylim=(len(measures) - 0.4, -0.6), xlabel="share of the prompts, 95% intervals")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    return figure
