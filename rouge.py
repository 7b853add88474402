"""
Is a model's writing novel and diverse, or memorized? Compares a run's completions by ROUGE-k with
their true endings, with each other, and with every training story. Baselines: excerpts of held-out
stories; other stories' endings.

$ python rouge.py out/cpu_8m  # its samples.jsonl -> rouge.json, rouge.png, rouge.csv
$ python sample.py --eval 50 --split train  # then rerun rouge.py to see both splits side by side
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
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nanostories.checkpoints.checkpoint import newest_run
from nanostories.checkpoints.models import label_of, open_model
from nanostories.cli import Parser, UserError, existing_path, one_line_errors, positive
from nanostories.corpus.token_files import text_identity
from nanostories.corpus.word_forms import language_warning
from nanostories.generation.prompts import SPLITS
from nanostories.generation.samples_file import SAMPLES, model_directory, read_rows
from nanostories.novelty import flags
from nanostories.novelty.intervals import ClusteredValues, compare
from nanostories.novelty.search import search
from nanostories.novelty.words import WordCorpus, draw_excerpts, open_corpus, words_of
from nanostories.results import Table, save
from nanostories.tables import write_table

N_OTHER_PROMPTS, N_SAME_PROMPT = 20, 4  # completions that each is compared with
MIN_EXCERPTS = (
    400  # of held-out stories; half of them decide how long a copied passage must be to be flagged
)
TITLES = {
    "ending_f": "F with the true ending",
    "ending_precision": "precision against the true ending",
    "other_prompt_f": f"highest F with {N_OTHER_PROMPTS} completions of other prompts",
    "any_completion_f": (
        f"highest F with {N_OTHER_PROMPTS} of other prompts and {N_SAME_PROMPT} of the same prompt"
    ),
    "training_f": "F with the nearest training story",
    "training_precision": "largest share of a completion's k-grams in one training story",
    **{f"share_{k}": f"share of {k}-grams in the training set" for k in range(1, 9)},
    "span": "longest passage shared with a training story",
}
IN_TABLE = [name for name in TITLES if name not in ("share_3", "share_5", "share_6", "share_7")]
IN_PICTURE = ("ending_f", "other_prompt_f", "training_f", "span")
SAMPLING_SETTINGS = (
    "cut",
    "temperature",
    "top_k",
    "beams",
    "max_new_tokens",
)  # cut: the prompt's share of a story


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
    shared, n_a, n_b = (a & b).total(), a.total(), b.total()
    return Score(shared / max(n_a, 1), shared / max(n_b, 1), 2 * shared / max(n_a + n_b, 1))


# ---- The comparisons ----
def compare_with_endings(
    samples: list[dict], grams: list[Counter], corpus: WordCorpus, k: int, counting: str
) -> dict[str, tuple[ClusteredValues, ClusteredValues]]:
    """Completions, given as k-grams, against their story's true ending. Baseline: up to ten other
    stories' endings."""
    pairs = [
        (row, completion)
        for row, completion in zip(samples, grams)
        if (row.get("reference") or "").strip()
    ]
    references = corpus.encode([row["reference"] for row, _ in pairs])
    ending = {
        row["prompt_index"]: kgrams(text, k, counting) for (row, _), text in zip(pairs, references)
    }
    candidates = [(row["prompt_index"], completion) for row, completion in pairs]
    prompts, n = list(ending), len(ending)
    baseline_pairs = [
        (prompts[i], ending[prompts[(i + j) % n]]) for i in range(n) for j in range(1, min(11, n))
    ]
    if not baseline_pairs:
        return {}
    columns = []
    for pairs in (candidates, baseline_pairs):
        scores = np.array([overlap(text, ending[prompt]) for prompt, text in pairs])
        of_prompt = np.array([prompt for prompt, _ in pairs])
        columns.append(
            (ClusteredValues(scores[:, 2], of_prompt), ClusteredValues(scores[:, 0], of_prompt))
        )
    return dict(zip(("ending_f", "ending_precision"), zip(*columns)))


