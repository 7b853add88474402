"""
The likelihood judge, which needs no key: a model on this machine reads what others wrote (scores_from_likelihood.py).

>>> judge = LikelihoodJudge("lm:out/ts_33m", runs)
>>> controls[SAFE] = judge.safe_endings(runs, controls[TRUE], ledgers)
>>> requests = plan_requests(runs, controls, ledgers, judge)
>>> judge.grade(requests)
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from generation.backends import LocalBackend, Sampling, load_backend
from grading import ledger, scores_from_likelihood
from grading.judge_controls import SAFE_TEMPERATURE
from grading.ledger import Ledger, Request, Run
from grading.rubrics import PREFIX
from grading.scores_from_likelihood import DEFINITION, beginning, key_of_reading, other_beginnings
from grading.story import Story


class LikelihoodJudge:
    """A ledger.Judge. It always gives the same text the same scores, so once is enough."""

    repeats = 1

    def __init__(self, name: str, runs: Sequence[Run]):
        """name: lm: and what sample.py's --model takes, except api:. runs: all that are graded in this call."""
        model = name.removeprefix(PREFIX)
        if model.startswith("api:"):
            raise ValueError(f"{name}: an endpoint gives no likelihoods; name it as --judge {model.partition(':')[2]}")
        self.name = name if model.startswith("hf:") else f"{PREFIX}{Path(model)}"
        self.backend: LocalBackend = load_backend(model)
        self.weights = self.backend.identity()["weights"]
        self.setting = ledger.Setting(self.name, None, ledger.source_of(self.weights))
        self.others = other_beginnings(story for run in runs for story in run.stories)

    def key(self, story: Story, repeat: int) -> str:
        return key_of_reading(self.weights, story, self.others[story.task])

    def facts(self) -> dict:
        facts = dict(judge=self.name, weights=self.weights, base_url=None, temperature=None)
        return facts | dict(question_sha256=hashlib.sha256(DEFINITION.encode()).hexdigest())

    def safe_endings(self, runs: Sequence[Run], true_endings: Sequence[Story], ledgers: Mapping[str, Ledger]):
        """What this model itself writes at a low temperature for the prompts of the true endings. Those in the ledgers
        are not drawn again; each new one depends only on its prompt."""
        kept = ledger.safe_endings(runs, ledgers).get(self.setting.source, [])
        known = {story.task for story in kept}
        missing = [story for story in true_endings if story.task not in known]
        missing = [story for story in missing if self.backend.fits(beginning(story))]
        keys = [(int(hashlib.sha256(story.task.encode()).hexdigest()[:8], 16), 0) for story in missing]
        sampling = Sampling(temperature=SAFE_TEMPERATURE)
        completions = self.backend.complete([beginning(story) for story in missing], keys, sampling)
        bar = tqdm(completions, "safe endings", total=len(missing), unit="story", disable=None, delay=1, leave=False)
        return kept + [replace(missing[i], completion=text) for i, text, _ in bar]

    def grade(self, requests: Sequence[Request]) -> None:
        """Grades all of them; scores go to the ledgers at once."""
        if line := self.note_on_long_stories(requests):
            print(line)
        by_story = {request.story: request for request in requests}
        readings = sum(1 + len(self.others[story.task]) for story in by_story)
        with tqdm(desc=f"{self.name} reads", total=readings, unit="text", disable=None, delay=1) as bar:
            for story, scores in scores_from_likelihood.score(self.backend, list(by_story), self.others, bar):
                said = dict(text=None, scores=scores, failure=None)
                by_story[story].keep(**said, tokens_in=None, tokens_out=None, model=None)

    def dry_run(self, requests: Sequence[Request]) -> str:
        """What it would read."""
        others = sum(len(self.lengths(request.story)) - 1 for request in requests)
        tokens = sum(sum(self.lengths(request.story)) for request in requests)
        return (
            f"{self.name}: {len(requests):,} stories to read, plus {others:,} readings after other beginnings: about "
            f"{tokens:,} tokens, on this machine, at no cost\n{self.note_on_long_stories(requests)}"
        ).rstrip()

    def lengths(self, story: Story) -> list[int]:
        """In tokens: with its own beginning, then with each of the others."""
        text = len(self.backend.tokenizer.encode(story.completion))
        return [len(self.backend.encode(b)) + text for b in (beginning(story), *self.others[story.task])]

    def note_on_long_stories(self, requests: Sequence[Request]) -> str:
        context = self.backend.model.config.block_size
        n = sum(self.lengths(request.story)[0] > context for request in requests)
        what = f"{self.name}: {n:,} of {len(requests):,} stories are longer than its context of {context} tokens"
        return f"{what}; it reads them in windows that overlap by half" if n else ""
