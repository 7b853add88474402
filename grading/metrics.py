"""
Metrics without a judge: held-out loss; whether stories end, how much they repeat themselves, which words they use.

>>> rows = metric_rows(runs, groups, endings)  # what each metric is: scores.py
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from corpus.token_files import load_stories
from grading.scores import TRUE
from grading.stories import Row, Run, Story, named
from training.run_directory import read_log

CORPUS_STORIES = 100_000  # of the training split, to collect words from: about 80 MB of text, ten seconds
NGRAM = 4  # words; a repeated one counts as a repetition


def words_of(text: str) -> list[str]:
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower().replace("’", "'"))


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n))))


def story_metrics(story: Story, known: set[str] | None) -> dict[str, float]:
    """Metrics of one completion; those that it cannot have are left out. known: the words of the corpus."""
    before, words = words_of(story.prompt), words_of(story.completion)
    metrics, seen, again = dict(words=float(len(words))), set(ngrams(before, NGRAM)), 0
    grams = ngrams(before[1 - NGRAM :] + words, NGRAM)
    for gram in grams:
        again += gram in seen
        seen.add(gram)
    if words and grams:
        metrics["repeated"] = again / len(grams)
    if words and known is not None:
        strange = set(words) - known - set(before)
        metrics["unknown"] = sum(word in strange for word in words) / len(words)
    return metrics


def distinct(completions: Iterable[str], n: int, limit: int) -> float:
    """Distinct n-grams as a share of all in the first `limit` words (a fixed number, as longer texts repeat more); NaN
    if there are none."""
    grams, left = [], limit
    for completion in completions:
        words = words_of(completion)[:left]
        left -= len(words)
        grams += ngrams(words, n)
    return len(set(grams)) / len(grams) if grams else np.nan


def held_out(run: Path, last: bool = False) -> dict[str, float]:
    """Validation loss and bpb of the weights that wrote the samples: the best in log.csv, or the last."""
    path = run / "log.csv"
    rows = [row for row in read_log(path) if row["val_loss"]] if path.exists() else []
    row = min(rows[-1:] if last else rows, key=lambda row: float(row["val_loss"]), default={})
    return dict(loss=float(row["val_loss"]), bpb=float(row["bpb"])) if row else {}


def corpus_words(corpus: Path) -> set[str]:
    """The words in the first training stories of a corpus that prepare.py made."""
    words, stories = set(), itertools.islice(load_stories(corpus, "train")[1], CORPUS_STORIES)
    for story in tqdm(stories, "words of the corpus", delay=2, leave=False, disable=None, unit="story"):
        words.update(words_of(story))
    return words


def metric_rows(
    runs: Sequence[Run], groups: Mapping[str, Sequence[Run]], true_endings: Sequence[Story], data: Path | None = None
) -> Iterator[Row]:
    """Metrics of the runs, and of the true endings. groups: stories.by_prompts(runs); data: a corpus to use instead of
    the runs' own."""
    sources = [(run.name, run.stories, data or run.corpus) for run in runs]
    for name, group in groups.items():
        tasks = set().union(*(run.tasks for run in group))
        endings = [story for story in true_endings if story.task in tasks]
        corpus = next((run.corpus for run in group if run.corpus), None)
        sources.append((named(TRUE, name), endings, data or corpus))
    corpora = {corpus for _, _, corpus in sources} - {None}
    known = {corpus: corpus_words(corpus) for corpus in corpora if data or (corpus / "meta.json").exists()}
    if missing := ", ".join(str(corpus) for corpus in corpora - known.keys()):
        print(f"{missing}: no such corpus here, so unknown words are not counted; name one with --data")
    lengths = [sum(len(words_of(story.completion)) for story in stories) for _, stories, _ in sources]
    limit = min(filter(None, lengths), default=0)
    for name, stories, corpus in sources:
        for story in stories:
            for metric, value in story_metrics(story, known.get(corpus)).items():
                yield Row("", name, story, metric, value)
        for n in (1, 2, 3):
            yield Row("", name, None, f"distinct-{n}", distinct((story.completion for story in stories), n, limit))
    for run in runs:
        for row, story in zip(run.rows, run.stories):
            if row.get("finished") is not None:
                yield Row("", run.name, story, "ended", float(row["finished"]))
        last = str(run.rows[0].get("model", "")).endswith("ckpt.pt")  # sample.py --checkpoint last
        for metric, value in held_out(run.model, last).items():
            yield Row("", run.name, None, metric, value)
