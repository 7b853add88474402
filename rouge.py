"""
Is a model's writing novel and diverse, or memorized? Compares a run's completions by ROUGE-k with
their true endings, with each other, and with every training story. Baselines: excerpts of held-out
stories; other stories' endings.

$ python rouge.py out/cpu_8m  # its samples.jsonl -> rouge.json, rouge.png, rouge.csv
$ python sample.py --eval 50 --split train  # then rerun rouge.py to see both splits
# several runs: also together, in out/rouge.json and out/rouge.png
$ python rouge.py out/cpu_8m out/overfit
$ python rouge.py out/api--gpt-3.5-turbo --data data/tinystories --k 4 --counting clipped

>>> rouge_k("The cat sat on the mat.", "A cat sat there.", k=2)
Score(precision=0.2, recall=0.3333333333333333, f=0.25)
"""

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanostories.checkpoints.checkpoint import newest_run
from nanostories.checkpoints.models import label_of, open_model
from nanostories.cli import Parser, UserError, existing_path, one_line_errors, positive
from nanostories.corpus.token_files import text_identity
from nanostories.generation.prompts import SPLITS
from nanostories.generation.samples_file import SAMPLES, model_directory, read_rows
from nanostories.novelty import flags
from nanostories.novelty.intervals import ClusteredValues, Metric
from nanostories.novelty.search import Found, Stream, search
from nanostories.novelty.words import WordCorpus, draw_excerpts, open_corpus, words_of
from nanostories.results import Table, save
from nanostories.tables import write_table

N_SAME_PROMPT = 4  # completions of its own prompt that each is compared with
N_OTHER_ENDINGS = 10  # that are compared with each true ending, as its baseline
MIN_EXCERPTS = 400  # of held-out stories: half of them decide how long a copied passage must be
SHARES = (1, 2, 4, 8)  # k of the k-grams that are looked for in all training stories
IN_PICTURE = ("ending_f", "other_prompt_f", "training_f", "span")
SAMPLING_SETTINGS = ("cut", "temperature", "top_k", "beams", "max_new_tokens")


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
    words = np.asarray(text).tolist()
    grams = zip(*(words[i:] for i in range(k)))
    return Counter(set(grams) if counting == "set" else grams)


def overlap(a: Counter, b: Counter) -> Score:
    shared = (a & b).total()
    n_a = a.total()
    n_b = b.total()
    return Score(shared / max(n_a, 1), shared / max(n_b, 1), 2 * shared / max(n_a + n_b, 1))


# ---- The comparisons ----
class Settings(NamedTuple):
    k: int
    counting: str
    n_others: int  # completions of other prompts that each is compared with


@dataclass
class Texts:
    """A run's completions of one split, then excerpts of held-out stories, as ids of words."""

    words: list[np.ndarray]
    n_completions: int
    prompts: np.ndarray  # (completions,)
    clusters: np.ndarray  # (texts,) the prompt of a completion, the story of an excerpt


def read_texts(run: Path, samples: list[dict], corpus: WordCorpus) -> Texts:
    completions = [corpus.encode(row["completion"]) for row in samples]
    if not any(map(len, completions)):
        raise UserError(f"{run}: no completion has a word; sample again")
    begins = [len(corpus.encode(row["prompt"])) for row in samples]
    excerpts, stories = draw_excerpts(corpus, completions, begins, MIN_EXCERPTS)
    prompts = np.array([row["prompt_index"] for row in samples])
    clusters = prompts
    if len(set(prompts)) == 1:
        clusters = np.array([row["sample_index"] for row in samples])
    clusters = np.concatenate([clusters, stories])
    return Texts(completions + excerpts, len(samples), prompts, clusters)


def search_training_stories(
    texts: Texts, corpus: WordCorpus, settings: Settings
) -> tuple[Found, Found, list[np.ndarray]]:
    """Returns what is found of the texts as they stand; with their names masked, which shows
    retold stories ("templates"); and the masked texts."""
    stream = corpus.stream
    found = search(texts.words, stream, settings.k, settings.counting, "training stories")
    classes = flags.mask_names(corpus)
    masked = [classes[words] for words in texts.words]
    masked_stream = Stream(classes[stream.ids], stream.bounds)
    label = "training stories, names masked"
    found_masked = search(masked, masked_stream, settings.k, settings.counting, label)
    return found, found_masked, masked


