"""
A likelihood judge: a language model on this machine reads what others wrote. It needs no key, and costs nothing.

>>> judge = LikelihoodJudge("lm:out/ts_33m")
>>> judge.read([(story, others)], cache)  # others: beginnings of other stories, from with_other_beginnings
>>> judge.scores(story, others, cache)
{'fluency': -0.81, 'consistency': 0.33, 'ending': 0.62}
"""

import collections
import functools
import hashlib
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from corpus import instruct_headers
from corpus.token_files import load_stories
from generation.backends import load_backend
from generation.prompts import Sampling, cut_story
from generation.token_likelihoods import log_likelihoods
from grading.controls import SAFE_TEMPERATURE, any_order
from grading.scores import LIKELIHOOD_PREFIX
from grading.stories import Run, Story

# Other beginnings show what does not belong to the story, other orders what does not follow. With beginnings alone (a
# pointwise mutual information), shuffled sentences went unnoticed; with orders alone, another story's ending: LOG.md.
N_OTHERS = 4
POOL, CUT = 64, 0.5  # validation stories whose beginnings are the others; the share of a story that is its beginning
AT_ONCE = 32  # stories that are read and saved together

# {score: (version, how many other beginnings it needs)}. To be raised with a change of that score: the others are then
# not read again.
DEFINITIONS = {"fluency": (1, 0), "consistency": (1, N_OTHERS), "ending": (1, 0)}

Texts = tuple[str, str]  # a beginning and a completion
Nats = tuple[float, float]  # log-likelihoods of a completion after a beginning, and that the story then ends


def value_of(score: str, n_bytes: int, own: Nats, *others: Nats) -> float | None:
    """None: a completion without text has no fluency, and without other stories there is no consistency.

    fluency      log-likelihood of the completion after its beginning, in bits per byte
    consistency  that, minus the mean of those after other beginnings, every second with its sentences in another order
    ending       the probability that the story ends where it ends
    """
    if score == "ending":
        return math.exp(own[1])
    if not n_bytes or score == "consistency" and not others:
        return None
    baseline = sum(text for text, _ in others) / len(others) if others else 0.0
    return (own[0] - baseline) / n_bytes / math.log(2)


def texts_of(score: str, story: Story, others: Sequence[str]) -> list[Texts]:
    """What the judge reads for this score."""
    others = others[: DEFINITIONS[score][1]]
    orders = [any_order(story, i) if i % 2 else story.completion for i in range(len(others))]
    return [(story.beginning, story.completion), *zip(others, orders)]


# ---- Other beginnings ----


@functools.cache
def beginnings(corpus: Path) -> tuple[str, ...]:
    """Those of the last POOL validation stories, hardly ever of one that is graded: --eval takes the first ones."""
    meta, stories = load_stories(corpus, "val")
    stories = collections.deque(stories, maxlen=POOL)
    if "headers" in meta:
        return tuple(instruct_headers.read(story).header for story in stories)
    return tuple(cut_story(story, CUT).text for story in stories)


def other_beginnings(story: Story, pool: Sequence[str]) -> tuple[str, ...]:
    """N_OTHERS of the pool: which ones depends on the story's own beginning alone."""
    others = [text for text in dict.fromkeys(pool) if text.rstrip() != story.beginning.rstrip()]
    return tuple(random.Random(story.task).sample(others, min(N_OTHERS, len(others))))


def with_other_beginnings(
    runs: Sequence[Run], controls: Mapping[str, Sequence[Story]], data: Path | None = None
) -> list[tuple[str, Story, tuple[str, ...]]]:
    """(run or kind of control, story, beginnings of validation stories of the run's own corpus, or of `data`).

    So a run's scores do not depend on other runs. Where there is no corpus, they are of the runs' own prompts.
    """
    corpora = {task: corpus for run in runs for task in run.tasks if (corpus := data or run.corpus)}
    prompts = sorted({story.beginning for run in runs for story in run.stories})
    jobs = [(run.name, story, data or run.corpus) for run in runs for story in run.stories]
    jobs += [(kind, story, None) for kind, stories in controls.items() for story in stories]
    jobs = [(name, story, corpus or corpora.get(story.task)) for name, story, corpus in jobs]
    is_here = {corpus: corpus is not None and (corpus / "meta.json").exists() for _, _, corpus in jobs}
    return [(n, s, other_beginnings(s, beginnings(c) if is_here[c] else prompts)) for n, s, c in jobs]


