"""
A reader's marks for completions of plain prompts: right, nearly or wrong (the paper's green, yellow and red).

A mark belongs to a prompt and a completion, whichever models wrote it. Marks are kept in marks.csv (prompt, completion,
mark), which you may also fill in by hand. So nothing is asked twice, and the reader does not see which model it is.

>>> count_marks(rows)["factual.json"]["out/demo"]
{'right': 4, 'nearly': 2, 'wrong': 2, '': 1}
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from common.statistics import wilson
from common.tables import read_user_table, table_text, write_table
from grading.probe_answers import models_in

FILE = "marks.csv"  # next to probe-prompts.csv
MARKS = ("right", "nearly", "wrong")
QUESTION = "r right, n nearly, w wrong, Enter later, q quit: "

Pair = tuple[str, str]  # prompt, completion


def read_marks(path: Path) -> dict[Pair, str]:
    """{(prompt, completion): mark}, "" where there is none yet; {} if there is no file. ValueError names a bad line."""
    marks = {}
    for where, row in read_user_table(path, ("prompt", "completion", "mark")) if path.exists() else ():
        mark = row["mark"].strip().lower()
        if mark not in (*MARKS, ""):
            raise ValueError(f"{where}: a mark is right, nearly, wrong, or empty, not {mark!r}")
        pair = row["prompt"], row["completion"]
        if mark and marks.get(pair, "") not in ("", mark):
            raise ValueError(f"{where}: marked {mark} here and {marks[pair]} above; keep one of the two")
        marks[pair] = mark or marks.get(pair, "")
    return marks


def write_marks(path: Path, marks: Mapping[Pair, str]) -> None:
    rows = [dict(prompt=prompt, completion=completion, mark=mark) for (prompt, completion), mark in marks.items()]
    write_table(path, rows, ("prompt", "completion", "mark"))


def pairs_in(rows: Sequence[dict]) -> list[Pair]:
    """The pairs to mark in the rows of probe-prompts.csv, once each: prompts without answers and their greedy
    completions, in alphabetical order, which says nothing about the models."""
    pairs = {}
    for row in rows:
        texts = (row[f"{model} greedy"] for model in models_in(rows) if not row["right"])
        pairs |= dict.fromkeys((row["prompt"], text) for text in sorted(texts))
    return list(pairs)


def ask_for_marks(path: Path, pairs: Sequence[Pair], marks: dict[Pair, str]) -> None:
    """Shows each pair that has no mark yet, and saves what the reader answers before the next one is shown."""
    waiting = [pair for pair in pairs if not marks.get(pair)]
    for i, (prompt, completion) in enumerate(waiting, 1):
        print(f"\n{i} of {len(waiting)}, the completion follows ***\n\n{prompt} ***{completion}\n")
        mark = None
        while mark is None:
            try:
                answer = input(QUESTION).strip().lower()
            except EOFError:  # piped input has ended
                answer = "q"
            if answer in ("q", "quit"):
                return
            mark = next((mark for mark in ("", *MARKS) if answer in (mark, mark[:1])), None)
        if mark:
            marks[prompt, completion] = mark
            write_marks(path, marks)


def apply_marks(rows: Sequence[dict], marks: Mapping[Pair, str]) -> None:
    """Fills in the verdicts of the prompts without answers in the rows of probe-prompts.csv."""
    for row in rows:
        for model in models_in(rows) if not row["right"] else ():
            row[f"{model} verdict"] = marks.get((row["prompt"], row[f"{model} greedy"]), "")


def count_marks(rows: Sequence[dict]) -> dict[str, dict[str, Counter]]:
    """{set: {model: how often each mark}}, for the sets without answers in which anything is marked."""
    counts = {}
    for row in rows:
        for model in models_in(rows) if not row["right"] else ():
            counts.setdefault(row["set"], {}).setdefault(model, Counter())[row[f"{model} verdict"]] += 1
    return {name: models for name, models in counts.items() if any(map(share_right, models.values()))}


def share_right(counts: Counter) -> tuple[float, float, float] | None:
    """The share of marks that are right, and the ends of its 95% interval; None if nothing is marked."""
    n = sum(counts[mark] for mark in MARKS)
    return (counts["right"] / n, *wilson(counts["right"] / n, n)) if n else None


def marks_text(rows: Sequence[dict], markdown: bool = False) -> str:
    """Models x sets: right / nearly / wrong, and the share that is right. Empty if nothing is marked."""
    of_sets = count_marks(rows)
    lines = []
    for model in models_in(rows) if of_sets else ():
        cells = [of_models[model] for of_models in of_sets.values()]
        total = sum(cells, Counter())
        share = share_right(total)
        lines.append([model, *map(counts_text, cells), *([counts_text(total)] if len(cells) > 1 else [])])
        lines[-1].append("{:.1%} [{:.1%}, {:.1%}]".format(*share) if share else "–")
    sets = [Path(name).stem for name in of_sets] + ["all"] * (len(of_sets) > 1)
    head = ["right / nearly / wrong, by a reader", *sets, "right"]
    return table_text(head, lines, markdown) if lines else ""


def counts_text(counts: Counter) -> str:
    unmarked = f" ({counts['']} not marked)" if counts[""] else ""
    return " / ".join(str(counts[mark]) for mark in MARKS) + unmarked
