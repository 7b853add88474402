"""
Whether a story has what its header asks for: words, summary, sentence, dialogue, a bad ending.

>>> [line.share for line in measure_run(*read_instructed(Path("out/demo")))]
[0.74, 0.42, …]

Each measurement has two baselines: the true stories, the best that can be expected, and the model's stories for other
prompts, which did not see this instruction.
"""

import functools
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from common.figures import png_bytes
from common.files import write_bytes
from common.statistics import wilson
from common.tables import table_text
from corpus import builtin_stories
from corpus.builtin_bad_endings import ends_badly
from generation.samples_file import read_rows

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


# ---- One story ----


def check_story(row: dict, story: str, summaries: Summaries) -> Iterator[tuple[str, float]]:
    """(measure, how far the story fulfills it, 0 to 1) for everything that a row of samples.jsonl asks for."""
    asked = row["instruction"]
    words = [float(pattern(word).search(story) is not None) for word in asked.get("words", ())]
    if words:
        among = "and a summary" if "summary" in asked else "no summary"
        yield f"words ({among}): each", sum(words) / len(words)
        yield f"words ({among}): all", min(words)
    if "summary" in asked and len(summaries.words) > 1:
        nearest = summaries.is_nearest(asked["summary"], story)
        yield f"summary ({'and' if words else 'no'} words)", nearest
        if words:
            yield "both: all words, and the summary", nearest * min(words)
    if "sentence" in asked:
        yield "sentence, verbatim", float(plain(asked["sentence"]) in plain(story))
    wanted = asked.get("features", ())
    yield f"dialogue{'' if 'Dialogue' in wanted else ', not asked for'}", float('"' in plain(story))
    # Only the bad endings of the built-in plots are recognized; the one asked for may be of another kind.
    if "BadEnding" not in wanted or ends_badly(row["reference"] or ""):
        yield f"bad ending{'' if 'BadEnding' in wanted else ', not asked for'}", float(ends_badly(story))


def plain(text: str) -> str:
    """On one line, with straight quotes."""
    return " ".join(text.translate({ord("“"): '"', ord("”"): '"', ord("’"): "'", ord("‘"): "'"}).split())


# ---- A run ----

ORDER = ("words", "summary", "both", "sentence", "dialogue", "bad")  # of the measures, by their first word


@dataclass
class Measurement:
    """How well a run follows one kind of instruction; a row of instruct.csv."""

    run: str
    measure: str
    prompts: int  # that ask for it
    share: float  # mean over prompts, and over the completions of each
    low: float  # the ends of its 95% interval
    high: float
    true_stories: float | None  # the share of the references; None if there are none
    other_stories: float | None  # the share of the stories that the run wrote for other prompts
    chance: float | None  # of a random story, where it is known


def measure_run(run: str, rows: Sequence[dict]) -> list[Measurement]:
    """rows: those of samples.jsonl that have an instruction."""
    summaries = Summaries({row["instruction"]["summary"] for row in rows if "summary" in row["instruction"]})
    texts = {whose: [row[key] for row in rows] for whose, key in (("own", "completion"), ("true", "reference"))}
    values = {}  # measure -> whose stories -> prompt -> values
    for whose, stories in (texts | dict(other=stories_for_other_prompts(rows))).items():
        for row, story in zip(rows, stories):
            for name, value in check_story(row, story, summaries) if story is not None else ():
                values.setdefault(name, {}).setdefault(whose, {}).setdefault(row["prompt_index"], []).append(value)
    for name in ("dialogue", "bad ending"):
        if name not in values:  # never asked for, or only as a bad ending that no rule recognizes
            values.pop(f"{name}, not asked for", None)
    lines = []
    for name in sorted(values, key=lambda name: (ORDER.index(re.match("[a-z]+", name)[0]), name)):
        shares = {whose: np.mean([np.mean(each) for each in of.values()]) for whose, of in values[name].items()}
        n, chance = len(values[name]["own"]), 1 / len(summaries.words) if name.startswith("summary") else None
        own, baselines = shares["own"], (shares.get("true"), shares.get("other"))
        lines.append(Measurement(run, name, n, own, *wilson(own, n), *baselines, chance))
    return lines


def stories_for_other_prompts(rows: Sequence[dict]) -> list[str | None]:
    """For each row, the next completion of a prompt that asks for another story."""
    subjects = [row["reference"] or row["prompt"] for row in rows]
    others = []
    for i, subject in enumerate(subjects):
        following = (j % len(rows) for j in range(i + 1, i + len(rows)))
        others.append(next((rows[j]["completion"] for j in following if subjects[j] != subject), None))
    return others


def read_instructed(path: Path) -> tuple[str, list[dict]]:
    """The name of a run, or of a file that sample.py wrote, and its rows. ValueError if none has an instruction."""
    file = path / "samples.jsonl" if path.is_dir() else path
    rows = [row for _, row in sorted(read_rows(file).items()) if row.get("instruction")]
    if not rows:
        remedy = "write them with sample.py --eval 200 on a corpus with headers (prepare.py instruct, builtin-instruct)"
        raise ValueError(f"{file}: no stories written under headers; {remedy}")
    return str(path), rows


# ---- Table and plot ----


def measurements_text(lines: Sequence[Measurement], markdown: bool = False) -> str:
    """For each measure, a row for each run."""
    rows = []
    for name in dict.fromkeys(line.measure for line in lines):
        rows.append([name, *[""] * 6])
        for line in lines:
            if line.measure == name:
                baselines = map(percent, (line.true_stories, line.other_stories, line.chance))
                interval = f"{percent(line.low)} to {percent(line.high)}"
                rows.append([f"  {line.run}", str(line.prompts), percent(line.share), interval, *baselines])
    head = ["", "prompts", "%", "95% interval", "true stories", "other stories", "chance"]
    return table_text(head, rows, markdown)


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def plot(path: Path, lines: Sequence[Measurement]) -> None:
    """One row per measure, with an interval for each run."""
    runs, measures = (list(dict.fromkeys(getattr(line, name) for line in lines)) for name in ("run", "measure"))
    figure = Figure(figsize=(8, 1.2 + (0.25 + 0.15 * len(runs)) * len(measures)), layout="constrained")
    axes = figure.subplots()
    for i, run in enumerate(runs):
        own = [line for line in lines if line.run == run]
        y = [measures.index(line.measure) + 0.7 * ((i + 0.5) / len(runs) - 0.5) for line in own]
        columns = ("share", "low", "high", "true_stories", "other_stories")
        share, low, high, true, other = (np.array([getattr(line, name) for line in own], float) for name in columns)
        axes.errorbar(share, y, xerr=(share - low, high - share), fmt="o", markersize=4, color=f"C{i}", label=run)
        axes.plot(true, y, "|", markersize=9, color="0.2")
        axes.plot(other, y, "|", markersize=9, color="0.65")
    axes.set_yticks(range(len(measures)), measures)
    axes.set(xlim=(-0.03, 1.03), ylim=(len(measures) - 0.4, -0.6), xlabel="share of the prompts, 95% intervals")
    axes.grid(axis="x", alpha=0.3)
    axes.plot([], [], "|", color="0.2", label="true stories")
    axes.plot([], [], "|", color="0.65", label="stories for other prompts")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    write_bytes(path, png_bytes(figure))
