"""
Is a model's writing novel and diverse, or memorized? Compares a run's completions by ROUGE-k with their true endings,
with each other, and with every training story. As a baseline, held-out stories go through the same comparisons.

$ python rouge.py out/cpu_8m                    # its samples.jsonl -> rouge.md, rouge.png, rouge.json, rouge.csv
$ python sample.py --eval 50 --split train      # then rerun rouge.py to see both splits side by side
$ python rouge.py out/cpu_8m out/overfit        # several runs: also side by side, in out/rouge.md and out/rouge.png
$ python rouge.py out/api--gpt-3.5-turbo --data data/tinystories --k 4 --counting clipped

>>> rouge_k("The cat sat on the mat.", "A cat sat there.", k=2)
Score(precision=0.2, recall=0.3333333333333333, f=0.25)
"""

import argparse
import itertools
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

from checkpoints.checkpoint import corpus_of, newest_run
from common.cli import Parser, existing_path, one_line_errors, positive
from common.files import write_json
from common.tables import publish, table_text, write_table
from corpus.token_files import load_meta, stories_of
from corpus.word_forms import language_warning
from generation.prompts import SPLITS
from generation.samples_file import SAMPLES, other_samples, read_rows, run_of
from novelty import flags
from novelty.intervals import Values, compare
from novelty.search import search
from novelty.words import Corpus, open_corpus, words_of

OTHERS, SIBLINGS = 20, 4  # completions of other prompts, and of its own, that each is compared with
MIN_EXCERPTS = 400  # of held-out stories; half of them decide how long a copied passage must be to be flagged
TITLES = {
    "ending_f": "F with the true ending",
    "ending_precision": "precision against the true ending",
    "other_prompt_f": f"highest F with any of {OTHERS} completions of other prompts",
    "any_other_f": f"highest F with any of {OTHERS} of other prompts or {SIBLINGS} of the same",
    "training_f": "F with the nearest training story",
    "training_precision": "largest share of a completion's k-grams in one training story",
    **{f"share_{k}": f"share of {k}-grams in the training set" for k in range(1, 9)},
    "span": "longest passage shared with a training story",
}
IN_TABLE = [name for name in TITLES if name not in ("share_3", "share_5", "share_6", "share_7")]
IN_PICTURE = ("ending_f", "other_prompt_f", "training_f", "span")
SAMPLING_SETTINGS = ("cut", "temperature", "top_k", "beams", "max_new_tokens")  # cut: share shown


# ---- The metric ----


class Score(NamedTuple):
    precision: float  # share of a's k-grams that also occur in b
    recall: float  # share of b's that also occur in a
    f: float  # their harmonic mean


def rouge_k(a: str | Sequence, b: str | Sequence, k: int = 2, counting: str = "set") -> Score:
    """Shared k-grams of two texts, or of two sequences of words or ids.

    counting: "set" is the TinyStories paper's (section 4): each k-gram counts once per text, however often it occurs.
    "clipped" is Lin's (2004), and rouge-score's: a k-gram that a has m times and b n times is shared min(m, n) times.
    """
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


def compare_with_endings(rows: list[dict], corpus: Corpus, k: int, counting: str) -> dict[str, tuple[Values, Values]]:
    """Completions against the true ending of their story. Baseline: ten other stories' endings against that ending."""
    rows = [row for row in rows if (row.get("reference") or "").strip()]
    prompts = [row["prompt_index"] for row in rows]
    completions, references = (corpus.encode([row[name] for row in rows]) for name in ("completion", "reference"))
    ending = {prompt: kgrams(text, k, counting) for prompt, text in zip(prompts, references)}
    own = [(prompt, kgrams(text, k, counting)) for prompt, text in zip(prompts, completions)]
    names, n = list(ending), len(ending)
    others = [(names[i], ending[names[(i + j) % n]]) for i in range(n) for j in range(1, min(11, n))]
    if not others:
        return {}
    columns = []
    for pairs in (own, others):
        scores = np.array([overlap(text, ending[prompt]) for prompt, text in pairs])
        of_prompt = np.array([prompt for prompt, _ in pairs])
        columns.append((Values(scores[:, 2], of_prompt), Values(scores[:, 0], of_prompt)))
    return dict(zip(("ending_f", "ending_precision"), zip(*columns)))


