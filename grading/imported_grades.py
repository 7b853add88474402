"""
Grades made elsewhere, by people or another program: a CSV with one line per grading, with the numbers of prompt and
sample in samples.jsonl; or, without prompt and sample, with the mean of a run on each line.

    run,prompt,sample,judge,grammar,plot
    demo,0,2,a teacher,7,5.5
"""

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from common.tables import read_user_table
from grading.scores import AGES, CHAT, IMPORTED
from grading.stories import Row, Run


def imported_rows(paths: Sequence[Path], runs: Sequence[Run]) -> Iterator[Row]:
    """ValueError names the first line that is wrong."""
    places = {(run.name, "", ""): None for run in runs}
    for run in runs:
        for row, story in zip(run.rows, run.stories):
            places[run.name, str(row["prompt_index"]), str(row["sample_index"])] = story
    for where, cells in (line for path in paths for line in read_user_table(path, ("run", "judge"))):
        cells = {name: cell.strip() for name, cell in cells.items()}
        place, judge = (cells.pop("run"), cells.pop("prompt", ""), cells.pop("sample", "")), cells.pop("judge")
        if place not in places:
            raise ValueError(f"{where}: no run, prompt and sample {place}; runs: {', '.join(r.name for r in runs)}")
        for score in cells.keys() - CHAT.keys():
            raise ValueError(f"{where}: {score} is no score; the scores are {', '.join(CHAT)}")
        for score, cell in cells.items():
            low, high = CHAT[score].scale
            number = str(AGES.get(cell.upper(), cell) if score == "age" else cell)
            value = float(number) if re.fullmatch(r"\d+\.?\d*", number) else math.nan
            if cell and not low <= value <= high:
                raise ValueError(f"{where}: {score} is {cell!r}, not from {low:g} to {high:g}")
            if cell:
                yield Row(judge + IMPORTED, place[0], places[place], score, value)