def nearest_other(grams: list[Counter], groups: np.ndarray, n_same: int = 0) -> np.ndarray:
    """(n,) the highest F of each text's k-grams with those of N_OTHER_PROMPTS texts, each of
    another group (another prompt), and of `n_same` texts of its own group, all drawn at random; NaN
    if there are too few."""
    members, rng = {}, random.Random(0)
    for i, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(i)
    group_ids, f = list(members), np.full(len(grams), np.nan)
    for i, group in enumerate(
        tqdm(groups.tolist(), "comparing texts", leave=False, disable=None, delay=1)
    ):
        same_prompt = [j for j in members[group] if j != i]
        if len(group_ids) > N_OTHER_PROMPTS and len(same_prompt) >= n_same:
            other_groups = [x for x in rng.sample(group_ids, N_OTHER_PROMPTS + 1) if x != group][
                :N_OTHER_PROMPTS
            ]
            drawn = [rng.choice(members[x]) for x in other_groups] + rng.sample(same_prompt, n_same)
            f[i] = max(overlap(grams[i], grams[j]).f for j in drawn)
    return f


class Analysis(NamedTuple):
    """The results for a run's completions of one split."""

    facts: dict  # rouge.json
    compared: dict[
        str, tuple
    ]  # by metric: intervals.ClusteredValues of the completions, and of their baseline or None
    csv_rows: list[dict]  # rouge.csv


def analyze(
    run: Path, samples: list[dict], corpus: WordCorpus, data: Path, args: argparse.Namespace
) -> Analysis:
    """samples: of a single split."""
    k, counting, n = args.k, args.counting, len(samples)
    completion_ids, prompt_ids = (
        corpus.encode([row[name] for row in samples]) for name in ("completion", "prompt")
    )
    if not any(map(len, completion_ids)):
        raise UserError(
            f"{run}: no completion has a word"
            + " of a to z; otherwise: --tokens" * (not args.tokens)
        )
    prompts, sample_indices = (
        np.array([row[name] for row in samples]) for name in ("prompt_index", "sample_index")
    )
    groups = prompts if len(set(prompts)) > 1 else sample_indices  # each its own group
    excerpts, excerpt_story = draw_excerpts(
        corpus, completion_ids, list(map(len, prompt_ids)), MIN_EXCERPTS
    )
    texts = completion_ids + excerpts
    found = search(texts, corpus.stream, k, counting, label="training stories")
    # To find retold stories ("templates"), search again with one id for all names and for words
    # that the training set lacks, and another one for the nouns of our built-in stories
    # (data/builtin). word_class: those ids, by word id.
    word_class, progress_label = (
        flags.mask_names_and_nouns(corpus, texts),
        "training stories, names and nouns masked",
    )
    found_masked = (
        found
        if args.tokens
        else search(texts, corpus.stream, k, counting, word_class, progress_label)
    )
    # Excerpts that are in the training set verbatim are left out, unless they are too short to be
    # flagged. Half of the others set how long a copied passage must be to be flagged; flagged ones
    # of the other half are false positives.
    longest_spans, lengths = found.longest(), np.array(list(map(len, texts)))
    kept_excerpts = n + np.flatnonzero(
        (longest_spans < lengths)[n:] | (lengths[n:] < flags.MIN_WORDS)
    )
    excerpt_story = excerpt_story[kept_excerpts - n]
    min_copied_words = flags.copied_length(longest_spans[kept_excerpts[excerpt_story % 2 == 0]])
    flagged = flags.flag_texts(texts, found, found_masked, word_class, k, min_copied_words)
    counted_excerpts = kept_excerpts[excerpt_story % 2 == 1]
    flags_by_column = dict(
        completions=flagged[:n].tolist(), baseline=flagged[counted_excerpts].tolist()
    )

    grams, baseline_grams = (
        [kgrams(texts[i], k, counting) for i in some] for some in (range(n), kept_excerpts)
    )
    compared = compare_with_endings(samples, grams, corpus, k, counting)
    baseline = ClusteredValues(nearest_other(baseline_grams, excerpt_story), excerpt_story)
    compared["other_prompt_f"] = ClusteredValues(nearest_other(grams, prompts), groups), baseline
    compared["any_completion_f"] = (
        ClusteredValues(nearest_other(grams, prompts, N_SAME_PROMPT), groups),
        None,
    )
    columns = dict(training_f=found.f, training_precision=found.precision, span=longest_spans)
    for name, values in (columns | {f"share_{j}": found.share(j) for j in range(1, 9)}).items():
        compared[name] = (
            ClusteredValues(values[:n], groups),
            ClusteredValues(values[kept_excerpts], excerpt_story),
        )
    defined = [
        name for name in TITLES if name in compared and not np.isnan(compared[name][0].values).all()
    ]
    compared = {name: compared[name] for name in defined}

    facts = dict(
        run=str(run),
        split=samples[0].get("split", "val"),
        data=str(data),
        training_stories=len(corpus),
    )
    facts["stories"] = text_identity(data)
    facts |= dict(n_completions=n, prompts=len(set(prompts)), min_copied_words=min_copied_words)
    facts["sampling"] = {name: samples[0].get(name) for name in SAMPLING_SETTINGS}
    facts["weights"] = samples[0].get("weights")  # their checksum
    facts |= {name: getattr(args, name) for name in ("k", "counting", "tokens")}
    facts |= dict(
        held_out_excerpts=len(kept_excerpts),
        excerpts_in_training=len(excerpts) - len(kept_excerpts),
    )
    facts["metrics"] = {
        name: compare(
            *values, paired=name.startswith("ending"), max_value=np.inf if name == "span" else 1.0
        )
        for name, values in compared.items()
    }
    facts["n_flag_baseline"] = len(counted_excerpts)
    facts["flagged"] = {
        f: {name: some.count(f) for name, some in flags_by_column.items()} for f in flags.FLAGS
    }
    csv_rows = flags.describe_completions(samples, corpus, found, found_masked, flagged)
    return Analysis(facts, compared, csv_rows)