# ---- The judge ----


class LikelihoodJudge:
    """`cache` is grade.py's: {key of a score: dict(value=...)}. The same text always gets the same scores."""

    def __init__(self, name: str):
        """name: lm: and what sample.py's --model takes, except api:."""
        model = name.removeprefix(LIKELIHOOD_PREFIX)
        if model.startswith("api:"):
            raise ValueError(f"{name}: an endpoint gives no likelihoods; name it as --judge {model.partition(':')[2]}")
        self.name, self.backend = name, load_backend(model)
        self.weights = self.backend.identity()["weights"]

    def key(self, *facts) -> str:
        """Equal for the same score of the same texts by the same weights, wherever they are stored."""
        return hashlib.sha256(json.dumps([self.weights, *facts]).encode()).hexdigest()

    def keys(self, story: Story, others: Sequence[str]) -> dict[str, str]:
        """{score: its key}"""
        return {name: self.key(name, DEFINITIONS[name][0], texts_of(name, story, others)) for name in DEFINITIONS}

    def scores(self, story: Story, others: Sequence[str], cache: Mapping[str, dict]) -> dict[str, float]:
        """Those that are in the cache."""
        values = {name: cache[key]["value"] for name, key in self.keys(story, others).items() if key in cache}
        return {name: value for name, value in values.items() if value is not None}

    def read(self, jobs: Sequence[tuple[Story, tuple[str, ...]]], cache) -> None:
        """Adds the scores that the cache lacks, for stories with their other beginnings."""
        jobs = [job for job in dict.fromkeys(jobs) if not cache.keys() >= set(self.keys(*job).values())]
        jobs.sort(key=lambda job: len(job[0].beginning) + len(job[0].completion))
        with tqdm(desc=f"{self.name} reads", total=len(jobs), unit="story", disable=None, delay=1) as bar:
            for start in range(0, len(jobs), AT_ONCE):
                missing = {
                    key: (story, name, texts_of(name, story, others))
                    for story, others in jobs[start : start + AT_ONCE]
                    for name, key in self.keys(story, others).items()
                    if key not in cache
                }
                nats = self.nats_of({pair for _, _, texts in missing.values() for pair in texts})
                for key, (story, name, texts) in missing.items():
                    value = value_of(name, len(story.completion.encode()), *map(nats.get, texts))
                    cache.add(key, dict(judge=self.name, weights=self.weights, score=name, value=value))
                bar.update(min(AT_ONCE, len(jobs) - start))

    def nats_of(self, pairs: set[Texts]) -> dict[Texts, Nats]:
        """Beginning and completion are encoded apart: when a model wrote the completion, it began with a new token."""
        encode, end, pairs = self.backend.tokenizer.encode, [self.backend.tokenizer.end_of_text], sorted(pairs)
        ids = [(self.backend.encode(before), encode(text) + end) for before, text in pairs]
        nats = [each.double() for each in log_likelihoods(self.backend, ids)]
        if not all(each.isfinite().all() for each in nats):
            raise ValueError(f"{self.name}: its likelihoods are not finite; did its training diverge?")
        return {pair: (each[:-1].sum().item(), each[-1].item()) for pair, each in zip(pairs, nats)}

    def safe_endings(self, true_endings: Sequence[Story], cache) -> list[Story]:
        """What this model itself writes at a low temperature for these prompts, each for itself."""
        keys = {story: self.key("safe ending", SAFE_TEMPERATURE, story.beginning) for story in true_endings}
        missing = [story for story in keys if keys[story] not in cache and self.backend.fits(story.beginning)]
        seeds = [(int(keys[story][:8], 16), 0) for story in missing]
        sampling, prompts = Sampling(temperature=SAFE_TEMPERATURE), [story.beginning for story in missing]
        texts = self.backend.complete(prompts, seeds, sampling)
        for i, text, _ in tqdm(texts, "safe endings", total=len(missing), unit="story", disable=None, delay=1):
            cache.add(keys[missing[i]], dict(judge=self.name, weights=self.weights, value=text))
        return [replace(story, completion=cache[key]["value"]) for story, key in keys.items() if key in cache]