def nearest_other(texts: list, groups: np.ndarray, k: int, counting: str, siblings: int = 0) -> np.ndarray:
    """(n,) each text's highest F with OTHERS texts, each of another group (another prompt), and with `siblings` texts
    of its own group, all drawn at random; NaN if there are too few."""
    grams, members, rng = [kgrams(text, k, counting) for text in texts], {}, random.Random(0)
    for i, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(i)
    names, f = list(members), np.full(len(texts), np.nan)
    for i, group in enumerate(tqdm(groups.tolist(), "comparing completions", leave=False, disable=None, delay=1)):
        own = [j for j in members[group] if j != i]
        if len(names) > OTHERS and len(own) >= siblings:
            others = [name for name in rng.sample(names, OTHERS + 1) if name != group][:OTHERS]
            drawn = [rng.choice(members[name]) for name in others] + rng.sample(own, siblings)
            f[i] = max(overlap(grams[i], grams[j]).f for j in drawn)
    return f


def draw_excerpts(corpus: Corpus, words: list[np.ndarray], begins: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """An excerpt of a validation story for each completion, as long as it and, if the story is long enough, from the
    same offset; several for each if there are fewer than MIN_EXCERPTS. Also returns the indices of their stories."""
    n = max(len(words), MIN_EXCERPTS)
    held_out = corpus.encode(list(itertools.islice(stories_of(corpus.held_out, corpus.tokenizer), max(n, 1000))))
    held_out = list({story.tobytes(): story for story in held_out}.values())  # each once
    longest, story, excerpts, stories = max(map(len, held_out)), -1, [], []
    for text, begin in itertools.islice(itertools.cycle(zip(words, begins)), n):
        length, story = min(len(text), longest), story + 1
        while len(held_out[story % len(held_out)]) < length:
            story += 1
        stories.append(story % len(held_out))
        whole = held_out[stories[-1]]
        begin = min(begin, len(whole) - length)
        excerpts.append(whole[begin : begin + length])
    return excerpts, np.array(stories)


class Analysis(NamedTuple):
    """The results for a run's completions of one split."""

    facts: dict  # rouge.json
    compared: dict[str, tuple]  # by metric: intervals.Values of the completions, and of their baseline or None
    rows: list[dict]  # rouge.csv
    text: str  # rouge.md


def analyze(run: Path, rows: list[dict], corpus: Corpus, data: Path, args: argparse.Namespace) -> Analysis:
    """rows: samples of a single split."""
    k, counting, n = args.k, args.counting, len(rows)
    words, prompt_words = (corpus.encode([row[name] for row in rows]) for name in ("completion", "prompt"))
    if not any(map(len, words)):
        raise ValueError(f"{run}: no completion has a word in it")
    prompts, samples = (np.array([row[name] for row in rows]) for name in ("prompt_index", "sample_index"))
    groups = prompts if len(set(prompts)) > 1 else samples  # intervals are over prompts, or over completions of one
    excerpts, stories = draw_excerpts(corpus, words, list(map(len, prompt_words)))
    texts = words + excerpts
    found = search(texts, corpus.stream, k, counting, label="training stories")
    # To find retold stories ("templates"), search again with all names replaced by one id, and all nouns by another.
    masked_ids, doing = flags.mask_names_and_nouns(corpus, texts), "training stories, names and nouns masked"
    masked = found if args.tokens else search(texts, corpus.stream, k, counting, masked_ids, label=doing)
    # Held-out excerpts that are in the training set verbatim are no baseline. Half of the others set how long a copied
    # passage must be to be flagged as a copy; how many of the other half are flagged, are false positives.
    spans, lengths = found.longest(), np.array(list(map(len, texts)))
    held_out = n + np.flatnonzero((spans < lengths)[n:] | (lengths[n:] < flags.MIN_WORDS))
    stories = stories[held_out - n]
    min_copied_words = flags.copied_length(spans[held_out[stories % 2 == 0]])
    flagged = flags.flag_texts(texts, found, masked, masked_ids, k, min_copied_words)
    baseline_half = held_out[stories % 2 == 1]

    compared = compare_with_endings(rows, corpus, k, counting)
    other_prompt, any_other = (Values(nearest_other(words, prompts, k, counting, m), groups) for m in (0, SIBLINGS))
    baseline = Values(nearest_other([texts[i] for i in held_out], stories, k, counting), stories)
    compared |= dict(other_prompt_f=(other_prompt, baseline), any_other_f=(any_other, None))
    columns = dict(training_f=found.f, training_precision=found.precision, span=spans)
    for name, values in (columns | {f"share_{j}": found.share(j) for j in range(1, 9)}).items():
        compared[name] = Values(values[:n], groups), Values(values[held_out], stories)

    facts = dict(run=str(run), split=rows[0].get("split", "val"), data=str(data), training_stories=len(corpus))
    facts["data_sha256"] = load_meta(data)["splits"]["train"]["sha256"]
    facts |= dict(
        completions=n, prompts=len(set(prompts)), sampled={name: rows[0].get(name) for name in SAMPLING_SETTINGS}
    )
    facts |= {name: getattr(args, name) for name in ("k", "counting", "tokens")}
    facts |= dict(
        copied_words=min_copied_words, held_out_excerpts=len(held_out), duplicates=len(excerpts) - len(held_out)
    )
    known = [name for name in TITLES if name in compared and not np.isnan(compared[name][0].values).all()]
    compared = {name: compared[name] for name in known}
    facts["metrics"] = {
        name: compare(*values, paired=name.startswith("ending"), largest=np.inf if name == "span" else 1.0)
        for name, values in compared.items()
    }
    facts["flag_baseline"], counted = len(baseline_half), dict(completions=flagged[:n], baseline=flagged[baseline_half])
    facts["flagged"] = {f: {name: int((own == f).sum()) for name, own in counted.items()} for f in flags.FLAGS}
    facts = json.loads(json.dumps(facts), parse_constant=lambda _: None)  # NaN -> null
    described = flags.describe_completions(rows, corpus, found, masked, flagged)
    return Analysis(facts, compared, described, scores_text(facts) + flags.worst_text(described))


# ---- The tables ----


def label(facts: dict) -> str:
    return f"{facts['run']}, {SPLITS[facts['split']]} stories"


def scores_text(facts: dict) -> str:
    unit, n, duplicates = "tokens" if facts["tokens"] else "words", facts["completions"], facts["duplicates"]
    rows = metric_rows({name: list(metric.values()) for name, metric in facts["metrics"].items()})
    for flag, counts in facts["flagged"].items():
        passage = f" ({facts['copied_words']} {unit} or more in a row)" if flag == "copy" else ""
        counts = f"{counts['completions']:,} of {n:,}", f"{counts['baseline']:,} of {facts['flag_baseline']:,}"
        rows.append([f"flagged: {flag}{passage}", *counts, ""])
    paragraphs = [
        f"## {label(facts)}",
        f"{n:,} completions of {facts['prompts']:,} prompts, {facts['training_stories']:,} training stories of "
        f"{facts['data']}. ROUGE-{facts['k']} of {unit}, {facts['counting']}; passages in {unit}; means, 95% "
        f"intervals. Baseline: {facts['held_out_excerpts']:,} held-out excerpts; for the true ending, other endings.",
        table_text(["", "completions", "baseline", "difference"], rows),
    ]
    if duplicates:
        share = duplicates / (duplicates + facts["held_out_excerpts"])
        paragraphs.append(f"WARNING {share:.1%} of the held-out excerpts, left out, are in the training set verbatim")
    return "\n\n".join(paragraphs)


def metric_rows(metrics: dict[str, list[dict]]) -> list[list[str]]:
    """Rows of a table, from {metric: its entry in each column}."""
    rows = []
    for name in (name for name in IN_TABLE if name in metrics):
        digits, cells = 1 if name == "span" else 3, []
        for mean, low, high in (entry.values() for entry in metrics[name]):
            cells.append(f"{mean:.{digits}f}" + ("" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"))
        rows.append([TITLES[name], *cells, *[""] * (3 - len(cells))])
    return rows


def side_by_side(analyses: list[Analysis]) -> str:
    """A table of several runs' completions, or of those of one run's two splits and their difference."""
    facts, metrics = [each.facts for each in analyses], {}
    both_splits = len(facts) == 2 and facts[0]["run"] == facts[1]["run"]
    for name in (name for name in TITLES if all(name in each["metrics"] for each in facts)):
        metrics[name] = [each["metrics"][name]["completions"] for each in facts]
        if both_splits:
            validation, training = (each.compared[name][0] for each in analyses)
            metrics[name].append(compare(training, validation, largest=np.inf)["difference"])
    head = ["", *map(label, facts), *["training minus validation (memorization)"] * both_splits]
    runs = dict.fromkeys(each["run"] for each in facts)
    text = f"## {' and '.join(runs)}\n\n{table_text(head, metric_rows(metrics))}"
    sampled = [
        each["sampled"] | dict(data=each["data_sha256"], n=each["completions"] / each["prompts"]) for each in facts
    ]
    differ = [name for name in sampled[0] if any(each[name] != sampled[0][name] for each in sampled)]
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
    parser.add_argument("--tokens", action="store_true", help="compare tokens, not words (no names are masked then)")
    return parser.parse_args()


def analyze_run(run: Path, args: argparse.Namespace) -> list[Analysis]:
    """Analyzes the completions of validation stories, then of training stories, where there are any."""
    rows = [row for name in SAMPLES.values() for _, row in sorted(read_rows(run / name).items())]
    if not rows:
        remedy = "; write some with `python sample.py --eval 50`"
        raise ValueError(f"{run / SAMPLES['val']}: no completions there{other_samples(run) or remedy}")
    if args.data is None and not (run_of(run) / "ckpt.pt").exists():
        raise ValueError(f"{run}: not a run of train.py; name the training set, as in --data data/tinystories")
    data = args.data or corpus_of(str(run_of(run)))
    corpus = open_corpus(data, args.tokens)
    splits = [[row for row in rows if row.get("split", "val") == split] for split in SAMPLES]
    analyses = [analyze(run, some, corpus, data, args) for some in splits if some]
    for each in analyses:
        ending = "-train" * (each.facts["split"] == "train")
        write_json(run / f"rouge{ending}.json", each.facts)
        write_table(run / f"rouge{ending}.csv", each.rows)
    texts = [each.text for each in analyses] + ([side_by_side(analyses)] if len(analyses) == 2 else [])
    what = "words end at every letter that is not a to z; compare tokens (--tokens)"
    texts += [] if args.tokens else [language_warning((row["completion"] for row in rows), what)]
    publish_all(run, "\n\n".join(filter(None, texts)), analyses)
    return analyses


def publish_all(directory: Path, text: str, analyses: list[Analysis]) -> None:
    from common.figures import save_figure  # matplotlib takes a while to import
    from novelty.histograms import histograms

    publish(directory / "rouge.md", text)
    of_runs = [(label(each.facts), each.compared, each.facts["metrics"]) for each in analyses]
    save_figure(histograms({name: TITLES[name] for name in IN_PICTURE}, of_runs), directory / "rouge.png")


def main() -> None:
    args = parse_arguments()
    sys.stdout.reconfigure(errors="replace")
    with one_line_errors("rouge.py", interrupted="the old files are unchanged"):
        runs = args.runs or [newest_run()]
        analyses = [analyze_run(run, args) for run in runs]
        where, analyses = runs[-1], sum(analyses, [])
        if len(runs) > 1:
            where = Path(os.path.commonpath([run.parent for run in runs]))
            publish_all(where, side_by_side(analyses), analyses)
        n = sum(bool(row["flag"]) for each in analyses for row in each.rows)
        print(f"wrote rouge.md, .png, .json, .csv; next: look at {where}/rouge.png, read rouge.csv ({n} flagged)")


if __name__ == "__main__":
    main()
