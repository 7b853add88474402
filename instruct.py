"""
Do models follow instructions? Checks each story for what its header asked for, without a judge.

$ python sample.py --model out/a --eval 200 --n 1                              # the headers of validation stories
$ python sample.py --model out/a --eval 200 --n 1 --ask words summary words,summary        # or parts of them
$ python instruct.py out/a out/b                # a table; instruct.csv and instruct.png next to the runs

Each figure comes with two baselines: the true stories, the best that can be expected, and the model's stories for other
prompts, which did not see this instruction. Twist, MoralValue, Foreshadowing and Conflict cannot be checked by rules:
for these, grade.py asks a judge.
"""

import collections
import functools
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from common.cli import Parser, one_line_errors
from common.statistics import wilson
from common.tables import publish, table_text, write_table
from corpus import builtin_stories
from corpus.builtin_bad_endings import ends_badly

# ---- Words, in all their inflected forms ----

IRREGULAR = {forms.split()[0]: forms.split() for forms in """bad worse worst, be am is are were, bind bound, burst,
    child children, choose chose chosen, cost, deal dealt, do does, drive drove driven, fight fought, flee fled, foot
    feet, freeze froze frozen, good better best, goose geese, have has, lend lent, light lit, man men, mouse mice, pay
    paid, person people, send sent, shoot shot, speak spoke spoken, spend spent, split, strike struck, swear swore
    sworn, teach taught, tooth teeth, understand understood, wind wound, woman women""".split(",")}  # fmt: skip
STOP_WORDS = frozenset("""
    a about after all also an and another any as at away back be because before but by can could did do down each
    ends even every everything find first for from get go had has have if in into is it its itself just later learn
    like long make more much must no not now of off on one only or other out over so some something takes than that
    the their them then there they this though through time to too two until up very was way well were what when
    where which who why will with without would""".split()) | {*builtin_stories.PRONOUNS}  # fmt: skip


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


@functools.cache
def base_forms() -> dict[str, str]:
    known = (*builtin_stories.VERBS, *builtin_stories.ADJECTIVES, *builtin_stories.NOUNS)
    return {form: word for word in known for form in inflections(word)} | {word: word for word in known}


def content_words(text: str) -> frozenset[str]:
    """The words that say what a text is about, in their base forms."""
    words = re.findall(r"[a-z]+", text.lower().replace("'s", ""))
    bases = (base_forms().get(word) or re.sub(r"(?<=...)(ing|ed|e?s)$", "", word) for word in words)
    return frozenset(base for base in bases if base not in STOP_WORDS and len(base) > 1)


# ---- What a story has of what was asked for ----


def weigh(summaries: Iterable[str]) -> dict[str, dict[str, float]]:
    """{summary: {content word: log(summaries / summaries with the word)}}"""
    words = {summary: content_words(summary) for summary in summaries}
    counts = collections.Counter(itertools.chain.from_iterable(words.values()))
    return {summary: {word: math.log(len(words) / counts[word]) for word in own} for summary, own in words.items()}


def is_nearest(summary: str, story: str, weights: Mapping[str, Mapping[str, float]]) -> float:
    """1 if no other summary has as large a share, by weight, of its content words in the story; 1 / k if k tie."""
    words, shares = content_words(story), {}
    for other, own in weights.items():  # fsum is exact, so ties are ties, whatever the order of the words
        shares[other] = math.fsum(own[word] for word in own.keys() & words) / (math.fsum(own.values()) or 1)
    most = max(shares.values())
    return (shares[summary] == most) / list(shares.values()).count(most)


def plain(text: str) -> str:
    """On one line, with straight quotes."""
    return " ".join(text.translate({ord("“"): '"', ord("”"): '"', ord("’"): "'", ord("‘"): "'"}).split())


