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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanostories.checkpoints.checkpoint import checkpoint_file, newest_run
from nanostories.checkpoints.models import label_of, open_model
from nanostories.cli import Parser, UserError, existing_path, one_line_errors, positive
from nanostories.corpus.token_files import load_meta, text_identity
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
from nanostories.novelty.words import WordCorpus, draw_excerpts, open_corpus, passage, words_of
from nanostories.results import Table, save
from nanostories.tables import write_table

N_OTHER_ENDINGS = 10  # that are compared with each true ending, as its baseline
MIN_EXCERPTS = 400  # of held-out stories: half of them decide how long a copied passage must be
SHARES = (1, 2, 4, 8)  # k of the k-grams that are looked for in all training stories
# Titles of metrics
ENDING_F = "F with the true ending"
OTHER_F = "highest F with {} other completions"
TRAINING_F = "F with the nearest training story"
LONGEST = "words of the longest passage in a training story"


# ---- The metric ----
class Score(NamedTuple):
    precision: float  # share of a's k-grams that also occur in b
    recall: float  # share of b's that also occur in a
    f: float  # their harmonic mean


def rouge_k(a: str, b: str, k: int = 2, counting: str = "set") -> Score:
    """Shared k-grams of two texts.

    counting: "set" is the TinyStories paper's (section 4): each k-gram counts once per text,
    however often it occurs. "clipped" is Lin's (2004), and rouge-score's: a k-gram that a has m
    times and b n is shared min(m, n) times."""
    return overlap(kgrams(words_of(a), k, counting), kgrams(words_of(b), k, counting))


def kgrams(words: Sequence, k: int, counting: str) -> Counter:
    """words: as text, or their ids."""
    grams = zip(*(words[i:] for i in range(k)))
    return Counter(set(grams) if counting == "set" else grams)


def overlap(a: Counter, b: Counter) -> Score:
    shared = (a & b).total()
    n_a = a.total()
    n_b = b.total()
    return Score(shared / max(n_a, 1), shared / max(n_b, 1), 2 * shared / max(n_a + n_b, 1))


# ---- The comparisons ----
def read_texts(samples: list[dict], corpus: WordCorpus) -> tuple[list[np.ndarray], np.ndarray]:
    """The completions, then excerpts of held-out stories, as ids; and (texts,) their clusters:
    completions of one prompt are alike, and so are excerpts of one story."""
    completions = [corpus.encode(row["completion"]) for row in samples]
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
    stories = corpus.stream
    classes = flags.mask_names(corpus)
    masked = [classes[words] for words in texts]
    masked_stories = Stream(classes[stories.ids], stories.bounds)
    return (
        search(texts, stories, args.k, args.counting),
        search(masked, masked_stories, args.k, args.counting),
    )


def novelty_metrics(
    samples: list[dict], matches: Matches, clusters: np.ndarray, args: argparse.Namespace
) -> dict[str, Metric]:
    """By title; without those that no completion has, because there are no true endings or too few
    other completions."""
    n = len(samples)
    grams = [kgrams(words.tolist(), args.k, args.counting) for words in matches.texts]
    nearest = nearest_other(grams[:n], clusters[:n], args.others)
    nearest_excerpt = nearest_other(grams[n:], clusters[n:], args.others)
    measures = {
        OTHER_F.format(args.others): np.concatenate([nearest, nearest_excerpt]),
        TRAINING_F: matches.f,
        "largest share of a completion's k-grams in one training story": matches.precision,
    }
    for k in SHARES:
        measures[f"share of {k}-grams in the training set"] = matches.share(k)
    measures[LONGEST] = matches.longest()
    metrics = compare_with_endings(samples, args)
    for title, values in measures.items():
        completions = ClusteredValues(values[:n], clusters[:n])
        excerpts = ClusteredValues(values[n:], clusters[n:])
        if not np.isnan(completions.values).all():
            metrics[title] = Metric(completions, excerpts, is_count=title == LONGEST)
    return metrics


