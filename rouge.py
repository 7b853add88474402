"""
Is it novel, is it diverse, did it memorise: a run's completions beside their true endings, each other, and every story
of the training set, by ROUGE-k, with held-out stories of human hand under the same treatment for comparison.

$ python rouge.py out/cpu_8m                    # its samples.jsonl -> rouge.json, rouge.png, flagged.txt
$ python rouge.py out/cpu_8m out/overfit        # and their histograms over each other, out/rouge.png
$ python rouge.py out/api--gpt-3.5-turbo --data data/tinystories --k 4 --counting clipped

>>> rouge_k("The cat sat on the mat.", "A cat sat there.", k=2)
Score(precision=0.2, recall=0.3333333333333333, f=0.25)
"""

import argparse
import io
import json
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure
from tqdm import tqdm

from checkpoints.checkpoint import corpus_of, newest_run
from common.files import write_bytes, write_json
from corpus.builtin_stories import NOUNS, plural
from corpus.token_files import load_tokens
from generation.samples_file import read_rows
from novelty.corpus_words import Stories, open_stories, words_of
from novelty.ngram_search import COUNTINGS, Overlaps, Stream, number_kgrams, search

# ---- ROUGE ----


class Score(NamedTuple):
    precision: float  # share of a's k-grams that stand in b
    recall: float  # share of b's that stand in a
    f: float  # their harmonic mean


def rouge_k(a: str | Sequence, b: str | Sequence, k: int = 2, counting: str = "set") -> Score:
    """Shared k-grams of two texts, or of two sequences of token ids.

    counting: "set" is the paper's (section 4): each k-gram counts once in a text, however often it stands there.
    "clipped" is Lin's (2004), and rouge-score's: one that a has m times and b n times is shared min(m, n) times.
    """
    a, b = number_words(a, b)
    ids = number_kgrams(np.concatenate([a, [-1], b, [-1]]), k)
    halves = ids[: len(a)], ids[len(a) + 1 :]
    counts = np.array([np.bincount(half[half >= 0], minlength=ids.max() + 1) for half in halves])
    if counting == "set":
        counts = np.minimum(counts, 1)
    return score(counts.min(0).sum(), *counts.sum(1))


def rouge_l(a: str | Sequence, b: str | Sequence) -> Score:
    """By the longest common subsequence (Lin 2004)."""
    a, b = number_words(a, b)
    longest = np.zeros(len(b) + 1, dtype=np.int64)  # common to a's words so far and b's first j
    for word in a:
        longest[1:] = np.maximum(longest[1:], longest[:-1] + (b == word))
        longest = np.maximum.accumulate(longest)
    return score(longest[-1], len(a), len(b))


def number_words(*texts: str | Sequence) -> list[np.ndarray]:
    """(words,) int64 for each: the same number for the same word, or id."""
    numbers: dict = {}
    texts = [words_of(text) if isinstance(text, str) else text for text in texts]
    return [np.array([numbers.setdefault(word, len(numbers)) for word in text], dtype=np.int64) for text in texts]


def score(shared: int, n_a: int, n_b: int) -> Score:
    return Score(float(shared / max(n_a, 1)), float(shared / max(n_b, 1)), float(2 * shared / max(n_a + n_b, 1)))


# ---- Intervals ----


class Values(NamedTuple):
    """One figure of many texts. Texts of one cluster belong together: completions of a prompt, pieces of a story."""

    values: np.ndarray  # (n,) float; nan where a text has none
    clusters: np.ndarray  # (n,)


def means(figure: Values, n: int = 2000, seed: int = 0) -> np.ndarray:
    """(1 + n,): the mean over texts, then that of n bootstrap samples, for which whole clusters are drawn; NaN where
    there is but one. With the same seed, figures of the same clusters have the same ones drawn."""
    values, clusters = figure.values[~np.isnan(figure.values)], figure.clusters[~np.isnan(figure.values)]
    cluster = np.unique(clusters, return_inverse=True)[1]
    totals = np.stack([np.bincount(cluster, values), np.bincount(cluster)])
    n_clusters = totals.shape[1]
    drawn = np.random.default_rng(seed).multinomial(n_clusters, np.full(n_clusters, 1 / n_clusters), n)
    drawn = drawn if n_clusters > 1 else np.full((n, 1), np.nan)
    sums, counts = totals @ np.concatenate([np.ones((1, n_clusters)), drawn]).T
    return sums / counts