def found_in(story: str, row: dict, weights: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """{measure: how far the story fulfills it, 0 to 1} for everything that a row of samples.jsonl asks for."""
    asked, found = row["instruction"], {}
    features, summary = asked.get("features", ()), asked.get("summary")
    words = [float(pattern(word).search(story) is not None) for word in asked.get("words", ())]
    if words:
        among = "and a summary" if summary else "no summary"
        found |= {f"words ({among}): all": min(words), f"words ({among}): each": sum(words) / len(words)}
    if summary and len(weights) > 1:
        found[f"summary ({'and' if words else 'no'} words)"] = nearest = is_nearest(summary, story, weights)
        found |= {"both: all words, and the summary": nearest * min(words)} if words else {}
    if "sentence" in asked:
        found["sentence, verbatim"] = float(plain(asked["sentence"]) in plain(story))
    found["dialogue" if "Dialogue" in features else "dialogue, not asked for"] = float('"' in plain(story))
    # Only the bad endings of the built-in plots are recognized; the one asked for may be of another kind.
    if "BadEnding" not in features or ends_badly(row["reference"] or ""):
        found["bad ending" if "BadEnding" in features else "bad ending, not asked for"] = float(ends_badly(story))
    return found


def measure(path: Path) -> list[dict]:
    """Rows of instruct.csv for a run, or a file that sample.py wrote: the share of what was asked for that is there, as
    means over prompts, in its stories, in the true ones, and in its stories for other prompts."""
    from generation.samples_file import read_rows

    file = path / "samples.jsonl" if path.is_dir() else path
    rows = [row for _, row in sorted(read_rows(file).items()) if row.get("instruction")]
    if not rows:
        remedy = "write them with sample.py --eval 200 on a corpus with headers (prepare.py instruct, builtin-instruct)"
        raise ValueError(f"{file}: no stories written under headers; {remedy}")
    weights = weigh({row["instruction"]["summary"] for row in rows if "summary" in row["instruction"]})
    stories = dict(own=[row["completion"] for row in rows], true=[row["reference"] for row in rows])
    values = {}  # measure -> whose stories -> prompt -> values
    for whose, texts in (stories | dict(other=stories_for_other_prompts(rows))).items():
        for row, story in zip(rows, texts):
            for name, value in found_in(story, row, weights).items() if story is not None else ():
                values.setdefault(name, {}).setdefault(whose, {}).setdefault(row["prompt_index"], []).append(value)
    measured, order = [], ("words", "summary", "both", "sentence", "dialogue", "bad")
    for name in sorted(values, key=lambda name: (order.index(re.match("[a-z]+", name)[0]), name)):
        if name.removesuffix(", not asked for") not in values:  # never asked for
            continue
        means = {whose: [sum(each) / len(each) for each in own.values()] for whose, own in values[name].items()}
        shares = {whose: sum(each) / len(each) for whose, each in means.items()}
        low, high = wilson(shares["own"], len(means["own"]))
        line = dict(measure=name, run=str(path), prompts=len(means["own"]), share=shares["own"], low=low, high=high)
        line |= dict(true_stories=shares.get("true"), other_stories=shares.get("other"))
        measured.append(line | dict(chance=1 / len(weights) if name.startswith("summary") else None))
    return measured


def stories_for_other_prompts(rows: Sequence[dict]) -> list[str | None]:
    """For each row, the next completion of a prompt that asks for another story."""
    subjects, others = [row["reference"] or row["prompt"] for row in rows], []
    for i, subject in enumerate(subjects):
        following = (j % len(rows) for j in range(i + 1, i + len(rows)))
        others.append(next((rows[j]["completion"] for j in following if subjects[j] != subject), None))
    return others


# ---- The table and the picture ----


def as_table(measured: Sequence[dict]) -> str:
    """The rows of instruct.csv, shares in %."""

    def cell(value: str | int | float | None) -> str:
        return f"{100 * value:.1f}" if isinstance(value, float) else "" if value is None else str(value)

    return table_text(list(measured[0]), [[cell(value) for value in row.values()] for row in measured])


def draw(measured: Sequence[dict]):
    """A matplotlib figure: a line for each measure, with an interval for each run."""
    import numpy as np
    from matplotlib.figure import Figure

    runs, measures = (list(dict.fromkeys(row[name] for row in measured)) for name in ("run", "measure"))
    figure = Figure(figsize=(8, 1.2 + (0.25 + 0.15 * len(runs)) * len(measures)), layout="constrained")
    axes = figure.subplots()
    for i, run in enumerate(runs):
        own = [row for row in measured if row["run"] == run]
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


def main() -> None:
    parser = Parser(__doc__)
    runs = "runs, or files that sample.py wrote (default: the newest run in out/)"
    parser.add_argument("runs", nargs="*", type=Path, help=runs)
    args = parser.parse_args()
    with one_line_errors("instruct.py", interrupted="nothing was written"):
        from checkpoints.checkpoint import newest_run  # here, so that --help need not wait for torch
        from common.figures import save_figure

        paths = args.runs or [newest_run()]
        measured, directory = [line for path in paths for line in measure(path)], paths[0].parent
        names = [row["measure"] for row in measured]
        measured.sort(key=lambda row: names.index(row["measure"]))  # the runs next to each other
        publish(directory / "instruct.md", as_table(measured))
        write_table(directory / "instruct.csv", measured)
        save_figure(draw(measured), directory / "instruct.png")
    print(f"wrote {directory / 'instruct.csv'} and instruct.png; next, for a judge's view: python grade.py {directory}")


if __name__ == "__main__":
    main()