def compare_with_endings(samples: list[dict], args: argparse.Namespace) -> dict[str, Metric]:
    """Baseline: other stories' endings, cut to the length of each completion."""
    pairs = []  # a text, and the true ending that it is compared with
    numbers = {}  # of the endings; --ask makes several prompts of one
    for row in samples:
        ending = row["reference"]
        if ending and ending.strip():
            pairs.append((row["completion"], ending))
            numbers.setdefault(ending, len(numbers))
    endings = list(numbers)
    baseline_pairs = []
    for completion, ending in pairs:
        n_words = len(words_of(completion))
        i = numbers[ending]
        others = endings[i + 1 :] + endings[:i]
        for other in others[:N_OTHER_ENDINGS]:
            baseline_pairs.append((passage(other, 0, n_words), ending))
    if not baseline_pairs:
        return {}

    def f_of(pairs: list[tuple[str, str]]) -> ClusteredValues:
        scores = [rouge_k(text, ending, args.k, args.counting).f for text, ending in pairs]
        clusters = [numbers[ending] for _, ending in pairs]
        return ClusteredValues(np.array(scores), np.array(clusters))

    return {ENDING_F: Metric(f_of(pairs), f_of(baseline_pairs), is_paired=True)}


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
    metrics: dict[str, Metric]
    flag_rows: list[dict]  # for a table
    csv_rows: list[dict]
    warnings: list[str]

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
    texts, clusters = read_texts(samples, corpus)
    matches, masked = search_training_stories(texts, corpus, args)
    metrics = novelty_metrics(samples, matches, clusters, args)
    # Half of the stories set how long a copied passage must be; what is flagged of the other half
    # are false alarms.
    is_even = clusters[n:] % 2 == 0
    min_copied_words = flags.copied_length(matches.longest()[n:][is_even])
    flagged = flags.flag_texts(matches, masked, args.k, min_copied_words)
    held_out = [text for text, even in zip(flagged[n:], is_even) if not even]
    return Analysis(
        run=run,
        set_name=set_name,
        settings=settings_of(samples, corpus),
        metrics=metrics,
        flag_rows=flags.count_flags(flagged[:n], held_out, args.k, min_copied_words),
        csv_rows=flags.describe_completions(samples, corpus, flagged, matches),
        warnings=warnings_of(samples, matches, metrics, min_copied_words, args),
    )


def settings_of(samples: list[dict], corpus: WordCorpus) -> dict:
    n_prompts = len({row["prompt_index"] for row in samples})
    settings = {setting: samples[0].get(setting) for setting in SAMPLING_SETTINGS}
    settings["training stories"] = text_identity(corpus.directory)
    settings["prompts"] = n_prompts
    settings["completions per prompt"] = len(samples) / n_prompts
    settings["checkpoint"] = samples[0].get("weights")
    return settings


def warnings_of(
    samples: list[dict],
    matches: Matches,
    metrics: dict[str, Metric],
    min_copied_words: int,
    args: argparse.Namespace,
) -> list[str]:
    n = len(samples)
    lines = warn_of_other_weights(samples)
    lengths = np.array([len(words) for words in matches.texts])
    is_verbatim = (matches.longest() == lengths) & (lengths >= flags.MIN_WORDS)
    if is_verbatim[n:].any():
        lines.append(
            f"{is_verbatim[n:].sum()} held-out excerpts are in the training set word for word, as"
            " stock phrases are; `python rouge.py` of the corpus says whether the splits share"
            " whole stories"
        )
    if samples[0].get("split") == "train":
        lines += warn_of_unread_stories(samples)
    n_long = (lengths[:n] >= min_copied_words).sum()
    if n_long < n / 2:
        lines.append(
            f"only {n_long} of {n} completions are as long as the {min_copied_words} words in a row"
            " that count as a copy here: most are too short to be checked for copies"
        )
    if OTHER_F.format(args.others) not in metrics:
        lines.append(
            "completions are not compared with each other: that needs those of"
            f" {args.others + 1} prompts (or as many of a single prompt); sample more, or lower"
            " --others"
        )
    return lines


