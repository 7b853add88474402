"""
Everything that rouge.json holds: a run's completions compared with endings, each other and the training set.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from checkpoints.checkpoint import corpus_of
from novelty.bootstrap_intervals import compare_means
from novelty.compare_texts import (
    ENDING_METRICS,
    compare_with_each_other,
    compare_with_endings,
    compare_with_training,
    encode_completions,
    held_out_pieces,
    read_completions,
)
from novelty.corpus_words import open_stories
from novelty.flag_copies import FLAGS, describe_completions, flag_texts, flagged_text, mask_names_and_nouns
from novelty.ngram_search import search
from novelty.tables_and_plots import PANELS

FORMAT = 2  # of rouge.json


@dataclass
class Settings:
    k: int = 2  # of ROUGE-k
    counting: str = "set"  # or "clipped": see rouge_k
    tokens: bool = False  # k-grams of the data's tokens instead of words; then no templates, which need words
    threshold: float = 0.75  # flag a completion if this share of its k-grams occurs in one training story


def analyse(run: Path, directory: Path | None, settings: Settings) -> tuple[dict, str]:
    """Compares out/<run>/samples.jsonl with data/<name>/, by default the run's own -> rouge.json, flagged.txt."""
    rows = read_completions(run / "samples.jsonl")
    directory = directory or training_data(run)
    stories = open_stories(directory, settings.tokens)
    completions = encode_completions(rows, stories)
    if not any(map(len, completions.words)):
        raise ValueError(f"{run / 'samples.jsonl'}: no completion has a word in it")
    pieces = held_out_pieces(stories, completions)
    n, k, counting, masked = len(rows), settings.k, settings.counting, None
    texts = completions.words + pieces.words
    overlaps = search(texts, stories.stream, k, counting, label="training stories")
    if not settings.tokens:
        masked = search(texts, stories.stream, k, counting, mask_names_and_nouns(stories, texts), label="templates")
    flags = flag_texts(texts, overlaps, masked, k, settings.threshold)
    details = describe_completions(rows, completions.words, stories, overlaps, masked, flags)

    comparisons = compare_with_endings(rows, stories, k, counting)
    comparisons |= compare_with_each_other(completions, pieces, k, counting)
    comparisons |= compare_with_training(overlaps, completions, pieces)
    comparisons = {name: pair for name, pair in comparisons.items() if not np.isnan(pair[0].values).all()}
    rouge_json = dict(
        format=FORMAT,
        run=str(run),
        data=str(directory),
        training_stories=len(stories),
        completions=n,
        prompts=len({row["prompt_index"] for row in rows}),
        held_out_stories=len(set(pieces.clusters)),
        settings=vars(settings),
        figures={name: compare_means(*pair, name in ENDING_METRICS) for name, pair in comparisons.items()},
        flagged={
            flag: dict(completions=int(np.sum(flags[:n] == flag)), beside=int(np.sum(flags[n:] == flag)))
            for flag in FLAGS
        },
        values={
            name: {
                which: [round(float(x), 4) for x in column.values if not np.isnan(x)]
                for which, column in zip(("completions", "beside"), comparisons[name])
            }
            for name in PANELS
            if name in comparisons
        },
        details=details,
    )
    without_nan = json.loads(json.dumps(rouge_json), parse_constant=lambda _: None)  # JSON has no NaN
    return without_nan, flagged_text(run, details, [row["completion"] for row in rows], stories, k)


def training_data(run: Path) -> Path:
    """The corpus that a run of train.py was trained on."""
    if not (run / "ckpt.pt").exists():
        raise ValueError(f"{run}: not a run of train.py; name the training set, as in --data data/tinystories")
    return corpus_of(str(run))
