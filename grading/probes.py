"""
Prompts with known answers: read from files, and the share of them that each model answers right.

>>> read_probes(SETS[0], "facts")[0]
Probe(set='facts', prompt='The elephant is big, but the mouse is', answers=(' small', ' slow', ' soft', ' sweet'))
>>> shares(rows)["facts"]["out/demo"]  # rows: of probe.csv
Share(right=0.5, low=0.38, high=0.62, n=60)
"""

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.statistics import wilson
from common.tables import table_text
from corpus.token_files import load_stories
from generation.prompts import read_prompts
from grading.controls import in_other_order, sentences, shuffle
from grading.stories import Story

SETS = [Path(__file__).parent.parent / "prompts" / f"{name}.jsonl" for name in ("facts", "reasoning", "context")]
EXAMPLE = '{"prompt": "The sky is", "right": " blue", "wrong": [" green"]}'


class Probe(NamedTuple):
    set: str
    prompt: str
    answers: tuple[str, ...] = ()  # the right one first, then the wrong ones; none: the prompt is only continued

    def row(self) -> dict:
        """Its columns in probe.csv."""
        right, *wrong = self.answers or ("",)
        return dict(set=self.set, prompt=self.prompt, right=right, wrong=" |".join(wrong))


def read_probes(path: Path, name: str) -> list[Probe]:
    """The set `name`: prompts with answers, as in prompts/facts.jsonl, or plain ones, as sample.py reads them."""
    data = path.read_bytes()
    if path.suffix != ".jsonl" or b'"right"' not in data:
        return [Probe(name, prompt.text) for prompt in read_prompts(path)]
    lines = enumerate(data.split(b"\n"), 1)
    return [read_probe(line, name, f"{path}, line {i}") for i, line in lines if line.strip()]


def read_probe(line: bytes, name: str, where: str) -> Probe:
    """ValueError names the line if it is wrong."""
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
    return Probe(name, prompt, answers)


# ---- Sentence order: is a true story likelier than itself in another order? ----


def order_probes(corpus: Path) -> list[Probe]:
    """Each validation story against itself with all its sentences but the first shuffled, which has so many cues that
    even a model of a million parameters soon notices; and with two neighbors swapped, which is harder."""
    stories = [Story("", text) for text in load_stories(corpus, "val")[1]]
    orders = [
        (name, s.completion, change(s)) for name, change in (("shuffled", shuffle), ("swapped", swap)) for s in stories
    ]
    return [Probe(name, "", (true, other)) for name, true, other in orders if other]


def swap(story: Story) -> str | None:
    """The story with two neighboring sentences after the first swapped; None if it has too few that differ."""
    texts = [piece.strip() for piece in sentences(story.completion)[1:]]
    neighbors = [i for i in range(len(texts) - 1) if texts[i] != texts[i + 1]]
    if not neighbors:
        return None
    i = random.Random(story.completion).choice(neighbors)
    texts[i], texts[i + 1] = texts[i + 1], texts[i]
    return in_other_order(story, texts)


# ---- Results: rows of probe.csv ----


class Share(NamedTuple):
    """Of right answers, among those with a verdict, and its 95% interval."""

    right: float
    low: float
    high: float
    n: int


def models_in(rows: Sequence[dict]) -> list[str]:
    """The models in the rows of probe.csv."""
    return [column.removesuffix(" verdict") for column in rows[0] if column.endswith(" verdict")]


def shares(rows: Sequence[dict]) -> dict[str, dict[str, Share]]:
    """Rows of probe.csv -> {set: {model: its share}}; "chance" is one more model in sets with answers."""
    found = {}
    for name in dict.fromkeys(row["set"] for row in rows):
        own = [row for row in rows if row["set"] == name]
        for model in models_in(rows):
            if verdicts := [row[f"{model} verdict"] for row in own if row[f"{model} verdict"]]:
                right, n = verdicts.count("right") / len(verdicts), len(verdicts)
                found.setdefault(name, {})[model] = Share(right, *wilson(right, n), n)
        if name in found and all(row["right"] for row in own):
            chance = sum(1 / (2 + row["wrong"].count(" | ")) for row in own) / len(own)
            found[name]["chance"] = Share(chance, chance, chance, len(own))
    return found


def shares_text(rows: Sequence[dict]) -> str:
    """Models x sets; the last row is what guessing would score. Empty if nothing has a verdict."""
    sets, lines = shares(rows), []
    for model in (*models_in(rows), "chance"):
        cells = [f"{s.right:.1%}" + f" [{s.low:.1%}, {s.high:.1%}]" * (s.low < s.high) if s else "–"
                 for s in (of_set.get(model) for of_set in sets.values())]  # fmt: skip
        lines += [[model, *cells]] if set(cells) != {"–"} else []
    head = [f"{Path(name).stem} (n = {max(share.n for share in of_set.values())})" for name, of_set in sets.items()]
    return table_text(["answered right", *head], lines) if sets else ""
