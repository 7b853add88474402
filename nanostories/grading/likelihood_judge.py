"""
A likelihood judge: a language model on this machine, which reads the stories of others. It needs no
key and is free.

>>> judge = LikelihoodJudge("lm:out/ts_33m")
>>> judge.grade([story], corpus, cache)[story]
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
from statistics import fmean

import numpy as np
from tqdm import tqdm

from nanostories.checkpoints.models import Model, open_model
from nanostories.cli import UserError
from nanostories.corpus import instruct_headers
from nanostories.corpus.token_files import load_stories, text_identity
from nanostories.generation.backends import LocalBackend, load_backend
from nanostories.generation.prompts import cut_story
from nanostories.generation.token_likelihoods import log_likelihoods
from nanostories.grading.controls import reordered
from nanostories.grading.groups import Group
from nanostories.grading.metrics import bits_per_byte
from nanostories.grading.scores import LIKELIHOOD_PREFIX
from nanostories.grading.stories import Run, Story

# Other beginnings test whether an ending belongs to its story, other orders its order. With
# beginnings alone (a pointwise mutual information), shuffled sentences went unnoticed; with orders
# alone, another story's ending: LOG.md.
N_OTHERS = 4
POOL = 64  # validation stories, the last ones, whose beginnings are the others
BEGINNING = 0.5  # share of a story that is its beginning
AT_ONCE = 32  # stories that are read and saved together

Reading = tuple[str, str]  # a beginning, and the completion that is read after it


# ---- Texts and their likelihoods ----
def load_reader(model: Model) -> LocalBackend:
    """As load_backend; UserError for a model behind an API."""
    if model.kind == "api":
        raise UserError(
            f"{model.name}: an endpoint gives no log-likelihoods; it can grade (grade.py --judge"
            f" {model.reference}), and continue plain prompts (probe.py --prompts)"
        )
    return load_backend(model)


def read_texts(
    name: str, backend: LocalBackend, readings: Iterable[Reading], ends: bool, bar=None
) -> dict[Reading, np.ndarray]:
    """Log-likelihoods of each completion's tokens after its beginning; with `ends`, also that the
    story then ends.

    Beginning and completion are encoded apart: when a model wrote the completion, it began with a
    new token.
    """
    readings = sorted(set(readings))
    end = [backend.tokenizer.end_of_text] if ends else []
    ids = []
    for beginning, completion in readings:
        ids.append((backend.encode(beginning), backend.tokenizer.encode(completion) + end))
    nats = [each.double().numpy() for each in log_likelihoods(backend, ids, bar)]
    if not all(np.isfinite(each).all() for each in nats):
        raise UserError(f"{name}: its likelihoods are not finite; did its training diverge?")
    return dict(zip(readings, nats))


def readings_of(story: Story, others: Sequence[str]) -> list[Reading]:
    """What to read for a story: itself, then the same ending after other beginnings, every second
    time with its sentences in another order."""
    readings = [(story.prompt, story.completion)]
    for i, beginning in enumerate(others):
        readings.append((beginning, reordered(story, i) if i % 2 else story.completion))
    return readings


def scores_of(readings: Sequence[Reading], nats: Mapping[Reading, np.ndarray]) -> dict[str, float]:
    """A completion without text has no fluency, and without other stories there is no
    consistency."""
    scores = {}
    _, completion = readings[0]
    n_bytes = len(completion.encode())
    if n_bytes:
        bits = [nats[each][:-1].sum() / math.log(2) / n_bytes for each in readings]
        scores["fluency"] = bits[0]
        if len(bits) > 1:
            scores["consistency"] = bits[0] - fmean(bits[1:])
    scores["ending"] = math.exp(nats[readings[0]][-1])
    return scores


# ---- Other beginnings ----
@functools.cache
def beginnings(corpus: Path) -> tuple[str, ...]:
    """Those of the last POOL validation stories, hardly ever of one that is graded: --eval takes
    the first ones."""
    meta, stories = load_stories(corpus, "val")
    stories = collections.deque(stories, maxlen=POOL)
    if "headers" in meta:
        return tuple(instruct_headers.read(story).header for story in stories)
    return tuple(cut_story(story, BEGINNING).text for story in stories)


def other_beginnings(story: Story, corpus: Path) -> list[str]:
    """N_OTHERS of the corpus: which ones depends on the story's own beginning alone."""
    own = story.prompt.rstrip()
    others = [text for text in dict.fromkeys(beginnings(corpus)) if text.rstrip() != own]
    return random.Random(story.prompt).sample(others, min(N_OTHERS, len(others)))