def interval(means: np.ndarray) -> dict:
    low, high = np.quantile(means[1:], [0.025, 0.975])
    return dict(mean=float(means[0]), low=float(low), high=float(high))


# ---- What is compared ----

FORMAT = 2  # of rouge.json
K_MAX = 8  # the share of k-grams that stand in the training set is reported up to here
SHARES = (*range(1, K_MAX + 1), 12, 16, 24, 32)  # and of each completion up to here
ENDINGS = ("ending_f", "ending_precision", "ending_l")  # figures of the true ending
OTHERS = 10  # stories' endings that each true ending is compared with


@dataclass
class Texts:
    """Completions, or what is put beside them."""

    words: list[np.ndarray]
    clusters: np.ndarray  # (n,) the prompt of each completion, the story of each held-out piece
    samples: np.ndarray  # (n,) which of its prompt's completions it is, or is put beside
    begin: np.ndarray  # (n,) how many words of its story stand before it


Figures = dict[str, tuple[Values, Values | None]]  # of the completions, of what is put beside them


def read_completions(path: Path) -> list[dict]:
    rows = read_rows(path)
    if not rows or not all(isinstance(row.get("completion"), str) for row in rows.values()):
        raise ValueError(f"{path}: no completions there; write some with `python sample.py --eval 50`")
    return [rows[key] for key in sorted(rows)]


def texts_of(rows: list[dict], stories: Stories) -> Texts:
    prompts, samples = (np.array([row[name] for row in rows]) for name in ("prompt_index", "sample_index"))
    clusters = prompts if len(set(prompts)) > 1 else samples  # of one prompt, each completion is a draw of its own
    begin = np.array([len(words) for words in stories.encode([row.get("prompt") or "" for row in rows])])
    return Texts(stories.encode([row["completion"] for row in rows]), clusters, samples, begin)


def held_out(directory: Path, stories: Stories, completions: Texts) -> Texts:
    """For each completion a piece of a validation story, the next that has as many words: from the same place in it,
    or from as near to it as the story's length allows."""
    tokens = load_tokens(directory, "val")
    ends = np.flatnonzero(tokens == stories.tokenizer.end_of_text)[: max(len(completions.words), 1000)]
    words = stories.encode([stories.tokenizer.decode(tokens[a:b]) for a, b in zip(np.append(0, ends[:-1] + 1), ends)])
    longest, story = max(map(len, words)), -1
    pieces = Texts(*(column.copy() for column in vars(completions).values()))
    for i in np.lexsort((completions.clusters, completions.samples)):  # so that pieces of one sample differ
        n, story = min(len(completions.words[i]), longest), story + 1
        while len(words[story % len(words)]) < n:
            story += 1
        pieces.clusters[i] = story % len(words)
        pieces.begin[i] = min(completions.begin[i], len(words[story % len(words)]) - n)
        pieces.words[i] = words[story % len(words)][pieces.begin[i] : pieces.begin[i] + n]
    return pieces


def to_endings(rows: list[dict], stories: Stories, k: int, counting: str) -> Figures:
    """Completions against the true ending of their story; beside it, other stories' endings against that ending."""
    rows = [row for row in rows if (row.get("reference") or "").strip()]
    prompts = sorted({row["prompt_index"] for row in rows})
    n = len(prompts)
    if n < 2:
        return {}
    endings = dict(zip((row["prompt_index"] for row in rows), stories.encode([row["reference"] for row in rows])))
    own = list(zip(stories.encode([row["completion"] for row in rows]), (row["prompt_index"] for row in rows)))
    others = [(endings[prompts[(i + j) % n]], prompts[i]) for i in range(n) for j in range(1, min(OTHERS + 1, n))]
    columns = []
    for pairs in (own, others):
        bar = tqdm(pairs, "true endings", leave=False, disable=None, delay=1)
        scores = [[*rouge_k(a, endings[prompt], k, counting), rouge_l(a, endings[prompt]).f] for a, prompt in bar]
        precision, _, f, l_f = np.array(scores).T
        clusters = np.array([prompt for _, prompt in pairs])
        columns.append([Values(values, clusters) for values in (f, precision, l_f)])
    return dict(zip(ENDINGS, zip(*columns)))


