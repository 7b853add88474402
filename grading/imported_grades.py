"""
Grades that were made elsewhere, by people or another program. They are kept next to ours and never mixed with them.

The input is a CSV with one line per grading, with the numbers of prompt and sample in samples.jsonl,

    run,prompt,sample,judge,grammar,plot
    demo,0,2,a teacher,7,5.5

or, without prompt and sample, with the means of a run on each line. Each run's lines go to its grades-imported.jsonl,
where later calls find them. A grading is left out once its completion has changed, as with our own judges.

>>> add_grades(Path("teacher.csv"), runs, ledgers)
'teacher.csv: 100 gradings and 0 means by a teacher'
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from common import statistics
from common.tables import read_user_table
from grading.compare_models import Finding
from grading.ledger import Ledger, Run
from grading.rubrics import AGES, CHAT, IMPORTED, MEANS, is_likelihood_judge
from grading.story import Story, key_of

FILE = "grades-imported.jsonl"
PLACE = ("prompt", "sample")  # numbers; a line without them is a mean


def add_grades(path: Path, runs: Sequence[Run], ledgers: Mapping[str, Ledger]) -> str:
    """Appends what is new in the CSV to the ledgers, {run: its ledger}; returns a summary of the CSV.

    ValueError names the first line that is wrong or contradicts an earlier import; then nothing is added.
    """
    new, judges, counts, places = {}, {}, dict(completion=0, mean=0), {}
    for run in runs:
        numbers = ((str(row["prompt_index"]), str(row["sample_index"])) for row in run.rows)
        places[run.name] = dict(zip(numbers, run.stories))
    for where, row in read_user_table(path, ("run", "judge")):
        record = read_row(where, row, places) | dict(file=path.name, time=round(time.time()))
        known = ledgers[record["run"]].scores.get(record["key"], new.get(record["key"], record)["scores"])
        if known != record["scores"]:
            said = ", ".join(f"{name} {value:g}" for name, value in known.items())
            remedy = f"to replace what was imported, delete {FILE} in the run"
            raise ValueError(f"{where}: {record['judge']} has graded this already ({said}); {remedy}")
        if record["key"] not in ledgers[record["run"]].scores:
            new[record["key"]] = record
        judges[record["judge"]] = None
        counts[record["kind"]] += 1
    for record in new.values():
        ledgers[record["run"]].append(record)
    return f"{path}: {counts['completion']:,} gradings and {counts['mean']:,} means by {', '.join(judges)}"


def read_row(where: str, row: Mapping[str, str], places: Mapping[str, Mapping[tuple[str, str], Story]]) -> dict:
    """The ledger record of a row. places: {run: {(prompt, sample): story}}."""
    row = {name: cell.strip() for name, cell in row.items()}
    name, judge = row.pop("run"), row.pop("judge")
    if name not in places:
        raise ValueError(f"{where}: there is no run {name!r} here, only {', '.join(places)}")
    if not judge or is_likelihood_judge(judge):
        raise ValueError(f"{where}: {judge!r} is not a name for a judge")
    place = tuple(row.pop(column, "") for column in PLACE)
    scores = {figure: read_cell(where, figure, cell) for figure, cell in row.items() if cell}
    if not scores:
        raise ValueError(f"{where}: no score in it; the scores are {', '.join(CHAT.scores)}")
    asked = dict(judge=judge, base_url=IMPORTED, repeat=0, protocol=IMPORTED, temperature=None, run=name)
    asked |= dict(scores=scores, text=None, failure=None, tokens_in=None, tokens_out=None)
    if not any(place):
        return asked | dict(key=key_of(IMPORTED, "mean", judge, name), kind="mean", text_sha256="")
    if not (story := places[name].get(place)):
        raise ValueError(f"{where}: {name} has no prompt {place[0]!r} with a sample {place[1]!r}; both count from 0")
    prompt_index, sample_index = map(int, place)
    key = key_of(IMPORTED, "completion", judge, name, prompt_index, sample_index, story.sha256)
    asked |= dict(prompt_index=prompt_index, sample_index=sample_index)
    return asked | dict(key=key, kind="completion", text_sha256=story.sha256)


def read_cell(where: str, figure: str, cell: str) -> float:
    """A number within the scale of the score; an age may be the letter of its group."""
    if figure not in CHAT.scores:
        raise ValueError(f"{where}: {figure!r} is not a score; the scores are {', '.join(CHAT.scores)}")
    low, high = CHAT.scores[figure].scale
    try:
        value = AGES[cell.upper()] if figure == "age" and cell.upper() in AGES else float(cell)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise ValueError(f"{where}: {figure} is {cell!r}, not a number from {low:g} to {high:g}")
    return value


def imported_means(runs: Sequence[Run], ledgers: Mapping[str, Ledger]) -> list[Finding]:
    """The means that were imported without gradings; they have no intervals and no differences."""
    findings = {}
    for run in runs:
        for key, asked in ledgers[run.name].asked.items():
            for figure, value in ledgers[run.name].scores[key].items() if asked["kind"] == "mean" else ():
                finding = Finding("mean", f"{asked['judge']} ({MEANS})", run.name, figure, value)
                findings.setdefault((finding.judge, figure), []).append(finding)
    for several in findings.values():
        normalized = statistics.normalized(np.array([finding.value for finding in several]))
        several[:] = [replace(finding, normalized=value) for finding, value in zip(several, normalized)]
    return [finding for several in findings.values() for finding in several]
