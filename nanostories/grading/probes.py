"""
Prompts with known answers: read from files, and the share of them that each model answers right.

>>> read_probes(PROBE_FILES[0])[0]
Probe(set='facts', prompt='The elephant is big, but the mouse is', answers=(' small', ' slow', '
soft', ' sweet'))
"""

import itertools
import json
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanostories.cli import UserError
from nanostories.files import PROMPTS
from nanostories.generation.prompts import read_prompts
from nanostories.results import Table
from nanostories.statistics import difference_rows, estimate

OURS = ("facts", "reasoning", "context")
PROBE_FILES = [PROMPTS / f"{name}.jsonl" for name in OURS]
EXAMPLE = (
    '{"prompt": "The sky is", "right": " blue", "wrong": [" green"]}: one space before each answer,'
    " none after a text"
)


class Probe(NamedTuple):
    set: str
    prompt: str
    # the right one first, then the wrong ones; none: the prompt is only continued
    answers: tuple[str, ...] = ()

    def row(self) -> dict:
        """Its columns in probe.csv."""
        right, *wrong = self.answers or ("",)
        return dict(set=self.set, prompt=self.prompt, right=right, wrong=" |".join(wrong))


def read_probes(path: Path) -> list[Probe]:
    """Of a set: prompts with answers, as in prompts/facts.jsonl, or plain ones, as sample.py reads
    them."""
    name = path.stem if path in PROBE_FILES else str(path)
    if path.suffix != ".jsonl":
        return [Probe(name, prompt.text) for prompt in read_prompts(path)]
    probes = read_lines(path, partial(probe_of, name), EXAMPLE)
    if not probes:
        raise UserError(f"{path}: no prompts in it; a line is like {EXAMPLE}")
    return probes


def read_lines(path: Path, make: Callable[[dict], tuple], example: str) -> list:
    """make(row) of each line of a .jsonl file; UserError names one of which nothing can be made."""
    found = []
    for i, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(make(json.loads(line)))
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{path}, line {i}: must be like {example}") from None
    return found


def probe_of(name: str, row: dict) -> Probe:
    """ValueError, TypeError or KeyError if there is something wrong with a row.

    GPT-2's BPE splits text before every space that precedes a word, and merges only within these
    parts. So if answers begin with that space, prompt and answer get the same ids together as
    apart, whatever the vocabulary.
    """
    probe = Probe(name, row["prompt"], (row["right"], *row["wrong"]))
    are_answers = all(re.fullmatch(r" \S(.*\S)?", answer) for answer in probe.answers)
    "".join((probe.prompt, *probe.answers)).encode()  # ValueError for half characters
    are_several = len(probe.answers) == len(set(probe.answers)) > 1
    if not (are_answers and are_several and re.search(r"\S\Z", probe.prompt)):
        raise ValueError
    return probe


# ---- Results ----
def grouped(keys: Mapping[int, tuple[str, Hashable]]) -> dict[str, list[list[int]]]:
    """{set: the numbers of each of its groups}. keys: {number: (set, group)}"""
    found = {}
    for i, (name, group) in keys.items():
        found.setdefault(name, {}).setdefault(group, []).append(i)
    return {name: list(groups.values()) for name, groups in found.items()}


def result_tables(probes: Sequence[Probe], right: dict[str, list[bool]]) -> list[Table]:
    """right: {model: for each prompt whether the right answer leads}. All
    prompts with the same answers are a group: each answer is right equally often in our sets, so
    they are no independent trials."""
    keys = {i: (x.set, frozenset(x.answers)) for i, x in enumerate(probes) if x.answers}
    sets = grouped(keys)
    if not sets:
        return []
    rows = []
    for model, is_right in right.items():
        row = {"run": model}
        for name, groups in sets.items():
            row[name] = estimate(group_means(is_right, groups), share=True).cell
        rows.append(row)
    chance = {"run": "(chance)"}
    for name, groups in sets.items():
        if Path(name).stem in OURS:
            chance[name] = float(np.mean([1 / len(probes[group[0]].answers) for group in groups]))
    if len(chance) > 1:
        rows.append(chance)
    formats = dict.fromkeys(sets, ".1%")
    counts = [f"{len(groups)} groups of {name}" for name, groups in sets.items()]
    about = f"95% intervals over {', '.join(counts)}: prompts with the same answers."
    facts = {"kind": "shares"}
    tables = [Table("Prompts answered right", rows, formats, about=about, facts=facts)]
    found = differences(sets, right, "set")
    if found:
        tables.append(difference_table(found))
    return tables


def group_means(right: Sequence[bool], groups: Sequence[Sequence[int]]) -> np.ndarray:
    """(groups,) the share of each group's prompts that are answered right"""
    return np.array([np.mean([right[i] for i in group]) for group in groups])


def differences(sets: dict, right: dict[str, Sequence], column: str) -> list[dict]:
    """Rows: of each pair of models, on the same groups. column: where the sets are named."""
    found = {}
    for a, b in itertools.combinations(right, 2):
        for name, groups in sets.items():
            difference = group_means(right[a], groups) - group_means(right[b], groups)
            found[f"{a} minus {b}", name] = estimate(difference)
    return difference_rows(found, column)


def difference_table(rows: list[dict], about: str = "") -> Table:
    formats = {"difference": ".1%", "p (Holm)": ".3f"}
    return Table("Differences", rows, formats, about=about, facts={"kind": "differences"})
