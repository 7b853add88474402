"""
Do models follow their instructions? What a header asks for is looked for in the story, without a judge.

$ python sample.py --model out/a --eval 200 --n 1                              # the headers of validation stories
$ python sample.py --model out/a --eval 200 --n 1 --ask words summary words,summary        # or parts of them
$ python instruct.py out/a out/b                # a table; instruct.csv and instruct.png beside the runs

Each figure stands beside two others: of the true stories, the best that can be expected, and of the model's stories
for other prompts, which did not know what is asked. Twist, MoralValue, Foreshadowing and Conflict take a reader:
grade.py asks one whether instructions were followed.
"""

import functools
import math
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from checkpoints.checkpoint import newest_run
from common.statistics import wilson
from common.tables import write_table
from corpus import builtin_stories
from corpus.bad_endings import ends_badly
from generation.samples_file import read_rows
from training.run_directory import TrainingError, write_run_file

# ---- Words, however they are inflected ----

IRREGULAR = {forms.split()[0]: forms.split() for forms in """bad worse worst, be am is are were, bind bound, burst,
    child children, choose chose chosen, cost, deal dealt, do does, drive drove driven, fight fought, flee fled, foot
    feet, freeze froze frozen, good better best, goose geese, have has, lend lent, light lit, man men, mouse mice, pay
    paid, person people, send sent, shoot shot, speak spoke spoken, spend spent, split, strike struck, swear swore
    sworn, teach taught, tooth teeth, understand understood, wind wound, woman women""".split(",")}  # fmt: skip


@functools.cache
def inflections(word: str) -> frozenset[str]:
    """All that `word` may become as a noun, a verb or an adjective; forms that nobody uses do no harm."""
    forms = {
        word,
        builtin_stories.plural(word),
        builtin_stories.past(word),
        builtin_stories.participle(word),
        builtin_stories.ing(word),
    }
    forms |= {*IRREGULAR.get(word, ())}
    doubled = word + word[-1]
    for stem in (re.sub(r"(?<![aeiou])y$", "i", word.removesuffix("e")), doubled):
        forms |= {stem + ending for ending in ("er", "est", "ed", "es")}
    return frozenset(forms | {doubled + "ing", re.sub(r"fe?$", "ves", word)})


@functools.cache
def pattern(word: str) -> re.Pattern:
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, sorted(inflections(word.lower()))))})\b", re.I)


KNOWN = (*builtin_stories.VERBS, *builtin_stories.ADJECTIVES, *builtin_stories.NOUNS)
BASES = {form: word for word in KNOWN for form in inflections(word)} | {word: word for word in KNOWN}
STOP = frozenset("""a about after all also an and another any as at away back be because before but by can could did do
    down each ends even every everything find first for from get go had has have if in into is it its itself just later
    learn like long make more much must no not now of off on one only or other out over so some something takes than
    that the their them then there they this though through time to too two until up very was way well were what when
    where which who why will with without would""".split()) | {*builtin_stories.PRONOUNS}  # fmt: skip


def content(text: str) -> frozenset[str]:
    """The words that say what a text is about, in their base forms."""
    words = re.findall(r"[a-z]+", text.lower().replace("'s", ""))
    bases = (BASES.get(word) or re.sub(r"(?<=...)(ing|ed|e?s)$", "", word) for word in words)
    return frozenset(base for base in bases if base not in STOP and len(base) > 1)


# ---- Which summary a story follows ----


class Summaries:
    """All that were asked for in a file: a story is to be nearer to its own than to any other."""

    def __init__(self, summaries: Sequence[str]):
        self.words = {summary: content(summary) for summary in summaries}
        sets = self.words.values()
        self.weights = {word: math.log(len(sets) / sum(word in words for words in sets)) for word in set().union(*sets)}

    def share(self, summary: str, told: frozenset[str]) -> float:
        """How much of the summary a story tells. Words that are in many summaries weigh little: log(n / how many)."""
        words = self.words[summary]
        told, whole = (math.fsum(map(self.weights.get, some)) for some in (words & told, words))  # in any order
        return told / whole if whole else 0.0

    def is_nearest(self, own: str, story: str) -> float:
        """1 where no other has as large a share of it in the story; where k are ahead together, 1 / k."""
        told = content(story)
        shares = {summary: self.share(summary, told) for summary in self.words}
        most = max(shares.values())
        return (shares[own] == most) / list(shares.values()).count(most)

    @property
    def chance(self) -> float:
        return 1 / len(self.words)


# ---- What is found ----

Found = Iterator[tuple[str, float]]  # what was asked for, and how far it is there, 0 to 1


def follow(row: dict, story: str, summaries: Summaries) -> Found:
    """How a story follows the instruction of a row of samples.jsonl, measure by measure."""
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
    if "BadEnding" not in wanted or knows_ending(row):
        yield (
            f"bad ending{'' if 'BadEnding' in wanted else ', not asked for'}",
            float(ends_badly(story)),
        )


def plain(text: str) -> str:
    """On one line, with straight quotes."""
    return " ".join(text.translate({ord("“"): '"', ord("”"): '"', ord("’"): "'", ord("‘"): "'"}).split())


def knows_ending(row: dict) -> bool:
    """Whether the bad ending that is asked for is one of the built-in plots', the only ones that a rule can tell."""
    return ends_badly(row["reference"] or "")


# ---- Tables ----

ORDER = ("words", "summary", "both", "sentence", "dialogue", "bad")  # of the measures, by their first word