def to_each_other(completions: Texts, pieces: Texts, k: int, counting: str) -> Figures:
    """The largest F of a text to any other: of all completions; and, to compare with pieces of as many stories, of one
    completion of every prompt at a time."""

    def to_others(texts: list[np.ndarray]) -> np.ndarray:
        return search(texts, Stream.of(texts), k, counting, leave_out_own=True).f

    columns = []
    for texts in (completions, pieces):
        f = np.full(len(texts.words), np.nan)
        for sample in np.unique(texts.samples):
            of_sample = np.flatnonzero(texts.samples == sample)
            together = of_sample[np.unique(texts.clusters[of_sample], return_index=True)[1]]
            f[together] = to_others([texts.words[i] for i in together]) if len(together) > 1 else np.nan
        columns.append(Values(f, texts.clusters))
    figures: Figures = {"any_other_f": (Values(to_others(completions.words), completions.clusters), None)}
    return figures | {"other_prompt_f": tuple(columns)}


def masks(stories: Stories, texts: list[np.ndarray]) -> np.ndarray:
    """(ids,) classes: all names are one word, all nouns of stories.py's headers another, every other word is itself.

    Words that the training set lacks count as names: nearly all that a model makes up are.
    """
    nouns = {form for noun in NOUNS for form in (noun, plural(noun))}
    n_ids = stories.stream.n_ids
    classes = np.arange(max(n_ids, *(int(text.max(initial=0)) + 1 for text in texts)) + 2)
    name, noun = classes[-2:]
    classes[n_ids:-2] = name
    for words, mask in ((nouns, noun), (stories.names, name)):
        classes[[i for word in words if (i := stories.vocabulary.get(word, n_ids)) < n_ids]] = mask
    return classes


def to_training(found: Overlaps, clusters: np.ndarray, rows: slice) -> dict[str, Values]:
    """What `found` says of the texts in these rows."""
    spans = found.spans[rows]
    columns = {
        "training_f": found.f[rows],
        "training_precision": found.precision[rows],
        "span": np.array([span.max(initial=0) for span in spans], dtype=float),
    }
    for k in range(1, K_MAX + 1):
        starts = [span[: max(len(span) - k + 1, 0)] >= k for span in spans]
        columns[f"share_{k}"] = np.array([start.mean() if len(start) else np.nan for start in starts])
    return {name: Values(values, clusters) for name, values in columns.items()}


# ---- Flags ----

KINDS = ("copy", "near copy", "template")
MIN_WORDS = 20  # of a flagged text, going round in a loop aside: stories share phrases


def kinds_of(texts: list[np.ndarray], found: Overlaps, masked: Overlaps | None, k: int, threshold: float) -> np.ndarray:
    """(texts,) of KINDS or "". A copy stands word for word in a training story. Of a near copy the share of k-grams in
    one training story reaches the threshold; of a template it does when names and nouns are masked."""
    kinds = np.full(len(found.f), "", dtype="<U9")
    if masked:
        kinds[masked.precision >= threshold] = "template"
    kinds[found.precision >= threshold] = "near copy"
    kinds[[span.max(initial=0) == len(span) for span in found.spans]] = "copy"
    kinds[[len(set(zip(*(text[i:] for i in range(k))))) < MIN_WORDS - k + 1 for text in texts]] = ""
    return kinds


def side_by_side(left: str, right: str, width: int = 58) -> str:
    columns = [
        [line for part in text.strip().splitlines() for line in textwrap.wrap(part, width)] for text in (left, right)
    ]
    return "\n".join(f"{a:{width}} | {b}".rstrip() for a, b in zip_longest(*columns, fillvalue=""))


