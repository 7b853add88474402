"""
Is a model's writing novel and diverse, or memorized? Compares a run's completions by ROUGE-k with
their true endings, with each other, and with every training story. Baselines: excerpts of held-out
stories; other stories' endings. Or: are the stories of corpora diverse and clean?

$ python rouge.py out/cpu_8m  # its samples/eval.jsonl -> rouge.json, rouge.png, rouge.csv
$ python sample.py --eval 50 --split train  # then rerun rouge.py to see both sets
# several runs: also together, in out/rouge.json and out/rouge.png
$ python rouge.py out/cpu_8m out/overfit
$ python rouge.py data/real data/builtin  # are corpora diverse? -> data/real/diversity.json
$ python rouge.py out/api--gpt-3.5-turbo --data data/tinystories --k 4 --counting clipped

>>> rouge_k("The cat sat on the mat.", "A cat sat there.", k=2)
Score(precision=0.2, recall=0.3333333333333333, f=0.25)
"""

import argparse
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanostories.checkpoints.checkpoint import newest_run
from nanostories.checkpoints.models import label_of
from nanostories.cli import Parser, UserError, existing_path, one_line_errors, positive
from nanostories.corpus.token_files import text_identity
from nanostories.files import common_directory
from nanostories.generation.samples_file import (
    EVAL,
    TRAIN,
    read_rows,
    result_name,
    set_file,
)
from nanostories.grading.stories import (
    SAMPLING_SETTINGS,
    story_of,
    warn_of_other_weights,
    writer_of,
)
from nanostories.novelty import flags
from nanostories.novelty.intervals import ClusteredValues, Metric
from nanostories.novelty.search import Matches, Stream, search
from nanostories.novelty.words import WordCorpus, draw_excerpts, open_corpus, words_of
from nanostories.results import Table, save
from nanostories.tables import write_table

N_OTHER_ENDINGS = 10  # that are compared with each true ending, as its baseline
MIN_EXCERPTS = 400  # of held-out stories: half of them decide how long a copied passage must be
SHARES = (1, 2, 4, 8)  # k of the k-grams that are looked for in all training stories
IN_PICTURE = ("ending_f", "other_f", "training_f", "span")


# ---- The metric ----
class Score(NamedTuple):
    precision: float  # share of a's k-grams that also occur in b
    recall: float  # share of b's that also occur in a
    f: float  # their harmonic mean


def rouge_k(a: str | Sequence, b: str | Sequence, k: int = 2, counting: str = "set") -> Score:
    """Shared k-grams of two texts, or of two sequences of words or ids.

    counting: "set" is the TinyStories paper's (section 4): each k-gram counts once per text,
    however often it occurs. "clipped" is Lin's (2004), and rouge-score's: a k-gram that a has m
    times and b n is shared min(m, n) times."""
    return overlap(kgrams(a, k, counting), kgrams(b, k, counting))


def kgrams(text: str | Sequence, k: int, counting: str) -> Counter:
    if isinstance(text, str):
        text = words_of(text)
    elif isinstance(text, np.ndarray):
        text = text.tolist()  # Python's integers are quicker to hash
    grams = zip(*(text[i:] for i in range(k)))
    return Counter(set(grams) if counting == "set" else grams)


def overlap(a: Counter, b: Counter) -> Score:
    shared = (a & b).total()
    n_a = a.total()
    n_b = b.total()
    return Score(shared / max(n_a, 1), shared / max(n_b, 1), 2 * shared / max(n_a + n_b, 1))


# ---- The comparisons ----
def read_texts(
    run: Path, samples: list[dict], corpus: WordCorpus
) -> tuple[list[np.ndarray], np.ndarray]:
    """The completions, then excerpts of held-out stories, as ids; and (texts,) their clusters:
    completions of one prompt are alike, and so are excerpts of one story."""
    completions = [corpus.encode(row["completion"]) for row in samples]
    if not any(map(len, completions)):
        raise UserError(f"{run}: no completion has a word; sample again")
    begins = [len(corpus.encode(story_of(row).opening)) for row in samples]
    excerpts, stories = draw_excerpts(corpus, completions, begins, MIN_EXCERPTS)
    numbers = {}  # of stories; --ask makes several prompts of one
    clusters = []
    for row in samples:
        story = row["reference"] or row["prompt"]
        clusters.append(numbers.setdefault(story, len(numbers)))
    if len(set(clusters)) == 1:  # of a single prompt: each completion is a cluster of its own
        clusters = [row["sample_index"] for row in samples]
    return completions + excerpts, np.concatenate([clusters, stories])


