"""
Metrics without a judge: bits per byte; whether stories end, how much they repeat themselves, how
long they are. (They are defined in scores.py.)
"""

from collections.abc import Sequence

from nanostories.grading.stories import Run, Story
from nanostories.text import words_of
from nanostories.training.run_directory import read_log

NGRAM = 4  # words; a repeated one counts as a repetition


def ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n))))


def repeated(story: Story) -> float | None:
    """The share of the completion's n-grams of words that came earlier in the story; None if it has
    none."""
    prompt = words_of(story.opening)
    words = words_of(story.completion)
    grams = ngrams(prompt[1 - NGRAM :] + words, NGRAM)
    if not grams:
        return None
    seen = set(ngrams(prompt, NGRAM))
    n_again = 0
    for gram in grams:
        n_again += gram in seen
        seen.add(gram)
    return n_again / len(grams)


def metrics_of(story: Story) -> dict[str, float]:
    found = {"words": float(len(words_of(story.completion)))}
    if story.finished is not None:
        found["ended"] = float(story.finished)
    share = repeated(story)
    if share is not None:
        found["repeated"] = share
    return found


def bits_per_byte(run: Run) -> float | None:
    """On the validation stories, of the weights that wrote the samples: the best in log.csv, or the
    last (sample.py --checkpoint last). None for a model that was not trained here."""
    path = run.model.directory / "log.csv" if run.model else None
    if not path or not path.exists():
        return None
    rows = [row for row in read_log(path) if row["val_loss"]]
    if not rows:
        return None
    used = min(rows, key=lambda row: float(row["val_loss"]))
    if str(run.rows[0].get("model", "")).endswith("ckpt.pt"):
        used = rows[-1]
    return float(used["bpb"])