def flagged_text(run: Path, details: list[dict], completions: list[str], stories: Stories, k: int) -> str:
    """The flagged completions, copies first, each beside the story that it is like."""
    flagged = [(row, text) for row, text in zip(details, completions) if row["flag"]]
    flagged.sort(key=lambda pair: (KINDS.index(pair[0]["flag"]), -pair[0]["flag_share"]))
    counts = ", ".join(f"{sum(row['flag'] == kind for row, _ in flagged)} {kind}" for kind in KINDS)
    parts = [f"{run}: {len(flagged)} of {len(details)} completions are flagged ({counts})."]
    for row, text in flagged:
        what = f"all {row['words']} words" if row["flag"] == "copy" else f"{row['flag_share']:.0%} of its {k}-grams"
        what += " (names and nouns masked)" if row["flag"] == "template" else ""
        who = f"Prompt {row['prompt_index']}, completion {row['sample_index']}, {row['flag']}"
        parts.append(f"{who}: {what} stand in training story {row['flag_story']}")
        parts.append(side_by_side(text, stories.text(row["flag_story"])))
    return "\n\n".join(parts) + "\n"


# ---- A run's report ----


@dataclass
class Settings:
    k: int = 2  # of ROUGE-k
    counting: str = "set"  # or clipped: rouge_k
    tokens: bool = False  # k-grams of the data's tokens instead of words; then no templates, which need words
    threshold: float = 0.75  # share of a completion's k-grams in one training story from which on it is flagged


@dataclass
class Report:
    run: Path
    facts: dict  # of rouge.json
    figures: Figures
    flagged: str


def report(run: Path, directory: Path | None, settings: Settings) -> Report:
    """All that there is to say of out/<run>/samples.jsonl beside data/<name>/, which by default is the run's own."""
    rows = read_completions(run / "samples.jsonl")
    directory = directory or data_of(run)
    stories = open_stories(directory, settings.tokens)
    completions = texts_of(rows, stories)
    if not any(map(len, completions.words)):
        raise ValueError(f"{run / 'samples.jsonl'}: no completion has a word in it")
    pieces = held_out(directory, stories, completions)
    n, k, counting, masked = len(rows), settings.k, settings.counting, None
    both = completions.words + pieces.words
    found = search(both, stories.stream, k, counting, doing="training stories")
    if not settings.tokens:
        masked = search(both, stories.stream, k, counting, masks(stories, both), doing="templates")
    kinds = kinds_of(both, found, masked, k, settings.threshold)

    figures = to_endings(rows, stories, k, counting) | to_each_other(completions, pieces, k, counting)
    beside = to_training(found, pieces.clusters, slice(n, None))
    figures |= {name: (ours, beside[name]) for name, ours in to_training(found, completions.clusters, slice(n)).items()}
    figures = {name: columns for name, columns in figures.items() if not np.isnan(columns[0].values).all()}
    details = details_of(rows, completions, stories, found, masked, kinds)
    facts = dict(
        format=FORMAT,
        run=str(run),
        data=str(directory),
        training_stories=len(stories),
        completions=n,
        prompts=len({row["prompt_index"] for row in rows}),
        held_out_stories=len(set(pieces.clusters)),
        settings=vars(settings),
        figures={name: with_intervals(*columns, name in ENDINGS) for name, columns in figures.items()},
        flagged={
            kind: dict(completions=int(np.sum(kinds[:n] == kind)), beside=int(np.sum(kinds[n:] == kind)))
            for kind in KINDS
        },
        values={name: values_of(*figures[name]) for name in PANELS if name in figures},
        details=details,
    )
    flagged = flagged_text(run, details, [row["completion"] for row in rows], stories, k)
    return Report(run, facts, figures, flagged)


def data_of(run: Path) -> Path:
    if not (run / "ckpt.pt").exists():
        raise ValueError(f"{run}: no run of train.py's; name the training set, as in --data data/tinystories")
    return corpus_of(str(run))


def with_intervals(completions: Values, beside: Values | None, paired: bool) -> dict:
    """Means with 95 % intervals, and that of the difference. paired: both are of the same prompts."""
    ours = means(completions)
    if beside is None or np.isnan(beside.values).all():
        return dict(completions=interval(ours))
    theirs = means(beside, seed=0 if paired else 1)
    return dict(completions=interval(ours), beside=interval(theirs), difference=interval(ours - theirs))


def values_of(completions: Values, beside: Values | None) -> dict[str, list[float]]:
    """That of each text, for histograms."""
    columns = dict(completions=completions, beside=beside)
    return {
        name: [round(float(x), 4) for x in column.values if not np.isnan(x)]
        for name, column in columns.items()
        if column is not None
    }


