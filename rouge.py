"""
Is a model's writing novel and diverse, or memorized? Compares a run's completions by ROUGE-k with
their true endings, with each other, and with every training story. Baselines: excerpts of held-out
stories; other stories' endings.

$ python rouge.py out/cpu_8m  # its samples.jsonl -> rouge.md, rouge.png, rouge.json, rouge.csv
$ python sample.py --eval 50 --split train  # then rerun rouge.py to see both splits side by side
# several runs: also side by side, in out/rouge.md and out/rouge.png
$ python rouge.py out/cpu_8m out/overfit
$ python rouge.py out/api--gpt-3.5-turbo --data data/tinystories --k 4 --counting clipped

>>> rouge_k("The cat sat on the mat.", "A cat sat there.", k=2)
Score(precision=0.2, recall=0.3333333333333333, f=0.25)
"""

import argparse
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from nanostories.checkpoints.checkpoint import corpus_of, newest_run
from nanostories.cli import Parser, UserError, existing_path, one_line_errors, positive
from nanostories.corpus.token_files import text_identity
from nanostories.corpus.word_forms import language_warning
from nanostories.files import write_json
from nanostories.generation.prompts import SPLITS
from nanostories.generation.samples_file import SAMPLES, model_directory, read_rows
from nanostories.novelty import flags
from nanostories.novelty.intervals import ClusteredValues, compare
from nanostories.novelty.search import search
from nanostories.novelty.words import WordCorpus, draw_excerpts, open_corpus, words_of
from nanostories.tables import print_and_save, table_text, write_table

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
    text: str  # rouge.md


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
    facts = json.loads(json.dumps(facts), parse_constant=lambda _: None)  # NaN -> null
    csv_rows = flags.describe_completions(samples, corpus, found, found_masked, flagged)
    return Analysis(facts, compared, csv_rows, scores_text(facts) + flags.flagged_table(csv_rows))


# ---- The tables ----
def label(facts: dict) -> str:
    return f"{facts['run']}, {SPLITS[facts['split']]} stories"


def scores_text(facts: dict) -> str:
    unit, n, k = "tokens" if facts["tokens"] else "words", facts["n_completions"], facts["k"]
    rows = metric_rows({name: list(metric.values()) for name, metric in facts["metrics"].items()})
    rules = dict(copy=f"{facts['min_copied_words']} {unit} or more in a row")
    masked = "" if facts["tokens"] else ", names and nouns masked"
    rules["template"] = f"{flags.TEMPLATE:.0%} or more of its {k}-grams in one story{masked}"
    for flag, counts in facts["flagged"].items():
        counts = (
            f"{counts['completions']:,} of {n:,}",
            f"{counts['baseline']:,} of {facts['n_flag_baseline']:,}",
        )
        rows.append([f"flagged: {flag} ({rules[flag]})", *counts, ""])
    counted = "once per text" if facts["counting"] == "set" else "as often as it occurs"
    paragraphs = [
        f"## {label(facts)}",
        (
            f"{n:,} completions of {facts['prompts']:,} prompts, {facts['training_stories']:,}"
            f" training stories of {facts['data']}. ROUGE-{k}: each {k}-gram of {unit} counts"
            f" {counted}; spans in {unit}; means, 95% intervals. Baseline:"
            f" {facts['held_out_excerpts']:,} held-out excerpts; for the true ending, other"
            " stories' endings."
        ),
        table_text(["", "completions", "baseline", "difference"], rows),
    ]
    if n_left_out := facts["excerpts_in_training"]:
        share = n_left_out / (n_left_out + facts["held_out_excerpts"])
        paragraphs.append(
            f"WARNING {share:.1%} of the held-out excerpts, left out, are in the training set"
            " verbatim"
        )
    copies = facts["flagged"]["copy"]["baseline"]
    if copies > 0.03 * facts["n_flag_baseline"]:  # about 1% are expected
        paragraphs.append(
            f"WARNING {copies} held-out excerpts are flagged: the splits share near-copies of"
            " stories"
        )
    return "\n\n".join(paragraphs)


