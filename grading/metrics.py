"""
Metrics without a judge: held-out loss; whether stories end, how much they repeat themselves, how their words differ.

>>> rows = metric_rows(runs, {"(true ending)": stories})  # what each metric is: scores.py
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from grading.stories import Row, Run, Story, settings_of
from training.run_directory import read_log, training_seconds

NGRAM = 4  # words; a repeated one counts as a repetition
FINISHED = 0.95  # of its schedule; minutes of training are known from the log to a few percent


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower().replace("’", "'"))


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n))))


def repeated(story: Story) -> float:
    """The share of the completion's n-grams of words that came earlier in the story; NaN if it has none."""
    before, words = words_of(story.prompt), words_of(story.completion)
    seen, grams, again = set(ngrams(before, NGRAM)), ngrams(before[1 - NGRAM :] + words, NGRAM), 0
    for gram in grams:
        again += gram in seen
        seen.add(gram)
    return again / len(grams) if words and grams else np.nan


def distinct(completions: Iterable[str], n: int, limit: int) -> float:
    """Distinct n-grams as a share of all in the first `limit` words (a fixed number, as longer texts repeat more); NaN
    if there are none."""
    grams, left = [], limit
    for completion in completions:
        words = words_of(completion)[:left]
        left -= len(words)
        grams += ngrams(words, n)
    return len(set(grams)) / len(grams) if grams else np.nan


def log_of(run: Path) -> list[dict]:
    path = run / "log.csv"
    return read_log(path) if path.exists() else []


def held_out(run: Path, last: bool = False) -> dict[str, float]:
    """Validation loss and bpb of the weights that wrote the samples: the best in log.csv, or the last."""
    rows = [row for row in log_of(run) if row["val_loss"]]
    row = min(rows[-1:] if last else rows, key=lambda row: float(row["val_loss"]), default={})
    return dict(loss=float(row["val_loss"]), bpb=float(row["bpb"])) if row else {}


def is_stopped(run: Path) -> bool:
    """Whether its training was stopped before its schedule of steps or minutes ended (train.py, `progress`)."""
    settings, rows = settings_of(run), log_of(run)
    if not settings or not rows or run.name.startswith("step-"):
        return False
    step, minutes = int(rows[-1]["step"]), training_seconds(rows)[-1] / 60
    clock = minutes / settings["max_minutes"] if settings["max_minutes"] else 0.0
    return max(step / settings["max_steps"], min(clock, step / max(1, settings["min_steps"]))) < FINISHED


def metric_rows(runs: Sequence[Run], true_endings: Mapping[str, Sequence[Story]]) -> Iterator[Row]:
    """Of the runs, and of the true endings, by their names in tables."""
    sources = {run.name: run.stories for run in runs} | dict(true_endings)
    n_words = {name: sum(len(words_of(story.completion)) for story in told) for name, told in sources.items()}
    limit = min(filter(None, n_words.values()), default=0)
    for name, stories in sources.items():
        for story in stories:
            yield Row("", name, story, "words", float(len(words_of(story.completion))))
            if not np.isnan(share := repeated(story)):
                yield Row("", name, story, "repeated", share)
        for n in (1, 2, 3):
            yield Row("", name, None, f"distinct-{n}", distinct((story.completion for story in stories), n, limit))
    for run in runs:
        for row, story in zip(run.rows, run.stories):
            if row.get("finished") is not None:
                yield Row("", run.name, story, "ended", float(row["finished"]))
        last = str(run.rows[0].get("model", "")).endswith("ckpt.pt")  # sample.py --checkpoint last
        for metric, value in held_out(run.model, last).items():
            yield Row("", run.name, None, metric, value)
