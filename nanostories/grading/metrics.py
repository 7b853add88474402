"""
Metrics without a judge: bits per byte; whether stories end, how much they repeat themselves, how
long they are.

>>> rows = metric_rows(runs, true_endings)  # the metrics are defined in scores.py
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import regex

from nanostories.grading.scores import TRUE_ENDING
from nanostories.grading.stories import Row, Run, Story
from nanostories.training.run_directory import read_log

NGRAM = 4  # words; a repeated one counts as a repetition


def words_of(text: str) -> list[str]:
    return regex.findall(r"[\p{L}\p{M}]+(?:'[\p{L}\p{M}]+)*", text.lower().replace("’", "'"))


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n))))


def repeated(story: Story) -> float | None:
    """The share of the completion's n-grams of words that came earlier in the story; None if it has
    none."""
    prompt, words = words_of(story.prompt), words_of(story.completion)
    seen, grams, again = set(ngrams(prompt, NGRAM)), ngrams(prompt[1 - NGRAM :] + words, NGRAM), 0
    for gram in grams:
        again += gram in seen
        seen.add(gram)
    return again / len(grams) if words and grams else None


def bits_per_byte(run: Path, last: bool = False) -> float | None:
    """On the validation stories, of the weights that wrote the samples: the best in log.csv, or the
    last."""
    path = run / "log.csv"
    rows = [row for row in read_log(path) if row["val_loss"]] if path.exists() else []
    row = min(rows[-1:] if last else rows, key=lambda row: float(row["val_loss"]), default={})
    return float(row["bpb"]) if row else None


def metric_rows(runs: Sequence[Run], true_endings: Sequence[Story]) -> Iterator[Row]:
    for run in runs:
        last = str(run.rows[0].get("model", "")).endswith("ckpt.pt")  # sample.py --checkpoint last
        if (bpb := bits_per_byte(run.model, last)) is not None:
            yield Row("", run.name, None, "bpb", bpb)
        for row, story in zip(run.rows, run.stories):
            if row.get("finished") is not None:
                yield Row("", run.name, story, "ended", float(row["finished"]))
    for name, stories in [(run.name, run.stories) for run in runs] + [(TRUE_ENDING, true_endings)]:
        for story in stories:
            if (share := repeated(story)) is not None:
                yield Row("", name, story, "repeated", share)
            yield Row("", name, story, "words", float(len(words_of(story.completion))))
