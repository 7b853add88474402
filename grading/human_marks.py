"""
A reader's marks for completions of plain prompts: right, nearly or wrong (the paper's green, yellow and red).

marks.csv has prompt, completion and mark, whichever models wrote it: nothing is asked twice, and the reader does not
see which model it is. You may also fill it in with a spreadsheet.
"""

from collections.abc import Sequence
from pathlib import Path

from common.tables import read_user_table, write_table
from grading.probes import models_in

MARKS = ("right", "nearly", "wrong")
QUESTION = "r right, n nearly, w wrong, Enter later, q quit: "


def read_marks(path: Path) -> dict[tuple[str, str], str]:
    """{(prompt, completion): mark}; {} if there is no file. ValueError names a bad line."""
    marks = {}
    for where, row in read_user_table(path, ("prompt", "completion", "mark")) if path.exists() else ():
        mark = row["mark"].strip().lower()
        if mark not in (*MARKS, ""):
            raise ValueError(f"{where}: a mark is right, nearly, wrong, or empty, not {mark!r}")
        marks[row["prompt"], row["completion"]] = mark
    return marks


def apply_marks(path: Path, rows: Sequence[dict], ask: bool) -> int:
    """Fills in the verdicts of prompts without answers in the rows of probe-prompts.csv. If `ask`, it first shows each
    completion without a mark, and saves the answer before the next one. Returns how many are still unmarked."""
    marks, plain, models = read_marks(path), [row for row in rows if not row["right"]], models_in(rows)
    pairs = [(row["prompt"], text) for row in plain for text in sorted({row[f"{model} greedy"] for model in models})]
    waiting = [pair for pair in dict.fromkeys(pairs) if not marks.get(pair)]
    for i, pair in enumerate(waiting if ask else (), 1):
        print("\n{} of {}, the completion follows ***\n\n{} ***{}\n".format(i, len(waiting), *pair))
        try:
            answer = input(QUESTION).strip().lower()
        except EOFError:  # piped input has ended
            break
        if answer in ("q", "quit"):
            break
        if marked := [mark for mark in MARKS if answer and mark.startswith(answer)]:
            marks[pair] = marked[0]
            table = [dict(prompt=prompt, completion=text, mark=mark) for (prompt, text), mark in marks.items()]
            write_table(path, table, ("prompt", "completion", "mark"))
    for row, model in ((row, model) for row in plain for model in models):
        row[f"{model} verdict"] = marks.get((row["prompt"], row[f"{model} greedy"]), "")
    return sum(not marks.get(pair) for pair in waiting)
