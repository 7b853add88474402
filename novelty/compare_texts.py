"""
Compares completions with their true endings, with each other, and with every training story. The baseline for each:
held-out stories (or other stories' endings), treated the same way.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from corpus.token_files import stories_of
from generation.samples_file import SAMPLES, UNSAID, read_rows
from novelty.clustered_means import Clustered
from novelty.corpus_words import Stories
from novelty.ngram_search import Overlaps, Stream, search
from novelty.rouge_scores import rouge_k, rouge_l

K_MAX = 8  # share_1 … share_8: the shares of k-grams that occur in the training set
ENDING_METRICS = ("ending_f", "ending_precision", "ending_l")  # of the true ending
OTHER_ENDINGS = 10  # of other stories, compared with each true ending as a baseline

Comparisons = dict[str, tuple[Clustered, Clustered | None]]  # by metric: of the completions, of the baseline


@dataclass
class Texts:
    """n completions, or the n held-out pieces that are their baseline."""

    words: list[np.ndarray]
    clusters: np.ndarray  # (n,) the prompt of each completion, the story of each held-out piece
    samples: np.ndarray  # (n,) sample_index of each completion, or of the completion that a piece stands in for
    begin: np.ndarray  # (n,) how many words of its story come before it


def read_completions(path: Path) -> list[dict]:
    rows = read_rows(path)
    if not rows or not all(isinstance(row.get("completion"), str) for row in rows.values()):
        raise ValueError(f"{path}: no completions there; write some with `python sample.py --eval 50`")
    return [rows[key] for key in sorted(rows)]


def read_splits(run: Path) -> dict[str, list[dict]]:
    """The completions of validation stories and of training stories, where there are any."""
    paths = [run / name for name in SAMPLES.values() if (run / name).exists()] or [run / SAMPLES["val"]]
    rows = [row for path in paths for row in read_completions(path)]
    of_splits = {split: [row for row in rows if (UNSAID | row)["split"] == split] for split in SAMPLES}
    return {split: of_split for split, of_split in of_splits.items() if of_split}


def encode_completions(rows: list[dict], stories: Stories) -> Texts:
    prompts, samples = (np.array([row[name] for row in rows]) for name in ("prompt_index", "sample_index"))
    clusters = prompts if len(set(prompts)) > 1 else samples  # with one prompt, each completion is its own cluster
    begin = np.array([len(words) for words in stories.encode([row.get("prompt") or "" for row in rows])])
    return Texts(stories.encode([row["completion"] for row in rows]), clusters, samples, begin)


def held_out_pieces(stories: Stories, completions: Texts) -> Texts:
    """For each completion, an equally long piece of a validation story: the next story that is long enough, from the
    same position as the completion has in its own, or as close to that as the story's length allows."""
    held_out = stories_of(stories.held_out, stories.tokenizer)
    words = stories.encode(list(itertools.islice(held_out, max(len(completions.words), 1000))))
    longest, story = max(map(len, words)), -1
    pieces = Texts(*(column.copy() for column in vars(completions).values()))
    for i in np.lexsort((completions.clusters, completions.samples)):  # one sample gets different pieces
        n, story = min(len(completions.words[i]), longest), story + 1
        while len(words[story % len(words)]) < n:
            story += 1
        pieces.clusters[i] = story % len(words)
        pieces.begin[i] = min(completions.begin[i], len(words[story % len(words)]) - n)
        pieces.words[i] = words[story % len(words)][pieces.begin[i] : pieces.begin[i] + n]
    return pieces


def compare_with_endings(rows: list[dict], stories: Stories, k: int, counting: str) -> Comparisons:
    """Completions against the true ending of their story. Baseline: other stories' endings against that ending."""
    rows = [row for row in rows if (row.get("reference") or "").strip()]
    prompts = sorted({row["prompt_index"] for row in rows})
    n = len(prompts)
    if n < 2:
        return {}
    endings = dict(zip((row["prompt_index"] for row in rows), stories.encode([row["reference"] for row in rows])))
    own = list(zip(stories.encode([row["completion"] for row in rows]), (row["prompt_index"] for row in rows)))
    others = [
        (endings[prompts[(i + j) % n]], prompts[i]) for i in range(n) for j in range(1, min(OTHER_ENDINGS + 1, n))
    ]
    columns = []
    for pairs in (own, others):
        bar = tqdm(pairs, "true endings", leave=False, disable=None, delay=1)
        scores = [[*rouge_k(a, endings[prompt], k, counting), rouge_l(a, endings[prompt]).f] for a, prompt in bar]
        precision, _, f, l_f = np.array(scores).T
        clusters = np.array([prompt for _, prompt in pairs])
        columns.append([Clustered(values, clusters) for values in (f, precision, l_f)])
    return dict(zip(ENDING_METRICS, zip(*columns)))


def compare_with_each_other(completions: Texts, pieces: Texts, k: int, counting: str) -> Comparisons:
    """The largest F of each text with any other: among all completions; and among one completion per prompt at a time,
    so that pieces of equally many stories can be the baseline."""

    def largest_f(texts: list[np.ndarray]) -> np.ndarray:
        return search(texts, Stream.of(texts), k, counting, leave_out_own=True).f

    columns = []
    for texts in (completions, pieces):
        f = np.full(len(texts.words), np.nan)
        for sample in np.unique(texts.samples):
            of_sample = np.flatnonzero(texts.samples == sample)
            together = of_sample[np.unique(texts.clusters[of_sample], return_index=True)[1]]
            if len(together) > 1:
                f[together] = largest_f([texts.words[i] for i in together])
        columns.append(Clustered(f, texts.clusters))
    any_other = Clustered(largest_f(completions.words), completions.clusters)
    return dict(any_other_f=(any_other, None), other_prompt_f=tuple(columns))


def compare_with_training(overlaps: Overlaps, completions: Texts, pieces: Texts) -> Comparisons:
    """Metrics from a search of the training set for the completions followed by the held-out pieces."""
    columns = {
        "training_f": overlaps.f,
        "training_precision": overlaps.precision,
        "span": np.array([span.max(initial=0) for span in overlaps.spans], dtype=float),
    }
    for k in range(1, K_MAX + 1):
        matched = [span[: max(len(span) - k + 1, 0)] >= k for span in overlaps.spans]
        columns[f"share_{k}"] = np.array([each.mean() if len(each) else np.nan for each in matched])
    n = len(completions.words)
    return {
        name: (Clustered(values[:n], completions.clusters), Clustered(values[n:], pieces.clusters))
        for name, values in columns.items()
    }