# ---- The tables ----
def label(facts: dict) -> str:
    return f"{facts['run']}, {SPLITS[facts['split']]} stories"


def tables_of(analyses: list[Analysis], base: Path) -> list[Table]:
    """Of one or several runs; their names are paths from `base`."""
    rows = []
    flag_rows = []
    passages = []
    for analysis in analyses:
        facts = analysis.facts
        run = label_of(Path(facts["run"]), base)
        own = {"run": run, "split": SPLITS[facts["split"]], "cut": facts["sampling"]["cut"]}
        for name in IN_TABLE:
            if name in facts["metrics"]:
                rows.append(own | {"metric": TITLES[name]} | facts["metrics"][name])
        for flag, counts in facts["flagged"].items():
            completions = f"{counts['completions']:,} of {facts['n_completions']:,}"
            held_out = f"{counts['baseline']:,} of {facts['n_flag_baseline']:,}"
            found = {"flagged": flag, "completions": completions, "held-out": held_out}
            flag_rows.append({"run": run, "split": own["split"]} | found)
        passages += flags.flagged_rows(run, analysis.csv_rows)
    facts = analyses[0].facts
    unit = "tokens" if facts["tokens"] else "words"
    k = facts["k"]
    counted = "once per text" if facts["counting"] == "set" else "as often as it occurs"
    about = (
        f"ROUGE-{k}: each {k}-gram of {unit} counts {counted}; passages in {unit}; means and 95%"
        " intervals over prompts. Baseline: excerpts of held-out stories, as long as the"
        " completions; for the true ending, other stories' endings. Each completion is compared"
        " with a fixed number of others, because a maximum grows with the number compared."
    )
    masked = "" if facts["tokens"] else ", names and nouns masked"
    rules = (
        f"copy: {facts['min_copied_words']} {unit} or more in a row are in one training story."
        f" template: {flags.TEMPLATE:.0%} or more of the {k}-grams are in one{masked}."
    )
    # long passages are counted in words
    formats = dict.fromkeys(("completions", "baseline", "difference"), ".3f")
    tables = [
        Table("Novelty", rows, formats, about=about, facts={"kind": "metrics"}),
        Table("Flagged completions", flag_rows, about=rules, facts={"kind": "flags"}),
        Table("Flagged passages", passages, facts={"kind": "passages"}),
    ]
    return [table for table in tables if table.rows]


def difference_of_splits(analyses: list[Analysis]) -> Table:
    """Of one run's completions of training and of validation stories: memorization."""
    validation, training = (each.compared for each in analyses)
    rows = []
    for name in IN_TABLE:
        if name in validation and name in training:
            found = compare(training[name][0], validation[name][0], max_value=np.inf)
            rows.append({"metric": TITLES[name], "difference": found["difference"]})
    title = "Training minus validation stories: memorization"
    return Table(title, rows, {"difference": ".3f"}, facts={"kind": "memorization"})


