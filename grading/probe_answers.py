"""
Prompts with known answers: how likely a model finds each answer, and how often the right one wins.

>>> probes = read_probes(SETS[0], "facts")
>>> answer_probes(load_backend("out/demo"), probes, Sampling(temperature=0, max_new_tokens=16), bar)[0].verdict
'right'
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from common.statistics import wilson
from common.tables import table_text
from generation.backends import LocalBackend, Sampling
from generation.prompts import read_prompts
from generation.token_likelihoods import log_likelihoods

SETS = [Path(__file__).parent.parent / "prompts" / f"{name}.jsonl" for name in ("facts", "reasoning", "context")]
NEARLY = 0.1  # nats per byte: a verdict is "nearly" if the best wrong answer leads by no more than this
EXAMPLE = '{"prompt": "The sky is", "right": " blue", "wrong": [" green"]}'


# ---- What is asked ----


@dataclass(frozen=True)
class Probe:
    set: str
    prompt: str
    answers: tuple[str, ...] = ()  # the right one first, then the wrong ones; none: the prompt is only continued


def read_probes(path: Path, name: str) -> list[Probe]:
    """The set `name`: prompts with answers, as in prompts/facts.jsonl, or plain ones, as sample.py reads them.

    ValueError names the line that is wrong.
    """
    data = path.read_bytes()
    if path.suffix != ".jsonl" or b'"right"' not in data:
        return [Probe(name, prompt.text) for prompt in read_prompts(path)]
    lines = enumerate(data.split(b"\n"), 1)
    return [Probe(name, *read_answers(line, f"{path}, line {i}")) for i, line in lines if line.strip()]


def read_answers(line: bytes, where: str) -> tuple[str, tuple[str, ...]]:
    """A prompt and its answers, the right one first."""
    try:
        row = json.loads(line)
        prompt, answers = row["prompt"], (row["right"], *row["wrong"])
        "".join((prompt, *answers)).encode()  # fails unless all are strings without lone surrogates
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(f"{where}: must be an object such as {EXAMPLE}") from None
    # GPT-2's BPE splits text before every space that precedes a word, and merges only within these parts. So a prompt
    # and its answer get the same ids together as apart, whatever the vocabulary.
    if not prompt or prompt != prompt.rstrip():
        raise ValueError(f"{where}: the prompt must be a text that does not end with a space")
    if not all(re.fullmatch(r" \S(.*\S)?", answer) for answer in answers):
        raise ValueError(f"{where}: every answer must begin with one space, and not end with one")
    if len(answers) < 2 or len(set(answers)) < len(answers):
        raise ValueError(f"{where}: there must be a wrong answer, and no answer twice")
    return prompt, answers


# ---- What a model answers ----


@dataclass(frozen=True)
class Result:
    scores: tuple[float, ...]  # log-likelihood of each answer in nats per byte, in their order
    greedy: str  # how the model itself continues the prompt

    @property
    def lead(self) -> float:
        """Of the right answer over the best wrong one, in nats per byte."""
        return self.scores[0] - max(self.scores[1:])

    @property
    def verdict(self) -> str:
        if not self.scores:
            return ""
        return "right" if self.lead > 0 else "nearly" if self.lead >= -NEARLY else "wrong"


def answer_probes(backend, probes: Sequence[Probe], sampling: Sampling, bar: tqdm) -> list[Result]:
    """ValueError says why this model cannot take these prompts. sampling: of the model's own continuation."""
    pairs = [(probe.prompt, answer) for probe in probes for answer in probe.answers]
    if pairs and not isinstance(backend, LocalBackend):
        raise ValueError("an endpoint gives no log-likelihoods of answers; give it plain prompts, with --prompts")
    for text in [prompt + answer for prompt, answer in pairs] + [probe.prompt for probe in probes]:
        if not backend.fits(text):
            raise ValueError(f'the context, {backend.model.config.block_size} tokens, is too short for "{text[:40]}…"')
    scores = iter(nats_per_byte(backend, pairs, bar) if pairs else [])
    greedy = [""] * len(probes)
    prompts, keys = [probe.prompt for probe in probes], [(i, 0) for i in range(len(probes))]
    for i, text, _ in backend.complete(prompts, keys, sampling):
        greedy[i] = text
        bar.update()
    return [Result(tuple(itertools.islice(scores, len(probe.answers))), text) for probe, text in zip(probes, greedy)]


def nats_per_byte(backend: LocalBackend, pairs: Sequence[tuple[str, str]], bar: tqdm) -> list[float]:
    """The log-likelihood of each answer after its prompt, divided by the answer's length in UTF-8 bytes."""
    ids = [(backend.encode(prompt), backend.tokenizer.encode(answer)) for prompt, answer in pairs]
    nats = log_likelihoods(backend, ids, bar)
    return [of_answer.sum().item() / len(answer.encode()) for of_answer, (_, answer) in zip(nats, pairs)]


# ---- Tables ----


def tabulate(probes: Sequence[Probe], results: dict[str, list[Result]]) -> list[dict]:
    """Rows of probe.csv, prompts x models: of each model its verdict, the right answer's lead, and its own text."""
    rows = []
    for probe, *of_models in zip(probes, *results.values()):
        row = dict(set=probe.set, prompt=probe.prompt)
        row |= dict(right="".join(probe.answers[:1]), wrong=" |".join(probe.answers[1:]))
        for model, result in zip(results, of_models):
            lead = f"{result.lead:.4f}" if result.scores else ""
            row |= {f"{model} verdict": result.verdict, f"{model} lead": lead, f"{model} greedy": result.greedy}
        rows.append(row)
    return rows


class Score(NamedTuple):
    """The models' scores on one set of probes."""

    n: int  # prompts
    chance: float
    shares: dict[str, tuple[float, float, float]]  # of right answers, by model, and the ends of its 95% interval


def models_in(rows: Sequence[dict]) -> list[str]:
    """The models in the rows of probe.csv."""
    return [column.removesuffix(" verdict") for column in rows[0] if column.endswith(" verdict")]


def score(rows: Sequence[dict]) -> dict[str, Score]:
    """Rows of probe.csv -> {set: its Score}, of the sets that have answers."""
    scores = {}
    for name in dict.fromkeys(row["set"] for row in rows if row["right"]):
        own = [row for row in rows if row["set"] == name]
        n, chance = len(own), sum(1 / (2 + row["wrong"].count(" | ")) for row in own) / len(own)
        shares = {model: sum(row[f"{model} verdict"] == "right" for row in own) / n for model in models_in(rows)}
        scores[name] = Score(n, chance, {model: (share, *wilson(share, n)) for model, share in shares.items()})
    return scores


def scores_text(rows: Sequence[dict], markdown: bool = False) -> str:
    """Models x sets; the last row is what guessing would score. Empty if no set has answers."""
    if not (scores := score(rows)):
        return ""
    lines = []
    for model in models_in(rows):
        shares = (of_set.shares[model] for of_set in scores.values())
        lines.append([model, *(f"{share:.1%} [{low:.1%}, {high:.1%}]" for share, low, high in shares)])
    lines.append(["chance", *(f"{of_set.chance:.1%}" for of_set in scores.values())])
    return table_text(["", *(f"{name} (n = {of_set.n})" for name, of_set in scores.items())], lines, markdown)
