"""
Prompts with known answers: read from files, and the share of them that each model answers right.

>>> read_probes(SETS[0], "facts")[0]
Probe(set='facts', prompt='The elephant is big, but the mouse is', answers=(' small', ' slow', '
soft', ' sweet'))
"""

import contextlib
import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanostories.cli import UserError
from nanostories.generation.prompts import read_prompts
from nanostories.results import Table
from nanostories.statistics import estimate, holm

OURS = ("facts", "reasoning", "context")
SETS = [Path(__file__).parents[2] / "prompts" / f"{name}.jsonl" for name in OURS]


class Probe(NamedTuple):
    set: str
    prompt: str
    answers: tuple[
        str, ...
    ] = ()  # the right one first, then the wrong ones; none: the prompt is only continued

    def row(self) -> dict:
        """Its columns in probe.csv."""
        right, *wrong = self.answers or ("",)
        return dict(set=self.set, prompt=self.prompt, right=right, wrong=" |".join(wrong))


def read_probes(path: Path, name: str) -> list[Probe]:
    """The set `name`: prompts with answers, as in prompts/facts.jsonl, or plain ones, as sample.py
    reads them."""
    data = path.read_bytes()
    if path.suffix != ".jsonl" or b'"right"' not in data:
        return [Probe(name, prompt.text) for prompt in read_prompts(path)]
    return [
        read_probe(line, name, f"{path}, line {i}")
        for i, line in enumerate(data.split(b"\n"), 1)
        if line.strip()
    ]


def read_probe(line: bytes, name: str, where: str) -> Probe:
    """UserError names the line if it is wrong.

    GPT-2's BPE splits text before every space that precedes a word, and merges only within these
    parts. So if answers begin with that space, prompt and answer get the same ids together as
    apart, whatever the vocabulary.
    """
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        row = json.loads(line)
        prompt, answers = row["prompt"], (row["right"], *row["wrong"])
        "".join((prompt, *answers)).encode()  # fails unless all are strings without lone surrogates
        if prompt and not prompt[-1].isspace() and len(answers) == len(set(answers)) > 1:
            if all(re.fullmatch(r" \S(.*\S)?", answer) for answer in answers):
                return Probe(name, prompt, answers)
    example = '{"prompt": "The sky is", "right": " blue", "wrong": [" green"]}'
    raise UserError(
        f"{where}: must be like {example}: one space before each answer, none after a text"
    )


# ---- Results ----
def groups_of(probes: Sequence[Probe]) -> dict[str, list[list[int]]]:
    """{set: the numbers of the prompts of each group}: a group has all prompts with the same
    answers, each of which is right equally often in our sets. Its prompts are no independent
    trials."""
    found = {}
    for i, probe in enumerate(probes):
        if probe.answers:
            groups = found.setdefault(probe.set, {})
            groups.setdefault(frozenset(probe.answers), []).append(i)
    return {name: list(groups.values()) for name, groups in found.items()}


def result_tables(probes: Sequence[Probe], right: dict[str, list[bool | None]]) -> list[Table]:
    """right: {model: for each prompt whether the right answer leads, None without answers}."""
    sets = groups_of(probes)
    if not sets:
        return []
    prompts = {"run": "(chance)"}
    whole = {"run": "(chance)"}
    for name, groups in sets.items():
        if Path(name).stem in OURS:
            shares = [1 / len(probes[group[0]].answers) for group in groups]
            prompts[name] = float(np.mean(shares))
            whole[name] = float(np.mean([p ** len(x) for p, x in zip(shares, groups)]))
    prompt_rows = []
    whole_rows = []
    for model, own in right.items():
        prompt_row = {"run": model}
        whole_row = {"run": model}
        for name, groups in sets.items():
            means = group_means(own, groups)
            prompt_row[name] = estimate(means, share=True).cell
            whole_row[name] = estimate(means == 1, share=True).cell
        prompt_rows.append(prompt_row)
        whole_rows.append(whole_row)
    formats = dict.fromkeys(sets, ".1%")
    counts = [f"{len(groups)} groups of {name}" for name, groups in sets.items()]
    about = f"95% intervals over {', '.join(counts)}: prompts with the same answers."
    tables = [
        Table("Prompts answered right", [*prompt_rows, prompts], formats, about=about),
        Table("Groups of which every prompt is answered right", [*whole_rows, whole], formats),
    ]
    tables[0].facts = {"kind": "shares"}
    tables[1].facts = {"kind": "groups"}
    differences = difference_table(sets, right)
    return [*tables, differences] if differences.rows else tables


def group_means(right: Sequence[bool | None], groups: Sequence[Sequence[int]]) -> np.ndarray:
    """(groups,) the share of each group's prompts that are answered right"""
    return np.array([np.mean([right[i] for i in group]) for group in groups])


def difference_table(sets: dict, right: dict[str, list[bool | None]]) -> Table:
    """Of each pair of models, on the same groups."""
    found = {}
    for a, b in itertools.combinations(right, 2):
        for name, groups in sets.items():
            difference = group_means(right[a], groups) - group_means(right[b], groups)
            found[f"{a} - {b}", name] = estimate(difference)
    corrected = holm(np.array([each.p for each in found.values()]))
    rows = []
    for ((pair, name), each), p in zip(found.items(), corrected):
        rows.append({"run": pair, "set": name, "difference": each.cell, "p (Holm)": float(p)})
    formats = {"difference": ".1%", "p (Holm)": ".3f"}
    return Table("Differences", rows, formats, facts={"kind": "differences"})