def search_training_stories(
    texts: list[np.ndarray], corpus: WordCorpus, args: argparse.Namespace
) -> tuple[Matches, Matches]:
    """Of the texts as they stand, and with names masked, which finds retold stories, too."""
    stream = corpus.stream
    matches = search(texts, stream, args.k, args.counting, "training stories")
    classes = flags.mask_names(corpus)
    masked = [classes[words] for words in texts]
    masked_stream = Stream(classes[stream.ids], stream.bounds)
    label = "training stories, names masked"
    return matches, search(masked, masked_stream, args.k, args.counting, label)


def novelty_metrics(
    samples: list[dict], matches: Matches, clusters: np.ndarray, args: argparse.Namespace
) -> dict[str, Metric]:
    """By name; without those that no completion has, because there are no true endings or too few
    other completions."""
    n = len(samples)
    grams = [kgrams(words, args.k, args.counting) for words in matches.texts]
    nearest = nearest_other(grams[:n], clusters[:n], args.others)
    nearest_excerpt = nearest_other(grams[n:], clusters[n:], args.others)
    measures = [
        (
            "other_f",
            f"highest F with {args.others} other completions",
            np.concatenate([nearest, nearest_excerpt]),
        ),
        ("training_f", "F with the nearest training story", matches.f),
        (
            "training_precision",
            "largest share of a completion's k-grams in one training story",
            matches.precision,
        ),
    ]
    for k in SHARES:
        measures.append((f"share_{k}", f"share of {k}-grams in the training set", matches.share(k)))
    measures.append(("span", "words of the longest passage in a training story", matches.longest()))
    metrics = compare_with_endings(samples, args)
    for name, title, values in measures:
        completions = ClusteredValues(values[:n], clusters[:n])
        excerpts = ClusteredValues(values[n:], clusters[n:])
        if not np.isnan(completions.values).all():
            metrics[name] = Metric(title, completions, excerpts, is_count=name == "span")
    return metrics


def compare_with_endings(samples: list[dict], args: argparse.Namespace) -> dict[str, Metric]:
    """Baseline: other stories' endings."""
    pairs = []  # a true ending, and the words that are compared with it
    for row in samples:
        if row["reference"] and row["reference"].strip():
            pairs.append((row["reference"], words_of(row["completion"])))
    texts = list(dict.fromkeys(text for text, _ in pairs))
    endings = {text: words_of(text) for text in texts}
    numbers = {text: i for i, text in enumerate(texts)}
    baseline_pairs = []
    for i, text in enumerate(texts):
        others = (texts[i + 1 :] + texts[:i])[:N_OTHER_ENDINGS]
        baseline_pairs += [(text, endings[other]) for other in others]
    if not baseline_pairs:
        return {}

    def f_of(pairs: list[tuple[str, list[str]]]) -> ClusteredValues:
        scores = [rouge_k(words, endings[text], args.k, args.counting).f for text, words in pairs]
        clusters = [numbers[text] for text, _ in pairs]
        return ClusteredValues(np.array(scores), np.array(clusters))

    title = "F with the true ending"
    return {"ending_f": Metric(title, f_of(pairs), f_of(baseline_pairs), is_paired=True)}


def nearest_other(grams: list[Counter], groups: np.ndarray, n_others: int) -> np.ndarray:
    """(n,) the highest F of each text's k-grams with those of `n_others` texts, each of another
    group (another prompt), drawn at random; NaN if there are too few groups."""
    members = {}
    for i, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(i)
    highest = np.full(len(grams), np.nan)
    if len(members) <= n_others:
        return highest
    rng = random.Random(0)
    for i, group in enumerate(groups.tolist()):
        # one more than needed, as its own group may be among them
        others = [x for x in rng.sample(list(members), n_others + 1) if x != group]
        drawn = [rng.choice(members[other]) for other in others[:n_others]]
        highest[i] = max(overlap(grams[i], grams[j]).f for j in drawn)
    return highest


