"""
Prompts with known answers: read from files, and the share of them that each model answers right; a
reader's marks.

>>> read_probes(SETS[0], "facts")[0]
Probe(set='facts', prompt='The elephant is big, but the mouse is', answers=(' small', ' slow', '
soft', ' sweet'))
>>> print(shares_text(read_table(Path("out/probe.csv"))))
"""

import contextlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nanostories.cli import UserError
from nanostories.generation.prompts import read_prompts
from nanostories.statistics import wilson
from nanostories.tables import read_table, table_text, write_table

OURS = ("facts", "reasoning", "context")
SETS = [Path(__file__).parents[2] / "prompts" / f"{name}.jsonl" for name in OURS]
MARKS = ("right", "nearly", "wrong")


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
    """ValueError names the line if it is wrong.

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


# ---- Results: rows of probe.csv ----
def models_in(rows: Sequence[dict]) -> list[str]:
    return [column.removesuffix(" verdict") for column in rows[0] if column.endswith(" verdict")]


def shares(rows: Sequence[dict]) -> dict[str, dict[str, list[float]]]:
    """Rows of probe.csv -> {set: {model: for each verdict, 1 if it is right}}; "chance" is one more
    model in our sets, where each answer is right equally often: right in 1 / number of answers."""
    models, found = models_in(rows), {}
    for row in rows:
        right = {
            model: float(row[f"{model} verdict"] == "right")
            for model in models
            if row[f"{model} verdict"]
        }
        if row["set"] in OURS:
            right["chance"] = 1 / (2 + row["wrong"].count(" | "))
        for model, share in right.items():
            found.setdefault(row["set"], {}).setdefault(model, []).append(share)
    return found


def shares_text(rows: Sequence[dict]) -> str:
    """Models x sets, with Wilson's intervals; the last row is the score of guessing. Empty without
    verdicts."""
    sets, lines = shares(rows), []
    for model in dict.fromkeys(model for by_model in sets.values() for model in by_model):
        cells = []
        for right in (by_model.get(model, []) for by_model in sets.values()):
            share = sum(right) / max(1, len(right))
            interval = (
                " [{:.1%}, {:.1%}]".format(*wilson(share, len(right)))
                if right and model != "chance"
                else ""
            )
            cells.append(f"{share:.1%}{interval}" if right else "–")
        lines.append([model, *cells])
    head = [
        f"{Path(name).stem} (n = {max(map(len, by_model.values()))})"
        for name, by_model in sets.items()
    ]
    return table_text(["answered right", *head], lines) if sets else ""


# ---- A reader's marks, where there are no answers: the paper's green, yellow and red ----
def apply_marks(path: Path, rows: Sequence[dict], ask: bool) -> int:
    """Fills in the verdicts of prompts without answers from `path`, a CSV of prompt, completion and
    mark, whichever model wrote it. If `ask`, the reader is shown each completion without a mark
    first, and not its model. Returns how many are still unmarked."""
    plain = [(row, model) for row in rows if not row["right"] for model in models_in(rows)]
    marks = (
        {(row["prompt"], row["completion"]): row["mark"] for row in read_table(path)}
        if path.exists()
        else {}
    )
    waiting = sorted(
        {(row["prompt"], row[f"{model} greedy"]) for row, model in plain} - marks.keys()
    )
    with contextlib.suppress(EOFError):
        for i, pair in enumerate(waiting if ask else (), 1):
            print(
                "\n{} of {}, the completion follows ***\n\n{} ***{}\n".format(
                    i, len(waiting), *pair
                )
            )
            key = input("r right, n nearly, w wrong, Enter later, Ctrl-D to quit: ").strip().lower()
            if marked := [mark for mark in MARKS if key and mark.startswith(key)]:
                marks[pair] = marked[0]
                write_table(
                    path,
                    [
                        dict(prompt=prompt, completion=text, mark=m)
                        for (prompt, text), m in marks.items()
                    ],
                )
    for row, model in plain:
        row[f"{model} verdict"] = marks.get((row["prompt"], row[f"{model} greedy"]), "")
    return sum(pair not in marks for pair in waiting)
