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
from corpus.token_files import stories_of
from generation.prompts import SPLITS
from generation.samples_file import SAMPLES, read_rows, run_of
from novelty import flags
from novelty.intervals import Values, compare
from novelty.search import search
from novelty.words import Corpus, open_corpus, words_of

OTHERS, SIBLINGS = 20, 4  # completions to compare with, of other prompts and of the same; a maximum grows with them
PIECES = 400  # held-out excerpts, at least; half of them set the threshold for copied spans
TITLES = {
    "ending_f": "F with the true ending",
    "ending_precision": "precision against the true ending",
    "other_prompt_f": f"largest F with {OTHERS} completions of other prompts",
    "any_other_f": f"largest F with those {OTHERS} and {SIBLINGS} of the same prompt",
    "training_f": "F with the nearest training story",
    "training_precision": "precision against the nearest training story",
    **{f"share_{k}": f"share of {k}-grams in the training set" for k in range(1, 9)},
    "span": "longest span in the training set, words",
}
IN_TABLE = [name for name in TITLES if name not in ("share_3", "share_5", "share_6", "share_7")]
IN_PICTURE = ("ending_f", "other_prompt_f", "training_f", "span")
SAMPLING = ("split", "weights", "cut", "temperature", "top_k", "beams", "max_new_tokens")


# ---- The metric ----


class Score(NamedTuple):
    precision: float  # share of a's k-grams that also occur in b
    recall: float  # share of b's that also occur in a
    f: float  # their harmonic mean


def rouge_k(a: str | Sequence, b: str | Sequence, k: int = 2, counting: str = "set") -> Score:
    """Shared k-grams of two texts, or of two sequences of words or ids.

    counting: "set" is the paper's (section 4): each k-gram counts once per text, however often it occurs there.
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


def with_endings(rows: list[dict], corpus: Corpus, k: int, counting: str) -> dict[str, tuple[Values, Values]]:
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
        clusters = np.array([prompt for prompt, _ in pairs])
        columns.append((Values(scores[:, 2], clusters), Values(scores[:, 0], clusters)))
    return dict(zip(("ending_f", "ending_precision"), zip(*columns)))


def nearest_other(texts: list, clusters: np.ndarray, k: int, counting: str, siblings: int = 0) -> np.ndarray:
    """(n,) the largest F of each text with OTHERS texts of as many other clusters and `siblings` of its own, all drawn
    at random; NaN if there are too few."""
    grams, members, draw = [kgrams(text, k, counting) for text in texts], {}, random.Random(0)
    for i, cluster in enumerate(clusters.tolist()):
        members.setdefault(cluster, []).append(i)
    names, f = list(members), np.full(len(texts), np.nan)
    for i, cluster in enumerate(tqdm(clusters.tolist(), "comparing completions", leave=False, disable=None, delay=1)):
        own = [j for j in members[cluster] if j != i]
        if len(names) > OTHERS and len(own) >= siblings:
            others = [name for name in draw.sample(names, OTHERS + 1) if name != cluster][:OTHERS]
            drawn = [draw.choice(members[name]) for name in others] + draw.sample(own, siblings)
            f[i] = max(overlap(grams[i], grams[j]).f for j in drawn)
    return f


def held_out_pieces(corpus: Corpus, words: list[np.ndarray], begins: list[int]) -> tuple[list[np.ndarray], np.ndarray]:
    """For each completion, repeated until there are PIECES, an excerpt of a validation story of the same length and, as
    far as the story allows, at the same offset. Returns the excerpts and the indices of their stories."""
    n = max(len(words), PIECES)
    held_out = corpus.encode(list(itertools.islice(stories_of(corpus.held_out, corpus.tokenizer), max(n, 1000))))
    held_out = list({story.tobytes(): story for story in held_out}.values())  # each once
    longest, story, pieces, stories = max(map(len, held_out)), -1, [], []
    for text, begin in itertools.islice(itertools.cycle(zip(words, begins)), n):
        length, story = min(len(text), longest), story + 1
        while len(held_out[story % len(held_out)]) < length:
            story += 1
        stories.append(story % len(held_out))
        whole = held_out[stories[-1]]
        begin = min(begin, len(whole) - length)
        pieces.append(whole[begin : begin + length])
    return pieces, np.array(stories)


class Analysis(NamedTuple):
    """The results for a run's completions of one split."""

    facts: dict  # rouge.json
    compared: dict[str, tuple]  # by metric: intervals.Values of the completions, and of their baseline or None
    rows: list[dict]  # rouge.csv
    text: str  # rouge.md