def metric_rows(metrics: dict[str, list[dict]]) -> list[list[str]]:
    """Rows of a table, from {metric: its entry in each column}."""
    rows = []
    for name in (name for name in IN_TABLE if name in metrics):
        digits, cells = 1 if name == "span" else 3, []
        for mean, low, high in (entry.values() for entry in metrics[name]):
            cells.append(
                f"{mean:.{digits}f}"
                + ("" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]")
            )
        rows.append([TITLES[name], *cells, *[""] * (3 - len(cells))])
    return rows


def side_by_side(analyses: list[Analysis]) -> str:
    """A table of several runs' completions, or of those of one run's two splits and their
    difference."""
    facts, metrics = [each.facts for each in analyses], {}
    both_splits = len(facts) == 2 and facts[0]["run"] == facts[1]["run"]
    for name in (name for name in TITLES if all(name in each["metrics"] for each in facts)):
        metrics[name] = [each["metrics"][name]["completions"] for each in facts]
        if both_splits:
            validation, training = (each.compared[name][0] for each in analyses)
            metrics[name].append(compare(training, validation, max_value=np.inf)["difference"])
    head = ["", *map(label, facts), *["training minus validation (memorization)"] * both_splits]
    runs = dict.fromkeys(each["run"] for each in facts)
    text = f"## {' and '.join(runs)}\n\n{table_text(head, metric_rows(metrics))}"
    if not both_splits:  # texts of different length
        beside = [
            name for name in metrics if all("difference" in each["metrics"][name] for each in facts)
        ]
        beside = {name: [each["metrics"][name]["difference"] for each in facts] for name in beside}
        text += (
            "\n\nDifferences from the baselines, which are as long as each run's completions:"
            " compare these\n\n"
        )
        text += table_text(head, metric_rows(beside))
    settings = [each["sampling"] | dict(stories=each["stories"]) for each in facts]
    for some, each in zip(settings, facts):
        per_prompt = each["n_completions"] / each["prompts"]
        some |= {"completions per prompt": per_prompt, "prompts": each["prompts"]}
        some["checkpoint"] = both_splits and each["weights"]
    differ = [
        name for name in settings[0] if any(some[name] != settings[0][name] for some in settings)
    ]
    return text + (f"\n\nWARNING not sampled alike: {', '.join(differ)}" if differ else "")


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
    data = args.data or corpus_of(str(model))
    corpus = open_corpus(data, args.tokens)
    splits = [[row for row in samples if row.get("split", "val") == split] for split in SAMPLES]
    analyses = [analyze(run, some, corpus, data, args) for some in splits if some]
    for each in analyses:
        ending = "-train" * (each.facts["split"] == "train")
        write_json(run / f"rouge{ending}.json", each.facts)
        write_table(run / f"rouge{ending}.csv", each.csv_rows)
    texts = [each.text for each in analyses] + (
        [side_by_side(analyses)] if len(analyses) == 2 else []
    )
    what = "words end at every letter that is not a to z; compare tokens (--tokens)"
    texts += [] if args.tokens else [language_warning((row["completion"] for row in samples), what)]
    print_and_save_all(run, "\n\n".join(filter(None, texts)), analyses)
    return analyses


def print_and_save_all(directory: Path, text: str, analyses: list[Analysis]) -> None:
    from nanostories.figures import save_figure  # matplotlib takes a while to import
    from nanostories.novelty.histograms import histograms

    print_and_save(directory / "rouge.md", text)
    of_runs = [(label(each.facts), each.compared, each.facts["metrics"]) for each in analyses]
    save_figure(
        histograms({name: TITLES[name] for name in IN_PICTURE}, of_runs), directory / "rouge.png"
    )


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    with one_line_errors(
        "rouge.py", interrupted="files of runs that were finished are written, others unchanged"
    ):
        runs = args.runs or [newest_run()]
        analyses = [analyze_run(run, args) for run in runs]
        where, analyses = runs[-1], sum(analyses, [])
        if len(runs) > 1:
            common = os.path.commonpath([os.path.abspath(run.parent) for run in runs])
            where = Path(
                common if any(run.is_absolute() for run in runs) else os.path.relpath(common)
            )
            print_and_save_all(where, side_by_side(analyses), analyses)
        n = sum(bool(row["flag"]) for each in analyses for row in each.csv_rows)
        files = "rouge.md and .png, in each run rouge*.json and .csv"
        print(f"wrote {files} ({n} flagged); next: look at {where}/rouge.png")


if __name__ == "__main__":
    main()