def details_of(
    rows: list[dict], completions: Texts, stories: Stories, found: Overlaps, masked: Overlaps | None, kinds: np.ndarray
) -> list[dict]:
    """For each completion its nearest training story, its longest span that stands in any, and why it is flagged."""
    details = []
    for i, (row, words) in enumerate(zip(rows, completions.words)):
        start = int(found.spans[i].argmax()) if len(words) else 0
        length = int(found.spans[i].max(initial=0))
        span_story = stories.at(found.places[i][start]) if length else -1
        nearest = int(found.nearest[i])
        sources = {"": (-1, 0.0), "copy": (span_story, 1.0), "near copy": (found.container[i], found.precision[i])}
        if masked:
            sources["template"] = (masked.container[i], masked.precision[i])
        flag_story, flag_share = sources[kinds[i]]
        details.append(
            dict(
                prompt_index=row["prompt_index"],
                sample_index=row["sample_index"],
                words=len(words),
                f=found.f[i],
                nearest_story=nearest,
                nearest_text=stories.text(nearest) if nearest >= 0 else None,
                shares={
                    n: float((found.spans[i][: len(words) - n + 1] >= n).mean()) for n in SHARES if n <= len(words)
                },
                span_words=length,
                span=stories.spell(words[start : start + length]),
                span_story=span_story,
                flag=str(kinds[i]),
                flag_story=int(flag_story),
                flag_share=float(flag_share),
            )
        )
    return details


# ---- What is shown and written ----

TITLES = {
    "ending_f": "F with the true ending *",
    "ending_precision": "precision by the true ending *",
    "ending_l": "ROUGE-L F with the true ending *",
    "any_other_f": "F with the nearest other completion",
    "other_prompt_f": "... among one of each prompt",
    "training_f": "F with the nearest training story",
    "training_precision": "largest share in one training story",
    "share_1": "share of words in the training set",
    "share_2": "... of 2-grams",
    "share_4": "... of 4-grams",
    "share_8": "... of 8-grams",
    "span": "longest span in the training set, words",
}


def print_table(facts: dict) -> None:
    settings = facts["settings"]
    unit, drawn = "tokens" if settings["tokens"] else "words", "prompts" if facts["prompts"] > 1 else "completions"
    what = f"{facts['completions']:,} completions (prompts: {facts['prompts']:,})"
    print(f"\n{facts['run']}: {what}, {facts['training_stories']:,} training stories of {facts['data']}")
    how = f"ROUGE-{settings['k']} of {unit}, {settings['counting']}"
    print(f"{how}; means, with 95 % intervals by bootstrap over {drawn}\n")
    print(f"{'':40}{'completions':24}{'held-out stories':24}{'difference':24}")
    for name, title in TITLES.items():
        if name in facts["figures"]:
            digits = 1 if name == "span" else 3
            cells = [cell(**figure, digits=digits) for figure in facts["figures"][name].values()]
            print(f"{title:40}" + "".join(f"{cell:24}" for cell in cells).rstrip())
    for kind, counts in facts["flagged"].items():
        cells = [f"{count:,} of {facts['completions']:,}" for count in counts.values()]
        print(f"{'flagged: ' + kind:40}{cells[0]:24}{cells[1]}")
    if "ending_f" in facts["figures"]:
        print("* beside it: other stories' endings with that ending")
    if facts["prompts"] == 1:
        print("One prompt only: nothing of human hand stands beside how like each other its completions are")


def cell(mean: float, low: float, high: float, digits: int) -> str:
    return f"{mean:.{digits}f}" + ("" if np.isnan(low) else f" [{low:.{digits}f}, {high:.{digits}f}]")


PANELS = {
    "ending_f": "F with the true ending",
    "other_prompt_f": "F with the nearest completion of another prompt",
    "training_f": "F with the nearest training story",
    "training_precision": "largest share in one training story",
    "span": "longest span in the training set (words)",
}