def analyze(run: Path, rows: list[dict], corpus: Corpus, directory: Path, args: argparse.Namespace) -> Analysis:
    """rows: samples of a single split."""
    k, counting, n = args.k, args.counting, len(rows)
    words, prompt_words = (corpus.encode([row[name] for row in rows]) for name in ("completion", "prompt"))
    if not any(map(len, words)):
        raise ValueError(f"{run}: no completion has a word in it")
    prompts, samples = (np.array([row[name] for row in rows]) for name in ("prompt_index", "sample_index"))
    clusters = prompts if len(set(prompts)) > 1 else samples  # with one prompt, each completion is its own cluster
    pieces, stories = held_out_pieces(corpus, words, list(map(len, prompt_words)))
    texts = words + pieces
    found = search(texts, corpus.stream, k, counting, label="training stories")
    classes = flags.mask_names_and_nouns(corpus, texts)
    masked = search(texts, corpus.stream, k, counting, classes, label="templates (names and nouns masked)")

    # Held-out excerpts that are in the training set verbatim are no baseline. Half of the others set the threshold for
    # copied spans; the other half show how many honest texts are flagged (false positives).
    spans, lengths = found.longest(), np.array(list(map(len, texts)))
    held_out = n + np.flatnonzero((spans < lengths)[n:] | (lengths[n:] < flags.MIN_WORDS))
    stories = stories[held_out - n]
    copied_words = flags.copied_length(spans[held_out[stories % 2 == 0]])
    flagged = flags.flag_texts(texts, found, masked, classes, k, copied_words)
    baseline_half = held_out[stories % 2 == 1]

    compared = with_endings(rows, corpus, k, counting)
    other_prompt, any_other = (Values(nearest_other(words, prompts, k, counting, n), clusters) for n in (0, SIBLINGS))
    baseline = Values(nearest_other([texts[i] for i in held_out], stories, k, counting), stories)
    compared |= dict(other_prompt_f=(other_prompt, baseline), any_other_f=(any_other, None))
    columns = dict(training_f=found.f, training_precision=found.precision, span=spans)
    for name, values in (columns | {f"share_{j}": found.share(j) for j in range(1, 9)}).items():
        compared[name] = Values(values[:n], clusters), Values(values[held_out], stories)
    compared = {name: pair for name, pair in compared.items() if not np.isnan(pair[0].values).all()}

    facts = dict(run=str(run), split=rows[0].get("split", "val"), data=str(directory), training_stories=len(corpus))
    facts |= dict(completions=n, prompts=len(set(prompts)), sampled={name: rows[0].get(name) for name in SAMPLING})
    facts |= {name: getattr(args, name) for name in ("k", "counting", "tokens")}
    facts |= dict(copied_words=copied_words, held_out_pieces=len(held_out), duplicates=len(pieces) - len(held_out))
    facts["figures"] = {
        name: compare(*compared[name], name.startswith("ending"), np.inf if name == "span" else 1.0)
        for name in TITLES
        if name in compared
    }
    facts["flagged"] = {
        flag: dict(completions=int((flagged[:n] == flag).sum()), baseline=int((flagged[baseline_half] == flag).sum()))
        | dict(pieces=len(baseline_half))
        for flag in flags.FLAGS
    }
    facts = json.loads(json.dumps(facts), parse_constant=lambda _: None)  # NaN -> null
    described = flags.describe_completions(rows, corpus, found, masked, flagged)
    return Analysis(facts, compared, described, scores_text(facts) + flags.worst_text(described))


# ---- The tables ----


def label(facts: dict) -> str:
    return f"{facts['run']}, {SPLITS[facts['split']]} stories"