def warnings_of(analyses: list[Analysis]) -> list[str]:
    lines = []
    for analysis in analyses:
        facts = analysis.facts
        n_left_out = facts["excerpts_in_training"]
        if n_left_out:
            share = n_left_out / (n_left_out + facts["held_out_excerpts"])
            lines.append(
                f"{label(facts)}: {share:.1%} of the held-out excerpts, left out, are in the"
                " training set verbatim"
            )
        copies = facts["flagged"]["copy"]["baseline"]
        if copies > 0.03 * facts["n_flag_baseline"]:  # about 1% are expected
            lines.append(
                f"{label(facts)}: {copies} held-out excerpts are flagged: the splits share"
                " near-copies of stories"
            )
    facts = [analysis.facts for analysis in analyses]
    same_run = len({each["run"] for each in facts}) == 1
    settings = []
    for each in facts:
        own = each["sampling"] | {"stories": each["stories"], "prompts": each["prompts"]}
        own["completions per prompt"] = each["n_completions"] / each["prompts"]
        if same_run:
            own["checkpoint"] = each["weights"]
        settings.append(own)
    differ = [name for name in settings[0] if any(x[name] != settings[0][name] for x in settings)]
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
    parser.add_argument(
        "--tokens", action="store_true", help="compare tokens, not words (no names are masked then)"
    )
    return parser.parse_args()


def analyze_run(run: Path, args: argparse.Namespace) -> list[Analysis]:
    """Analyzes the completions of validation stories, then of training stories, where there are
    any."""
    model = model_directory(run)  # out/demo for its samples in out/demo/temperature-0.3
    samples = [row for name in SAMPLES.values() for _, row in sorted(read_rows(run / name).items())]
    if not samples:
        others = " ".join(str(path.parent) for path in sorted(run.glob("*/samples.jsonl")))
        remedy = (
            f"there are some in {others}"
            if others
            else f"write some: python sample.py --model {model} --eval 50"
        )
        raise UserError(f"{run / SAMPLES['val']}: no completions there; {remedy}")
    if args.data is None and not (model / "ckpt.pt").exists():
        raise UserError(
            f"{run}: not a run of train.py; name the training set, as in --data data/tinystories"
        )
    data = args.data or open_model(str(model)).evaluation_corpus()
    corpus = open_corpus(data, args.tokens)
    splits = [[row for row in samples if row.get("split", "val") == split] for split in SAMPLES]
    analyses = [analyze(run, some, corpus, data, args) for some in splits if some]
    for each in analyses:
        ending = "-train" if each.facts["split"] == "train" else ""
        write_table(run / f"rouge{ending}.csv", each.csv_rows)
    tables = tables_of(analyses, run)
    if len(analyses) == 2:
        tables.append(difference_of_splits(analyses))
    warnings = warnings_of(analyses)
    if not args.tokens:
        what = "words end at every letter that is not a to z; compare tokens (--tokens)"
        warning = language_warning((row["completion"] for row in samples), what)
        warnings += [warning.removeprefix("WARNING ")] if warning else []
    save_results(run / "rouge.json", tables, warnings, analyses)
    return analyses


def save_results(
    path: Path, tables: list[Table], warnings: list[str], analyses: list[Analysis]
) -> None:
    from nanostories.novelty.histograms import histograms  # here, as matplotlib is slow to import

    sources = {}
    for each in analyses:
        sources[Path(each.facts["run"]) / SAMPLES[each.facts["split"]]] = None
    runs = [(label(each.facts), each.compared, each.facts["metrics"]) for each in analyses]
    figure = histograms({name: TITLES[name] for name in IN_PICTURE}, runs)
    save(path, "rouge.py", tables, warnings, sources, figure)


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    with one_line_errors(
        "rouge.py", interrupted="files of runs that were finished are written, others unchanged"
    ):
        runs = list({run.resolve(): run for run in args.runs or [newest_run()]}.values())
        analyses = []
        for run in runs:
            analyses += analyze_run(run, args)
        path = runs[0] / "rouge.json"
        if len(runs) > 1:
            common = Path(os.path.commonpath([run.resolve() for run in runs]))
            is_run = any((common / name).exists() for name in SAMPLES.values())
            # never over the results of a run
            path = common / ("rouge-comparison.json" if is_run else "rouge.json")
            tables = tables_of(analyses, common)
            save_results(path, tables, warnings_of(analyses), analyses)
        n = sum(bool(row["flag"]) for each in analyses for row in each.csv_rows)
        picture = path.with_suffix(".png")
        print(f"wrote {path}, {picture.name}, in each run rouge*.csv ({n} flagged)")
        print(f"next: look at {picture}")


if __name__ == "__main__":
    main()