# ---- The judge ----
class LikelihoodJudge:
    """A model of this machine that scores stories by their likelihoods. The same text always gets
    the same scores."""

    def __init__(self, name: str):
        """name: lm: and a model as in sample.py --model, except api:."""
        self.name = name
        self.model = open_model(name.removeprefix(LIKELIHOOD_PREFIX))
        self.backend = load_reader(self.model)
        self.weights = self.backend.identity()["weights"]

    def wrote(self, run: Run) -> bool:
        """Whether the judge, perhaps at another step, is the model of this run."""
        if run.rows[0].get("weights") == self.weights:
            return True
        if not run.model:
            return False
        judge = self.model.directory.resolve()
        other = run.model.directory.resolve()
        return other.is_relative_to(judge) or judge.is_relative_to(other)

    def key(self, readings: Sequence[Reading]) -> str:
        """Equal for the same texts by the same weights, wherever they are stored."""
        return hashlib.sha256(json.dumps([self.weights, readings]).encode()).hexdigest()

    def grade(
        self, stories: Iterable[Story], corpus: Path | None, cache
    ) -> dict[Story, dict[str, float]]:
        """{story: its scores}; those that the cache lacks are read, and added to it. corpus: whose
        beginnings are the others, if there is one. cache: grade.py's Cache: {self.key(…): {"judge",
        "scores"}}."""
        readings = {}
        for story in dict.fromkeys(stories):
            others = other_beginnings(story, corpus) if corpus else []
            readings[story] = readings_of(story, others)
        missing = [own for own in readings.values() if self.key(own) not in cache]
        missing.sort(key=lambda own: len("".join(own[0])))
        starts = range(0, len(missing), AT_ONCE)
        label = f"{self.name} reads"
        for start in tqdm(starts, label, unit_scale=AT_ONCE, disable=None, delay=1):
            batch = missing[start : start + AT_ONCE]
            together = itertools.chain.from_iterable(batch)
            nats = read_texts(self.name, self.backend, together, ends=True)
            for own in batch:
                facts = {"judge": self.name, "scores": scores_of(own, nats)}
                cache.add(self.key(own), facts)
        return {story: cache[self.key(own)]["scores"] for story, own in readings.items()}


def default_judges(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """{judge: the groups that it grades}: of each group, the run with the lowest bits per byte
    among those trained on its corpus. If there is one judge alone, it also grades the groups
    without such a run."""
    found = {}
    unjudged = []
    for group in groups:
        trained = [run for run in group.runs if is_of_corpus(run, group.corpus)]
        if trained:
            best = min(trained, key=bits_per_byte)
            name = f"{LIKELIHOOD_PREFIX}{os.path.relpath(best.model.directory)}"
            found.setdefault(name, []).append(group)
        else:
            unjudged.append(group)
    if len(found) == 1:
        (judged,) = found.values()
        judged += unjudged
    else:
        for group in unjudged:
            problem = "no judge, as none of the runs was trained on the corpus of these prompts"
            print(f"{group.title}: {problem}; name one: --judge lm:RUN")
    return found


def is_of_corpus(run: Run, corpus: Path | None) -> bool:
    """Whether its bits per byte are of these stories, in any vocabulary."""
    if bits_per_byte(run) is None:
        return False
    try:
        return text_identity(run.corpus) == text_identity(corpus)
    except UserError:  # another one has its name now
        return False
