"""
Everything in rouge.json: a run's completions compared with endings, each other and the training set.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoints.checkpoint import corpus_of
from generation.samples_file import SAMPLES, run_of
from novelty.clustered_means import compare_means
from novelty.compare_texts import (
    ENDING_METRICS,
    Comparisons,
    compare_with_each_other,
    compare_with_endings,
    compare_with_training,
    encode_completions,
    held_out_pieces,
    read_splits,
)
from novelty.corpus_words import Stories, open_stories
from novelty.flag_copies import (
    FLAGS,
    copied_length,
    describe_completions,
    flag_texts,
    flagged_text,
    mask_names_and_nouns,
)
from novelty.ngram_search import search
from novelty.rouge_tables_and_plots import PANELS

FORMAT = 3  # of rouge.json
SAMPLED_ALIKE = ("weights", "cut", "temperature", "top_k", "top_p", "beams", "max_new_tokens")  # to be comparable


@dataclass
class Settings:
    k: int = 2  # of ROUGE-k
    counting: str = "set"  # or "clipped": see rouge_k
    tokens: bool = False  # k-grams of tokens instead of words; finds no templates, which need words
    threshold: float = 0.75  # flag a completion if this share of its k-grams occurs in one training story


@dataclass
class Analysis:
    """The results for a run's completions of one split."""

    rouge_json: dict
    flagged_txt: str
    comparisons: Comparisons


def analyze(run: Path, directory: Path | None, settings: Settings) -> list[Analysis]:
    """Compares a run's completions of validation stories, and of training stories if any, with the corpus in
    `directory` (default: the run's own). The rouge_json of training stories also has its differences from the other."""
    of_splits = read_splits(run)
    directory = directory or training_data(run)
    stories = open_stories(directory, settings.tokens)
    analyses = [analyze_split(run, split, rows, directory, stories, settings) for split, rows in of_splits.items()]
    if len(analyses) == 2:
        held_out, trained = (each.comparisons for each in analyses)
        first, second = (rows[0] for rows in of_splits.values())
        differ = [name for name in SAMPLED_ALIKE if first.get(name) != second.get(name)]
        analyses[1].rouge_json["splits_differ_in"] = differ
        analyses[1].rouge_json["training_and_validation"] = without_nan(
            {
                name: compare_means(trained[name][0], held_out[name][0], paired=False)
                for name in trained.keys() & held_out
            }
        )
    return analyses


def analyze_split(
    run: Path, split: str, rows: list[dict], directory: Path, stories: Stories, settings: Settings
) -> Analysis:
    completions = encode_completions(rows, stories)
    if not any(map(len, completions.words)):
        raise ValueError(f"{run / SAMPLES[split]}: no completion has a word in it")
    pieces = held_out_pieces(stories, completions)
    n, k, counting, masked, classes = len(rows), settings.k, settings.counting, None, None
    texts = completions.words + pieces.words
    overlaps = search(texts, stories.stream, k, counting, label="training stories")
    if not settings.tokens:
        classes = mask_names_and_nouns(stories, texts)
        masked = search(texts, stories.stream, k, counting, classes, label="templates")
    copied_words = copied_length(overlaps.spans[n:])
    flags = flag_texts(texts, overlaps, masked, classes, k, settings.threshold, copied_words)
    details = describe_completions(rows, completions.words, stories, overlaps, masked, flags)

    comparisons = compare_with_endings(rows, stories, k, counting)
    comparisons |= compare_with_each_other(completions, pieces, k, counting)
    comparisons |= compare_with_training(overlaps, completions, pieces)
    comparisons = {name: pair for name, pair in comparisons.items() if not np.isnan(pair[0].values).all()}
    rouge_json = dict(
        format=FORMAT,
        run=str(run),
        split=split,
        data=str(directory),
        training_stories=len(stories),
        completions=n,
        prompts=len({row["prompt_index"] for row in rows}),
        held_out_stories=len(set(pieces.clusters)),
        settings=vars(settings),
        copied_words=copied_words,
        figures={name: compare_means(*pair, name in ENDING_METRICS) for name, pair in comparisons.items()},
        flagged={
            flag: dict(completions=int(np.sum(flags[:n] == flag)), beside=int(np.sum(flags[n:] == flag)))
            for flag in FLAGS
        },
        values={
            name: {
                which: [round(float(x), 4) for x in column.values if not np.isnan(x)]
                for which, column in zip(("completions", "beside"), comparisons[name])
                if column is not None
            }
            for name in PANELS
            if name in comparisons
        },
        details=details,
    )
    flagged_txt = flagged_text(run, details, [row["completion"] for row in rows], stories, k, classes)
    return Analysis(without_nan(rouge_json), flagged_txt, comparisons)


def without_nan(facts: dict) -> dict:
    """Replaces NaN, which JSON lacks, with None."""
    return json.loads(json.dumps(facts), parse_constant=lambda _: None)


def training_data(run: Path) -> Path:
    """The corpus that a run of train.py was trained on. run: its directory, or that of its samples at a temperature."""
    run = run_of(run)
    if not (run / "ckpt.pt").exists():
        raise ValueError(f"{run}: not a run of train.py; name the training set, as in --data data/tinystories")
    return corpus_of(str(run))