def warn_of_unread_stories(samples: list[dict]) -> list[str]:
    """samples: completions of training stories, drawn from all of them, read or not."""
    from nanostories.training.config import TrainConfig  # here, as torch takes seconds

    path = checkpoint_file(samples[0].get("model") or "")
    if not path.is_file():  # no run of train.py, or it is gone
        return []
    model = open_model(str(path))
    if not model.corpus:
        return []
    settings = TrainConfig(**model.checkpoint["train_config"])
    n_read = model.checkpoint["step"] * settings.tokens_per_step
    n_tokens = load_meta(model.corpus)["splits"]["train"]["tokens"]
    if n_read >= n_tokens:
        return []
    return [
        f"the run read {n_read:,} tokens, fewer than the {n_tokens:,} of its training set, so some"
        " of these training stories may be new to it"
    ]


# ---- One or several runs ----
def tables_of(analyses: list[Analysis], base: Path, args: argparse.Namespace) -> list[Table]:
    """The names of the runs are paths from `base`."""
    rows = []
    flag_rows = []
    passages = []
    for analysis in analyses:
        first_cells = {"run": label_of(analysis.run, base), "set": analysis.set_name}
        for title, metric in analysis.metrics.items():
            facts = {"cut": analysis.settings["cut"], "metric": title}
            rows.append(first_cells | facts | metric.cells())
        flag_rows += [first_cells | cells for cells in analysis.flag_rows]
        passages += flags.flagged_rows(first_cells, analysis.csv_rows)
    counted = "once per text" if args.counting == "set" else "as often as it occurs"
    about = (
        f"ROUGE-{args.k}: each {args.k}-gram of words counts {counted}."
        " Intervals are 95%, over prompts. Baseline: excerpts of held-out stories, as long as the"
        " completions; for the true ending, the beginnings of other stories' endings."
    )
    formats = dict.fromkeys(("completions", "baseline", "difference"), ".3f")
    tables = [
        Table("Novelty", rows, formats, about=about, facts={"kind": "metrics"}),
        Table("Flagged completions", flag_rows, facts={"kind": "flags"}),
    ]
    if passages:
        tables.append(Table("Flagged passages", passages, facts={"kind": "passages"}))
    differences = differences_of_splits(analyses, base)
    if differences:
        title = "Training minus validation stories: memorization"
        about = (
            "What a completion repeats of its own prompt is in the training set after training"
            " stories alone: only the F with the true ending is free of this."
        )
        facts = {"kind": "memorization"}
        tables.append(Table(title, differences, {"difference": ".3f"}, about=about, facts=facts))
    return tables


def differences_of_splits(analyses: list[Analysis], base: Path) -> list[dict]:
    """Rows, of each run's completions of training and of validation stories, if they were sampled
    alike: memorization."""
    of_validation = {analysis.run: analysis for analysis in analyses if analysis.set_name == EVAL}
    rows = []
    for training in analyses:
        validation = of_validation.get(training.run)
        if training.set_name != TRAIN or not validation:
            continue
        alike = (*SAMPLING_SETTINGS, "checkpoint")
        if any(training.settings[name] != validation.settings[name] for name in alike):
            continue
        for title, metric in training.metrics.items():
            if title in validation.metrics:
                baseline = validation.metrics[title].completions
                pair = replace(metric, baseline=baseline, is_paired=False)
                cells = {"run": label_of(training.run, base), "metric": title}
                rows.append(cells | {"difference": pair.cells()["difference"]})
    return rows