def plot(path: Path, reports: list[Report]) -> None:
    """Each run in a colour: its completions as a line, what stands beside them as a pale area."""
    titles = {name: title for name, title in PANELS.items() if any(name in report.figures for report in reports)}
    picture = Figure(figsize=(13, 7.5), layout="constrained")
    *panels, last = picture.subplots(2, len(titles) // 2 + 1).flat
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    for axes, (name, title) in zip(panels, titles.items()):
        figures = {i: report.figures[name] for i, report in enumerate(reports) if name in report.figures}
        everything = np.concatenate([[0.0, 0.01], *(x.values for columns in figures.values() for x in columns)])
        largest = np.nanmax(everything)
        step = np.ceil(largest / 40)  # of words
        bins = np.arange(-0.5, largest + step, step) if name == "span" else np.linspace(0, largest, 41)
        for i, columns in figures.items():
            for column, style in zip(columns, (dict(histtype="step", linewidth=1.8), dict(alpha=0.2))):
                values = column.values[~np.isnan(column.values)]
                if not len(values):
                    continue
                axes.hist(values, bins, weights=np.full(len(values), 100 / len(values)), color=f"C{i}", **style)
        axes.set(xlabel=title, ylabel="texts (%)")
    for i, report in enumerate(reports):
        ks = [k for k in range(1, K_MAX + 1) if f"share_{k}" in report.figures]
        for column, style in (("completions", dict(marker="o", label=report.run)), ("beside", dict(linestyle="--"))):
            shares = [report.facts["figures"][f"share_{k}"][column] for k in ks]
            last.plot(ks, [100 * share["mean"] for share in shares], color=f"C{i}", **style)
            low, high = ([100 * share[end] for share in shares] for end in ("low", "high"))
            last.fill_between(ks, low, high, color=f"C{i}", alpha=0.2, linewidth=0)
    last.set(xlabel="k", ylabel="k-grams that stand in the training set (%)", ylim=(0, 103))
    title = f"ROUGE-{reports[0].facts['settings']['k']}. Lines: completions; pale, dashed: held-out stories"
    picture.legend(loc="outside upper center", ncols=4, title=title)
    image = io.BytesIO()
    picture.savefig(image, dpi=120, format="png")
    write_bytes(path, image.getvalue())


# ---- The command line ----


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, help="directories with a samples.jsonl (default: the newest run)")
    parser.add_argument("--data", type=Path, help="the training set, as data/tinystories (default: that of each run)")
    parser.add_argument("--k", type=int, default=2, help="of ROUGE-k")
    parser.add_argument("--counting", choices=COUNTINGS, default="set", help="the paper's, or that of rouge-score")
    parser.add_argument("--tokens", action="store_true", help="compare tokens, not words; there are then no templates")
    parser.add_argument("--threshold", type=float, default=0.75, help="flag from this share in one training story on")
    args = parser.parse_args()
    if args.k < 1:
        parser.error(f"--k must be at least 1, not {args.k}")
    if not 0 < args.threshold <= 1:
        parser.error(f"--threshold must be above 0 and at most 1, not {args.threshold}")
    return args


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    try:
        write(args)
    except KeyboardInterrupt:
        sys.exit("rouge.py: stopped; what was there before still is")
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        sys.exit(f"rouge.py: {where}{error.strerror}; what stood there before still does")
    except ValueError as error:
        sys.exit(f"rouge.py: {error}")


def write(args: argparse.Namespace) -> None:
    settings = Settings(args.k, args.counting, args.tokens, args.threshold)
    reports = []
    for run in args.runs or [newest_run()]:
        reports.append(report(run, args.data, settings))
        print_table(reports[-1].facts)
        without_nan = json.loads(json.dumps(reports[-1].facts), parse_constant=lambda _: None)  # JSON has none
        write_json(run / "rouge.json", without_nan)
        write_bytes(run / "flagged.txt", reports[-1].flagged.encode())
        picture = run / "rouge.png"
        plot(picture, reports[-1:])
    if len(reports) > 1:
        picture = run.parent / "rouge.png"
        plot(picture, reports)
    counts = {r.run: sum(count["completions"] for count in r.facts["flagged"].values()) for r in reports}
    flagged = ", ".join(f"{run}/flagged.txt ({n} flagged)" for run, n in counts.items())
    print(f"wrote rouge.json and rouge.png; next: look at {picture}, read {flagged}")


if __name__ == "__main__":
    main()