def compare_with_endings(
    samples: list[dict], grams: list[Counter], corpus: WordCorpus, settings: Settings
) -> dict[str, Metric]:
    """grams: of the completions. Baseline: other stories' endings."""
    endings = {}  # k-grams, by prompt
    pairs = []
    for row, completion in zip(samples, grams):
        reference = (row.get("reference") or "").strip()
        if reference:
            words = corpus.encode(reference)
            endings[row["prompt_index"]] = kgrams(words, settings.k, settings.counting)
            pairs.append((row["prompt_index"], completion))
    prompts = list(endings)
    baseline_pairs = []
    for i, prompt in enumerate(prompts):
        others = (prompts[i + 1 :] + prompts[:i])[:N_OTHER_ENDINGS]
        baseline_pairs += [(prompt, endings[other]) for other in others]
    if not baseline_pairs:
        return {}

    def values(pairs: list, name: str) -> ClusteredValues:
        scores = [getattr(overlap(text, endings[prompt]), name) for prompt, text in pairs]
        return ClusteredValues(np.array(scores), np.array([prompt for prompt, _ in pairs]))

    metrics = {}
    for name, title in (("f", "F with"), ("precision", "precision against")):
        ours = values(pairs, name)
        baseline = values(baseline_pairs, name)
        metrics[f"ending_{name}"] = Metric(f"{title} the true ending", ours, baseline, True)
    return metrics


def nearest_other(
    grams: list[Counter], groups: np.ndarray, n_others: int, n_same: int = 0
) -> np.ndarray:
    """(n,) the highest F of each text's k-grams with those of `n_others` texts, each of another
    group (another prompt), and of `n_same` texts of its own group, all drawn at random; NaN if
    there are too few."""
    members = {}
    for i, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(i)
    rng = random.Random(0)
    highest = np.full(len(grams), np.nan)
    for i, group in enumerate(groups.tolist()):
        same = [j for j in members[group] if j != i]
        if len(members) > n_others and len(same) >= n_same:
            others = [x for x in rng.sample(list(members), n_others + 1) if x != group]
            drawn = [rng.choice(members[other]) for other in others[:n_others]]
            drawn += rng.sample(same, n_same)
            highest[i] = max(overlap(grams[i], grams[j]).f for j in drawn)
    return highest


def compare_with_others(
    texts: Texts, grams: list[Counter], excerpts: np.ndarray, n_others: int
) -> dict[str, Metric]:
    """grams: of all texts. excerpts: (excerpts,) the numbers of the texts that are the baseline."""
    n = texts.n_completions
    stories = texts.clusters[excerpts]
    baseline = nearest_other([grams[i] for i in excerpts], stories, n_others)
    others = nearest_other(grams[:n], texts.prompts, n_others)
    any_prompt = nearest_other(grams[:n], texts.prompts, n_others, N_SAME_PROMPT)
    clusters = texts.clusters[:n]
    return {
        "other_prompt_f": Metric(
            f"highest F with {n_others} completions of other prompts",
            ClusteredValues(others, clusters),
            ClusteredValues(baseline, stories),
        ),
        "any_completion_f": Metric(
            f"highest F with {n_others} of other prompts and {N_SAME_PROMPT} of the same prompt",
            ClusteredValues(any_prompt, clusters),
        ),
    }


def compare_with_training_stories(
    texts: Texts, found: Found, excerpts: np.ndarray
) -> dict[str, Metric]:
    n = texts.n_completions

    def metric(title: str, values: np.ndarray, largest: float = 1.0) -> Metric:
        ours = ClusteredValues(values[:n], texts.clusters[:n])
        baseline = ClusteredValues(values[excerpts], texts.clusters[excerpts])
        return Metric(title, ours, baseline, largest=largest)

    precision = "largest share of a completion's k-grams in one training story"
    metrics = {
        "training_f": metric("F with the nearest training story", found.f),
        "training_precision": metric(precision, found.precision),
    }
    for k in SHARES:
        title = f"share of {k}-grams in the training set"
        metrics[f"share_{k}"] = metric(title, found.share(k))
    title = "longest passage shared with a training story"
    metrics["span"] = metric(title, found.longest(), largest=np.inf)
    return metrics


# ---- One split of a run ----
@dataclass
class Analysis:
    run: Path
    split: str
    settings: dict  # how it was sampled: only like settings compare
    metrics: dict[str, Metric]
    flags: list[str]  # of the completions
    baseline_flags: list[str]  # of every second held-out story's excerpts
    min_copied_words: int
    n_excerpts: int
    n_left_out: int  # excerpts that are in the training set
    csv_rows: list[dict]

    @property
    def label(self) -> str:
        return f"{self.run}, {SPLITS[self.split]} stories"