def different_settings(analyses: list[Analysis]) -> list[str]:
    """A line that names the settings in which these differ, or none. Weights differ between runs
    anyway, but should not within one."""
    is_one_run = len({analysis.run for analysis in analyses}) == 1
    differ = []
    for name in analyses[0].settings:
        values = dict.fromkeys(analysis.settings[name] for analysis in analyses)
        if len(values) > 1 and (name != "checkpoint" or is_one_run):
            differ.append(f"{name} ({', '.join(map(str, values))})")
    if not differ:
        return []
    return [f"sampled with different settings: {'; '.join(differ)}"]


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


def read_runs(place: Path, names: Sequence[str]) -> dict[Path, dict[str, list[dict]]]:
    """{run: its sets of these names that are there} of a run, or of all runs in a directory. By
    default: the completions of validation and of training stories."""
    directories = [place] if (place / "samples").exists() else sorted(place.glob("*"))
    runs = {}
    for run in directories:
        for name in names:
            rows = read_rows(set_file(run, name))
            if rows:
                runs.setdefault(run, {})[name] = [row for _, row in sorted(rows.items())]
    if not runs:
        raise UserError(
            f"{set_file(place, names[0])}: no completions there; write them with `python sample.py"
            " --eval 50`, or name another --set"
        )
    return runs


def corpus_of(run: Path, sets: dict[str, list[dict]]) -> Path:
    """Its training set."""
    model = writer_of(run, next(iter(sets.values())))
    if not model:
        remedy = "name the training set, as in --data data/tinystories"
        raise UserError(f"{run}: not a run of train.py; {remedy}")
    return model.evaluation_corpus()


def save_results(
    path: Path, analyses: list[Analysis], args: argparse.Namespace, is_shown: bool
) -> None:
    from nanostories.novelty.histograms import histograms  # here, as matplotlib is slow to import

    base = path.parent
    warnings = []
    for analysis in analyses:
        warnings += [f"{analysis.label(base)}: {text}" for text in analysis.warnings]
    warnings += different_settings(analyses)
    sources = [set_file(analysis.run, analysis.set_name) for analysis in analyses]
    in_picture = (ENDING_F, OTHER_F.format(args.others), TRAINING_F, LONGEST)
    figure = histograms(
        {analysis.label(base): analysis.metrics for analysis in analyses}, in_picture
    )
    tables = tables_of(analyses, base, args)
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


def analyze_runs(args: argparse.Namespace) -> None:
    runs = {}
    for place in args.runs or [newest_run()]:
        runs |= read_runs(place, args.set)
    name = f"{result_name('rouge', args.set[0])}.json"
    path = next(iter(runs)) / name
    if len(runs) > 1:
        path = comparison_path(list(runs), args.set[0])
    corpora = {run: args.data or corpus_of(run, sets) for run, sets in runs.items()}
    analyses = []
    for run, sets in runs.items():
        corpus = open_corpus(corpora[run])
        of_run = [analyze(run, name, samples, corpus, args) for name, samples in sets.items()]
        for analysis in of_run:  # when all are there: what is stopped leaves the run as it was
            table = f"{result_name('rouge', analysis.set_name)}.csv"
            write_table(run / table, analysis.csv_rows)
        save_results(run / name, of_run, args, is_shown=len(runs) == 1)
        analyses += of_run
    if len(runs) > 1:
        save_results(path, analyses, args, is_shown=True)
    picture = path.with_suffix(".png")
    print(f"wrote {path}, {picture.name}, and in each run rouge*.csv")
    print(f"next: look at {picture}")


def main() -> None:
    args = parse_arguments()
    with one_line_errors(
        "rouge.py", interrupted="files of runs that were finished are written, others unchanged"
    ):
        data = [path for path in args.runs if (path / "meta.json").exists()]
        if data and data != args.runs:
            raise UserError(f"{data[0]}: a corpus; name runs alone, or corpora alone")
        if data:
            show_corpora(data)
        else:
            analyze_runs(args)


if __name__ == "__main__":
    main()
