"""
Is a data set diverse and clean? How many different words and passages it has, how its stories
begin, and what they share: validation stories with the training stories, and training stories with
the others, which is what to expect. For rouge.py of corpora.

>>> tables, figure = diversity([Path("data/real"), Path("data/builtin")])
"""

import collections
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from nanostories.cli import UserError
from nanostories.corpus.token_files import load_meta, stories_of
from nanostories.corpus.word_forms import SPEECH
from nanostories.novelty.histograms import histograms
from nanostories.novelty.intervals import ClusteredValues, Metric
from nanostories.novelty.search import Stream, count_distinct, search
from nanostories.novelty.words import WordCorpus, open_corpus
from nanostories.results import Table

PASSAGE = 4  # words
NEAR = 0.5  # a near-duplicate has more than this share of its passages in one other story
SEARCHED = 1000  # stories of each split at most that are compared with all training stories
COUNTED = 1_000_000  # words at most: of more words, a smaller share is different
OPENINGS = 5  # in the table
# Titles of metrics
IN_ONE = "share of 4-grams in one other story"
IN_ANY = "share of 4-grams in any other story"
LONGEST = "words of the longest passage in another story"
COUNTS = ("words", LONGEST)
YES_NO = ("has dialogue", "copy of another story", "near-duplicate")
DRAWN = ("words", IN_ONE, IN_ANY, LONGEST)


def diversity(directories: Sequence[Path]) -> tuple[list[Table], Figure]:
    """Of corpora that prepare.py made."""
    corpora = {str(directory): open_corpus(directory) for directory in directories}
    n = min(COUNTED, *(len(corpus.stream.ids) for corpus in corpora.values()))
    sizes = []
    openings = []
    rows = []
    metrics = {}
    for name, corpus in corpora.items():
        stories = np.split(corpus.stream.ids, corpus.stream.bounds[1:-1])
        row = {"data": name, "training stories": len(stories)}
        for k in (1, 2, PASSAGE):
            row[f"distinct {k}-grams"] = count_distinct(corpus.stream.ids[:n], k) / n
        sizes.append(row | load_meta(name)["cleaning"])
        spelling = list(corpus.vocabulary)
        begins = collections.Counter(tuple(story[:PASSAGE].tolist()) for story in stories)
        for opening, count in begins.most_common(OPENINGS):
            words = " ".join(spelling[word] for word in opening)
            openings.append({"data": name, "opening": words, "stories": count / len(stories)})
        metrics[name] = metrics_of(corpus, stories)
        for title, metric in metrics[name].items():
            cells = metric.cells()
            rows.append(
                {
                    "data": name,
                    "measure": title,
                    "validation": cells["completions"],
                    "training": cells["baseline"],
                    "difference": cells["difference"],
                }
            )
    about = (
        f"Distinct: how many of the k-grams in the first {n:,} words of each data set differ, those"
        " that go on in the next story included. The other columns: what prepare.py did."
    )
    shares = {column: ".1%" for column in sizes[0] if "distinct" in column}
    about_stories = (
        f"At most {SEARCHED:,} validation stories beside all training stories; at most"
        f" {SEARCHED:,} training stories (never over a tenth) beside the others. The more training"
        " stories, the more is shared: between data sets of different sizes, compare the"
        " differences."
        f" Near-duplicate: more than {NEAR:.0%} of the 4-grams are in one other story."
    )
    tables = [
        Table("Data", sizes, shares, about=about, facts={"kind": "data"}),
        Table("Openings", openings, {"stories": ".1%"}, facts={"kind": "openings"}),
        Table("Stories", rows, about=about_stories, facts={"kind": "diversity"}),
    ]
    return tables, histograms(metrics, DRAWN, "Blue: validation stories. Orange: training")


def metrics_of(corpus: WordCorpus, stories: Sequence[np.ndarray]) -> dict[str, Metric]:
    """By title. stories: the training stories."""
    # A tenth at most, so that both splits are compared with nearly all of the training stories
    step = max(10, -(-len(stories) // SEARCHED))
    chosen = [corpus.text(i) for i in range(0, len(stories), step)]
    others = list(stories)
    del others[::step]
    if not others:
        raise UserError(f"{corpus.directory}: one training story, without another to compare it to")
    bounds = np.cumsum([0, *map(len, others)])
    training = compare(chosen, corpus, Stream(np.concatenate(others), bounds))
    held_out = stories_of(corpus.held_out, corpus.tokenizer)
    validation = compare(list(itertools.islice(held_out, SEARCHED)), corpus, corpus.stream)
    metrics = {}
    for title in training:
        kind = dict(is_count=title in COUNTS, is_yes_no=title in YES_NO)
        metrics[title] = Metric(validation[title], training[title], **kind)
    return metrics


def compare(
    texts: Sequence[str], corpus: WordCorpus, training: Stream
) -> dict[str, ClusteredValues]:
    stories = [corpus.encode(text) for text in texts]
    matches = search(stories, training, PASSAGE)
    lengths = np.array([len(story) for story in stories])
    has_dialogue, is_copy, is_near = YES_NO
    values = {
        has_dialogue: np.array([SPEECH.search(text) is not None for text in texts]),
        is_copy: matches.longest() == lengths,
        is_near: matches.precision > NEAR,
        "words": lengths,
        IN_ONE: matches.precision,
        IN_ANY: matches.share(PASSAGE),
        LONGEST: matches.longest(),
    }
    numbers = np.arange(len(texts))
    return {title: ClusteredValues(x.astype(float), numbers) for title, x in values.items()}