def analyze(
    run: Path, samples: list[dict], corpus: WordCorpus, data: Path, settings: Settings
) -> Analysis:
    """samples: of a single split."""
    texts = read_texts(run, samples, corpus)
    n = texts.n_completions
    found, found_masked, masked = search_training_stories(texts, corpus, settings)

    # Excerpts that are in the training set verbatim are left out, unless they are too short to be
    # flagged. Half of the stories set how long a copied passage must be to be flagged; what is
    # flagged of the other half are false alarms.
    lengths = np.array([len(words) for words in texts.words])
    is_new = (found.longest() < lengths) | (lengths < flags.MIN_WORDS)
    excerpts = n + np.flatnonzero(is_new[n:])
    is_even = texts.clusters[excerpts] % 2 == 0
    min_copied_words = flags.copied_length(found.longest()[excerpts[is_even]])
    flagged = []
    for i, words in enumerate(texts.words):
        if flags.is_copy(words, found.spans[i], min_copied_words):
            flagged.append("copy")
        elif flags.is_template(masked[i], found_masked.precision[i], settings.k):
            flagged.append("template")
        else:
            flagged.append("")

    grams = [kgrams(words, settings.k, settings.counting) for words in texts.words]
    metrics = compare_with_endings(samples, grams[:n], corpus, settings)
    metrics |= compare_with_others(texts, grams, excerpts, settings.n_others)
    metrics |= compare_with_training_stories(texts, found, excerpts)
    n_prompts = len(set(texts.prompts))
    sampled = {name: samples[0].get(name) for name in SAMPLING_SETTINGS}
    sampled["stories"] = text_identity(data)
    sampled["prompts"] = n_prompts
    sampled["completions per prompt"] = n / n_prompts
    sampled["checkpoint"] = samples[0].get("weights")
    return Analysis(
        run=run,
        split=samples[0].get("split", "val"),
        settings=sampled,
        metrics={name: metric for name, metric in metrics.items() if metric.is_defined},
        flags=flagged[:n],
        baseline_flags=[flagged[i] for i in excerpts[~is_even]],
        min_copied_words=min_copied_words,
        n_excerpts=len(excerpts),
        n_left_out=len(texts.words) - n - len(excerpts),
        csv_rows=flags.describe_completions(samples, corpus, flagged, found, found_masked),
    )


# ---- The tables ----
def tables_of(analyses: list[Analysis], base: Path, settings: Settings) -> list[Table]:
    """Of one or several runs; their names are paths from `base`."""
    rows = []
    flag_rows = []
    passages = []
    for analysis in analyses:
        run = label_of(analysis.run, base)
        split = SPLITS[analysis.split]
        for metric in analysis.metrics.values():
            facts = {"run": run, "split": split, "cut": analysis.settings["cut"]}
            rows.append(facts | {"metric": metric.title} | metric.cells())
        for flag in flags.FLAGS:
            flag_rows.append(
                {
                    "run": run,
                    "split": split,
                    "flagged": flag,
                    "completions": count_of(flag, analysis.flags),
                    "held-out": count_of(flag, analysis.baseline_flags),
                }
            )
        passages += flags.flagged_rows(run, analysis.csv_rows)
    k = settings.k
    counted = "once per text" if settings.counting == "set" else "as often as it occurs"
    about = (
        f"ROUGE-{k}: each {k}-gram of words counts {counted}. Passages are in words. Intervals are"
        " 95%, over prompts. The baseline is excerpts of held-out stories, as long as the"
        " completions; for the true ending, other stories' endings. Each completion is compared"
        " with a fixed number of others, because a maximum grows with the number compared."
    )
    lengths = sorted({analysis.min_copied_words for analysis in analyses})
    rules = (
        f"copy: at least {' or '.join(map(str, lengths))} words in a row are in one training"
        f" story. template: at least {flags.TEMPLATE:.0%} of the {k}-grams are in one training"
        " story, when names are masked."
    )
    formats = dict.fromkeys(("completions", "baseline", "difference"), ".3f")
    tables = [
        Table("Novelty", rows, formats, about=about, facts={"kind": "metrics"}),
        Table("Flagged completions", flag_rows, about=rules, facts={"kind": "flags"}),
        Table("Flagged passages", passages, facts={"kind": "passages"}),
    ]
    return [table for table in tables if table.rows]


def count_of(flag: str, found: list[str]) -> str:
    return f"{found.count(flag):,} of {len(found):,}"


def difference_of_splits(validation: Analysis, training: Analysis) -> Table:
    """Of one run's completions of training and of validation stories: memorization."""
    rows = []
    for name, metric in training.metrics.items():
        if name in validation.metrics:
            baseline = validation.metrics[name].completions
            both = Metric(metric.title, metric.completions, baseline, largest=np.inf)
            rows.append({"metric": metric.title, "difference": both.cells()["difference"]})
    title = "Training minus validation stories: memorization"
    return Table(title, rows, {"difference": ".3f"}, facts={"kind": "memorization"})


