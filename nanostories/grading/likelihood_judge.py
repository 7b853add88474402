"""
A likelihood judge: a language model on this machine, which reads the stories of others. It needs no
key and is free.

>>> judge = LikelihoodJudge("lm:out/ts_33m")
>>> judge.score([(story, others)], cache)[story, others]  # others: beginnings of other stories
{'fluency': -0.81, 'consistency': 0.33, 'ending': 0.62}

fluency      log-likelihood of the completion after its beginning, in bits per byte
consistency  that, minus the mean of those after other beginnings, every second with its sentences
in another order
ending       the probability that the story ends where it ends
"""

import collections
import functools
import hashlib
import itertools
import json
import math
import os
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from nanostories.checkpoints.checkpoint import find_training_corpus, load_checkpoint
from nanostories.checkpoints.models import open_model
from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.corpus.token_files import load_stories
from nanostories.generation.backends import LocalBackend, load_backend
from nanostories.generation.prompts import cut_story
from nanostories.generation.token_likelihoods import log_likelihoods
from nanostories.grading.controls import any_order
from nanostories.grading.metrics import bits_per_byte
from nanostories.grading.scores import LIKELIHOOD, LIKELIHOOD_PREFIX
from nanostories.grading.stories import Run, Story

# Other beginnings test whether an ending belongs to its story, other orders its order. With
# beginnings alone (a pointwise mutual information), shuffled sentences went unnoticed; with orders
# alone, another story's ending: LOG.md.
N_OTHERS = 4
POOL, CUT = (
    64,
    0.5,
)  # validation stories whose beginnings are the others; the share of a story that is its beginning
AT_ONCE = 96  # scores that are read and saved together

Texts = tuple[str, str]  # a beginning and a completion
Job = tuple[
    str, Story, tuple[str, ...]
]  # a run, or a kind of control; its story; beginnings of other stories


def read_texts(
    name: str, backend: LocalBackend, texts: Iterable[Texts], ends: bool, bar=None
) -> dict[Texts, Tensor]:
    """Log-likelihoods of each completion's tokens after its beginning; with `ends`, also that the
    story then ends.

    Beginning and completion are encoded apart: when a model wrote the completion, it began with a
    new token.
    """
    texts, end = sorted(set(texts)), [backend.tokenizer.end_of_text] * ends
    ids = [(backend.encode(prompt), backend.tokenizer.encode(text) + end) for prompt, text in texts]
    nats = [each.double() for each in log_likelihoods(backend, ids, bar)]
    if not all(each.isfinite().all() for each in nats):
        raise UserError(f"{name}: its likelihoods are not finite; did its training diverge?")
    return dict(zip(texts, nats))


def texts_of(score: str, story: Story, others: Sequence[str]) -> list[Texts]:
    """The texts to read for this score; the story itself comes first."""
    orders = [any_order(story, i) if i % 2 else story.completion for i in range(len(others))]
    own = (story.beginning, story.completion)
    return [own, *zip(others, orders)] if score == "consistency" else [own]


def value_of(score: str, texts: Sequence[Texts], nats: Mapping[Texts, Tensor]) -> float | None:
    """None: a completion without text has no fluency, and without other stories there is no
    consistency."""
    own, *others = (nats[pair][:-1].sum().item() for pair in texts)
    n_bytes = len(texts[0][1].encode())
    if score == "ending":
        return math.exp(nats[texts[0]][-1].item())
    if not n_bytes or score == "consistency" and not others:
        return None
    return (own - (sum(others) / len(others) if others else 0.0)) / n_bytes / math.log(2)


# ---- Other beginnings ----
@functools.cache
def beginnings(corpus: Path) -> tuple[str, ...]:
    """Those of the last POOL validation stories, hardly ever of one that is graded: --eval takes
    the first ones."""
    meta, stories = load_stories(corpus, "val")
    stories = collections.deque(stories, maxlen=POOL)
    if "headers" in meta:
        return tuple(instruct_headers.read(story).header for story in stories)
    return tuple(cut_story(story, CUT).text for story in stories)