# ---- One set of a run ----
@dataclass
class Analysis:
    run: Path
    set_name: str
    settings: dict  # how it was sampled: only like settings compare
    warnings: list[str]  # about its stories
    metrics: dict[str, Metric]
    baseline_flags: list[str]  # of the excerpts of every second held-out story
    baseline_lengths: list[int]  # words of these
    min_copied_words: int
    n_verbatim: int  # excerpts that are in the training set word for word
    csv_rows: list[dict]

    def label(self, base: Path) -> str:
        return f"{label_of(self.run, base)}, {self.set_name}"


def analyze(
    run: Path,
    set_name: str,
    samples: list[dict],
    corpus: WordCorpus,
    args: argparse.Namespace,
) -> Analysis:
    """samples: of the set of this name."""
    n = len(samples)
    texts, clusters = read_texts(run, samples, corpus)
    matches, masked = search_training_stories(texts, corpus, args)
    # Half of the stories set how long a copied passage must be; what is flagged of the other half
    # are false alarms.
    is_even = clusters[n:] % 2 == 0
    longest = matches.longest()[n:]
    min_copied_words = flags.copied_length(longest[is_even])
    flagged = flags.flag_texts(matches, masked, args.k, min_copied_words)
    lengths = np.array([len(words) for words in texts[n:]])
    n_prompts = len({row["prompt_index"] for row in samples})
    settings = {setting: samples[0].get(setting) for setting in SAMPLING_SETTINGS}
    settings["training stories"] = text_identity(corpus.directory)
    settings["prompts"] = n_prompts
    settings["completions per prompt"] = n / n_prompts
    settings["checkpoint"] = samples[0].get("weights")
    return Analysis(
        run=run,
        set_name=set_name,
        settings=settings,
        warnings=warn_of_other_weights(samples),
        metrics=novelty_metrics(samples, matches, clusters, args),
        baseline_flags=[flag for flag, even in zip(flagged[n:], is_even) if not even],
        baseline_lengths=lengths[~is_even].tolist(),
        min_copied_words=min_copied_words,
        n_verbatim=((longest == lengths) & (lengths >= flags.MIN_WORDS)).sum(),
        csv_rows=flags.describe_completions(samples, corpus, flagged, matches, masked),
    )


# ---- The tables ----
def tables_of(analyses: list[Analysis], base: Path, args: argparse.Namespace) -> list[Table]:
    """Of one or several runs; their names are paths from `base`."""
    rows = []
    flag_rows = []
    passages = []
    for analysis in analyses:
        label = label_of(analysis.run, base)
        first_cells = {"run": label, "set": analysis.set_name}
        for metric in analysis.metrics.values():
            facts = {"cut": analysis.settings["cut"], "metric": metric.title}
            rows.append(first_cells | facts | metric.cells())
        flagged = [row["flag"] for row in analysis.csv_rows]
        lengths = [row["length"] for row in analysis.csv_rows]
        n_words = analysis.min_copied_words
        criteria = {
            "copy": (n_words, f"{n_words} words in a row (of texts of as many words)"),
            "template": (0, f"{flags.TEMPLATE:.0%} of its {args.k}-grams, names masked"),
        }
        for flag, (least, criterion) in criteria.items():
            held_out = count_of(flag, analysis.baseline_flags, analysis.baseline_lengths, least)
            cells = {
                "flagged": flag,
                "if one training story has": criterion,
                "completions": count_of(flag, flagged, lengths, least),
                "held-out": held_out,
            }
            flag_rows.append(first_cells | cells)
        passages += flags.flagged_rows(first_cells, analysis.csv_rows)
    counted = "once per text" if args.counting == "set" else "as often as it occurs"
    about = (
        f"ROUGE-{args.k}: each {args.k}-gram of words counts {counted}."
        " Intervals are 95%, over prompts. Baseline: excerpts of held-out stories, as long as the"
        " completions; for the true ending, other stories' endings."
    )
    if any("other_f" in analysis.metrics for analysis in analyses):
        about += (
            f" Each completion is compared with {args.others} others, of other prompts: a maximum"
            " grows with the number compared."
        )
    formats = dict.fromkeys(("completions", "baseline", "difference"), ".3f")
    tables = [
        Table("Novelty", rows, formats, about=about, facts={"kind": "metrics"}),
        Table("Flagged completions", flag_rows, facts={"kind": "flags"}),
    ]
    if passages:
        tables.append(Table("Flagged passages", passages, facts={"kind": "passages"}))
    return tables