def warnings_of(analyses: list[Analysis], settings: Settings) -> list[str]:
    lines = []
    for analysis in analyses:
        if analysis.n_left_out:
            share = analysis.n_left_out / (analysis.n_left_out + analysis.n_excerpts)
            lines.append(
                f"{analysis.label}: {share:.1%} of the held-out excerpts are in the training set"
                " verbatim; they are left out"
            )
        n_copies = analysis.baseline_flags.count("copy")
        if n_copies > 3 * flags.FALSE_ALARMS * len(analysis.baseline_flags):
            lines.append(
                f"{analysis.label}: {n_copies} held-out excerpts are flagged as copies: the splits"
                " share near-copies of stories"
            )
        n_prompts = analysis.settings["prompts"]
        if n_prompts <= settings.n_others:
            lines.append(
                f"{analysis.label}: completions are not compared with each other, because"
                f" {settings.n_others} others need {settings.n_others + 1} prompts, and there are"
                f" {n_prompts}; lower --others, or sample more prompts"
            )
    compared = [analysis.settings for analysis in analyses]
    names = list(compared[0])
    if len({analysis.run for analysis in analyses}) > 1:
        names.remove("checkpoint")
    differ = [name for name in names if any(x[name] != compared[0][name] for x in compared)]
    if differ:
        lines.append(f"not sampled alike: {', '.join(differ)}")
    return lines


# ---- The command ----
def parse_arguments() -> argparse.Namespace:
    parser = Parser(__doc__)
    runs = "directories with a samples.jsonl (default: the newest run)"
    parser.add_argument("runs", nargs="*", type=existing_path, help=runs)
    parser.add_shared("data")
    parser.add_argument("--k", type=positive, default=2, help="length of the k-grams (default: 2)")
    counting = "set: a repeated k-gram counts once, as in the paper"
    parser.add_argument("--counting", choices=("set", "clipped"), default="set", help=counting)
    others = (
        "completions of other prompts that each one is compared with (default: 20); a maximum"
        " among 100 texts needs 99"
    )
    parser.add_argument("--others", type=positive, default=20, help=others)
    return parser.parse_args()


def analyze_run(run: Path, data: Path | None, settings: Settings) -> list[Analysis]:
    """Analyzes the completions of validation stories, then of training stories, where there are
    any."""
    model = model_directory(run)  # out/demo for its samples in out/demo/temperature-0.3
    samples = {split: read_rows(run / name) for split, name in SAMPLES.items()}
    if not any(samples.values()):
        others = " ".join(str(path.parent) for path in sorted(run.glob("*/samples.jsonl")))
        remedy = f"write some: python sample.py --model {model} --eval 50"
        if others:
            remedy = f"there are some in {others}"
        raise UserError(f"{run / SAMPLES['val']}: no completions there; {remedy}")
    if data is None and not (model / "ckpt.pt").exists():
        raise UserError(
            f"{run}: not a run of train.py; name the training set, as in --data data/tinystories"
        )
    data = data or open_model(str(model)).evaluation_corpus()
    corpus = open_corpus(data)
    analyses = []
    for split, by_key in samples.items():
        if by_key:
            rows = [row for _, row in sorted(by_key.items())]
            analyses.append(analyze(run, rows, corpus, data, settings))
            name = "rouge-train.csv" if split == "train" else "rouge.csv"
            write_table(run / name, analyses[-1].csv_rows)
    save_results(run / "rouge.json", analyses, settings)
    return analyses


def save_results(path: Path, analyses: list[Analysis], settings: Settings) -> None:
    from nanostories.novelty.histograms import histograms  # here, as matplotlib is slow to import

    tables = tables_of(analyses, path.parent, settings)
    is_one_run = len({analysis.run for analysis in analyses}) == 1
    if is_one_run and len(analyses) == 2:
        tables.append(difference_of_splits(*analyses))
    sources = [analysis.run / SAMPLES[analysis.split] for analysis in analyses]
    runs = {analysis.label: analysis.metrics for analysis in analyses}
    figure = histograms(runs, IN_PICTURE)
    save(path, "rouge.py", tables, warnings_of(analyses, settings), sources, figure)


def comparison_path(runs: Sequence[Path]) -> Path:
    """In the directory that holds the runs; never over the results of a run."""
    common = Path(os.path.commonpath([run.resolve() for run in runs]))
    is_run = any((common / name).exists() for name in SAMPLES.values())
    return common / ("rouge-comparison.json" if is_run else "rouge.json")


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    settings = Settings(args.k, args.counting, args.others)
    with one_line_errors(
        "rouge.py", interrupted="files of runs that were finished are written, others unchanged"
    ):
        runs = list({run.resolve(): run for run in args.runs or [newest_run()]}.values())
        analyses = []
        for run in runs:
            analyses += analyze_run(run, args.data, settings)
        path = runs[0] / "rouge.json"
        if len(runs) > 1:
            path = comparison_path(runs)
            save_results(path, analyses, settings)
        picture = path.with_suffix(".png")
        print(f"wrote {path}, {picture.name}, and in each run rouge*.csv")
        print(f"next: look at {picture}")


if __name__ == "__main__":
    main()