def other_beginnings(story: Story, corpus: Path | None) -> tuple[str, ...]:
    """N_OTHERS of the corpus: which ones depends on the story's own beginning alone. () if there is
    no corpus."""
    pool = beginnings(corpus) if corpus and (corpus / "meta.json").exists() else ()
    others = [text for text in dict.fromkeys(pool) if text.rstrip() != story.beginning.rstrip()]
    return tuple(random.Random(story.beginning).sample(others, min(N_OTHERS, len(others))))


def jobs_of(
    runs: Sequence[Run], controls: Mapping[str, Sequence[Story]], data: Path | None = None
) -> list[Job]:
    """The stories of the runs, and the controls of their prompts, each with beginnings of the run's
    own corpus (or of `data`), so that scores do not depend on other runs. Without a corpus: those
    of a run with the same prompt."""
    corpora = {
        story.beginning: run.corpus for run in reversed(runs) for story in run.stories if run.corpus
    }
    prompts = set().union(*(run.beginnings for run in runs))
    sources = [(run.name, story, run.corpus) for run in runs for story in run.stories]
    sources += [
        (kind, story, None)
        for kind in controls
        for story in controls[kind]
        if story.beginning in prompts
    ]
    return [
        (name, story, other_beginnings(story, data or corpus or corpora.get(story.beginning)))
        for name, story, corpus in sources
    ]


# ---- The judge ----
def default_judges(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """{judge: the runs that it grades}. Of the runs trained on the same text, the one with the
    lowest bits per byte grades them all, and those of models that were not trained here."""
    trained = {run: bpb for run in runs if run.corpus and (bpb := bits_per_byte(run.model))}
    best = {run.text: run for run in sorted(trained, key=trained.get, reverse=True)}
    return {
        f"{LIKELIHOOD_PREFIX}{os.path.relpath(judge.model)}": [
            run for run in runs if run.text in (text, None)
        ]
        for text, judge in best.items()
    }


class LikelihoodJudge:
    """`cache` is grade.py's: {key of a score: dict(value=...)}. The same text always gets the same
    scores."""

    def __init__(self, name: str):
        """name: lm: and a model as in sample.py --model, except api:."""
        model = name.removeprefix(LIKELIHOOD_PREFIX)
        if model.startswith("api:"):
            raise UserError(
                f"{name}: an endpoint gives no likelihoods; name it as --judge"
                f" {model.partition(':')[2]}"
            )
        self.name, self.backend = name, load_backend(open_model(model))
        # None if it is no run of train.py
        self.corpus = find_training_corpus(load_checkpoint(model)) if Path(model).exists() else None
        self.weights = self.backend.identity()["weights"]

    def key(self, *facts) -> str:
        """Equal for the same score of the same texts by the same weights, wherever they are
        stored."""
        return hashlib.sha256(json.dumps([self.weights, *facts]).encode()).hexdigest()

    def score(
        self, jobs: Iterable[tuple[Story, tuple[str, ...]]], cache
    ) -> dict[tuple, dict[str, float]]:
        """{(story, beginnings of others): its scores}; those that the cache lacks are read, and
        added to it."""
        keys, missing, found = {}, {}, {}
        for job, score in itertools.product(jobs, LIKELIHOOD):
            texts = texts_of(score, *job)
            keys[job, score] = key = self.key(score, texts)
            if key not in cache:
                missing[key] = (score, texts)
        missing = sorted(missing.items(), key=lambda each: len("".join(each[1][1][0])))
        starts = range(0, len(missing), AT_ONCE)
        for start in tqdm(
            starts, f"{self.name} reads", unit="score", unit_scale=AT_ONCE, disable=None, delay=1
        ):
            batch = missing[start : start + AT_ONCE]
            nats = read_texts(
                self.name,
                self.backend,
                (pair for _, (_, texts) in batch for pair in texts),
                ends=True,
            )
            for key, (score, texts) in batch:
                value = value_of(score, texts, nats)
                cache.add(
                    key, dict(judge=self.name, weights=self.weights, score=score, value=value)
                )
        for (job, score), key in keys.items():
            found.setdefault(job, {}).update(
                {score: cache[key]["value"]} if cache[key]["value"] is not None else {}
            )
        return found