def count_of(flag: str, flags_of_texts: list[str], lengths: list[int], least: int) -> str:
    """Of the texts that have at least this many words."""
    counted = [own for own, length in zip(flags_of_texts, lengths) if length >= least]
    return f"{counted.count(flag):,} of {len(counted):,}"


def differences_of_splits(analyses: list[Analysis], base: Path) -> list[dict]:
    """Rows, of each run's completions of training and of validation stories: memorization."""
    of_validation = {analysis.run: analysis for analysis in analyses if analysis.set_name == EVAL}
    rows = []
    for training in analyses:
        validation = of_validation.get(training.run)
        if training.set_name != TRAIN or not validation:
            continue
        alike = (*SAMPLING_SETTINGS, "checkpoint")
        if any(training.settings[name] != validation.settings[name] for name in alike):
            continue
        for name, metric in training.metrics.items():
            if name in validation.metrics:
                baseline = validation.metrics[name].completions
                pair = Metric("", metric.completions, baseline, is_count=metric.is_count)
                cells = {"run": label_of(training.run, base), "metric": metric.title}
                rows.append(cells | {"difference": pair.cells()["difference"]})
    return rows


def warnings_of(analyses: list[Analysis], base: Path, args: argparse.Namespace) -> list[str]:
    lines = []
    for analysis in analyses:
        label = analysis.label(base)
        lines += [f"{label}: {text}" for text in analysis.warnings]
        if analysis.n_verbatim:
            lines.append(
                f"{label}: {analysis.n_verbatim} held-out excerpts are in the training set"
                " word for word, as stock phrases are; `python rouge.py` of the corpus says whether"
                " the splits share whole stories"
            )
        n_copies = analysis.baseline_flags.count("copy")
        if n_copies > 3 * flags.FALSE_ALARMS * len(analysis.baseline_flags):
            lines.append(
                f"{label}: {n_copies} held-out excerpts are flagged as copies: the splits"
                " share near-copies of stories"
            )
        n = len(analysis.csv_rows)
        n_long = sum(row["length"] >= analysis.min_copied_words for row in analysis.csv_rows)
        if n_long < n / 2:
            lines.append(
                f"{label}: only {n_long} of {n} completions have the"
                f" {analysis.min_copied_words} words in a row that make a copy here, as held-out"
                " stories share nearly as many with training stories: copies can hardly be told"
            )
        if "other_f" not in analysis.metrics:
            lines.append(
                f"{label}: completions are not compared with each other: that needs"
                f" {args.others + 1} prompts (of one prompt: completions); sample more, or lower"
                " --others"
            )
    first, *others = analyses
    is_one_run = all(analysis.run == first.run for analysis in others)
    differ = []
    for name, value in first.settings.items():
        unlike = [analysis for analysis in others if analysis.settings[name] != value]
        if unlike and (name != "checkpoint" or is_one_run):
            found = f"{unlike[0].settings[name]} of {unlike[0].label(base)}"
            differ.append(f"{name} ({value} of {first.label(base)}, {found})")
    if differ:
        lines.append(f"sampled with different settings: {'; '.join(differ)}")
    return lines


# ---- The command ----
def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    runs = "runs with samples/ by sample.py, directories of runs, or corpora (default: newest run)"
    parser.add_argument("runs", nargs="*", type=existing_path, help=runs)
    parser.add_shared("data")
    sets = "names of their sets (default: eval train, those that are there)"
    parser.add_shared("set", nargs="+", default=[EVAL, TRAIN], metavar="NAME", help=sets)
    parser.add_argument("--k", type=positive, default=2, help="length of the k-grams (default: 2)")
    counting = "set: a repeated k-gram counts once, as in the paper"
    parser.add_argument("--counting", choices=("set", "clipped"), default="set", help=counting)
    others = (
        "how many other completions each one is compared with (default: 20); for a maximum among"
        " 100 completions: 99"
    )
    parser.add_argument("--others", type=positive, default=20, help=others)
    return parser.parse_args()


def runs_with_samples(place: Path, names: Sequence[str]) -> list[Path]:
    """A run itself, or those in a directory of runs that have one of these sets."""
    below = set()
    for name in names:
        below |= {path.parent.parent for path in place.glob(f"*/samples/{name}.jsonl")}
    return [place] if (place / "samples").exists() or not below else sorted(below)