def scores_text(facts: dict) -> str:
    unit, n, duplicates = "tokens" if facts["tokens"] else "words", facts["completions"], facts["duplicates"]
    rows = figure_rows({name: list(figure.values()) for name, figure in facts["figures"].items()})
    for flag, counts in facts["flagged"].items():
        passage = f" ({facts['copied_words']} {unit} or more in a row)" if flag == "copy" else ""
        counts = f"{counts['completions']:,} of {n:,}", f"{counts['baseline']:,} of {counts['pieces']:,}"
        rows.append([f"flagged: {flag}{passage}", *counts, ""])
    paragraphs = [
        f"## {label(facts)}",
        f"{n:,} completions of {facts['prompts']:,} prompts, {facts['training_stories']:,} training stories of "
        f"{facts['data']}. ROUGE-{facts['k']} of {unit}, {facts['counting']}; means, 95% intervals. Baseline: "
        f"{facts['held_out_pieces']:,} pieces of held-out stories; for the true ending, other stories' endings.",
        table_text(["", "completions", "baseline", "difference"], rows),
    ]
    if duplicates:
        share = duplicates / (duplicates + facts["held_out_pieces"])
        paragraphs.append(
            f"WARNING {share:.1%} of the held-out pieces, left out here, occur verbatim in the training set"
        )
    return "\n\n".join(paragraphs)


def figure_rows(figures: dict[str, list[dict]]) -> list[list[str]]:
    """Rows of a table, from {metric: its entry in each column}."""
    rows = []
    for name in (name for name in IN_TABLE if name in figures):
        digits, cells = 1 if name == "span" else 3, []
        for mean, low, high in (entry.values() for entry in figures[name]):
            cells.append(f"{mean:.{digits}f}" + ("" if low is None else f" [{low:.{digits}f}, {high:.{digits}f}]"))
        rows.append([TITLES[name], *cells, *[""] * (3 - len(cells))])
    return rows


def side_by_side(analyses: list[Analysis]) -> str:
    """The completions of several runs, or of both splits of one: then with the difference, training - validation."""
    facts, figures = [each.facts for each in analyses], {}
    both_splits = len(facts) == 2 and facts[0]["run"] == facts[1]["run"]
    for name in (name for name in TITLES if all(name in each["figures"] for each in facts)):
        figures[name] = [each["figures"][name]["completions"] for each in facts]
        if both_splits:
            validation, training = (each.compared[name][0] for each in analyses)
            figures[name].append(compare(training, validation, largest=np.inf)["difference"])
    head = ["", *map(label, facts), *["training minus validation (memorization)"] * both_splits]
    runs = dict.fromkeys(each["run"] for each in facts)
    text = f"## {' and '.join(runs)}\n\n{table_text(head, figure_rows(figures))}"
    sampled = [each["sampled"] | dict(data=each["data"], n=each["completions"] / each["prompts"]) for each in facts]
    names = [name for name in sampled[0] if name != "split" or not both_splits]
    differ = [name for name in names if any(each[name] != sampled[0][name] for each in sampled)]
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
    parser.add_argument("--tokens", action="store_true", help="compare tokens, not words; names are not masked")
    return parser.parse_args()


def analyze_run(run: Path, args: argparse.Namespace) -> list[Analysis]:
    """Analyzes the completions of validation stories, then of training stories, where there are any."""
    rows = [row for name in SAMPLES.values() for _, row in sorted(read_rows(run / name).items())]
    if not rows:
        raise ValueError(f"{run / SAMPLES['val']}: no completions there; write some with `python sample.py --eval 50`")
    if args.data is None and not (run_of(run) / "ckpt.pt").exists():
        raise ValueError(f"{run}: not a run of train.py; name the training set, as in --data data/tinystories")
    directory = args.data or corpus_of(str(run_of(run)))
    corpus = open_corpus(directory, args.tokens)
    splits = [[row for row in rows if row.get("split", "val") == split] for split in SAMPLES]
    analyses = [analyze(run, some, corpus, directory, args) for some in splits if some]
    for each in analyses:
        ending = "-train" * (each.facts["split"] == "train")
        write_json(run / f"rouge{ending}.json", each.facts)
        write_table(run / f"rouge{ending}.csv", each.rows)
    texts = [each.text for each in analyses] + ([side_by_side(analyses)] if len(analyses) == 2 else [])
    publish_all(run, "\n\n".join(texts), analyses)
    return analyses


def publish_all(directory: Path, text: str, analyses: list[Analysis]) -> None:
    from common.figures import save_figure  # matplotlib takes a while to import
    from novelty.histograms import histograms

    publish(directory / "rouge.md", text)
    of_runs = [(label(each.facts), each.compared, each.facts["figures"]) for each in analyses]
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