@dataclass
class Figures:
    """How well a run does one of the things it is asked for."""

    run: str
    measure: str
    prompts: int  # that ask for it
    share: float  # mean over prompts, and over the completions of each
    low: float  # ends of its 95 % interval
    high: float
    true_stories: float | None  # the same of the references; None where there are none
    other_stories: float | None  # the same of the stories that the run wrote for other prompts
    chance: float | None  # where nothing but luck is at work


def measure(run: str, rows: Sequence[dict]) -> list[Figures]:
    """Of the rows of samples.jsonl that have an instruction."""
    summaries = Summaries(list({row["instruction"]["summary"]: 0 for row in rows if "summary" in row["instruction"]}))
    texts = dict(
        own=[row["completion"] for row in rows], true=[row["reference"] for row in rows], other=of_other_prompts(rows)
    )
    found = {}  # measure -> whose stories -> prompt -> values
    for whose, stories_told in texts.items():
        for row, story in zip(rows, stories_told):
            for name, value in follow(row, story, summaries) if story is not None else ():
                found.setdefault(name, {}).setdefault(whose, {}).setdefault(row["prompt_index"], []).append(value)
    for name in ("dialogue", "bad ending"):
        if name not in found:  # never asked for; or a bad ending that no rule can tell
            found.pop(f"{name}, not asked for", None)
    table = []
    for name in sorted(found, key=lambda name: (ORDER.index(re.match("[a-z]+", name)[0]), name)):
        shares = {whose: np.mean([np.mean(values) for values in of.values()]) for whose, of in found[name].items()}
        n, chance = len(found[name]["own"]), summaries.chance if name.startswith("summary") else None
        interval = wilson(shares["own"], n)
        table.append(Figures(run, name, n, shares["own"], *interval, shares.get("true"), shares.get("other"), chance))
    return table


def of_other_prompts(rows: Sequence[dict]) -> list[str | None]:
    """For each row the next completion that was to tell something else."""
    subjects = [row["reference"] or row["prompt"] for row in rows]
    others = []
    for i, subject in enumerate(subjects):
        following = (j % len(rows) for j in range(i + 1, i + len(rows)))
        others.append(next((rows[j]["completion"] for j in following if subjects[j] != subject), None))
    return others


def read_instructed(path: Path) -> tuple[str, list[dict]]:
    """The name of a run, or of a file that sample.py wrote, and its rows. A ValueError where nothing is asked for."""
    file = path / "samples.jsonl" if path.is_dir() else path
    rows = [row for _, row in sorted(read_rows(file).items()) if row.get("instruction")]
    if not rows:
        remedy = "write them with sample.py --eval 200 on a corpus with headers (prepare.py instruct, builtin-instruct)"
        raise ValueError(f"{file}: no stories that were asked for under headers; {remedy}")
    return str(path), rows


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def print_table(table: Sequence[Figures]) -> None:
    width = max(len(line.run) for line in table)
    title = ("", "prompts", "%", "95 % interval", "true stories", "other stories", "chance")
    layout = f"{{:{width + 2}}}{{:>9}}{{:>8}}{{:>16}}{{:>15}}{{:>15}}{{:>9}}"
    print(layout.format(*title))
    for name in dict.fromkeys(line.measure for line in table):
        print(name)
        for line in table:
            if line.measure == name:
                interval = f"{percent(line.low)} to {percent(line.high)}"
                beside = map(percent, (line.true_stories, line.other_stories, line.chance))
                print(layout.format(f"  {line.run}", line.prompts, percent(line.share), interval, *beside))


def plot(path: Path, table: Sequence[Figures]) -> None:
    """A row for each measure, in it a line for each run."""
    runs, measures = (list(dict.fromkeys(getattr(line, name) for line in table)) for name in ("run", "measure"))
    figure = Figure(figsize=(8, 1.2 + (0.25 + 0.15 * len(runs)) * len(measures)), layout="constrained")
    axes, labelled = figure.subplots(), set()
    for line in table:
        i = runs.index(line.run)
        y = measures.index(line.measure) + 0.7 * ((i + 0.5) / len(runs) - 0.5)
        reach = [[line.share - line.low], [line.high - line.share]]
        label = None if line.run in labelled else line.run
        labelled.add(line.run)
        axes.errorbar(line.share, y, xerr=reach, fmt="o", markersize=4, color=f"C{i}", label=label)
        for share, style in ((line.true_stories, dict(color="0.2")), (line.other_stories, dict(color="0.65"))):
            if share is not None:
                axes.plot(share, y, "|", markersize=9, **style)
    axes.set_yticks(range(len(measures)), measures)
    axes.set(xlim=(-0.03, 1.03), ylim=(len(measures) - 0.4, -0.6), xlabel="share of the prompts, 95 % intervals")
    axes.grid(axis="x", alpha=0.3)
    axes.plot([], [], "|", color="0.2", label="true stories")
    axes.plot([], [], "|", color="0.65", label="stories for other prompts")
    figure.legend(loc="outside upper center", ncols=3, frameon=False)
    with write_run_file(path) as temporary:
        figure.savefig(temporary, dpi=120, format="png")


def main() -> None:
    if {"-h", "--help"} & set(sys.argv):
        print(__doc__)
        return
    try:
        paths = [Path(arg) for arg in sys.argv[1:]] or [newest_run()]
        table = [line for path in paths for line in measure(*read_instructed(path))]
        print_table(table)
        directory = paths[0].parent
        write_table(directory / "instruct.csv", list(map(asdict, table)))
        plot(directory / "instruct.png", table)
    except (ValueError, TrainingError, OSError) as error:
        sys.exit(f"instruct.py: {error}")
    print(
        f"wrote {directory / 'instruct.csv'} and instruct.png; what only a reader can tell: python grade.py {directory}"
    )


if __name__ == "__main__":
    main()