def read_sets(run: Path, names: Sequence[str]) -> dict[str, list[dict]]:
    """Those that are there: by default the completions of validation and of training stories."""
    sets = {}
    for name in names:
        rows = read_rows(set_file(run, name))
        if rows:
            sets[name] = [row for _, row in sorted(rows.items())]
    if not sets:
        raise UserError(
            f"{set_file(run, names[0])}: no completions there; write them with `python sample.py"
            " --eval 50`, or name another --set"
        )
    return sets


def corpora_of(runs: dict[Path, dict[str, list[dict]]]) -> dict[Path, Path]:
    """That of each run; for a model that was not trained here the one of the other runs, if they
    have one in common. runs: {directory: its sets}"""
    corpora = {}
    for run, sets in runs.items():
        model = writer_of(run, next(iter(sets.values())))
        if model:
            corpora[run] = model.evaluation_corpus()
    for run in runs:
        if run not in corpora and len(set(corpora.values())) != 1:
            remedy = "name the training set, as in --data data/tinystories"
            raise UserError(f"{run}: not a run of train.py; {remedy}")
    return dict.fromkeys(runs, next(iter(corpora.values()))) | corpora


def analyze_run(
    run: Path, sets: dict[str, list[dict]], corpus: WordCorpus, args: argparse.Namespace
) -> list[Analysis]:
    analyses = [analyze(run, name, rows, corpus, args) for name, rows in sets.items()]
    for analysis in analyses:
        write_table(run / f"{result_name('rouge', analysis.set_name)}.csv", analysis.csv_rows)
    return analyses


def save_results(
    path: Path, analyses: list[Analysis], args: argparse.Namespace, is_shown: bool
) -> None:
    from nanostories.novelty.histograms import histograms  # here, as matplotlib is slow to import

    tables = tables_of(analyses, path.parent, args)
    differences = differences_of_splits(analyses, path.parent)
    if differences:
        title = "Training minus validation stories: memorization"
        facts = {"kind": "memorization"}
        tables.append(Table(title, differences, {"difference": ".3f"}, facts=facts))
    sources = [set_file(analysis.run, analysis.set_name) for analysis in analyses]
    runs = {analysis.label(path.parent): analysis.metrics for analysis in analyses}
    figure = histograms(runs, IN_PICTURE)
    warnings = warnings_of(analyses, path.parent, args)
    save(path, "rouge.py", tables, warnings, sources, figure, is_shown)


def comparison_path(runs: Sequence[Path], name: str) -> Path:
    """In the directory that holds the runs; never over the results of a run."""
    common = common_directory(runs)
    is_run = (common / "samples").exists()
    return common / f"{result_name('rouge-comparison' if is_run else 'rouge', name)}.json"


def show_corpora(directories: Sequence[Path]) -> None:
    from nanostories.novelty.diversity import diversity  # here, as matplotlib is slow to import

    tables, figure = diversity(directories)
    save(directories[0] / "diversity.json", "rouge.py", tables, figure=figure)
    print(f"wrote {directories[0]}/diversity.json and .png")


def main() -> None:
    args = parse_arguments()
    with one_line_errors(
        "rouge.py", interrupted="files of runs that were finished are written, others unchanged"
    ):
        data = [path for path in args.runs if (path / "meta.json").exists()]
        if data and data == args.runs:
            return show_corpora(data)
        if data:
            raise UserError(f"{data[0]}: a corpus; name runs alone, or corpora alone")
        found = {}
        for place in args.runs or [newest_run()]:
            found |= {run.resolve(): run for run in runs_with_samples(place, args.set)}
        runs = {run: read_sets(run, args.set) for run in found.values()}
        name = f"{result_name('rouge', args.set[0])}.json"
        path = next(iter(runs)) / name
        if len(runs) > 1:
            path = comparison_path(list(runs), args.set[0])
        corpora = dict.fromkeys(runs, args.data) if args.data else corpora_of(runs)
        analyses = []
        for run, sets in runs.items():
            analyses_of_run = analyze_run(run, sets, open_corpus(corpora[run]), args)
            save_results(run / name, analyses_of_run, args, is_shown=len(runs) == 1)
            analyses += analyses_of_run
        if len(runs) > 1:
            save_results(path, analyses, args, is_shown=True)
        picture = path.with_suffix(".png")
        print(f"wrote {path}, {picture.name}, and in each run rouge*.csv")
        print(f"next: look at {picture}")


if __name__ == "__main__":
    main()
